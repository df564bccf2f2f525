"""Hostile input against a live proxy: one clear answer, soon, and a worker that serves the next request."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from litellm_compaction.envelope.payload import Payload
from litellm_compaction.envelope.sealing import PREFIX, Caller, KeyRing, seal_payload
from tests.support.backend import (
    ScriptedBackend,
    Step,
    Summary,
    Text,
    is_summary_request,
    request_text,
    running_backend,
)
from tests.support.bodies import TRIGGER, user
from tests.support.proxy import MASTER_KEY, LiveProxy, base_config, running_proxy

Json = dict[str, Any]
DOORS = ("ordinary", "trigger", "streamed", "compact")
RING = KeyRing([MASTER_KEY])
PAYLOAD = Payload(origin="trigger", summary="the code word is heron", kept=(user("kept words"),))
# Far over what any of these takes on two busy cores, and far below a hang.
MOST_SECONDS = 45


def answer(body: Json) -> Step:
    return Summary("a summary") if is_summary_request(body) else Text("fine")


@pytest.fixture(scope="module")
def shared_backend() -> Iterator[ScriptedBackend]:
    with running_backend() as backend:
        yield backend


@pytest.fixture
def backend(shared_backend: ScriptedBackend) -> Iterator[ScriptedBackend]:
    shared_backend.reset()
    shared_backend.answer_with(answer)
    yield shared_backend
    shared_backend.verify()


@pytest.fixture(scope="module")
def proxy(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """One proxy for all of it, so that what an attack leaves behind meets the next one."""
    with running_proxy(base_config(shared_backend.url)) as proxy:
        yield proxy


def item(content: object, item_id: str = "cmp_1") -> Json:
    return {"type": "compaction", "id": item_id, "encrypted_content": content}


def sealed(**members: Any) -> Json:
    """An item that only the operator's keys can make."""
    return item(seal_payload(PAYLOAD.model_copy(update=members), RING, Caller(), "none", os.urandom))


def resealed(packed: bytes) -> Json:
    """Any bytes sealed with the operator's keys."""
    key_id, cipher = RING.sealing
    nonce = os.urandom(12)
    bytes_ = key_id + nonce + cipher.encrypt(nonce, packed, PREFIX.encode() + key_id)
    return item(PREFIX + base64.urlsafe_b64encode(bytes_).decode().rstrip("="))


def send(
    proxy: LiveProxy, door: str, items: list[Any] | str, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """One request to a door with these items, or with their JSON; it is answered in time."""
    text = items if isinstance(items, str) else json.dumps(items)
    if door in {"trigger", "streamed"}:
        text = f"{text[:-1]}, {json.dumps(TRIGGER)}]"
    stream = ', "stream": true' if door == "streamed" else ""
    return send_raw(proxy, door, f'{{"model": "local-model", "input": {text}{stream}}}'.encode(), headers)


def send_raw(proxy: LiveProxy, door: str, body: bytes, headers: Mapping[str, str] | None = None) -> httpx.Response:
    path = "/v1/responses/compact" if door == "compact" else "/v1/responses"
    started = time.monotonic()
    with proxy.client() as client:
        response = client.post(path, content=body, headers={"content-type": "application/json", **(headers or {})})
    assert time.monotonic() - started < MOST_SECONDS
    return response


def error(response: httpx.Response, status: int = 400) -> Json:
    """The one error of a refusal, in the shape of the contract."""
    assert response.status_code == status, response.text[:500]
    told: Json = response.json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert len(response.text) < 5_000
    return told


def is_alive(proxy: LiveProxy) -> bool:
    """Whether the same worker serves an item that is fine."""
    return send(proxy, "ordinary", [sealed(), user("go on")]).status_code == 200


def serve(backend: ScriptedBackend, proxy: LiveProxy) -> None:
    assert is_alive(proxy)
    assert "heron" in request_text(backend.requests[-1])

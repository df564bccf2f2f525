"""The backend dies at each step; every way ends in an error of the contract, at once, and nothing is handed out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.support.backend import (
    BrokenStream,
    CutBody,
    Drip,
    Failure,
    Gated,
    Hangup,
    ScriptedBackend,
    Step,
    Summary,
    Text,
)
from tests.support.bodies import HISTORY, TRIGGER, Json, user
from tests.support.proxy import LiveProxy, base_config, read_event, running_proxy

DOORS = ["plain", "streamed", "compact"]


@pytest.fixture(scope="module")
def fragile(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """A proxy that repeats nothing, with a model of a short deadline and one whose server is not there."""
    config = base_config(shared_backend.url)
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    params = {"model": "deepseek/served-model", "api_base": shared_backend.url, "api_key": "x"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        nobody = {**params, "api_base": f"http://127.0.0.1:{taken.getsockname()[1]}/v1"}
        config["model_list"] += [
            {"model_name": "nobody", "litellm_params": nobody},
            {"model_name": "soon", "litellm_params": params, "model_info": {"compaction": {"deadline_seconds": 2}}},
            {"model_name": "later", "litellm_params": params, "model_info": {"compaction": {"deadline_seconds": 6}}},
        ]
        with running_proxy(config) as proxy:
            yield proxy


def ask(proxy: LiveProxy, door: str, model: str = "deepseek") -> httpx.Response:
    if door == "compact":
        return proxy.post("/v1/responses/compact", {"model": model, "input": HISTORY})
    return proxy.post("/v1/responses", {"model": model, "stream": door == "streamed", "input": [*HISTORY, TRIGGER]})


def assert_recovers(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """The conversation is as it was: one message longer, it compacts, and no slot or flight is left behind."""
    backend.script(Summary("SUM"))
    body = {"model": "deepseek", "input": [*HISTORY, user("again"), TRIGGER]}
    assert proxy.post("/v1/responses", body).status_code == 200


EARLY: dict[str, Step] = {
    "before-headers": Hangup(),
    "mid-body": CutBody(Summary("never whole")),
    "500": Failure(500, {"message": "on fire"}),
    "502-html": Failure(502),
    "503": Failure(503, {"message": "overloaded"}),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("step", EARLY.values(), ids=EARLY)
def test_backend_that_dies_is_a_failed_compaction(
    fragile: LiveProxy, backend: ScriptedBackend, step: Step, door: str
) -> None:
    """Killed before the headers, in the body, or answering in pain: compaction_failed under `failure_status`."""
    backend.script(step)
    response = ask(fragile, door)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("api_error", "compaction_failed", None)
    assert error["message"].endswith("The conversation is unchanged.")
    assert_recovers(fragile, backend)


@pytest.mark.parametrize("door", DOORS)
def test_backend_that_is_not_there(fragile: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A refused connection fails at once."""
    response = ask(fragile, door, "nobody")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "compaction_failed")
    assert "127.0.0.1" not in response.text


@pytest.mark.parametrize("door", ["plain", "compact"])
def test_slow_drip_ends_at_the_deadline(fragile: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A backend that sends a byte now and then for ever does not hold the client beyond the deadline."""
    gate = threading.Event()
    backend.script(Drip(Summary("never"), gate))
    started = time.monotonic()
    response = ask(fragile, door, "soon")
    assert time.monotonic() - started < 20
    gate.set()
    assert (response.status_code, response.json()["error"]["code"]) == (504, "compaction_timeout")
    assert_recovers(fragile, backend)


LATE: dict[str, tuple[str, Step, str]] = {
    "hangup": ("deepseek", Hangup(), "compaction_failed"),
    "mid-body": ("deepseek", CutBody(Summary("never whole")), "compaction_failed"),
    "prose-twice": ("deepseek", Text("prose"), "compaction_failed"),
    "deadline": ("later", Hangup(), "compaction_timeout"),
}


@pytest.mark.parametrize(("model", "step", "code"), LATE.values(), ids=LATE)
def test_death_after_the_stream_has_begun(
    fragile: LiveProxy, backend: ScriptedBackend, model: str, step: Step, code: str
) -> None:
    """After the first events: `error`, then `response.failed`, one code, no finished item."""
    gate = threading.Event()
    assert not isinstance(step, Gated | Drip | BrokenStream)
    backend.script(Gated(step, gate), *([Text("prose")] if isinstance(step, Text) else []))
    events: list[Json] = []
    body = {"model": model, "stream": True, "input": [*HISTORY, TRIGGER]}
    with fragile.client() as client, client.stream("POST", "/v1/responses", json=body) as response:
        for line in response.iter_lines():
            if (event := read_event(line)) is not None:
                events.append(event)
                if model == "deepseek":
                    gate.set()
    gate.set()
    assert [event["type"] for event in events][-2:] == ["error", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == code
    assert not any(event["type"] in {"response.output_item.done", "response.completed"} for event in events)
    assert_recovers(fragile, backend)

"""Items travel: to every worker, to every proxy with the keys, to backends of every kind, and to nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.backend import ScriptedBackend, Summary, Text, request_text
from tests.support.bodies import HISTORY, TRIGGER, Json, compact, user
from tests.support.proxy import LiveProxy, base_config, running_proxy


def with_keys(backend: ScriptedBackend, *keys: str) -> Json:
    return base_config(backend.url, {"keys": list(keys)})


@pytest.fixture(scope="module")
def twin(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """Another proxy with the same keys, of two workers, and a model whose server speaks the Responses API itself."""
    config = base_config(shared_backend.url)
    native = {"model": "openai/served-model", "api_base": shared_backend.url, "api_key": "x"}
    config["model_list"].append({"model_name": "speaks-responses", "litellm_params": native})
    with running_proxy(config, workers=2) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def older(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """A proxy with a key of its own."""
    with running_proxy(with_keys(shared_backend, "old-secret-0123456789")) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def rotated(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """The same proxy after its key was replaced."""
    with running_proxy(with_keys(shared_backend, "new-secret-0123456789", "old-secret-0123456789")) as proxy:
        yield proxy


def assert_unreadable(proxy: LiveProxy, item: Json) -> None:
    response = proxy.post("/v1/responses", {"model": "local-model", "input": [item, user("go on")]})
    assert response.status_code == 400, response.text
    assert response.json()["error"] == {
        "message": f"The encrypted content for item {item['id']} could not be verified. "
        "Reason: Encrypted content could not be decrypted or parsed.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_encrypted_content",
    }


def test_every_worker_and_proxy_with_the_key_opens(proxy: LiveProxy, twin: LiveProxy, backend: ScriptedBackend) -> None:
    """An item of one proxy opens in every worker of another one with the same keys."""
    backend.script(Summary("S-FACT"), *[Text("fine")] * 6)
    item = compact(proxy, HISTORY)
    for model in ("local-model", "deepseek", "hosted") * 2:
        # A connection each, so that both workers are asked.
        assert twin.post("/v1/responses", {"model": model, "input": [item, user("go on")]}).status_code == 200
    assert all("S-FACT" in request_text(request) for request in backend.requests[1:])


def test_another_key_opens_nothing(proxy: LiveProxy, older: LiveProxy, backend: ScriptedBackend) -> None:
    """A proxy with other keys refuses the item in the one wording, and asks no backend."""
    backend.script(Summary("S1"))
    assert_unreadable(older, compact(proxy, HISTORY))
    assert len(backend.requests) == 1


def test_a_replaced_key_still_opens(older: LiveProxy, rotated: LiveProxy, backend: ScriptedBackend) -> None:
    """After a rotation old items open, and new ones are sealed with the new key."""
    backend.script(Summary("S-OLD"), Text("fine"), Summary("S-NEW"))
    item = compact(older, HISTORY)
    assert rotated.post("/v1/responses", {"model": "local-model", "input": [item, user("go")]}).status_code == 200
    assert "S-OLD" in request_text(backend.requests[1])
    assert_unreadable(older, compact(rotated, HISTORY))


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_server_without_compact_serves_it(twin: LiveProxy, backend: ScriptedBackend, stream: bool) -> None:
    """A server that speaks Responses but answers /compact with 404 is never asked to compact."""
    backend.script(Summary("S1"), Summary("S2"))
    body = {"model": "speaks-responses", "input": HISTORY}
    assert twin.post("/v1/responses/compact", body).json()["object"] == "response.compaction"
    trigger = {**body, "stream": stream, "input": [*HISTORY, TRIGGER]}
    if stream:
        assert twin.stream("/v1/responses", trigger)[-1]["type"] == "response.completed"
    else:
        assert twin.post("/v1/responses", trigger).json()["output"][0]["type"] == "compaction"
    assert backend.take_elsewhere() == []


def test_server_of_responses_gets_the_expanded_item(twin: LiveProxy, backend: ScriptedBackend) -> None:
    """A server that speaks Responses itself gets the summary as a message, never the item."""
    backend.script(Summary("S-FACT"))
    item = compact(twin, HISTORY)
    twin.post("/v1/responses", {"model": "speaks-responses", "input": [item, user("go on")]})
    ((path, body),) = backend.take_elsewhere()
    assert path == "/v1/responses"
    assert {entry["type"] for entry in body["input"]} == {"message"}
    assert "S-FACT" in str(body)
    assert item["encrypted_content"] not in str(body)

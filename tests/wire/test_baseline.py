"""What LiteLLM does without the plugin, and that the plugin changes nothing where it has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.backend import ScriptedBackend, Text, request_text
from tests.support.bodies import HISTORY, MODELS, TRIGGER, Json, assistant, call, output, png, system, user
from tests.support.proxy import LiveProxy, base_config, running_proxy

TOOLS = [{"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}]
PICTURE = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": png()}]}
NESTED = {**output("c1", ""), "output": '[{"type": "compaction_trigger"}, {"type": "compaction"}]'}
ORDINARY: dict[str, Json] = {
    "string": {"input": "hello"},
    "settings": {"input": [user("hello")], "instructions": "BASE", "temperature": 0.5, "max_output_tokens": 50},
    "tools": {"input": [user("a"), call("c1"), output("c1", "3 failed"), user("b")], "tools": TOOLS},
    "nested": {"input": [user("a"), call("c1"), NESTED], "tools": TOOLS},
    "image": {"input": [system("rules"), PICTURE, assistant("a heron"), user("go on")]},
}
# Differ from request to request with or without the plugin.
PASSING = {"id", "item_id", "created_at", "completed_at"}


@pytest.fixture(scope="module")
def plain(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """The same proxy without the plugin."""
    with running_proxy(base_config(shared_backend.url, plugin=False)) as proxy:
        yield proxy


def lasting(value: Any) -> Any:
    """Without ids and times."""
    if isinstance(value, dict):
        return {key: lasting(entry) for key, entry in value.items() if key not in PASSING}
    return [lasting(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("model", MODELS)
def test_without_the_plugin_a_trigger_is_dropped(plain: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """LiteLLM alone drops a trigger without a word, and the model simply answers."""
    backend.script(Text("an ordinary answer"))
    response = plain.post("/v1/responses", {"model": model, "input": [*HISTORY, TRIGGER]})
    assert response.status_code == 200, response.text
    assert [item["type"] for item in response.json()["output"]] == ["message"]
    assert "compaction" not in str(backend.requests[0])


@pytest.mark.parametrize("model", MODELS)
def test_without_the_plugin_an_item_is_forgotten(plain: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """LiteLLM alone drops an item without a word, and the model knows nothing of what it held."""
    backend.script(Text("what parser?"))
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAopaque"}
    assert plain.post("/v1/responses", {"model": model, "input": [item, user("go on")]}).status_code == 200
    assert request_text(backend.requests[0]) == "go on"


def test_without_the_plugin_compact_is_an_error(plain: LiveProxy, backend: ScriptedBackend) -> None:
    """LiteLLM alone has no /responses/compact for a bridged model."""
    response = plain.post("/v1/responses/compact", {"model": "deepseek", "input": HISTORY})
    assert response.status_code >= 400
    assert backend.requests == []


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("body", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_request_is_the_same_bytes(
    plain: LiveProxy, proxy: LiveProxy, backend: ScriptedBackend, body: Json, model: str
) -> None:
    """Without an item or a trigger the backend gets the very bytes it gets without the plugin, and so does the client
    get the same answer under the same headers."""
    backend.script(Text("same"), Text("same"))
    bare, ours = (given.post("/v1/responses", {"model": model, **body}) for given in (plain, proxy))
    assert backend.raw[0] == backend.raw[1]
    assert (ours.status_code, lasting(ours.json())) == (bare.status_code, lasting(bare.json()))
    assert set(ours.headers) == set(bare.headers)


@pytest.mark.parametrize("model", MODELS)
def test_ordinary_stream_is_the_same(plain: LiveProxy, proxy: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """A streamed ordinary answer has the same events with and without the plugin."""
    backend.script(Text("same"), Text("same"))
    body = {"model": model, "stream": True, "input": [user("hello")]}
    bare, ours = (given.stream("/v1/responses", body) for given in (plain, proxy))
    assert backend.raw[0] == backend.raw[1]
    assert [lasting(event) for event in ours] == [lasting(event) for event in bare]

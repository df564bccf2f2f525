"""Both doors, for every way LiteLLM takes to a backend, in exactly the shapes of the contract."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.support.backend import Failure, Gated, ScriptedBackend, Summary, Text, ToolCall, request_text
from tests.support.bodies import HISTORY, MODELS, TRIGGER, assistant, call, output, png, user
from tests.support.proxy import LiveProxy, base_config, read_event, running_proxy

ITEM_KEYS = {"id", "type", "encrypted_content"}
# What Codex 0.171 sends beside the input.
CODEX_FIELDS: dict[str, Any] = {
    "tools": [{"type": "function", "name": "shell", "parameters": {"type": "object"}}, {"type": "web_search"}],
    "tool_choice": "required",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto", "effort": "high"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "thread-1",
    "client_metadata": {"session_id": "s"},
    "text": {"verbosity": "low"},
    "service_tier": "priority",
}


@pytest.mark.parametrize("model", MODELS)
def test_trigger_answers_with_one_item(proxy: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """A trigger that is not streamed is answered by a completed Response holding exactly the one item."""
    backend.script(Summary("S1"))
    response = proxy.post("/v1/responses", {"model": model, "input": [*HISTORY, TRIGGER], **CODEX_FIELDS})
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", model)
    assert body["error"] is None
    assert [set(item) for item in body["output"]] == [ITEM_KEYS]
    item = body["output"][0]
    assert item["type"] == "compaction"
    assert item["id"].startswith("cmp_")
    assert item["encrypted_content"]
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"], body["usage"]["total_tokens"]) == (
        100,
        20,
        120,
    )


@pytest.mark.parametrize("model", MODELS)
def test_streamed_trigger_sends_the_five_events(proxy: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """A streamed trigger sends the contract's events in order, numbered without gaps, with one item throughout."""
    backend.script(Summary("S1"))
    events = proxy.stream("/v1/responses", {"model": model, "stream": True, "input": [*HISTORY, TRIGGER]})
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(5))
    added, done, completed = events[2]["item"], events[3]["item"], events[4]["response"]["output"]
    assert set(done) == ITEM_KEYS
    assert added == done
    assert completed == [done]
    assert {event["output_index"] for event in events[2:4]} == {0}
    assert events[4]["response"]["usage"]["total_tokens"] == 120
    assert events[4]["response"]["model"] == model
    assert len({event["response"]["id"] for event in (events[0], events[1], events[4])}) == 1


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/responses/compact", "/v1/responses/compact?beta=true"])
@pytest.mark.parametrize("model", MODELS)
def test_compact_has_exactly_its_five_keys(proxy: LiveProxy, backend: ScriptedBackend, path: str, model: str) -> None:
    """/responses/compact answers with its five keys: the user's messages verbatim and in order, then the item."""
    backend.script(Summary("S1"))
    response = proxy.post(path, {"model": model, "input": HISTORY, "stream": True, "future_field": 1, **CODEX_FIELDS})
    assert response.status_code == 200, response.text
    body = response.json()
    assert set(body) == {"id", "object", "created_at", "output", "usage"}
    assert body["object"] == "response.compaction"
    assert body["id"].startswith("resp_")
    assert isinstance(body["created_at"], int)
    assert [item["type"] for item in body["output"]] == ["message", "message", "compaction"]
    assert [item["content"] for item in body["output"][:2]] == [HISTORY[0]["content"], HISTORY[2]["content"]]
    assert {item["role"] for item in body["output"][:2]} == {"user"}
    assert set(body["output"][2]) == ITEM_KEYS
    assert set(body["usage"]) == {
        "input_tokens",
        "input_tokens_details",
        "output_tokens",
        "output_tokens_details",
        "total_tokens",
    }


@pytest.mark.parametrize(
    ("given", "shown"),
    [("plain history", "plain history"), (user("one object"), "one object")],
    ids=["string", "object"],
)
def test_loose_input_counts_as_items(proxy: LiveProxy, backend: ScriptedBackend, given: object, shown: str) -> None:
    """A string is one user message, a bare object a list of one item."""
    backend.script(Summary("S1"))
    body = proxy.post("/v1/responses/compact", {"model": "local-model", "input": given}).json()
    assert body["output"][0]["content"] == [{"type": "input_text", "text": shown}]
    assert shown in request_text(backend.requests[0])


def test_summary_request_is_its_own(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """The summary call forces its one tool, shows the history as text with images, and carries nothing else."""
    items = [
        *HISTORY,
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": png()}]},
        call("c1", arguments='{"command": "pytest -q"}'),
        output("c1", "3 failed, 12 passed"),
        {"type": "custom_tool_call", "call_id": "k1", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "k1", "output": "patched"},
        {"type": "local_shell_call", "call_id": "l1", "action": {"type": "exec", "command": ["ls", "-la"]}},
        {"type": "local_shell_call_output", "call_id": "l1", "output": "setup.py"},
        {"type": "brand_new_item", "detail": "unheard of"},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "namespace", "name": "secret_tools"}]},
    ]
    backend.script(Summary("S1"))
    body = {"model": "local-model", "input": [*items, TRIGGER], "instructions": "BASE PROMPT", **CODEX_FIELDS}
    assert proxy.post("/v1/responses", body).status_code == 200
    sent = backend.requests[0]
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["create_summary"]
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    text = request_text(sent)
    for shown in (
        "the code word is heron",
        "pytest -q",
        "3 failed, 12 passed",
        "*** Begin Patch",
        "setup.py",
        "unheard of",
    ):
        assert shown in text
    for hidden in ("BASE PROMPT", "secret_tools", "compaction_trigger", "thread-1"):
        assert hidden not in json.dumps(sent)
    images = [part for part in sent["messages"][1]["content"] if part["type"] == "image_url"]
    assert [image["image_url"]["url"] for image in images] == [png()]
    assert text.rstrip().endswith("Do nothing else.")


def test_nested_trigger_is_data(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """An object of the trigger's type inside a tool output starts nothing."""
    items = [user("look"), call("c1"), {**output("c1", ""), "output": json.dumps([TRIGGER])}]
    backend.script(Text("an ordinary answer"))
    body = {
        "model": "local-model",
        "input": items,
        "tools": [{"type": "function", "name": "shell", "parameters": {"type": "object"}}],
    }
    answer = proxy.post("/v1/responses", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["text"] == "an ordinary answer"


def test_headers_tell_what_happened(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A compaction's answer says which door, how often the model was asked, what was left out, how much was saved."""
    backend.script(Text("prose"), Text('{"summary": "S1"}'))
    items = [user("t"), assistant("x" * 8000), user("next")]
    headers = proxy.post("/v1/responses", {"model": "local-model", "input": [*items, TRIGGER]}).headers
    assert headers["x-litellm-compaction"] == "trigger"
    assert headers["x-litellm-compaction-attempts"] == "2"
    assert headers["x-litellm-compaction-dropped"] == "0"
    assert headers["x-litellm-compaction-model"] == "local-model"
    assert int(headers["x-litellm-compaction-tokens-before"]) > 2000
    assert int(headers["x-litellm-compaction-tokens-after"]) < 100


@pytest.mark.parametrize(
    "wrong",
    [
        Text("Sure, I will go on with the parser."),
        Text(""),
        ToolCall((("shell", '{"command": "rm -rf /"}'),)),
        ToolCall((("create_summary", '{"summary": " ", "retain_item_ids": []}'),)),
        ToolCall((("create_summary", '{"summary": "s", "retain_item_ids": ["item_999999"]}'),)),
        ToolCall((("create_summary", '{"summary": "a"}'), ("create_summary", '{"summary": "b"}'))),
        Text('{"summary": "half', finish_reason="length"),
    ],
    ids=["prose", "empty", "client-tool", "blank", "unknown-ref", "two", "cut-off"],
)
def test_invalid_answer_is_repaired_once(proxy: LiveProxy, backend: ScriptedBackend, wrong: Text | ToolCall) -> None:
    """An answer that can't be used is asked for once more, told why, and both inferences are in the usage."""
    good = Text('{"summary": "S1", "retain_item_ids": []}', usage=(7, 3))
    backend.script(wrong, good)
    body = proxy.post("/v1/responses", {"model": "local-model", "input": [*HISTORY, TRIGGER]}).json()
    assert body["usage"]["total_tokens"] == 25
    assert "Your last answer could not be used" in request_text(backend.requests[1])


def test_repair_asks_for_json_where_no_tool_was_called(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A backend that ignores the forced tool is asked for JSON under a schema, and JSON in the text is an answer."""
    backend.script(Text("prose"), Text('Here it is:\n```json\n{"summary": "S1"}\n```'))
    assert proxy.post("/v1/responses", {"model": "local-model", "input": [*HISTORY, TRIGGER]}).status_code == 200
    assert backend.requests[1]["response_format"]["json_schema"]["schema"]["required"] == ["summary", "retain_item_ids"]
    assert "tools" not in backend.requests[1]


def test_backend_without_tools_is_asked_by_schema(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A backend that refuses tools gets the same request with a JSON schema, and the refusal costs no attempt."""
    refusal = Failure(400, {"message": "this model does not support tools", "type": "invalid_request_error"})
    backend.script(refusal, Text('{"summary": "S1"}'))
    response = proxy.post("/v1/responses", {"model": "local-model", "input": [*HISTORY, TRIGGER]})
    assert response.status_code == 200, response.text
    assert response.headers["x-litellm-compaction-attempts"] == "1"
    assert backend.requests[1]["response_format"]["type"] == "json_schema"


def test_usage_is_never_zero(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A backend that reports no usage still leaves one in the answer."""
    backend.script(Summary("S1", usage=None))
    usage = proxy.post("/v1/responses", {"model": "local-model", "input": [*HISTORY, TRIGGER]}).json()["usage"]
    assert usage["input_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_long_compaction_sends_its_first_events_early(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """The stream opens while the summary is still being written, so that nobody on the way hangs up."""
    gate = threading.Event()
    backend.script(Gated(Summary("S1"), gate))
    body = {"model": "local-model", "stream": True, "input": [*HISTORY, TRIGGER]}
    events = []
    with proxy.client() as client, client.stream("POST", "/v1/responses", json=body) as response:
        assert response.headers["x-litellm-compaction"] == "trigger"
        assert "x-litellm-compaction-attempts" not in response.headers
        for line in response.iter_lines():
            event = read_event(line)
            if event is None:
                continue
            events.append(event)
            if event["type"] == "response.output_item.added":
                gate.set()
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(5))
    assert events[3]["item"]["encrypted_content"].startswith("lcmp1.")
    assert events[4]["response"]["output"] == [events[3]["item"]]


def test_late_failure_ends_the_stream_with_its_code(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A failure after the first events is told by response.failed with the contract's code, never by a bare close."""
    gate = threading.Event()
    backend.script(Gated(Text("prose"), gate), Text("prose again"))
    body = {"model": "local-model", "stream": True, "input": [*HISTORY, TRIGGER]}
    events = []
    with proxy.client() as client, client.stream("POST", "/v1/responses", json=body) as response:
        for line in response.iter_lines():
            event = read_event(line)
            if event is not None:
                events.append(event)
                gate.set()
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "compaction_failed"
    assert not any(event["type"] == "response.completed" for event in events)


def test_ordinary_request_is_untouched(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """Without an item or a trigger the backend gets and the client sees what they would without the plugin."""
    body = {"model": "local-model", "input": [user("hello"), assistant("hi"), user("go on")], "temperature": 0.5}
    backend.script(Text("same"), Text("same"))
    with running_proxy(base_config(backend.url, plugin=False)) as plain:
        bare = plain.post("/v1/responses", body)
    with_plugin = proxy.post("/v1/responses", body)
    assert backend.requests[0] == backend.requests[1]
    assert {key: value for key, value in bare.json().items() if key not in {"id", "created_at", "output"}} == {
        key: value for key, value in with_plugin.json().items() if key not in {"id", "created_at", "output"}
    }
    assert not any(name.startswith("x-litellm-compaction") for name in with_plugin.headers)

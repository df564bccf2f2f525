"""Edges of the two doors and of items: what must come out to the letter, and what must never reach a backend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.backend import ScriptedBackend, Summary, Text, request_text
from tests.support.bodies import HISTORY, MODELS, TRIGGER, Json, assistant, call, compact, output, png, user
from tests.support.proxy import LiveProxy

TOOLS = [{"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}]
REASON = "could not be verified. Reason: Encrypted content could not be decrypted or parsed."
JUNK = "gAAAAABopaqueopaque"


def message(role: str, *parts: Json) -> Json:
    return {"type": "message", "role": role, "content": list(parts)}


def test_trigger_answer_is_a_whole_response(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A trigger's answer has no error, nothing incomplete, and ids and usage as an OpenAI client reads them."""
    backend.script(Summary("S1", usage=(123, 45)))
    body = proxy.post("/v1/responses", {"model": "local-model", "input": [*HISTORY, TRIGGER]}).json()
    assert (body["object"], body["status"]) == ("response", "completed")
    assert (body["error"], body["incomplete_details"]) == (None, None)
    assert body["id"].startswith("resp_")
    assert isinstance(body["created_at"], int)
    assert body["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] == 0
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (123, 45)


def test_stream_is_server_sent_events(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A streamed compaction is an event stream, and its opening knows neither output nor usage."""
    backend.script(Summary("S1"))
    body = {"model": "local-model", "stream": True, "input": [*HISTORY, TRIGGER]}
    response = proxy.post("/v1/responses", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    for event in events[:2]:
        assert (event["response"]["status"], event["response"]["output"]) == ("in_progress", [])
        assert event["response"].get("usage") is None
    assert not any("text" in event["type"] or "content_part" in event["type"] for event in events)


@pytest.mark.parametrize("door", ["trigger", "streamed", "compact"])
def test_headers_on_every_door(proxy: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """Every door of a finished compaction names itself and its numbers in the headers."""
    backend.script(Summary("S1"))
    if door == "compact":
        headers = proxy.post("/v1/responses/compact", {"model": "deepseek", "input": HISTORY}).headers
    else:
        body = {"model": "deepseek", "stream": door == "streamed", "input": [*HISTORY, TRIGGER]}
        headers = proxy.post("/v1/responses", body).headers
    assert headers["x-litellm-compaction"] == ("compact" if door == "compact" else "trigger")
    assert headers["x-litellm-compaction-model"] == "deepseek"
    for name, value in (("attempts", "1"), ("dropped", "0")):
        assert headers[f"x-litellm-compaction-{name}"] == value
    for name in ("tokens-before", "tokens-after"):
        assert int(headers[f"x-litellm-compaction-{name}"]) > 0


def test_compact_returns_user_content_untouched(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """Text, picture and file parts of the user's messages come back as they were sent, all members kept."""
    picture = {"type": "input_image", "image_url": png(), "detail": "high"}
    file = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGVyb24="}
    sent = [message("user", {"type": "input_text", "text": "  two\n\nlines é\t "}, picture), message("user", file)]
    backend.script(Summary("S1"))
    body = proxy.post("/v1/responses/compact", {"model": "local-model", "input": [*sent, assistant("seen")]}).json()
    assert [item["content"] for item in body["output"][:-1]] == [item["content"] for item in sent]
    assert body["output"][-1]["type"] == "compaction"


def test_compact_returns_no_other_item(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """Answers, reasoning, tool calls and results stay out of the output of /responses/compact."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    items = [user("a"), reasoning, call("c1"), output("c1", "x"), assistant("b"), user("c")]
    backend.script(Summary("S1"))
    body = proxy.post("/v1/responses/compact", {"model": "local-model", "input": items}).json()
    assert [item["type"] for item in body["output"]] == ["message", "message", "compaction"]


@pytest.mark.parametrize("trigger", [{**TRIGGER, "id": None}, {**TRIGGER, "id": "tr_1"}], ids=["null-id", "id"])
def test_trigger_may_have_an_id(proxy: LiveProxy, backend: ScriptedBackend, trigger: Json) -> None:
    """An id on the trigger is accepted and ignored."""
    backend.script(Summary("S1"))
    response = proxy.post("/v1/responses", {"model": "local-model", "input": [*HISTORY, trigger]})
    assert response.json()["output"][0]["type"] == "compaction"


def test_bare_trigger_is_a_list_of_one(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A trigger as the whole input, not in a list, is a trigger with nothing before it."""
    response = proxy.post("/v1/responses", {"model": "local-model", "input": TRIGGER})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "missing_required_parameter", "input")


def test_bare_item_is_a_list_of_one(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A compaction item as the whole input, not in a list, is expanded."""
    backend.script(Summary("S-FACT"), Text("fine"))
    item = compact(proxy, HISTORY)
    assert proxy.post("/v1/responses", {"model": "local-model", "input": item, "tools": TOOLS}).status_code == 200
    assert "S-FACT" in request_text(backend.requests[-1])


def test_nested_trigger_counts_as_none_beside_a_real_one(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """Objects of the trigger's type inside outputs are shown to the summariser and are no second trigger."""
    nested = {**output("c1", ""), "output": [{"type": "input_text", "text": "found"}, TRIGGER]}
    backend.script(Summary("S1"))
    response = proxy.post("/v1/responses", {"model": "local-model", "input": [user("a"), call("c1"), nested, TRIGGER]})
    assert response.status_code == 200, response.text
    assert "found" in request_text(backend.requests[0])


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([TRIGGER, *HISTORY], "The 'compaction_trigger' item must be the final input item."),
        ([*HISTORY, TRIGGER, TRIGGER], "Only one 'compaction_trigger' item may be provided."),
        ([TRIGGER, *HISTORY, TRIGGER], "Only one 'compaction_trigger' item may be provided."),
    ],
    ids=["not-last", "two", "two-apart"],
)
def test_trigger_refusals_to_the_letter(
    proxy: LiveProxy, backend: ScriptedBackend, items: list[Json], text: str, stream: bool
) -> None:
    """The whole error body is OpenAI's, as JSON even where a stream was asked for."""
    response = proxy.post("/v1/responses", {"model": "local-model", "stream": stream, "input": items})
    assert response.status_code == 400
    assert response.headers["content-type"].startswith("application/json")
    assert response.json() == {
        "error": {"message": text, "type": "invalid_request_error", "param": "input", "code": None}
    }


@pytest.mark.parametrize(
    ("items", "code", "param"),
    [
        ([message("user", {"type": "input_image", "file_id": "file_1"})], "unsupported_image", "input"),
        ([user("a"), output("c1", "x")], "invalid_tool_pairing", "input"),
        ([user("a"), call("c1"), output("c1", "x"), call("c1"), output("c1", "x")], "invalid_tool_pairing", "input"),
        ([{"type": "compaction", "encrypted_content": JUNK}, user("a")], "invalid_encrypted_content", None),
        ([{"type": "compaction_summary", "encrypted_content": JUNK}, user("a")], "invalid_encrypted_content", None),
        ([{"type": "context_compaction", "encrypted_content": JUNK}, user("a")], "invalid_encrypted_content", None),
    ],
    ids=["image", "lone-output", "double-call", "foreign", "foreign-summary", "foreign-context"],
)
def test_compact_refuses_bad_transcripts(
    proxy: LiveProxy, backend: ScriptedBackend, items: list[Json], code: str, param: str | None
) -> None:
    """/responses/compact refuses what a trigger refuses, before any backend is asked."""
    response = proxy.post("/v1/responses/compact", {"model": "local-model", "input": items})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert backend.requests == []


def test_item_without_id_is_named_by_its_ends(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """An unreadable item without an id is named by the first and last four characters of its content."""
    item = {"type": "compaction", "encrypted_content": "garb-not-an-item-bage"}
    response = proxy.post("/v1/responses", {"model": "local-model", "input": [item, user("go on")]})
    assert response.json()["error"] == {
        "message": f"The encrypted content garb...bage {REASON}",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_encrypted_content",
    }


@pytest.mark.parametrize("place", [0, 3, 8, 20, 40, -60, -2, -1])
def test_any_changed_character_is_found(proxy: LiveProxy, backend: ScriptedBackend, place: int) -> None:
    """A changed character anywhere in an item, prefix, key id, nonce, text or tag, makes it unreadable."""
    backend.script(Summary("S1 " * 50))
    item = compact(proxy, HISTORY)
    content = list(item["encrypted_content"])
    content[place] = "A" if content[place] != "A" else "B"
    changed = {**item, "encrypted_content": "".join(content)}
    response = proxy.post("/v1/responses", {"model": "local-model", "input": [changed, user("go on")]})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_encrypted_content")
    assert response.json()["error"]["message"] == f"The encrypted content for item {item['id']} {REASON}"
    assert len(backend.requests) == 1


@pytest.mark.parametrize("change", [lambda text: text + "A", lambda text: text + "=", lambda text: text[1:]])
def test_longer_or_shorter_content_is_found(proxy: LiveProxy, backend: ScriptedBackend, change: Any) -> None:
    """Content with something added or cut off is unreadable."""
    backend.script(Summary("S1"))
    item = compact(proxy, HISTORY)
    changed = {**item, "encrypted_content": change(item["encrypted_content"])}
    response = proxy.post("/v1/responses", {"model": "local-model", "input": [changed, user("go on")]})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_encrypted_content")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("model", MODELS)
def test_backend_sees_a_summary_and_no_item(
    proxy: LiveProxy, backend: ScriptedBackend, model: str, stream: bool
) -> None:
    """Of a returned item nothing but the text reaches the backend: no type, no content, no metadata of LiteLLM."""
    backend.script(Summary("S-FACT"), Text("fine"))
    item = compact(proxy, HISTORY)
    body = {"model": model, "stream": stream, "input": [user("first"), item, user("go on")]}
    assert proxy.post("/v1/responses", body).status_code == 200
    sent = backend.raw[-1].decode()
    for hidden in ("encrypted_content", item["encrypted_content"][:40], '"compaction"', item["id"], "litellm"):
        assert hidden not in sent
    assert sent.count("S-FACT") == 1


def test_the_same_item_twice_is_said_once(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A client that sends one item twice does not make the model read it twice."""
    backend.script(Summary("S-FACT"), Text("fine"))
    item = compact(proxy, HISTORY)
    body = {"model": "local-model", "input": [item, user("go on"), item]}
    assert proxy.post("/v1/responses", body).status_code == 200
    assert request_text(backend.requests[-1]).count("S-FACT") == 1


@pytest.mark.parametrize("door", ["trigger", "streamed", "compact"])
def test_item_before_the_end_is_folded_in(proxy: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """An item directly before a trigger, or last at /compact: its summary is summarised and replaced, not nested."""
    backend.script(Summary("FIRST-FACT"), Summary("SECOND-FACT"), Text("fine"))
    first = compact(proxy, HISTORY)
    if door == "compact":
        body: Json = {"model": "hosted", "input": [user("a"), first]}
        second = proxy.post("/v1/responses/compact", body).json()["output"][-1]
    else:
        body = {"model": "hosted", "stream": door == "streamed", "input": [user("a"), first, TRIGGER]}
        second = (
            proxy.stream("/v1/responses", body)[-1]["response"]["output"][0]
            if door == "streamed"
            else proxy.post("/v1/responses", body).json()["output"][0]
        )
    assert request_text(backend.requests[1]).count("FIRST-FACT") == 1
    assert proxy.post("/v1/responses", {"model": "deepseek", "input": [second, user("go on")]}).status_code == 200
    said = request_text(backend.requests[2])
    assert (said.count("FIRST-FACT"), said.count("SECOND-FACT")) == (0, 1)


def test_developer_text_comes_back_too(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """Developer text that a client cut off comes back; a client's own system text stands alone."""
    backend.script(Summary("S1"), Text("fine"), Text("fine"))
    item = compact(proxy, [message("developer", {"type": "input_text", "text": "DEV RULES"}), *HISTORY])
    own = {"type": "message", "role": "system", "content": "OWN RULES"}
    for items in ([item, user("go on")], [own, item, user("go on")]):
        assert proxy.post("/v1/responses", {"model": "local-model", "input": items}).status_code == 200
    assert request_text(backend.requests[1]).count("DEV RULES") == 1
    assert backend.requests[1]["messages"][0]["role"] in {"developer", "system"}
    assert "DEV RULES" not in request_text(backend.requests[2])
    assert "OWN RULES" in request_text(backend.requests[2])

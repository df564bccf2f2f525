"""The scripted provider refuses what real ones refuse; a lenient one would let wrong requests pass every test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.backend import (
    Failure,
    Gated,
    Hangup,
    Json,
    JsonText,
    RefusedError,
    ScriptedBackend,
    Step,
    Summary,
    Text,
    ToolCall,
    check_chat_request,
    running_backend,
)
from tests.support.bodies import png

CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {}}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "done"}
HELLO = {"role": "user", "content": "hello"}
TOOLS = [{"type": "function", "function": {"name": "shell"}}]
FORCED: Json = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "create_summary"}}}


@pytest.fixture
def provider() -> Iterator[ScriptedBackend]:
    """A backend of this test's own: its complaints are what is tested."""
    with running_backend() as backend:
        yield backend


def ask(provider: ScriptedBackend, path: str = "/chat/completions", **members: Any) -> httpx.Response:
    """One request."""
    body = {"model": "m", "messages": [HELLO], **members}
    return httpx.post(provider.url + path, json=body, timeout=20, trust_env=False)


def image(url: str) -> Json:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


@pytest.mark.parametrize(
    ("messages", "members", "why"),
    [
        ([], {}, "empty"),
        ([{"role": "critic", "content": "x"}], {}, "unknown role"),
        ([{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], {}, "unknown content part"),
        ([{"role": "user", "content": {"type": "text"}}], {}, "neither text nor a list"),
        (["hello"], {}, "malformed"),
        ([HELLO, RESULT], {"tools": TOOLS}, "without its call"),
        ([HELLO, CALL, HELLO], {"tools": TOOLS}, "without output"),
        ([HELLO, CALL], {"tools": TOOLS}, "without output"),
        ([HELLO, CALL, RESULT, RESULT], {"tools": TOOLS}, "without its call"),
        ([HELLO, CALL, RESULT], {}, "without tools"),
        ([HELLO], {"litellm_metadata": {}}, "unknown parameter"),
        ([HELLO], {"metadata": {}}, "unknown parameter"),
        ([HELLO], {"compaction_trigger": True}, "unknown parameter"),
        ([image("http://example.com/a.png")], {}, "no data URL"),
        ([image("data:image/tiff;base64,AAAA")], {}, "no data URL"),
        ([image("data:image/png;base64,%%%")], {}, "not valid base64"),
        ([image(png().replace("image/png", "image/jpeg"))], {}, "not the jpeg"),
    ],
)
def test_wrong_requests_are_refused(messages: list[Json], members: Json, why: str) -> None:
    """Each rule of real providers is a refusal of its own."""
    with pytest.raises(RefusedError, match=why):
        check_chat_request({"messages": messages, **members})


@pytest.mark.parametrize(
    "messages", [[HELLO, CALL, RESULT, HELLO], [image(png())], [image("https://example.com/a.png")]]
)
def test_right_requests_pass(messages: list[Json]) -> None:
    """What real providers take is taken."""
    check_chat_request({"messages": messages, "tools": TOOLS})


def test_a_refused_request_fails_the_test(provider: ScriptedBackend) -> None:
    """A refusal is answered with an OpenAI-shaped 400, and remembered."""
    response = ask(provider, litellm_metadata={})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    with pytest.raises(AssertionError, match="litellm_metadata"):
        provider.verify()


def test_an_unexpected_request_fails_the_test(provider: ScriptedBackend) -> None:
    """A request without a step is answered 500, and remembered."""
    assert ask(provider).status_code == 500
    with pytest.raises(AssertionError, match="unexpected request"):
        provider.verify()


def test_a_left_over_step_fails_the_test(provider: ScriptedBackend) -> None:
    """A step that nobody asked for is no silent success."""
    provider.script(Text("never"))
    with pytest.raises(AssertionError, match="left-over"):
        provider.verify()


def test_a_summary_nobody_forced_fails_the_test(provider: ScriptedBackend) -> None:
    """A scripted summary answers a request that forces create_summary, and no other."""
    provider.script(Summary("S1"))
    ask(provider)
    with pytest.raises(AssertionError, match="forces none"):
        provider.verify()


def test_other_routes_fail_unless_expected(provider: ScriptedBackend) -> None:
    """A request to /responses is a 404 as vLLM answers /compact, and fails a test that did not expect it."""
    assert ask(provider, "/responses", input="x").status_code == 404
    with pytest.raises(AssertionError, match="/v1/responses"):
        provider.verify()
    assert [path for path, _ in provider.take_elsewhere()] == ["/v1/responses"]
    provider.verify()


def test_window_overflow_is_openais_error(provider: ScriptedBackend) -> None:
    """Over its window a provider answers context_length_exceeded, which is no mistake of the test."""
    provider.window = 10
    response = ask(provider, messages=[{"role": "user", "content": "x" * 400}])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    provider.verify()


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("step", "told"),
    [
        (Summary("S1", retain=("item_000001",)), {"summary": "S1", "retain_item_ids": ["item_000001"]}),
        (ToolCall((("shell", '{"a": 1}'),)), {"a": 1}),
        (JsonText({"summary": "S1"}), {"summary": "S1"}),
    ],
    ids=["summary", "tool-call", "json"],
)
def test_steps_say_what_they_hold(provider: ScriptedBackend, step: Step, told: Json, stream: bool) -> None:
    """A step is the same answer streamed and not."""
    provider.script(step)
    text = ask(provider, stream=stream, **FORCED).text
    lines = [line.removeprefix("data: ") for line in text.splitlines()] if stream else [text]
    choices = [
        choice for line in lines if line and line != "[DONE]" for choice in json.loads(line).get("choices") or ()
    ]
    message = choices[0]["delta" if stream else "message"]
    calls = message.get("tool_calls")
    assert json.loads(calls[0]["function"]["arguments"] if calls else message["content"]) == told
    assert choices[-1]["finish_reason"] == ("tool_calls" if calls else "stop")
    provider.verify()


def test_failures_carry_their_headers(provider: ScriptedBackend) -> None:
    """A scripted failure is answered as written."""
    provider.script(Failure(429, {"message": "slow down"}, {"retry-after": "7"}))
    response = ask(provider)
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")


def test_hangup_closes_the_connection(provider: ScriptedBackend) -> None:
    """A hang-up is no answer at all."""
    provider.script(Hangup())
    with pytest.raises(httpx.TransportError):
        ask(provider)


def test_gate_holds_the_answer_back(provider: ScriptedBackend) -> None:
    """A gated step is answered when its gate opens."""
    gate = threading.Event()
    provider.script(Gated(Text("late"), gate))
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(ask(provider)))
    asking.start()
    asking.join(0.2)
    assert answers == []
    gate.set()
    asking.join(20)
    assert answers[0].json()["choices"][0]["message"]["content"] == "late"

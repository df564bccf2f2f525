"""A stored chain of chat messages as Responses items."""

from __future__ import annotations

from typing import Any

import pytest
from litellm.responses.litellm_completion_transformation.session_handler import ResponsesSessionHandler

from litellm_compaction.errors import PreviousResponseNotFound
from litellm_compaction.gateway.session import items_from_chat, load_chain

TOOL_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
ROWS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "user": ({"role": "user", "content": "a"}, [{"type": "message", "role": "user", "content": "a"}]),
    "system": ({"role": "system", "content": "s"}, [{"type": "message", "role": "system", "content": "s"}]),
    "assistant": ({"role": "assistant", "content": "b"}, [{"type": "message", "role": "assistant", "content": "b"}]),
    "parts": (
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]},
        [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": {"url": "u"}}],
            }
        ],
    ),
    "other-parts": (
        {"role": "user", "content": ["a", {"type": "file", "x": 1}]},
        [{"type": "message", "role": "user", "content": ["a", {"type": "file", "x": 1}]}],
    ),
    "calls": ({"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}, [CALL]),
    "words-and-calls": (
        {"role": "assistant", "content": "b", "tool_calls": [TOOL_CALL, {"id": "d"}]},
        [
            {"type": "message", "role": "assistant", "content": "b"},
            CALL,
            {"type": "function_call", "call_id": "d", "name": None, "arguments": ""},
        ],
    ),
    "tool": (
        {"role": "tool", "tool_call_id": "c", "content": "out"},
        [{"type": "function_call_output", "call_id": "c", "output": "out"}],
    ),
    "tool-without-output": (
        {"role": "tool", "tool_call_id": "c", "content": None},
        [{"type": "function_call_output", "call_id": "c", "output": ""}],
    ),
    "nothing-said": ({"role": "assistant", "content": ""}, []),
}


@pytest.mark.parametrize(("message", "items"), ROWS.values(), ids=ROWS)
def test_chat_message(message: dict[str, Any], items: list[Any]) -> None:
    """Words, pictures, calls and results of one chat message."""
    assert list(items_from_chat(message)) == items


class Dumped:
    def model_dump(self) -> dict[str, Any]:
        return {"role": "assistant", "content": "b"}


def stored(monkeypatch: pytest.MonkeyPatch, messages: object) -> list[str]:
    asked: list[str] = []

    async def history(response_id: str) -> dict[str, Any]:
        asked.append(response_id)
        return {"messages": messages}

    name = "get_chat_completion_message_history_for_previous_response_id"
    monkeypatch.setattr(ResponsesSessionHandler, name, staticmethod(history))
    return asked


async def test_chain_is_read_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What LiteLLM stored, mappings and objects alike, becomes items in order."""
    asked = stored(monkeypatch, [{"role": "user", "content": "a"}, Dumped()])
    items = await load_chain("resp_7")
    assert asked == ["resp_7"]
    assert [(item["role"], item["content"]) for item in items] == [("user", "a"), ("assistant", "b")]


@pytest.mark.parametrize("messages", [None, [], [{"role": "assistant", "content": ""}]], ids=["null", "empty", "mute"])
async def test_unknown_chain_is_refused(messages: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that LiteLLM cannot resolve is not silently an empty history."""
    stored(monkeypatch, messages)
    with pytest.raises(PreviousResponseNotFound, match="'resp_7' not found"):
        await load_chain("resp_7")

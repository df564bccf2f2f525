"""What a provider of chat completions refuses, as real ones do."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_PARTS: Final = frozenset({"text", "image_url", "input_audio", "file"})
_MEMBERS: Final = frozenset(
    {
        "model",
        "messages",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "reasoning_effort",
        "store",
        "user",
        "n",
        "stop",
        "service_tier",
        "prompt_cache_key",
        "verbosity",
        "web_search_options",  # what LiteLLM makes of the web_search tool that Codex brings
    }
)
_IMAGE: Final = re.compile(r"^data:image/(jpeg|png|webp|gif);base64,(.+)$", re.DOTALL)
_SIGNATURES: Final[Mapping[str, tuple[bytes, ...]]] = {
    "jpeg": (b"\xff\xd8\xff",),
    "png": (b"\x89PNG\r\n\x1a\n",),
    "webp": (b"RIFF",),
    "gif": (b"GIF87a", b"GIF89a"),
}
OVERFLOW: Final = "context_length_exceeded"


class RefusedError(Exception):
    """What a real provider would answer with a 400."""


def check_chat_request(body: Json, window: int | None = None) -> None:
    """Raises RefusedError on what providers refuse: members, roles, parts, tool pairs, tools rule, images, window."""
    unknown = set(body) - _MEMBERS
    if unknown:
        raise RefusedError(f"unknown parameter {sorted(unknown)}")
    messages = body.get("messages")
    if not messages:
        raise RefusedError("messages is empty")
    try:
        for message in messages:
            if message.get("role") not in _ROLES:
                raise RefusedError(f"unknown role {message.get('role')!r}")
            _check_content(message.get("content"))
        _check_pairs(messages)
    except (AttributeError, KeyError, TypeError) as malformed:
        raise RefusedError(f"malformed message: {malformed!r}") from malformed
    tool_history = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
    if tool_history and not body.get("tools"):
        raise RefusedError("tool history without tools")
    if window is not None and count_tokens(body) > window:
        raise RefusedError(OVERFLOW)


def _check_pairs(messages: Sequence[Json]) -> None:
    """Each tool message answers a call just before it, each call is answered before the conversation goes on."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                raise RefusedError("tool message without its call")
            waiting.discard(message["tool_call_id"])
        elif waiting:
            raise RefusedError(f"tool calls without output: {sorted(waiting)}")
        waiting |= {call["id"] for call in message.get("tool_calls") or ()}
    if waiting:
        raise RefusedError(f"tool calls without output: {sorted(waiting)}")


def _check_content(content: object) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise RefusedError("content is neither text nor a list of parts")
    for part in content:
        if part.get("type") not in _PARTS:
            raise RefusedError(f"unknown content part {part.get('type')!r}")
        if part["type"] == "image_url":
            _check_image(part["image_url"]["url"] if isinstance(part["image_url"], dict) else part["image_url"])


def _check_image(url: str) -> None:
    if url.startswith("https://"):
        return
    match = _IMAGE.match(url)
    if match is None:
        raise RefusedError("image is no data URL of a known format")
    try:
        picture = base64.b64decode(match.group(2), validate=True)
    except binascii.Error as broken:
        raise RefusedError("image is not valid base64") from broken
    if not picture.startswith(_SIGNATURES[match.group(1)]):
        raise RefusedError(f"image is not the {match.group(1)} it claims to be")


def count_tokens(body: Json) -> int:
    """About four characters a token, images not counted."""
    return sum(len(text) for message in body["messages"] for text in message_texts(message)) // 4


def message_texts(message: Json) -> list[str]:
    """The texts of one chat message."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if part.get("type") == "text"]


def request_text(body: Json) -> str:
    """All text of a chat request, joined."""
    return "\n".join(text for message in body["messages"] for text in message_texts(message))

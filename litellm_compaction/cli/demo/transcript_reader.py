"""Reads the chat messages a model is sent: the text of each, and the transcript inside a summary request.

Nothing here knows how the plugin writes a transcript, but for its references `item_000001`: a line that opens with one
starts an item, and the item goes on to the next such line or a closing tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Speaker = Literal["user", "assistant", "call", "output", "other"]

_HEAD: Final = re.compile(r"^.{0,80}?\b(item_\d{6})\b")
_CLOSING_TAG: Final = re.compile(r"^\s*</[\w-]+>\s*$")


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of a transcript: its reference, who speaks, and the text."""

    ref: str
    speaker: Speaker
    text: str


def read_text(content: object) -> str:
    """The text of a chat message's `content`: a string, or parts; an image counts as `[image]`."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    return "".join(_part_text(part) for part in content if isinstance(part, Mapping))


def _part_text(part: Mapping[str, Any]) -> str:
    text: Final = part.get("text")
    return text if isinstance(text, str) else "[image]\n"


def read_messages(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(role, text) of every message of a chat request; tool calls are shown by their arguments."""
    messages: list[tuple[str, str]] = []
    for message in body.get("messages", []):
        text = read_text(message.get("content"))
        calls = [str(call.get("function", {}).get("arguments", "")) for call in message.get("tool_calls") or []]
        messages.append((str(message.get("role", "")), "\n".join([text, *calls]).strip()))
    return messages


def read_entries(text: str) -> list[Entry]:
    """The transcript in `text`, item by item; empty where there is none."""
    entries: list[Entry] = []
    head = ""
    lines: list[str] = []
    for line in text.splitlines():
        opens = _HEAD.match(line)
        if opens or _CLOSING_TAG.match(line):
            entries += _entry(head, lines)
            head, lines = (line if opens else ""), []
        else:
            lines.append(line)
    return [*entries, *_entry(head, lines)]


def _entry(head: str, lines: Sequence[str]) -> Iterator[Entry]:
    found: Final = _HEAD.match(head)
    body: Final = "\n".join(lines).strip()
    # A head without a body is prose about references ("refs look like item_000001"), not an item.
    if found and body:
        yield Entry(found[1], _speaker(head.lower()), body)


def _speaker(head: str) -> Speaker:
    if "output" in head or "result" in head:
        return "output"
    if "call" in head:
        return "call"
    if "assistant" in head:
        return "assistant"
    return "user" if "user" in head else "other"

"""A request as pieces to count: what of it a model reads as text, and what the rest costs.

Runs for every request, so the common items have a short way of their own. Nothing in a body makes it fail: an odd shape
is counted as its JSON. Not counted: ids, status, annotations; what `previous_response_id` and references point to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from litellm_compaction.budget.counting import Count, Piece, bound_tokens
from litellm_compaction.conversation.content import IMAGE_TYPES
from litellm_compaction.conversation.image_size import read_size
from litellm_compaction.conversation.media import (
    UNREADABLE_FILE,
    count_audio,
    count_data,
    count_image,
    count_pixels,
    is_data_url,
)

# OpenAI's harmony format puts about so many tokens around a message, and around a call or its output.
_MESSAGE_FRAMING: Final = 4
_CALL_FRAMING: Final = 10
_BYTES_PER_TOKEN: Final = 4
# Codex' estimate of sealed reasoning: so much of the decoded bytes is not text.
_SEALED_OVERHEAD: Final = 650
# Values in JSON that take about 10 ms.
_MANY_VALUES: Final = 10_000

_TEXT_PARTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
# Members of an item that no model is shown.
_NOT_SHOWN: Final = frozenset({"type", "id", "call_id", "approval_request_id", "status", "created_by"})
_TO_THE_SERVER: Final = frozenset({"configuration_update", "compaction_trigger"})
_MESSAGE_MEMBERS: Final = ("content",)
_TOOL_MEMBERS: Final = ("namespace", "name", "arguments", "input")
# What is read as content; of items not named here all that is shown is read as JSON.
_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "message": _MESSAGE_MEMBERS,
    "agent_message": _MESSAGE_MEMBERS,
    "function_call": _TOOL_MEMBERS,
    "custom_tool_call": _TOOL_MEMBERS,
    "function_call_output": ("output",),
    "custom_tool_call_output": ("output",),
    "local_shell_call_output": ("output",),
    "shell_call_output": ("output",),
    "apply_patch_call_output": ("output",),
    "computer_call_output": ("output",),
}
_NOTHING: Final = Piece((), 0)
_JSON: Final = json.JSONEncoder(ensure_ascii=False, skipkeys=True, default=str)


@dataclass
class Measured:
    """`fixed`: instructions, tools, output schema; `items`: one for each item of `input` but tools, in order."""

    fixed: Piece
    items: list[Piece]
    # What came of counting it, by model group and error: several hooks ask.
    counts: dict[tuple[str, float], Count] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def pieces(self) -> list[Piece]:
        return [self.fixed, *self.items]

    @cached_property
    def bound(self) -> int:
        """Tokens that the request has at most in a byte-level tokenizer."""
        return bound_tokens(self.pieces)


@dataclass(frozen=True, slots=True)
class Draft:
    """A request with its plain items measured. The `odd` ones are left: their place in `items`, and they themselves."""

    body: Mapping[str, Any]
    items: list[Piece]
    odd: list[tuple[int, object]]
    tools: list[object]

    @property
    def is_heavy(self) -> bool:
        """Whether the rest takes more than some milliseconds, which an event loop should not be held for."""
        return _has_many([self.body.get("tools"), self.tools, [raw for _, raw in self.odd]])

    def finish(self) -> Measured:
        items: Final = self.items.copy()
        for place, raw in self.odd:
            items[place] = _read_odd(raw)
        return Measured(_measure_fixed(self.body, self.tools), items)


def measure_request(body: Mapping[str, Any]) -> Measured:
    """The pieces of a /v1/responses body; the body stays as it is."""
    return draft_request(body).finish()


def draft_request(body: Mapping[str, Any]) -> Draft:
    """The first step of measuring a body: fast, about a microsecond an item, whatever else is in it."""
    given: Final = body.get("input")
    items: Final[list[Piece]] = []
    odd: Final[list[tuple[int, object]]] = []
    tools: Final[list[object]] = []
    for raw in given if isinstance(given, list | tuple) else [given] if given else []:
        if isinstance(raw, dict):
            kind = raw.get("type")
            reader = _PLAIN.get(kind) if isinstance(kind, str) else _plain_message if "role" in raw else None
            piece = None if reader is None else reader(raw)
            if piece is not None:
                items.append(piece)
                continue
            if kind == "additional_tools":
                tools.append(raw.get("tools"))
                continue
        odd.append((len(items), raw))
        items.append(_NOTHING)
    return Draft(body, items, odd, tools)


def _measure_fixed(body: Mapping[str, Any], tools: list[object]) -> Piece:
    texts: Final[list[str]] = []
    extra = _read_content(body.get("instructions"), texts)
    output: Final = body.get("text")
    schema: Final = output.get("format") if isinstance(output, Mapping) else None
    for value in (body.get("tools"), *tools, schema.get("schema") if isinstance(schema, Mapping) else None):
        if value:
            # Not stripped: tools hold no images, and come with every request.
            _write_json(value, texts)
    return _piece(texts, extra)


def _plain_message(raw: Mapping[str, Any]) -> Piece | None:
    content = raw.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part: Final = content[0]
        content = part.get("text") if part.get("type") in _TEXT_PARTS else None
    return Piece((content,), _MESSAGE_FRAMING) if isinstance(content, str) else None


def _plain_call(raw: Mapping[str, Any]) -> Piece | None:
    name, arguments = raw.get("name"), raw.get("arguments")
    if isinstance(name, str) and isinstance(arguments, str) and "namespace" not in raw:
        return Piece((name, arguments), _CALL_FRAMING)
    return None


def _plain_custom_call(raw: Mapping[str, Any]) -> Piece | None:
    name, given = raw.get("name"), raw.get("input")
    if isinstance(name, str) and isinstance(given, str) and "namespace" not in raw:
        return Piece((name, given), _CALL_FRAMING)
    return None


def _plain_output(raw: Mapping[str, Any]) -> Piece | None:
    output: Final = raw.get("output")
    return Piece((output,), _CALL_FRAMING) if isinstance(output, str) else None


def _plain_reasoning(raw: Mapping[str, Any]) -> Piece | None:
    if raw.get("summary") or raw.get("content"):
        return None
    return Piece((), _MESSAGE_FRAMING + _count_sealed(raw))


_PLAIN: Final[Mapping[str, Callable[[Mapping[str, Any]], Piece | None]]] = {
    "message": _plain_message,
    "function_call": _plain_call,
    "function_call_output": _plain_output,
    "custom_tool_call": _plain_custom_call,
    "custom_tool_call_output": _plain_output,
    "reasoning": _plain_reasoning,
}


def _read_odd(raw: object) -> Piece:
    """A piece of any item, or of what stands where one should."""
    texts: Final[list[str]] = []
    if not isinstance(raw, Mapping):
        return _piece(texts, _MESSAGE_FRAMING + _read_content(raw, texts))
    given: Final = raw.get("type")
    kind: Final = given if isinstance(given, str) else "message" if "role" in raw else ""
    if kind in _TO_THE_SERVER:
        return _NOTHING
    if kind == "reasoning":
        sealed: Final = _MESSAGE_FRAMING + _count_sealed(raw)
        return _piece(texts, sealed + _read_members(raw, ("summary", "content"), texts))
    if kind == "image_generation_call" and isinstance(raw.get("result"), str):
        rest: Final = {key: value for key, value in raw.items() if key != "result"}
        return _piece(texts, _CALL_FRAMING + count_pixels(read_size(raw["result"])) + _read_shown(rest, texts))
    members: Final = _MEMBERS.get(kind)
    if members is None:
        return _piece(texts, _CALL_FRAMING + _read_shown(raw, texts))
    framing: Final = _MESSAGE_FRAMING if members == _MESSAGE_MEMBERS else _CALL_FRAMING
    return _piece(texts, framing + _read_members(raw, members, texts))


def _piece(texts: list[str], extra: int) -> Piece:
    return Piece(tuple(texts), extra)


def _read_members(raw: Mapping[str, Any], members: tuple[str, ...], texts: list[str]) -> int:
    return sum([_read_content(raw.get(member), texts) for member in members])


def _read_shown(raw: Mapping[str, Any], texts: list[str]) -> int:
    shown: Final = {key: value for key, value in raw.items() if key not in _NOT_SHOWN}
    return _read_json(shown, texts) if shown else 0


def _count_sealed(raw: Mapping[str, Any]) -> int:
    sealed: Final = raw.get("encrypted_content")
    if not isinstance(sealed, str):
        return 0
    return -(-max(0, len(sealed) * 3 // 4 - _SEALED_OVERHEAD) // _BYTES_PER_TOKEN)


def _read_content(content: object, texts: list[str]) -> int:
    """Adds the texts of content, wherever it stands, and gives the tokens of the rest."""
    if isinstance(content, str):
        texts.append(content)
        return 0
    if content is None:
        return 0
    extra = 0
    for part in content if isinstance(content, list | tuple) else (content,):
        if isinstance(part, dict):
            text = part.get("text")
            if isinstance(text, str) and part.get("type", "text") in _TEXT_PARTS:
                texts.append(text)
            else:
                extra += _read_part(part, texts)
        elif isinstance(part, str):
            texts.append(part)
        else:
            extra += _read_json(part, texts)
    return extra


def _read_part(part: Mapping[str, Any], texts: list[str]) -> int:
    kind: Final = part.get("type")
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        texts.append(part["refusal"])
        return 0
    if isinstance(kind, str) and kind in IMAGE_TYPES:
        return count_image(part)
    if kind == "input_file":
        return _count_file(part, texts)
    audio: Final = part.get("input_audio")
    if kind == "input_audio" and isinstance(audio, Mapping) and isinstance(audio.get("data"), str):
        return count_audio(audio["data"])
    return _read_json(part, texts)


def _count_file(part: Mapping[str, Any], texts: list[str]) -> int:
    name, data = part.get("filename"), part.get("file_data")
    if isinstance(name, str):
        texts.append(name)
    return count_data(data) if isinstance(data, str) else UNREADABLE_FILE


def _read_json(value: object, texts: list[str]) -> int:
    """Adds a value as its JSON, without what is no text in it, and gives the tokens of that."""
    sizes: Final[list[int]] = []
    try:
        stripped: Final = _strip(value, sizes)
    except RecursionError:
        return _read_leaves(value, texts)
    _write_json(stripped, texts)
    return sum(sizes)


def _write_json(value: object, texts: list[str]) -> None:
    try:
        # C's encoder lets no other thread run until it is done; Python's does.
        texts.append("".join(_JSON.iterencode(value)) if _has_many(value) else _JSON.encode(value))
    except (RecursionError, ValueError):
        _read_leaves(value, texts)


def _strip(value: object, sizes: list[int]) -> object:
    if isinstance(value, str):
        if not is_data_url(value):
            return value
        sizes.append(count_data(value))
        return ""
    if isinstance(value, dict):
        kind: Final = value.get("type")
        if isinstance(kind, str) and kind in IMAGE_TYPES:
            sizes.append(count_image(value))
            return None
        return {key: _strip_member(key, entry, sizes) for key, entry in value.items()}
    return [_strip(entry, sizes) for entry in value] if isinstance(value, list | tuple) else value


def _strip_member(key: object, value: object, sizes: list[int]) -> object:
    if key != "encrypted_content" or not isinstance(value, str):
        return _strip(value, sizes)
    sizes.append(-(-len(value) * 3 // 4 // _BYTES_PER_TOKEN))
    return ""


def _read_leaves(value: object, texts: list[str]) -> int:
    """Of what is deeper than Python goes, or holds itself: the keys and values as they come."""
    seen: Final[set[int]] = set()
    rest = [value]
    while rest:
        entry = rest.pop()
        if isinstance(entry, str):
            texts.append(entry)
        elif not isinstance(entry, dict | list | tuple):
            texts.append(str(entry))
        elif id(entry) not in seen:
            seen.add(id(entry))
            rest += [*entry.keys(), *entry.values()] if isinstance(entry, dict) else entry
    return 0


def _has_many(value: object) -> bool:
    count = 0
    rest = [value]
    while rest and count <= _MANY_VALUES:
        entry = rest.pop()
        entries = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list | tuple) else ()
        count += len(entries)
        rest += entries
    return count > _MANY_VALUES

"""How a conversation is shown to a summariser: one fenced block per item, images where they stood.

The fence carries a random mark that no text in the conversation can know, so nothing inside can end its block and
speak for itself (failures: orders hidden in tool output). Tool history goes as text: a request with tool roles but no
tools is refused by Anthropic and Bedrock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from litellm_compaction.conversation.content import ImagePart, Part, TextPart, read_parts
from litellm_compaction.conversation.items import Item, Kind

IMAGE_NOT_SHOWN: Final = "[image, not shown: the summarising model does not read images]"
# Never shown: opaque to every model, or large binary that would be read as text.
_HIDDEN_MEMBERS: Final = frozenset({"encrypted_content", "result", "id", "status", "image_url", "file_data", "data"})
# An earlier summary came back as a message, and is nobody's words.
_SUMMARY_HEAD: Final[Mapping[str, str]] = {"type": "earlier_summary"}
_CALL_MEMBERS: Final = ("arguments", "input", "action", "operation", "queries", "code", "query")


@dataclass(frozen=True, slots=True)
class Block:
    """One item as the summariser sees it. `ref` names it in `retain_item_ids`; `head` are its attributes."""

    ref: str
    head: Mapping[str, str]
    parts: tuple[Part, ...]


def item_ref(index: int) -> str:
    """1-based place of an item in the transcript."""
    return f"item_{index + 1:06d}"


def render_blocks(items: Sequence[Item], summaries: Collection[int] = ()) -> tuple[Block, ...]:
    """A block for every item of the history, in order; `summaries` are the indexes of earlier summaries."""
    return tuple(
        Block(item_ref(item.index), _SUMMARY_HEAD if item.index in summaries else _head(item), tuple(_parts(item)))
        for item in items
        if item.is_history
    )


def write_blocks(blocks: Sequence[Block], mark: str, *, images: bool) -> tuple[Part, ...]:
    """The blocks as content parts: neighbouring text joined, images as parts of their own, or named if not `images`."""
    parts: list[Part] = []
    text: list[str] = []
    for block in blocks:
        attributes = "".join(f" {name}={json.dumps(value, ensure_ascii=False)}" for name, value in block.head.items())
        text.append(f'<item-{mark} ref="{block.ref}"{attributes}>\n')
        for part in block.parts:
            if isinstance(part, TextPart):
                text.append(_defuse(part.text, mark) + "\n")
            elif images:
                parts += [TextPart("".join(text)), part]
                text = []
            else:
                text.append(IMAGE_NOT_SHOWN + "\n")
        text.append(f"</item-{mark}>\n")
    return (*parts, TextPart("".join(text))) if text else tuple(parts)


def _defuse(text: str, mark: str) -> str:
    # The mark is random, so this never hits by chance; it costs nothing to be sure.
    return text.replace(mark, "*" * len(mark)) if mark in text else text


def _head(item: Item) -> dict[str, str]:
    head: Final = {"type": item.type}
    if item.role:
        head["role"] = item.role
    name: Final = item.raw.get("name")
    if isinstance(name, str):
        namespace: Final = item.raw.get("namespace")
        head["name"] = f"{namespace}.{name}" if isinstance(namespace, str) and namespace else name
    if item.call_id:
        head["call_id"] = item.call_id
    return head


def _parts(item: Item) -> Iterator[Part]:
    raw: Final = item.raw
    if item.kind is Kind.MESSAGE:
        yield from _author(item)
        yield from read_parts(raw.get("content"), item.index)
    elif item.kind is Kind.REASONING:
        yield from _reasoning(item)
    elif item.kind is Kind.OUTPUT:
        yield from read_parts(raw.get("output", raw.get("tools")), item.index)
    elif item.kind in {Kind.CALL, Kind.HOSTED}:
        yield from _call(raw)
    elif item.kind is Kind.REFERENCE:
        yield TextPart(f"[a stored item, {raw.get('id')!r}: its content is not in this transcript]")
    else:
        yield TextPart(_as_json(raw))


def _author(item: Item) -> Iterator[Part]:
    if item.type == "agent_message":
        author, recipient = item.raw.get("author", "?"), item.raw.get("recipient", "?")
        yield TextPart(f"[message between agents, from {author} to {recipient}]")


def _reasoning(item: Item) -> Iterator[Part]:
    shown: Final = [*read_parts(item.raw.get("summary"), item.index), *read_parts(item.raw.get("content"), item.index)]
    yield from shown or [TextPart("[reasoning, not readable]")]


def _call(raw: Mapping[str, Any]) -> Iterator[Part]:
    known: Final = [raw[member] for member in _CALL_MEMBERS if raw.get(member) not in (None, "")]
    for value in known:
        yield TextPart(value if isinstance(value, str) else _as_json(value))
    if not known:
        yield TextPart(_as_json(raw))
    # Hosted tools bring their result in the same item.
    for member in ("output", "outputs", "results", "error"):
        if raw.get(member):
            yield TextPart(f"{member}: {_as_json(raw[member])}")


def _as_json(value: object) -> str:
    return json.dumps(_shown(value), ensure_ascii=False, default=str)


def _shown(value: object) -> object:
    if isinstance(value, Mapping):
        return {
            key: f"[{len(str(entry))} characters, not shown]" if key in _HIDDEN_MEMBERS and entry else _shown(entry)
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [_shown(entry) for entry in value]
    if isinstance(value, str) and value.startswith("data:") and ";base64," in value[:100]:
        return f"[{len(value)} characters of base64, not shown]"
    return value


__all__ = ["Block", "ImagePart", "Part", "TextPart", "item_ref", "render_blocks", "write_blocks"]

"""How a conversation is shown to a summariser: one fenced block per item, images where they stood.

The fence carries a random mark that no text in the conversation can know, so nothing inside can end its block and
speak for itself (failures: orders hidden in tool output); what looks like a fence, or like a chat template's mark of
who speaks, is disarmed. Tool history goes as text: a request with tool roles but no
tools is refused by Anthropic and Bedrock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from litellm_compaction.conversation.content import ImagePart, Part, TextPart, read_parts
from litellm_compaction.conversation.disarm import disarm
from litellm_compaction.conversation.expansion import is_record
from litellm_compaction.conversation.items import Item, Kind
from litellm_compaction.conversation.shorten import IMAGE_LEFT_OUT, shorten_text, shrink

# An image costs about this much with every provider that publishes a rule; its base64 is never counted.
IMAGE_TOKENS: Final = 1_000
_ITEM_TOKENS: Final = 16
# Two marks of random digits, the ref, and the signs around them; a name and its quotes.
_FENCE_TOKENS, _ATTRIBUTE_TOKENS = 28, 4
# For counting: as long as the marks that are made.
SAMPLE_MARK: Final = "a1b2c3d4e5f6"
IMAGE_NOT_SHOWN: Final = "[image, not shown: the summarising model does not read images]"
# Never shown: opaque to every model, or large binary that would be read as text.
_HIDDEN_MEMBERS: Final = frozenset({"encrypted_content", "result", "id", "status", "image_url", "file_data", "data"})
# An earlier summary came back as a message, and is nobody's words.
_SUMMARY_HEAD: Final[Mapping[str, str]] = {"type": "earlier_summary"}
# Neither is a lone half of a call that became text, and it holds what a tool said.
_RECORD_HEAD: Final[Mapping[str, str]] = {"type": "tool_record"}
_SEALED_REASONING: Final = TextPart("[reasoning, not readable]")
_RESULT_MEMBERS: Final = ("output", "outputs", "results", "error")
_CALL_MEMBERS: Final = ("arguments", "input", "action", "operation", "queries", "code", "query")


# Not frozen, though nothing changes it: see `Item`.
@dataclass(slots=True)
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
        [
            Block(item_ref(item.index), _own_head(item) if item.index in summaries else _head(item), _parts(item))
            for item in items
            if item.is_history
        ]
    )


def summary_block(summary: str) -> Block:
    """The summary so far, as the block that a further window of a transcript begins with: its ref sorts first and names
    no item."""
    return Block(item_ref(-1), _SUMMARY_HEAD, (TextPart(disarm(summary)),))


def write_blocks(blocks: Sequence[Block], mark: str, *, images: bool) -> tuple[Part, ...]:
    """The blocks as content parts: neighbouring text joined, images as parts of their own, or named if not `images`."""
    parts: list[Part] = []
    text: list[str] = []
    for block in blocks:
        text.append(_write_opening(block, mark))
        for part in block.parts:
            if isinstance(part, TextPart):
                # A restored summary was disarmed when it was restored, and its own fence says what it is.
                said = part.text if block.head is _SUMMARY_HEAD else disarm(part.text)
                text.append(_defuse(said, mark) + "\n")
            elif images:
                parts += [TextPart("".join(text)), part]
                text = []
            else:
                text.append(IMAGE_NOT_SHOWN + "\n")
        text.append(_write_closing(mark))
    return (*parts, TextPart("".join(text))) if text else tuple(parts)


def _write_opening(block: Block, mark: str) -> str:
    attributes: Final = "".join([f" {name}={_quoted(value)}" for name, value in block.head.items()])
    return f'<item-{mark} ref="{block.ref}"{attributes}>\n'


def _quoted(value: str) -> str:
    """As `json.dumps` quotes it; names and ids, written for every item, need no escapes."""
    plain: Final = value.isprintable() and '"' not in value and "\\" not in value
    return f'"{value}"' if plain else json.dumps(value, ensure_ascii=False)


def _write_closing(mark: str) -> str:
    return f"</item-{mark}>\n"


def count_content(block: Block, count: Callable[[str], int]) -> int:
    """Tokens of what a block holds, and a little for the message it is."""
    texts: Final = [part.text for part in block.parts if isinstance(part, TextPart)]
    return _ITEM_TOKENS + sum(map(count, texts)) + IMAGE_TOKENS * (len(block.parts) - len(texts))


def count_fence(block: Block) -> int:
    """Tokens of the fence around a block, on the high side; reckoned, not counted: there is one for every item."""
    return _FENCE_TOKENS + sum([_ATTRIBUTE_TOKENS + len(value) // 2 for value in block.head.values()])


def count_block(block: Block, count: Callable[[str], int]) -> int:
    """Tokens of a block as it is shown, its fence included."""
    return count_content(block, count) + count_fence(block)


def shorten_block(block: Block, budget: int, count: Callable[[str], int]) -> Block:
    """The block in at most `budget` tokens where that can be done: of each text head, tail and the oddest lines, and
    images only while there is room for them."""
    tokens: Final = count_block(block, count)
    if tokens <= budget:
        return block
    characters: Final = sum(len(part.text) for part in block.parts if isinstance(part, TextPart))
    images: Final = max(0, (budget - count_block(replace(block, parts=()), count)) // (2 * IMAGE_TOKENS))

    def shortened(limit: int) -> Block:
        return replace(block, parts=tuple(_shorten_parts(block.parts, limit / max(1, characters), images)))

    # From where it should be if all of the text were alike: to measure megabytes again and again takes seconds.
    first: Final = characters * max(0, budget) // tokens
    limit: Final = shrink(lambda tried: count_block(shortened(tried), count), first, budget)
    return shortened(limit or 0)


def _shorten_parts(parts: Sequence[Part], share: float, images: int) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, TextPart):
            yield TextPart(shorten_text(part.text, int(len(part.text) * share)))
        else:
            images -= 1
            yield part if images >= 0 else TextPart(IMAGE_LEFT_OUT)


def _defuse(text: str, mark: str) -> str:
    # The mark is random, so this never hits by chance; it costs nothing to be sure.
    return text.replace(mark, "*" * len(mark)) if mark in text else text


def _own_head(item: Item) -> Mapping[str, str]:
    return _RECORD_HEAD if is_record(item.raw) else _SUMMARY_HEAD


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


def _parts(item: Item) -> tuple[Part, ...]:
    raw: Final = item.raw
    if item.kind is Kind.OUTPUT:
        return read_parts(raw.get("output", raw.get("tools")), item.index)
    if item.kind is Kind.CALL or item.kind is Kind.HOSTED:
        return _call(raw)
    if item.kind is Kind.MESSAGE:
        said: Final = read_parts(raw.get("content"), item.index)
        return said if item.type == "message" else (_author(item), *said)
    if item.kind is Kind.REASONING:
        return _reasoning(item)
    if item.kind is Kind.REFERENCE:
        return (TextPart(f"[a stored item, {raw.get('id')!r}: its content is not in this transcript]"),)
    return (TextPart(_as_json(raw)),)


def _author(item: Item) -> Part:
    author, recipient = item.raw.get("author", "?"), item.raw.get("recipient", "?")
    return TextPart(f"[message between agents, from {author} to {recipient}]")


def _reasoning(item: Item) -> tuple[Part, ...]:
    summary, content = item.raw.get("summary"), item.raw.get("content")
    shown: Final = (*read_parts(summary, item.index), *read_parts(content, item.index)) if summary or content else ()
    return shown or (_SEALED_REASONING,)


def _call(raw: Mapping[str, Any]) -> tuple[Part, ...]:
    known: Final = [value for member in _CALL_MEMBERS if (value := raw.get(member)) not in (None, "")]
    shown: Final = [value if isinstance(value, str) else _as_json(value) for value in known or (raw,)]
    # Hosted tools bring their result in the same item.
    results: Final = [f"{member}: {_as_json(raw[member])}" for member in _RESULT_MEMBERS if raw.get(member)]
    return tuple(map(TextPart, (*shown, *results)))


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


__all__ = [
    "SAMPLE_MARK",
    "Block",
    "ImagePart",
    "Part",
    "TextPart",
    "count_block",
    "count_content",
    "count_fence",
    "item_ref",
    "render_blocks",
    "shorten_block",
    "summary_block",
    "write_blocks",
]

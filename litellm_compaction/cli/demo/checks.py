"""What the contract says of each step, as checks: every function gives what is wrong, nothing where all is right."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from litellm_compaction.cli.demo.client import HEADER, Reply
from litellm_compaction.cli.demo.session import Session

JsonObject = dict[str, Any]

_STREAM_ORDER: Final = (
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.output_item.done",
    "response.completed",
)
_COMPACTING: Final = "response.compaction.compacting"
_COMPACT_KEYS: Final = {"id", "object", "created_at", "output", "usage"}
# Letters in a row that base64 of random bytes will not hold by chance.
_TELLING_WORD: Final = re.compile(r"[A-Za-z_]{10,}")


def compaction_items(items: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The compaction items among `items`."""
    return [item for item in items if item.get("type") == "compaction"]


def check_stream(reply: Reply) -> Iterator[str]:
    """The events of a streamed trigger: their order, their numbers, one item, the same everywhere."""
    error: Final = reply.body.get("error")
    if isinstance(error, Mapping):
        yield f"the stream ended with {reply.events[-1].type}: {error.get('message')} (code {error.get('code')})"
        return
    types: Final = tuple(event.type for event in reply.events if event.type != _COMPACTING)
    if types != _STREAM_ORDER:
        yield f"the events were {', '.join(types)}, expected {', '.join(_STREAM_ORDER)}"
        return
    numbers: Final = [event.data.get("sequence_number") for event in reply.events]
    if numbers != list(range(len(numbers))):
        yield f"sequence_number does not count up from 0: {numbers}"
    carriers: Final = [event.data["item"] for event in reply.events if "item" in event.data]
    outputs: Final = compaction_items([*carriers, *reply.body.get("output", [])])
    seen: Final = [(item.get("id"), item.get("encrypted_content")) for item in outputs]
    if len(seen) != 3 or any(one != other for one, other in pairwise(seen)):  # noqa: PLR2004  added, done, completed
        yield "added, done and completed do not carry one and the same item"
    if len(reply.body.get("output", [])) != 1:
        yield f"output holds {len(reply.body.get('output', []))} items, expected the compaction item alone"
    if reply.body.get("status") != "completed":
        yield f"status is {reply.body.get('status')!r}, expected 'completed'"
    yield from _check_accounting(reply, "trigger")


def check_compact(reply: Reply, session: Session) -> Iterator[str]:
    """The body of `/responses/compact`: its members, the user's messages word for word, the one item last."""
    if set(reply.body) != _COMPACT_KEYS:
        yield f"the body has the members {sorted(reply.body)}, expected {sorted(_COMPACT_KEYS)}"
    if reply.body.get("object") != "response.compaction":
        yield f"object is {reply.body.get('object')!r}, expected 'response.compaction'"
    output: Final = reply.body.get("output") or []
    if len(compaction_items(output)) != 1 or output[-1].get("type") != "compaction":
        yield "output does not end with one compaction item"
    returned: Final = [item.get("content") for item in output if item.get("role") == "user"]
    if returned != [item["content"] for item in session.user_messages]:
        yield f"output holds {len(returned)} user messages that are not the session's own, word for word"
    yield from _check_accounting(reply, "compact")


def _check_accounting(reply: Reply, origin: str) -> Iterator[str]:
    usage: Final = reply.body.get("usage") or {}
    if not all(usage.get(name) for name in ("input_tokens", "output_tokens", "total_tokens")):
        yield f"usage is {usage or 'missing'}, expected the tokens of all inferences"
    if reply.headers.get(HEADER) != origin:
        yield f"header {HEADER} is {reply.headers.get(HEADER)!r}, expected {origin!r}"


def check_item(item: Mapping[str, Any], session: Session) -> Iterator[str]:
    """The item itself: an id, and content in which nothing of the conversation can be read."""
    if not str(item.get("id", "")).startswith("cmp_"):
        yield f"the item's id is {item.get('id')!r}, expected cmp_…"
    words: Final = readable_words(str(item.get("encrypted_content", "")), session)
    if words:
        yield f"words of the conversation can be read in the item: {', '.join(words[:5])}"


def readable_words(content: str, session: Session) -> list[str]:
    """Words of the session (10 letters and more) that stand in `content`, as it is or decoded from base64."""
    known: Final = set(_TELLING_WORD.findall(str(session.items)))
    forms: Final = (content, *_decoded(content))
    return sorted(word for word in known if any(word in form for form in forms))


def _decoded(content: str) -> Iterator[str]:
    for part in content.split("."):
        try:
            yield base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True).decode("latin-1")
        except (binascii.Error, ValueError):
            continue


def check_answer(text: str, facts: Sequence[Sequence[str]]) -> Iterator[str]:
    """The next turn: the model knows what was said before the compaction."""
    for spellings in facts:
        if not any(spelling in text for spelling in spellings):
            yield f"the answer of the next turn does not say {' or '.join(map(repr, spellings))}"


def output_text(body: Mapping[str, Any]) -> str:
    """The text of all messages in a response's output."""
    return "\n".join(
        str(part["text"])
        for item in body.get("output") or []
        if item.get("type") == "message"
        for part in item.get("content") or []
        if part.get("type") == "output_text"
    )

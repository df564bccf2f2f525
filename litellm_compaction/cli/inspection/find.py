"""Finding compaction items in whatever was saved: an item, a request, a response, a stream, or the content alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from litellm_compaction.conversation.items import COMPACTION_TYPES
from litellm_compaction.envelope.sealing import UNSEALED_MEMBER, is_own

CompactionItem = Mapping[str, Any]


def find_items(text: str) -> list[CompactionItem]:
    """Every compaction item in `text`, each once, in order.

    A stream shows one item three times (added, done, completed): equal contents count once.
    """
    found: Final = [item for value in _values(text) for item in _walk(value)]
    return list({item["encrypted_content"]: item for item in found}.values())


def _values(text: str) -> Iterator[object]:
    stripped: Final = text.strip()
    try:
        yield json.loads(stripped)
    except RecursionError:
        return  # nested deeper than any item is
    except ValueError:
        pass
    else:
        return
    if is_own(stripped):
        yield stripped
        return
    # Server-sent events, or one JSON value a line as loggers write them.
    for line in stripped.splitlines():
        try:
            yield json.loads(line.removeprefix("data:"))
        except (ValueError, RecursionError):
            continue


def _walk(value: object) -> Iterator[CompactionItem]:
    """Items where the API puts them. Tool output may hold what looks like an item, and is not looked into."""
    if isinstance(value, str):
        if is_own(value.strip()):
            yield {"type": "compaction", "encrypted_content": value.strip()}
    elif isinstance(value, list):
        for entry in value:
            yield from _walk(entry) if isinstance(entry, Mapping) else ()
    elif isinstance(value, Mapping):
        yield from _walk_object(value)


def _walk_object(value: Mapping[str, Any]) -> Iterator[CompactionItem]:
    if _is_item(value):
        yield value
    elif UNSEALED_MEMBER in value:  # an unsealed payload, saved bare
        yield {"type": "compaction", "encrypted_content": json.dumps(value)}
    elif "call_id" not in value:
        for member in ("item", "response"):
            nested = value.get(member)
            yield from _walk_object(nested) if isinstance(nested, Mapping) else ()
        for member in ("input", "output"):
            entries = value.get(member)
            yield from (entry for entry in entries if _is_item(entry)) if isinstance(entries, list) else ()


def _is_item(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("type"), str)
        and value["type"] in COMPACTION_TYPES
        and isinstance(value.get("encrypted_content"), str)
    )

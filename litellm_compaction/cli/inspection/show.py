"""An opened item on the screen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from litellm_compaction.cli.console import one_line, printable
from litellm_compaction.conversation.items import Item, classify_items
from litellm_compaction.envelope.payload import Payload

_PREVIEW: Final = 72
_TEXT_MEMBERS: Final = ("content", "output", "arguments", "input", "action", "summary")


def show_payload(console: Console, item: Mapping[str, Any], payload: Payload) -> None:
    """Where the item is from, whom it is bound to, and all it holds."""
    content: Final = str(item["encrypted_content"])
    console.print(Rule(Text(printable(f"compaction item {item.get('id') or '(no id)'}"), style="bold"), align="left"))
    facts: Final = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in (
        ("origin", payload.origin),
        ("created", _time(payload.created_at)),
        ("model", payload.model or "(not recorded)"),
        ("bound to", "everybody" if payload.bind == "none" else f"{payload.bind} {payload.bound_to}"),
        ("content", f"{len(content):,} characters, {'unsealed' if content.startswith('{') else 'sealed'}"),
        ("left out of the summary", f"{payload.dropped} items"),
        ("replaces", f"{len(payload.folded)} earlier items"),
    ):
        facts.add_row(Text(name, style="dim"), Text(printable(value)))
    console.print(facts)
    _section(console, f"Summary: {len(payload.summary):,} characters")
    console.print(Padding(Text(printable(payload.summary.strip())), (0, 0, 0, 2)))
    for title, items in (("Kept word for word", payload.kept), ("System and developer messages", payload.system)):
        _section(console, f"{title}: {len(items)}")
        if items:
            console.print(Padding(_items_table(classify_items(items)), (0, 0, 0, 2)))


def _items_table(items: Iterable[Item]) -> Table:
    # The preview takes what the others leave: rich would else shrink them all alike.
    table: Final = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for column in ("kind", "call_id", "bytes"):
        table.add_column(column, justify="right" if column == "bytes" else "left", overflow="fold")
    table.add_column("begins with", ratio=1, no_wrap=True)
    for item in items:
        size = len(json.dumps(item.raw, ensure_ascii=False, default=str).encode("utf-8", "replace"))
        kind = f"{item.role} {item.type}".strip()
        table.add_row(Text(printable(kind)), Text(printable(item.call_id or "")), f"{size:,}", Text(preview(item.raw)))
    return table


def preview(raw: Mapping[str, Any]) -> str:
    """One line of what an item says."""
    text: Final = next((found for name in _TEXT_MEMBERS if (found := _text(raw.get(name)))), "")
    return one_line(text, _PREVIEW)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return " ".join(_text(entry) for entry in value)
    if isinstance(value, Mapping):
        if "image_url" in value:
            return "[image]"
        text: Final = value.get("text")
        return text if isinstance(text, str) else json.dumps(value, ensure_ascii=False, default=str)
    return ""


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _time(seconds: int) -> str:
    if not seconds:
        return "(not recorded)"
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

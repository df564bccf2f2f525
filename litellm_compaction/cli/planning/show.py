"""A plan as JSON for programs and as tables for people: the same facts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from litellm_compaction.cli.console import printable
from litellm_compaction.cli.planning.fates import Fate, Line
from litellm_compaction.cli.planning.outline import Outline

_FATES: Final[tuple[Fate, ...]] = get_args(Fate)
# A long session: its beginning and its end say enough.
_SHOWN_LINES: Final = 40


def as_json(outline: Outline) -> dict[str, Any]:
    """The outline as JSON values; `budget` and `over_threshold` are null where the window is unknown."""
    budget: Final = outline.budget
    return {
        "model": outline.model,
        "summary_model": outline.writer,
        "mode": outline.mode,
        "budget": None if budget is None else asdict(budget),
        "counted": outline.counted,
        "counting_error": outline.error,
        "over_threshold": None if budget is None else outline.is_over,
        "windows": outline.windows,
        "totals": {fate: {"items": outline.items(fate), "tokens": outline.tokens(fate)} for fate in _FATES},
        "items": [asdict(line) for line in outline.lines],
    }


def show_outline(console: Console, outline: Outline) -> None:
    """What was counted against which budget, what becomes of how much, and of each item."""
    for sentence in _sentences(outline):
        # Text: in a plain string rich takes brackets for markup.
        console.print(Text(printable(sentence)))
    totals: Final = Table("what becomes of it")
    for column in ("items", "tokens"):
        totals.add_column(column, justify="right")
    for fate in _FATES:
        totals.add_row(fate, f"{outline.items(fate):,}", f"{outline.tokens(fate):,}")
    console.print(totals)
    console.print(_items(outline.lines))


def _sentences(outline: Outline) -> list[str]:
    budget: Final = outline.budget
    windows: Final = "one window" if outline.windows == 1 else f"about {outline.windows} windows"
    side: Final = "over" if outline.is_over else "not over"
    return [
        f"The request counts {outline.counted:,} tokens (and {outline.error:,} more by another tokenizer at most).",
        f"The window of {outline.model} is unknown."
        if budget is None
        else f"{outline.model}: window {budget.context:,}, output {budget.output:,}, input {budget.input:,}, "
        f"threshold {budget.threshold:,}: it is {side} the threshold.",
        *(
            ["Its backend compacts by itself. By this plugin it would be as follows."]
            if outline.mode == "native"
            else []
        ),
        f"{outline.writer} would write the summary, in {windows}.",
    ]


def _items(lines: list[Line]) -> Table:
    table: Final = Table("item", "type", "role")
    table.add_column("tokens", justify="right")
    table.add_column("what becomes of it")
    half: Final = len(lines) if len(lines) <= _SHOWN_LINES else _SHOWN_LINES // 2
    for place, line in enumerate(lines):
        if half <= place < len(lines) - half:
            if place == half:
                table.add_row("…", f"{len(lines) - 2 * half} more")
            continue
        kind, role = Text(printable(line.type)), Text(printable(line.role))
        table.add_row(f"{line.index}", kind, role, f"{line.tokens:,}", line.fate)
    return table

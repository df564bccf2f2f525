"""What becomes of each item of a request when it is compacted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from litellm_compaction.budget.counting import exact_counter
from litellm_compaction.compaction.engine import Summary
from litellm_compaction.compaction.plan import Selection, portable
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.conversation.items import Item, Kind, classify_items
from litellm_compaction.conversation.measure import Measured
from litellm_compaction.conversation.transcript import item_ref
from litellm_compaction.gateway.profiles import load_encoding

Fate = Literal["kept", "kept in part", "summarised", "shortened", "left out", "carried"]


@dataclass(frozen=True, slots=True)
class Line:
    """One item of the expanded input: its place, what it is, its tokens as it came, and what becomes of it.

    `kept`: word for word beside the summary, `kept in part`: so with its text cut. `shortened`: summarised from a part
    of it. `left out`: its content is not summarised. `carried`: system and developer messages and tools, which are no
    part of the transcript.
    """

    index: int
    type: str
    role: str
    tokens: int
    fate: Fate


def list_lines(expansion: Expansion, measured: Measured, selection: Selection, summary: Summary) -> list[Line]:
    """One line for each item of the expansion. `measured` is of the same items."""
    count: Final = exact_counter(load_encoding())
    items: Final = classify_items(expansion.items)
    cut: Final = _cut(items, selection)
    # Tools among the items are measured with the tools.
    pieces: Final = iter(measured.items)
    sizes: Final = [0 if item.kind is Kind.TOOLS else next(pieces).count(count) for item in items]

    def fate(item: Item) -> Fate:
        ref: Final = item_ref(item.index)
        if not item.is_history or (item.is_system and item.index not in expansion.summaries):
            return "carried"
        if ref in selection.refs:
            return "kept in part" if ref in cut else "kept"
        # Nobody but the server it points into knows what a reference stands for.
        if ref in summary.left_out or item.kind is Kind.REFERENCE:
            return "left out"
        return "shortened" if ref in summary.shortened else "summarised"

    return [Line(item.index, item.type, item.role, sizes[item.index], fate(item)) for item in items]


def _cut(items: Sequence[Item], selection: Selection) -> frozenset[str]:
    """Refs of the kept items whose text was cut, so that they fit the ceiling."""
    kept: Final = [item for item in items if item_ref(item.index) in selection.refs]
    return frozenset(
        item_ref(item.index)
        for item, written in zip(kept, selection.kept, strict=True)
        if written != portable(item, item.raw)
    )

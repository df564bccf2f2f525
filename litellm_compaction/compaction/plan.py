"""What a compaction keeps word for word, what it shows to the summariser, and what the finished state is."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from litellm_compaction.conversation.content import has_file
from litellm_compaction.conversation.items import Item, Kind, RawItem
from litellm_compaction.conversation.pairs import Group, group_items
from litellm_compaction.conversation.transcript import Block, item_ref, render_blocks
from litellm_compaction.errors import NothingToCompact

# Characters of all kept items together: OpenAI allows an item 20,971,520, and base64 takes a third.
MAX_KEPT_BYTES: Final = 12_000_000
# Gives the tokens of a text, exactly or estimated.
Counter = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings in tokens of what stays verbatim. `kept`: everything, None where the window is unknown."""

    recent: int
    kept: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A transcript made ready: its groups, which of them must stay, and the blocks the summariser sees.

    `sizes` are tokens per group, `unseen` counts items of which the summariser sees no content.
    """

    groups: tuple[Group, ...]
    sizes: tuple[int, ...]
    forced: frozenset[int]
    recent: frozenset[int]
    blocks: tuple[Block, ...]
    system: tuple[RawItem, ...]
    limits: Limits
    unseen: int

    @property
    def tokens(self) -> int:
        return sum(self.sizes)

    @property
    def refs(self) -> frozenset[str]:
        return frozenset(block.ref for block in self.blocks)


def plan_compaction(
    items: Sequence[Item], summaries: Collection[int], count: Counter, limits: Callable[[int], Limits]
) -> Plan:
    """The plan for a transcript. `summaries`: indexes of earlier summaries; `limits` from the transcript's tokens.

    Raises NothingToCompact, InvalidToolPairing and UnsupportedImage.
    """
    history: Final = [item for item in items if item.is_history]
    if not any(not item.is_system or item.index in summaries for item in history):
        raise NothingToCompact
    blocks: Final = render_blocks(history, summaries)
    tokens: Final = {block.ref: count_block(block, count) for block in blocks}
    groups: Final = group_items(history)
    sizes: Final = tuple(sum(tokens[item_ref(item.index)] for item in group.items) for group in groups)
    ceilings: Final = limits(sum(sizes))
    keepable: Final = frozenset(
        place for place, group in enumerate(groups) if any(_can_keep(item, summaries) for item in group.items)
    )
    return Plan(
        groups=groups,
        sizes=sizes,
        forced=keepable & _forced(groups, [item for item in history if item.index not in summaries]),
        recent=keepable & _recent(groups, sizes, ceilings.recent),
        blocks=blocks,
        system=tuple(item.raw for item in history if item.is_system and item.index not in summaries),
        limits=ceilings,
        unseen=sum(item.kind is Kind.REFERENCE for item in history),
    )


def count_block(block: Block, count: Counter) -> int:
    # An image costs about this much with every provider that publishes a rule; its base64 is never counted.
    image: Final = 1_000
    return 16 + sum(count(part.text) if hasattr(part, "text") else image for part in block.parts)


def _can_keep(item: Item, summaries: Collection[int]) -> bool:
    """System text travels apart, reasoning is bound to its provider, an earlier summary is folded in."""
    return not item.is_system and item.kind is not Kind.REASONING and item.index not in summaries


def _forced(groups: Sequence[Group], history: Sequence[Item]) -> frozenset[int]:
    """Open calls and results nobody reacted to, files, and the user's last request while it is unanswered."""
    said: Final = [item for item in history if item.is_user or item.is_assistant]
    unanswered: Final = {item.index for item in said[-1:] if item.is_user}
    return frozenset(
        place
        for place, group in enumerate(groups)
        if group.open
        or any(
            item.index in unanswered or has_file(item.raw.get("content")) or has_file(item.raw.get("output"))
            for item in group.items
        )
    )


def _recent(groups: Sequence[Group], sizes: Sequence[int], budget: int) -> frozenset[int]:
    """The newest whole groups within a budget of tokens; stops at the first that does not fit, leaving no hole."""
    kept: set[int] = set()
    for place in sorted(range(len(groups)), key=lambda place: -groups[place].last_index):
        budget -= sizes[place]
        if budget < 0:
            break
        kept.add(place)
    return frozenset(kept)


@dataclass(frozen=True, slots=True)
class Selection:
    """Items kept verbatim, in their order, and how many that should have been kept did not fit."""

    kept: tuple[dict[str, Any], ...]
    left_out: int


def select_kept(plan: Plan, retain: Collection[str], summaries: Collection[int]) -> Selection:
    """What must stay, the model's choice, the newest; under the ceiling of tokens and of what an item can hold.

    Only whole groups. Over a ceiling the newest win, what must stay first.
    """
    chosen: Final = {
        place
        for place, group in enumerate(plan.groups)
        if any(item_ref(item.index) in retain and _can_keep(item, summaries) for item in group.items)
    }
    tokens, size = plan.limits.kept, MAX_KEPT_BYTES
    kept: set[int] = set()
    left_out = 0
    for wanted in (plan.forced, chosen, plan.recent):
        for place in sorted(wanted - kept, reverse=True):
            group_size = _bytes_of(plan.groups[place])
            if group_size > size or (tokens is not None and plan.sizes[place] > tokens):
                left_out += 0 if wanted is plan.recent else len(plan.groups[place].items)
                continue
            size -= group_size
            tokens = None if tokens is None else tokens - plan.sizes[place]
            kept.add(place)
    members: Final = [item for place in kept for item in plan.groups[place].items if _can_keep(item, summaries)]
    return Selection(tuple(_portable(item) for item in sorted(members, key=lambda item: item.index)), left_out)


def _bytes_of(group: Group) -> int:
    return sum(len(json.dumps(dict(item.raw), ensure_ascii=False)) for item in group.items)


def _portable(item: Item) -> dict[str, Any]:
    """Without the server-side id: it names a stored item of one provider and makes others look for it."""
    named_by_id: Final = item.kind in {Kind.REFERENCE, Kind.OPAQUE, Kind.HOSTED} or item.raw.get("id") == item.call_id
    return {key: value for key, value in item.raw.items() if key != "id" or named_by_id}


def select_user_messages(
    items: Sequence[Item], summaries: Collection[int], budget: int, count: Counter
) -> list[RawItem]:
    """The user's messages for /responses/compact, verbatim and in order: the newest that fit the budget of tokens."""
    selected: list[RawItem] = []
    for item in reversed(items):
        if not item.is_user or item.type != "message" or item.index in summaries:
            continue
        budget -= sum(count_block(block, count) for block in render_blocks([item]))
        if budget < 0:
            break
        selected.append(item.raw)
    return selected[::-1]

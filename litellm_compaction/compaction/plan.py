"""What a compaction keeps word for word, what it shows to the summariser, and what the finished state is."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from litellm_compaction.budget.counting import Counter
from litellm_compaction.compaction.trim import Unit
from litellm_compaction.conversation.content import has_file
from litellm_compaction.conversation.items import Item, Kind, RawItem, classify_items
from litellm_compaction.conversation.pairs import Group, group_items
from litellm_compaction.conversation.shorten import shorten_item, shrink
from litellm_compaction.conversation.transcript import Block, count_content, count_fence, item_ref, render_blocks
from litellm_compaction.errors import NothingToCompact

# Characters of all kept items together: OpenAI allows an item 20,971,520, and base64 takes a third.
MAX_KEPT_BYTES: Final = 12_000_000
# A shortened item below this says nothing.
_LEAST_CHARACTERS: Final = 200
# What the model said or did and can be left out whole; the rest is somebody's words, or holds the state of the work.
_REMOVABLE: Final = frozenset({Kind.REASONING, Kind.CALL, Kind.OUTPUT, Kind.HOSTED})


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings in tokens of what stays verbatim. `kept`: everything, None where the window is unknown."""

    recent: int
    kept: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A transcript made ready: its groups, which of them must stay, and the units the summariser is shown.

    `sizes` are tokens per group, `unseen` counts items of which the summariser sees no content.
    """

    groups: tuple[Group, ...]
    sizes: tuple[int, ...]
    forced: frozenset[int]
    recent: frozenset[int]
    units: tuple[Unit, ...]
    system: tuple[RawItem, ...]
    unseen: int

    @property
    def tokens(self) -> int:
        return sum(self.sizes)

    @property
    def refs(self) -> frozenset[str]:
        return frozenset(block.ref for unit in self.units for block in unit.blocks)


def plan_compaction(
    items: Sequence[Item], summaries: Collection[int], count: Counter, limits: Callable[[int], Limits]
) -> Plan:
    """The plan for a transcript. `summaries`: indexes of earlier summaries; `limits` from the transcript's tokens.

    Raises NothingToCompact, InvalidToolPairing and UnsupportedImage.
    """
    history: Final = [item for item in items if item.is_history]
    if not any(not item.is_system or item.index in summaries for item in history):
        raise NothingToCompact
    unanswered: Final = _unanswered(history, summaries)
    shown: Final = {
        item.index: _Shown(
            block, count_content(block, count), count_fence(block), *_read_traits(item, summaries, unanswered)
        )
        for item, block in zip(history, render_blocks(history, summaries), strict=True)
    }
    groups: Final = group_items(history)
    members: Final = [[shown[item.index] for item in group.items] for group in groups]
    sizes: Final = tuple([sum([one.tokens for one in group]) for group in members])
    keepable: Final = frozenset([place for place, group in enumerate(members) if any(one.keepable for one in group)])
    forced: Final = [
        place
        for place, (group, ones) in enumerate(zip(groups, members, strict=True))
        if group.open or any(one.must_stay for one in ones)
    ]
    last: Final = history[-1].index
    return Plan(
        groups=groups,
        sizes=sizes,
        forced=keepable.intersection(forced),
        recent=keepable & _recent(groups, sizes, limits(sum(sizes)).recent),
        units=tuple(
            [
                Unit(
                    tuple([one.block for one in ones]),
                    tuple([one.tokens + one.fence for one in ones]),
                    removable=not group.open and group.last_index != last and all(one.removable for one in ones),
                    spoken=any(one.spoken for one in ones),
                )
                for group, ones in zip(groups, members, strict=True)
            ]
        ),
        system=tuple(item.raw for item in history if item.is_system and item.index not in summaries),
        unseen=sum(item.kind is Kind.REFERENCE for item in history),
    )


@dataclass(slots=True)
class _Shown:
    """One item as the plan looks at it: its block, the tokens of its content and of its fence, and its traits."""

    block: Block
    tokens: int
    fence: int
    removable: bool
    spoken: bool
    keepable: bool
    must_stay: bool


def _read_traits(item: Item, summaries: Collection[int], unanswered: int | None) -> tuple[bool, bool, bool, bool]:
    """Whether it may be left out, is somebody's words, can be kept verbatim, and has to be.

    Removable are assistant messages, reasoning, calls and outputs; an output without a call id belongs to nobody and
    stays. System text travels apart, reasoning is bound to its provider, an earlier summary is folded in. Files and the
    user's last request have to stay, the request while it is unanswered.
    """
    if item.index in summaries:
        return False, True, False, False
    if item.kind is Kind.MESSAGE:
        system: Final = item.is_system
        must: Final = item.index == unanswered or has_file(item.raw.get("content"))
        return item.is_assistant, system or item.is_user, not system, must
    removable: Final = item.kind in _REMOVABLE and not (item.kind is Kind.OUTPUT and item.call_id is None)
    return removable, False, item.kind is not Kind.REASONING, has_file(item.raw.get("output"))


def _unanswered(history: Sequence[Item], summaries: Collection[int]) -> int | None:
    """Index of the user's last request, None once the assistant has answered it."""
    for item in reversed(history):
        if item.index not in summaries and (item.is_user or item.is_assistant):
            return item.index if item.is_user else None
    return None


def _can_keep(item: Item, summaries: Collection[int]) -> bool:
    return _read_traits(item, summaries, None)[2]


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
    """Items kept verbatim, in their order, their refs, and the refs of those that should have been and did not fit."""

    kept: tuple[dict[str, Any], ...]
    refs: frozenset[str]
    left_out: frozenset[str]


def select_kept(
    plan: Plan, retain: Collection[str], summaries: Collection[int], ceiling: int | None, count: Counter
) -> Selection:
    """What must stay, the model's choice, the newest; under a ceiling of tokens and of what an item can hold.

    Only whole groups. Over a ceiling the newest win, what must stay first; what must stay and is too long by itself
    stays with its text shortened, since the work cannot go on without it.
    """
    chosen: Final = {
        place
        for place, group in enumerate(plan.groups)
        if any(item_ref(item.index) in retain and _can_keep(item, summaries) for item in group.items)
    }
    tokens, size = ceiling, MAX_KEPT_BYTES
    kept: dict[int, RawItem] = {}
    done: set[int] = set()
    left_out: set[str] = set()
    for wanted in (plan.forced, chosen, plan.recent):
        for place in sorted(wanted - done, reverse=True):
            members = [item for item in plan.groups[place].items if _can_keep(item, summaries)]
            cost = plan.sizes[place]
            written: list[RawItem] | None = [item.raw for item in members]
            if tokens is not None and cost > tokens:
                written = _shortened(members, tokens, count) if wanted is plan.forced else None
                cost = tokens
            if written is None or _bytes_of(written) > size:
                if wanted is not plan.recent:
                    left_out.update(item_ref(item.index) for item in plan.groups[place].items)
                continue
            size -= _bytes_of(written)
            tokens = None if tokens is None else tokens - cost
            done.add(place)
            kept.update({item.index: _portable(item, raw) for item, raw in zip(members, written, strict=True)})
    refs: Final = frozenset(item_ref(index) for index in kept)
    return Selection(tuple(dict(kept[index]) for index in sorted(kept)), refs, frozenset(left_out))


def _shortened(members: Sequence[Item], budget: int, count: Counter) -> list[RawItem] | None:
    """The members with their text cut so that together they have at most `budget` tokens; None where that is not
    enough."""

    def written(limit: int) -> list[RawItem]:
        return [shorten_item(item, limit) for item in members]

    def size(limit: int) -> int:
        blocks = render_blocks(classify_items(written(limit)))
        return sum(count_content(block, count) for block in blocks)

    longest: Final = max((len(json.dumps(dict(item.raw), ensure_ascii=False)) for item in members), default=0)
    limit: Final = shrink(size, longest, budget)
    return None if limit is None or limit < _LEAST_CHARACTERS else written(limit)


def _bytes_of(items: Sequence[RawItem]) -> int:
    return sum(len(json.dumps(dict(raw), ensure_ascii=False)) for raw in items)


def _portable(item: Item, written: RawItem) -> RawItem:
    """Without the server-side id: it names a stored item of one provider and makes others look for it."""
    named_by_id: Final = item.kind in {Kind.REFERENCE, Kind.OPAQUE, Kind.HOSTED} or item.raw.get("id") == item.call_id
    return {key: value for key, value in written.items() if key != "id" or named_by_id}


def select_user_messages(
    items: Sequence[Item], summaries: Collection[int], budget: int, count: Counter
) -> list[RawItem]:
    """The user's messages for /responses/compact, verbatim and in order: the newest that fit the budget of tokens."""
    selected: list[RawItem] = []
    for item in reversed(items):
        if not item.is_user or item.type != "message" or item.index in summaries:
            continue
        budget -= sum(count_content(block, count) for block in render_blocks([item]))
        if budget < 0:
            break
        selected.append(item.raw)
    return selected[::-1]

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
    """Ceilings in tokens of what stays verbatim. `kept`: everything, None where the window is unknown. `whole`: what
    must stay of the user's words is not shortened to fit under it: the answer to them comes next."""

    recent: int
    kept: int | None
    whole: bool = False


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
    traits: Final = {
        item.index: _read_traits(item, block, count, summaries, unanswered)
        for item, block in zip(history, render_blocks(history, summaries), strict=True)
    }
    groups: Final = group_items(history)
    last: Final = history[-1].index
    whole: Final = [_merge([traits[item.index] for item in group.items]) for group in groups]
    sizes: Final = tuple([one.tokens for one in whole])
    keepable: Final = frozenset([place for place, one in enumerate(whole) if one.keepable])
    return Plan(
        groups=groups,
        sizes=sizes,
        forced=keepable.intersection([place for place, one in enumerate(whole) if one.must_stay or groups[place].open]),
        recent=keepable & _recent(groups, sizes, limits(sum(sizes)).recent),
        units=tuple(
            [
                Unit(one.blocks, one.shown, one.removable and not group.open and group.last_index != last, one.spoken)
                for group, one in zip(groups, whole, strict=True)
            ]
        ),
        system=tuple(
            [
                item.raw
                for item in history
                if item.kind is Kind.MESSAGE and item.is_system and item.index not in summaries
            ]
        ),
        unseen=[item.kind for item in history].count(Kind.REFERENCE),
    )


@dataclass(slots=True)
class _Traits:
    """Some items as the plan looks at them: their blocks, the tokens of their content, those of each block as it is
    shown, and whether they may be left out, are somebody's words, can be kept verbatim, and have to be."""

    blocks: tuple[Block, ...]
    tokens: int
    shown: tuple[int, ...]
    removable: bool
    spoken: bool
    keepable: bool
    must_stay: bool


def _read_traits(
    item: Item, block: Block, count: Counter, summaries: Collection[int], unanswered: int | None
) -> _Traits:
    """One item's traits.

    Removable are assistant messages, reasoning, calls and outputs; an output without a call id belongs to nobody and
    stays. Files and the user's last request have to stay, the request while it is unanswered.
    """
    tokens: Final = count_content(block, count)
    blocks, shown = (block,), (tokens + count_fence(block),)
    if item.index in summaries:
        return _Traits(blocks, tokens, shown, False, True, False, False)  # four flags, named above
    keepable: Final = _can_keep(item, summaries)
    if item.kind is Kind.MESSAGE:
        must: Final = item.index == unanswered or has_file(item.raw.get("content"))
        return _Traits(blocks, tokens, shown, item.is_assistant, item.is_system or item.is_user, keepable, must)
    removable: Final = item.kind in _REMOVABLE and not (item.kind is Kind.OUTPUT and item.call_id is None)
    return _Traits(blocks, tokens, shown, removable, False, keepable, has_file(item.raw.get("output")))


def _can_keep(item: Item, summaries: Collection[int]) -> bool:
    """System text travels apart, reasoning is bound to its provider, an earlier summary is folded in."""
    return item.kind is not Kind.REASONING and not item.is_system and item.index not in summaries


def _merge(members: Sequence[_Traits]) -> _Traits:
    """The traits of items that stay or go together."""
    if len(members) == 1:
        return members[0]
    return _Traits(
        blocks=tuple([one.blocks[0] for one in members]),
        tokens=sum([one.tokens for one in members]),
        shown=tuple([one.shown[0] for one in members]),
        removable=all(one.removable for one in members),
        spoken=any(one.spoken for one in members),
        keepable=any(one.keepable for one in members),
        must_stay=any(one.must_stay for one in members),
    )


def _unanswered(history: Sequence[Item], summaries: Collection[int]) -> int | None:
    """Index of the user's last request, None once the assistant has answered it."""
    for item in reversed(history):
        if item.index not in summaries and (item.is_user or item.is_assistant):
            return item.index if item.is_user else None
    return None


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
    plan: Plan,
    retain: Collection[str],
    summaries: Collection[int],
    ceiling: int | None,
    count: Counter,
    *,
    whole: bool = False,
) -> Selection:
    """What must stay, the model's choice, the newest; under a ceiling of tokens and of what an item can hold.

    Only whole groups. Over a ceiling the newest win, what must stay first; what must stay and is too long by itself
    stays with its text shortened, since the work cannot go on without it. With `whole` the user's words are not.
    """
    chosen: Final = {
        place
        for place, group in enumerate(plan.groups)
        if any(item_ref(item.index) in retain and _can_keep(item, summaries) for item in group.items)
    }
    keeping: Final = _Keeping(plan, summaries, ceiling, count)
    spoken: Final = frozenset([place for place in plan.forced if whole and plan.units[place].spoken])
    keeping.keep_unshortened(spoken)
    keeping.keep_forced(plan.forced - spoken)
    keeping.keep_whole(chosen, wanted=True)
    keeping.keep_whole(plan.recent, wanted=False)
    kept: Final = keeping.kept
    refs: Final = frozenset(item_ref(index) for index in kept)
    return Selection(tuple(dict(kept[index]) for index in sorted(kept)), refs, frozenset(keeping.left_out))


class _Keeping:
    """What is kept so far, and what is left of the ceilings: `tokens` (None: no ceiling) and bytes."""

    def __init__(self, plan: Plan, summaries: Collection[int], ceiling: int | None, count: Counter) -> None:
        self._plan: Final = plan
        self._summaries: Final = summaries
        self._count: Final = count
        self._tokens = ceiling
        self._bytes = MAX_KEPT_BYTES
        self._done: set[int] = set()
        self.kept: dict[int, RawItem] = {}
        self.left_out: set[str] = set()

    def keep_forced(self, places: Collection[int]) -> None:
        """What must stay: the short ones whole, the long ones shortened to equal shares of what is left, so that a long
        output does not push the user's request out."""
        order: Final = sorted(places, key=lambda place: (self._plan.sizes[place], -place))
        for number, place in enumerate(order):
            members = self._members(place)
            written: list[RawItem] | None = [item.raw for item in members]
            cost = self._plan.sizes[place]
            if self._tokens is not None and cost > (share := self._tokens // (len(order) - number)):
                shortened = _shortened(members, share, self._count)
                if shortened is not None:
                    written, cost = shortened, min(cost, share)
                elif cost > self._tokens:
                    written = None
            self._take(place, members, written, cost, wanted=True)

    def keep_unshortened(self, places: Collection[int]) -> None:
        """What must stay, as it is, whatever the ceiling of tokens; what else is kept has what is left, at least a
        quarter of it."""
        least: Final = None if self._tokens is None else self._tokens // 4
        for place in sorted(places):
            members = self._members(place)
            self._take(place, members, [item.raw for item in members], self._plan.sizes[place], wanted=True)
        if self._tokens is not None and least is not None:
            self._tokens = max(least, self._tokens)

    def keep_whole(self, places: Collection[int], *, wanted: bool) -> None:
        """The newest that fit, as they are; `wanted`: what does not is counted as left out."""
        for place in sorted(set(places) - self._done, reverse=True):
            members = self._members(place)
            cost = self._plan.sizes[place]
            fits = self._tokens is None or cost <= self._tokens
            self._take(place, members, [item.raw for item in members] if fits else None, cost, wanted=wanted)

    def _members(self, place: int) -> list[Item]:
        return [item for item in self._plan.groups[place].items if _can_keep(item, self._summaries)]

    def _take(
        self, place: int, members: Sequence[Item], written: Sequence[RawItem] | None, cost: int, *, wanted: bool
    ) -> None:
        if written is None or _bytes_of(written) > self._bytes:
            if wanted:
                self.left_out.update(item_ref(item.index) for item in self._plan.groups[place].items)
            return
        self._bytes -= _bytes_of(written)
        self._tokens = None if self._tokens is None else self._tokens - cost
        self._done.add(place)
        self.kept.update({item.index: portable(item, raw) for item, raw in zip(members, written, strict=True)})


def _shortened(members: Sequence[Item], budget: int, count: Counter) -> list[RawItem] | None:
    """The members with their text cut, and if need be their images left out, so that together they have at most
    `budget` tokens; None where that is not enough."""

    def written(limit: int, *, images: bool) -> list[RawItem]:
        return [shorten_item(item, limit, images=images) for item in members]

    def size(limit: int, *, images: bool) -> int:
        blocks = render_blocks(classify_items(written(limit, images=images)))
        return sum([count_content(block, count) for block in blocks])

    longest: Final = max((len(json.dumps(dict(item.raw), ensure_ascii=False)) for item in members), default=0)
    for images in (True, False):
        limit = shrink(lambda tried, images=images: size(tried, images=images), longest, budget)  # type: ignore[misc]
        if limit is not None and (limit >= _LEAST_CHARACTERS or limit == longest):
            return written(limit, images=images)
    return None


def _bytes_of(items: Sequence[RawItem]) -> int:
    return sum(len(json.dumps(dict(raw), ensure_ascii=False)) for raw in items)


def portable(item: Item, written: RawItem) -> RawItem:
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

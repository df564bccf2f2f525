"""Making a transcript fit: what is left out, what is shortened, and what goes into the next window.

Pure: units in, units out. Sizes are tokens as the block is shown to the summariser.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from litellm_compaction.budget.counting import Counter
from litellm_compaction.conversation.shorten import IMAGE_LEFT_OUT
from litellm_compaction.conversation.transcript import Block, TextPart, count_block, shorten_block

# Shorter than this an item of the model's says nothing any more and is better left out; words are never left out, and
# are cut further before a compaction is given up.
_LEAST_ITEM: Final = 96
_LEAST_WORDS: Final = 64


# Not frozen, though nothing changes it: see `Item`.
@dataclass(slots=True)
class Unit:
    """Blocks that stay or go together, and the tokens of each.

    `removable`: an assistant message, reasoning, a finished call with its output. `spoken`: words of the user or the
    operator, or an earlier summary: the last to be shortened.
    """

    blocks: tuple[Block, ...]
    sizes: tuple[int, ...]
    removable: bool = False
    spoken: bool = False

    @property
    def tokens(self) -> int:
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Cut:
    """Units that remain, in order, and the refs of items that were left out or shortened on the way."""

    units: tuple[Unit, ...]
    left_out: frozenset[str] = field(default_factory=frozenset)
    shortened: frozenset[str] = field(default_factory=frozenset)

    @property
    def tokens(self) -> int:
        return sum(unit.tokens for unit in self.units)


class DoesNotFit(Exception):
    """Even with everything left out that may be, and the rest cut to its shortest, the transcript does not fit."""


def leave_out(units: Sequence[Unit], amount: int) -> Cut:
    """Without the oldest removable units, until `amount` tokens are gone or none is left to go."""
    gone: set[int] = set()
    for place, unit in enumerate(units):
        if amount <= 0:
            break
        if unit.removable:
            amount -= unit.tokens
            gone.add(place)
    refs: Final = frozenset(block.ref for place in gone for block in units[place].blocks)
    return Cut(tuple(unit for place, unit in enumerate(units) if place not in gone), refs)


def cut_to(units: Sequence[Unit], capacity: int, count: Counter) -> Cut:
    """Into one window by leaving out: what alone is larger than the window is shortened to half of it, then the oldest
    removable go, and only then the longest of the rest are shortened. Raises DoesNotFit."""
    halved: Final = _cut_giants(units, capacity, capacity // 2, count)
    trimmed: Final = leave_out(halved.units, halved.tokens - capacity)
    rest: Final = _squeeze(trimmed.units, lambda sizes: sum(sizes) <= capacity, count, _originals(units))
    # An item that was shortened and left out after all is left out.
    shortened: Final = (halved.shortened | rest.shortened) - trimmed.left_out
    return Cut(rest.units, trimmed.left_out, shortened)


def cut_by(units: Sequence[Unit], amount: int, count: Counter, capacity: int | None = None) -> Cut:
    """At least `amount` tokens less, or as much less as can be; within `capacity` where that is known.

    Raises DoesNotFit if that is not reached, or if nothing at all can go.
    """
    goal: Final = sum(unit.tokens for unit in units) - amount
    trimmed: Final = leave_out(units, amount)
    try:
        rest = _squeeze(trimmed.units, lambda sizes: sum(sizes) <= goal, count, _originals(units))
    except DoesNotFit:
        least: Final = [_LEAST_WORDS if unit.spoken else _LEAST_ITEM for unit in trimmed.units]
        rest = _shorten(trimmed.units, least, count, _originals(units))
    cut: Final = Cut(rest.units, trimmed.left_out, rest.shortened)
    if (capacity is not None and cut.tokens > capacity) or not (cut.left_out or cut.shortened):
        raise DoesNotFit
    return cut


def fold_into(units: Sequence[Unit], capacity: int, windows: int, count: Counter) -> Cut:
    """Into at most so many windows of `capacity` tokens: long items are shortened before any is left out.

    Raises DoesNotFit.
    """

    def fits(sizes: Sequence[int]) -> bool:
        return count_windows(sizes, capacity) <= windows

    if fits([unit.tokens for unit in units]):
        return Cut(tuple(units))
    whole: Final = _cut_giants(units, capacity, capacity, count)
    trimmed: Final = _fewest(whole.units, fits, count)
    rest: Final = _squeeze(trimmed.units, fits, count, _originals(units))
    return Cut(rest.units, trimmed.left_out, (whole.shortened | rest.shortened) - trimmed.left_out)


def fold_window(
    units: Sequence[Unit], capacity: int, later: int, windows: int, count: Counter
) -> tuple[Cut, tuple[Unit, ...]]:
    """The next window of a fold, at most `capacity` tokens, and what remains for the others, as it was.

    `later`: tokens of each window after this one, no more than `capacity`; `windows`: how many there may be with this
    one. Only what goes into this window is shortened: by the next it is known better how much has to be. Raises
    DoesNotFit.
    """
    if windows <= 1:
        return fold_into(units, capacity, 1, count), ()
    whole: Final = [later if unit.tokens > later and _shortest(unit, count) <= later else unit.tokens for unit in units]
    if count_windows(whole, later) <= windows:
        return _fill(units, None, capacity, later, count)
    trimmed: Final = _fewest(units, lambda sizes: count_windows(sizes, later) <= windows, count, later)
    for spoken, least in ((False, _LEAST_ITEM), (True, _LEAST_WORDS)):
        level = _highest_level(
            trimmed.units, lambda sizes: count_windows(sizes, later) <= windows, least, spoken=spoken, most=later
        )
        if level is not None:
            window, rest = _fill(trimmed.units, (level, spoken), capacity, later, count)
            return Cut(window.units, trimmed.left_out, window.shortened), rest
    raise DoesNotFit


def _fill(
    units: Sequence[Unit], level: tuple[int, bool] | None, capacity: int, later: int, count: Counter
) -> tuple[Cut, tuple[Unit, ...]]:
    """The oldest units, each at its level, until the window is full. `level`: tokens of a block, and whether it holds
    for what somebody spoke too."""
    taken: list[Unit] = []
    shortened: set[str] = set()
    used = 0
    for place, unit in enumerate(units):
        cut = _at(unit, None if level is None or (unit.spoken and not level[1]) else level[0], later, count)
        used += cut.tokens
        if used > capacity and taken:
            return Cut(tuple(taken), shortened=frozenset(shortened)), tuple(units[place:])
        taken += cut.units
        shortened |= cut.shortened
    return Cut(tuple(taken), shortened=frozenset(shortened)), ()


def _at(unit: Unit, level: int | None, most: int, count: Counter) -> Cut:
    """One unit with its blocks at a level, and the whole of it within a window."""
    originals: Final = _originals([unit])
    cut: Final = _shorten([unit], [level], count, originals)
    if cut.tokens <= most:
        return cut
    rest: Final = _squeeze(cut.units, lambda sizes: sum(sizes) <= most, count, originals)
    return Cut(rest.units, shortened=cut.shortened | rest.shortened)


def _cut_giants(units: Sequence[Unit], capacity: int, goal: int, count: Counter) -> Cut:
    """Each unit that alone is larger than the window shortened to `goal` tokens, as far as that goes."""
    levels: Final = [
        (_highest_level([unit], lambda sizes: sum(sizes) <= goal, _LEAST_WORDS, spoken=True) or _LEAST_WORDS)
        if unit.tokens > capacity
        else None
        for unit in units
    ]
    return _shorten(units, levels, count, _originals(units))


def _fewest(
    units: Sequence[Unit], fits: Callable[[Sequence[int]], bool], count: Counter, most: float = math.inf
) -> Cut:
    """The fewest of the oldest removable left out, so that the rest fits when cut to its shortest. `most`: tokens that
    a unit has at most, since it will be cut to that."""
    floors: Final = [_floor(unit, count, most) for unit in units]
    removable: Final = [place for place, unit in enumerate(units) if unit.removable]
    low, high = 0, len(removable)
    while low < high:
        middle = (low + high) // 2
        gone = set(removable[:middle])
        enough = fits([size for place, size in enumerate(floors) if place not in gone])
        low, high = (low, middle) if enough else (middle + 1, high)
    chosen: Final = set(removable[:low])
    refs: Final = frozenset(block.ref for place in chosen for block in units[place].blocks)
    return Cut(tuple(unit for place, unit in enumerate(units) if place not in chosen), refs)


def _floor(unit: Unit, count: Counter, most: float) -> int:
    """What a unit takes at least while nobody's words are cut, or all of a window if that is enough for it."""
    least: Final = _shortest(unit, count)
    floor: Final = unit.tokens if unit.spoken else least
    return int(min(floor, most)) if least <= most else floor


def _shortest(unit: Unit, count: Counter) -> int:
    """Tokens of a unit's blocks cut to the least: a fence with a long name or call id is more than that by itself."""
    return sum(
        size if size <= _LEAST_ITEM else min(size, max(_LEAST_ITEM, count_block(_emptied(block), count)))
        for block, size in zip(unit.blocks, unit.sizes, strict=True)
    )


def _emptied(block: Block) -> Block:
    return replace(
        block, parts=tuple(TextPart("" if isinstance(part, TextPart) else IMAGE_LEFT_OUT) for part in block.parts)
    )


def count_windows(sizes: Sequence[int], capacity: int) -> float:
    """How many windows the sizes fill in their order; infinitely many if one does not fit at all."""
    windows, room = 0, 0
    for size in sizes:
        if size > capacity:
            return math.inf
        if size > room:
            windows, room = windows + 1, capacity
        room -= size
    return windows


def _originals(units: Sequence[Unit]) -> Mapping[str, Block]:
    """What a block is shortened from: what was cut once and is cut again must still say how much is missing of it."""
    return {block.ref: block for unit in units for block in unit.blocks}


def _squeeze(
    units: Sequence[Unit],
    fits: Callable[[Sequence[int]], bool],
    count: Counter,
    originals: Mapping[str, Block],
) -> Cut:
    """The longest blocks shortened to one level, the highest at which the units fit: first what nobody spoke, then all.

    Shortened text can come out a little longer than its level: then a lower one is tried. Raises DoesNotFit.
    """
    if fits([unit.tokens for unit in units]):
        return Cut(tuple(units))
    for spoken, least in ((False, _LEAST_ITEM), (True, _LEAST_WORDS)):
        level = _highest_level(units, fits, least, spoken=spoken)
        while level is not None:
            levels = [level if spoken or not unit.spoken else None for unit in units]
            cut = _shorten(units, levels, count, originals)
            if fits([unit.tokens for unit in cut.units]):
                return cut
            level = max(least, level * 9 // 10) if level > least else None
    raise DoesNotFit


def _highest_level(
    units: Sequence[Unit], fits: Callable[[Sequence[int]], bool], least: int, *, spoken: bool, most: float = math.inf
) -> int | None:
    def fits_at(level: int) -> bool:
        sizes = [_at_level(unit, level) if spoken or not unit.spoken else unit.tokens for unit in units]
        return fits([int(min(size, most)) for size in sizes])

    if not fits_at(least):
        return None
    low, high = least, max((size for unit in units for size in unit.sizes), default=least)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits_at(middle) else (low, middle - 1)
    return low


def _at_level(unit: Unit, level: int) -> int:
    return sum(min(size, level) for size in unit.sizes)


def _shorten(
    units: Sequence[Unit], levels: Sequence[int | None], count: Counter, originals: Mapping[str, Block]
) -> Cut:
    """Each unit's blocks in at most its level of tokens each; None leaves a unit whole."""
    written: list[Unit] = []
    shortened: set[str] = set()
    for unit, level in zip(units, levels, strict=True):
        if level is None or max(unit.sizes) <= level:
            written.append(unit)
            continue
        blocks = tuple(
            block if size <= level else shorten_block(originals[block.ref], level, count)
            for block, size in zip(unit.blocks, unit.sizes, strict=True)
        )
        shortened.update(new.ref for new, old in zip(blocks, unit.blocks, strict=True) if new != old)
        sizes = tuple(
            size if new is old else count_block(new, count)
            for new, old, size in zip(blocks, unit.blocks, unit.sizes, strict=True)
        )
        written.append(replace(unit, blocks=blocks, sizes=sizes))
    return Cut(tuple(written), shortened=frozenset(shortened))

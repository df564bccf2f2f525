"""Making a transcript fit: what goes, in which order, what is shortened, and that nothing else happens to it."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.compaction.trim import (
    Cut,
    DoesNotFit,
    Unit,
    count_windows,
    cut_by,
    cut_to,
    fold_into,
    fold_window,
    leave_out,
)
from litellm_compaction.conversation.content import ImagePart, Part
from litellm_compaction.conversation.transcript import Block, TextPart, count_block, item_ref
from tests.support.bodies import png

# A slow machine is no wrong answer.
SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Tokens below which a block of the model's, and one of somebody's words, is not cut.
LEAST_ITEM, LEAST_WORDS = 96, 64
TEXTS: tuple[Callable[[int], str], ...] = (
    lambda size: "line of output, nothing to see\n" * (size // 31),
    lambda size: " ".join(str(number) for number in range(size // 5)),
    lambda size: "A1b2" * (size // 4),
    lambda size: "漢字" * (size // 6),
    lambda size: "\n" * size,
)
HEADS = (
    {"type": "message", "role": "assistant"},
    {"type": "function_call_output", "call_id": "chatcmpl-tool-1f0b2c3d4e5f60718293a4b5c6d7e8f9"},
    {"type": "function_call", "name": "n" * 64, "call_id": "c" * 400},
)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """A block with text of any length, now and then with pictures or a long head; its ref is given by `unit_lists`."""
    parts: list[Part] = [TextPart(draw(st.sampled_from(TEXTS))(draw(st.integers(0, 2500))))]
    extra: list[Part] = [ImagePart(png()), TextPart("and more " * 50)]
    parts += draw(st.lists(st.sampled_from(extra), max_size=1))
    return Block("", draw(st.sampled_from([*HEADS[:1] * 6, *HEADS])), tuple(parts))


class Units(list[Unit]):
    """A list that tells its kinds and sizes, not megabytes of text, when an example fails."""

    def __repr__(self) -> str:
        return str([(unit.removable, unit.spoken, unit.sizes) for unit in self])


@st.composite
def unit_lists(draw: st.DrawFn) -> Units:
    """A transcript: what may go, what somebody said, and what must stay though nobody said it."""
    refs = map(item_ref, itertools.count())
    units = Units()
    for kind in draw(st.lists(st.sampled_from(["removable", "removable", "spoken", "protected"]), max_size=7)):
        members = draw(st.lists(blocks(), min_size=1, max_size=3))
        named = tuple(Block(next(refs), block.head, block.parts) for block in members)
        units.append(unit(*named, removable=kind == "removable", spoken=kind == "spoken"))
    return units


def unit(*members: Block, removable: bool = False, spoken: bool = False) -> Unit:
    return Unit(members, tuple(count_block(block, estimate_tokens) for block in members), removable, spoken)


def text_unit(place: int, characters: int, *, removable: bool = False, spoken: bool = False) -> Unit:
    """A unit of one block with words of about so many characters."""
    text = f"words number {place}, " + "more of them " * (characters // 13)
    return unit(Block(item_ref(place), HEADS[0], (TextPart(text),)), removable=removable, spoken=spoken)


def size_of(units: Sequence[Unit]) -> int:
    return sum(unit.tokens for unit in units)


def refs_of(units: Sequence[Unit]) -> list[str]:
    return [block.ref for unit in units for block in unit.blocks]


def least_of(unit: Unit, least: int) -> int:
    """Tokens of a unit with every block cut to the least, or to its fence where that alone is more."""
    emptied = [
        Block(
            block.ref,
            block.head,
            tuple(
                TextPart("" if isinstance(part, TextPart) else "[image, left out: there was no room for it]")
                for part in block.parts
            ),
        )
        for block in unit.blocks
    ]
    return sum(
        min(size, max(least, count_block(block, estimate_tokens)))
        for block, size in zip(emptied, unit.sizes, strict=True)
    )


def check(units: Sequence[Unit], cut: Cut) -> None:
    """What every cut keeps to: order, whole units, only what may go, true sizes, and exactly the refs concerned."""
    before = {block.ref: block for unit in units for block in unit.blocks}
    after = {block.ref: block for unit in cut.units for block in unit.blocks}
    assert refs_of(cut.units) == [ref for ref in before if ref in after]
    assert cut.left_out == before.keys() - after.keys()
    assert cut.shortened == {ref for ref, block in after.items() if block != before[ref]}
    stayed = [unit for unit in units if unit.blocks[0].ref in after]
    assert all(unit.removable for unit in units if unit not in stayed)
    for old, new in zip(stayed, cut.units, strict=True):
        assert refs_of([new]) == refs_of([old])
        assert (new.removable, new.spoken) == (old.removable, old.spoken)
        assert new.sizes == tuple(count_block(block, estimate_tokens) for block in new.blocks)
        assert all(size <= was for size, was in zip(new.sizes, old.sizes, strict=True))
        assert [block.head for block in new.blocks] == [block.head for block in old.blocks]
    removable = [unit.blocks[0].ref for unit in units if unit.removable]
    assert [ref for ref in removable if ref in cut.left_out] == removable[: len(removable) - _left(cut)]
    assert cut.tokens == size_of(cut.units)


def _left(cut: Cut) -> int:
    return sum(unit.removable for unit in cut.units)


@SLOW
@given(unit_lists(), st.integers(-100, 12_000))
def test_the_oldest_go_until_the_amount_is_reached(units: list[Unit], amount: int) -> None:
    """Nothing more than needed goes, and everything that may where it is not enough; nothing is shortened."""
    cut = leave_out(units, amount)
    check(units, cut)
    assert not cut.shortened
    gone = [unit for unit in units if unit.blocks[0].ref in cut.left_out]
    assert size_of(gone) >= amount or not _left(cut)
    assert not gone or size_of(gone[:-1]) < amount


LEFT_OUT: dict[str, tuple[int, list[int]]] = {  # amount to go; places that stay of r, spoken, r, r, protected
    "nothing": (0, [0, 1, 2, 3, 4]),
    "less-than-nothing": (-5, [0, 1, 2, 3, 4]),
    "one-token": (1, [1, 2, 3, 4]),
    "exactly-the-first": (100, [1, 2, 3, 4]),
    "one-more": (101, [1, 3, 4]),
    "all-that-may": (300, [1, 4]),
    "more-than-may": (10_000, [1, 4]),
}


@pytest.mark.parametrize(("amount", "stay"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_leave_out(amount: int, stay: list[int]) -> None:
    """Words and what is protected stay, whatever is asked for."""
    kinds = [(True, False), (False, True), (True, False), (True, False), (False, False)]
    units = [
        Unit((Block(item_ref(place), {}, ()),), (100,), removable, spoken)
        for place, (removable, spoken) in enumerate(kinds)
    ]
    assert leave_out(units, amount).units == tuple(units[place] for place in stay)


@SLOW
@given(unit_lists(), st.integers(1, 8000))
def test_cut_to_fits_or_says_that_nothing_will(units: list[Unit], capacity: int) -> None:
    """One window is never more than full; it is given up only where what must stay does not fit at its shortest."""
    try:
        cut = cut_to(units, capacity, estimate_tokens)
    except DoesNotFit:
        assert sum(least_of(unit, LEAST_WORDS) for unit in units if not unit.removable) > capacity
        return
    check(units, cut)
    assert cut.tokens <= capacity
    if size_of(units) <= capacity:
        assert cut == Cut(tuple(units))


@SLOW
@given(unit_lists(), st.integers(1, 8000), st.none() | st.integers(0, 8000))
def test_cut_by_takes_the_amount_or_all_it_can(units: list[Unit], amount: int, more: int | None) -> None:
    """At least so many tokens less, or else as few as there can be, and never more than a known window."""
    goal = size_of(units) - amount
    capacity = None if more is None else max(0, goal) + more
    lowest = sum(least_of(unit, LEAST_WORDS) for unit in units if not unit.removable)
    at_least = sum(least_of(unit, LEAST_WORDS if unit.spoken else LEAST_ITEM) for unit in units if not unit.removable)
    try:
        cut = cut_by(units, amount, estimate_tokens, capacity)
    except DoesNotFit:
        nothing_can_go = at_least == size_of(units)
        assert lowest > goal
        assert nothing_can_go or (capacity is not None and at_least > capacity)
        return
    check(units, cut)
    assert cut.left_out or cut.shortened
    assert capacity is None or cut.tokens <= capacity
    if cut.tokens > goal:
        assert lowest > goal
        assert not _left(cut)
        assert cut.tokens <= at_least


@SLOW
@given(unit_lists(), st.integers(90, 6000), st.integers(1, 5))
def test_fold_fits_its_windows_or_says_that_nothing_will(units: list[Unit], capacity: int, windows: int) -> None:
    """So many windows and no more, none of them more than full; given up only where all that may has gone."""
    staying = [unit for unit in units if not unit.removable]
    try:
        cut = fold_into(units, capacity, windows, estimate_tokens)
    except DoesNotFit:
        assert count_windows([least_of(unit, LEAST_WORDS) for unit in staying], capacity) > windows
        return
    check(units, cut)
    assert count_windows([unit.tokens for unit in cut.units], capacity) <= windows
    assert all(unit.tokens <= capacity for unit in cut.units)
    if count_windows([unit.tokens for unit in units], capacity) <= windows:
        assert cut == Cut(tuple(units))


@SLOW
@given(unit_lists(), st.integers(90, 6000), st.integers(1, 5))
def test_fold_leaves_nothing_out_while_shortening_is_enough(units: list[Unit], capacity: int, windows: int) -> None:
    """The model's own items are shortened before any goes, and words are whole while the model's own can still go."""
    assume(all(unit.tokens <= capacity for unit in units))
    floors = [unit.tokens if unit.spoken else least_of(unit, LEAST_ITEM) for unit in units]
    without = [floor for floor, unit in zip(floors, units, strict=True) if not unit.removable]
    try:
        cut = fold_into(units, capacity, windows, estimate_tokens)
    except DoesNotFit:
        assert count_windows(without, capacity) > windows
        return
    if count_windows(floors, capacity) <= windows:
        assert not cut.left_out
    if count_windows(without, capacity) <= windows:
        assert not cut.shortened & set(refs_of([unit for unit in units if unit.spoken]))
    # One less left out, and the rest would not fit at its shortest.
    gone = [place for place, unit in enumerate(units) if unit.blocks[0].ref in cut.left_out]
    if gone:
        fewer = [floor for place, floor in enumerate(floors) if place not in gone[:-1]]
        assert count_windows(fewer, capacity) > windows


@pytest.mark.parametrize("call_id", ["call_1", "chatcmpl-tool-" + "1f0b2c3d" * 4, "c" * 600], ids=len)
def test_fold_counts_what_cannot_be_cut_of_an_item(call_id: str) -> None:
    """A call id longer than the least an item is cut to does not make a transcript that could fit too long."""
    head = {"type": "function_call_output", "call_id": call_id}
    units = [unit(Block(item_ref(place), head, (TextPart("out " * 400),)), removable=True) for place in range(20)]
    cut = fold_into([*units, text_unit(20, 40, spoken=True)], 250, 3, estimate_tokens)
    assert count_windows([unit.tokens for unit in cut.units], 250) <= 3
    assert cut.left_out
    assert cut.units[-1] == text_unit(20, 40, spoken=True)


@pytest.mark.parametrize(
    "cut",
    [
        lambda units: cut_to(units, 1000, estimate_tokens),
        lambda units: cut_by(units, size_of(units) - 1000, estimate_tokens),
        lambda units: fold_into(units, 500, 2, estimate_tokens),
    ],
    ids=["cut_to", "cut_by", "fold_into"],
)
def test_longer_than_the_window_is_shortened_and_says_how_much_is_missing(cut: Callable[[list[Unit]], Cut]) -> None:
    """Cut once for the window and once more for its neighbours, an item still counts from what it was."""
    units = [text_unit(place, 40_000) for place in range(3)]
    result = cut(units)
    assert not result.left_out
    assert len(result.shortened) == 3
    for old, new in zip(units, result.units, strict=True):
        before, after = text_of(old), text_of(new)
        written = re.split(r"\n\[… ([\d,]+) characters cut …\]\n", after)
        assert before.startswith(written[0])
        assert before.endswith(written[-1])
        missing = sum(int(number.replace(",", "")) for number in written[1::2])
        assert missing + sum(map(len, written[::2])) == len(before)


def text_of(unit: Unit) -> str:
    return "".join(part.text for part in unit.blocks[0].parts if isinstance(part, TextPart))


def test_what_is_larger_than_the_window_is_shortened_to_half_of_it_before_anything_goes() -> None:
    """One giant does not drive out all the rest."""
    units = [text_unit(0, 400, removable=True), text_unit(1, 90_000, removable=True), text_unit(2, 400, spoken=True)]
    cut = cut_to(units, 2000, estimate_tokens)
    assert not cut.left_out
    assert cut.shortened == {item_ref(1)}
    assert 800 <= cut.units[1].tokens <= 1000


def test_shortened_and_then_left_out_is_left_out() -> None:
    """An item is told once: as gone."""
    units = [text_unit(0, 90_000, removable=True), text_unit(1, 5600, spoken=True)]
    cut = cut_to(units, 2000, estimate_tokens)
    assert cut == Cut((units[1],), frozenset({item_ref(0)}))


def test_words_are_the_last_to_be_shortened() -> None:
    """Where the model's own items suffice, what somebody said stays whole, however long; where not, it is cut too."""
    units = [text_unit(0, 8000), text_unit(1, 4000, spoken=True)]
    assert cut_to(units, 1800, estimate_tokens).shortened == {item_ref(0)}
    assert cut_to(units, 1000, estimate_tokens).shortened == {item_ref(0), item_ref(1)}


def test_the_longest_are_shortened_first() -> None:
    """All to one level: short items stay as they are, and the room is used."""
    units = [text_unit(0, 400), text_unit(1, 20_000), text_unit(2, 12_000)]
    cut = cut_to(units, 7000, estimate_tokens)
    assert cut.shortened == {item_ref(1)}
    assert 6000 < cut.tokens <= 7000
    cut = cut_to(units, 2100, estimate_tokens)
    assert cut.shortened == {item_ref(1), item_ref(2)}
    assert cut.units[1].tokens == pytest.approx(cut.units[2].tokens, rel=0.15)
    assert cut.units[0] == units[0]


WINDOWS: dict[str, tuple[list[int], int, float]] = {
    "none": ([], 10, 0),
    "full": ([4, 6], 10, 1),
    "one-more": ([4, 6, 1], 10, 2),
    "no-looking-back": ([6, 6, 4, 4], 10, 3),
    "each-its-own": ([10, 10], 10, 2),
    "too-large": ([1, 11], 10, math.inf),
    "nothing-in-nothing": ([0, 0], 0, 0),
}


@pytest.mark.parametrize(("sizes", "capacity", "windows"), WINDOWS.values(), ids=WINDOWS)
def test_count_windows(sizes: list[int], capacity: int, windows: float) -> None:
    """Filled in order, one after the other, as they are asked."""
    assert count_windows(sizes, capacity) == windows


@pytest.mark.parametrize(
    ("sizes", "capacity", "taken"),
    [([], 10, 0), ([4, 6], 10, 2), ([4, 7], 10, 1), ([4, 6, 1], 10, 2)],
    ids=["none", "exactly", "one-token-more", "one-unit-more"],
)
def test_window_of_what_fits_as_it_is(sizes: list[int], capacity: int, taken: int) -> None:
    """As many of the oldest as fit, to the last token; the rest stays as it was."""
    units = tuple(Unit((Block(item_ref(place), {}, ()),), (size,)) for place, size in enumerate(sizes))
    window, rest = fold_window(units, capacity, capacity, 2, estimate_tokens)
    assert (window, rest) == (Cut(units[:taken]), units[taken:])


@SLOW
@given(unit_lists(), st.integers(0, 8000), st.integers(1, 5))
def test_fold_window_by_window(units: list[Unit], capacity: int, windows: int) -> None:
    """No more windows than allowed, none larger than allowed, every item in one of them or left out, in order; what a
    window does not take is not touched."""
    rest: Sequence[Unit] = tuple(units)
    shown: list[str] = []
    gone: set[str] = set()
    for left in range(windows, 0, -1):
        before = rest
        try:
            window, rest = fold_window(before, capacity, capacity, left, estimate_tokens)
        except DoesNotFit:
            floors = [least_of(unit, LEAST_WORDS) for unit in before if not unit.removable]
            assert left < windows or count_windows(floors, capacity) > left
            return
        assert size_of(window.units) <= capacity
        assert all(any(unit is was for was in before) for unit in rest)
        shown += refs_of(window.units)
        gone |= window.left_out
        if not rest:
            break
    assert not rest
    assert shown == [ref for ref in refs_of(units) if ref not in gone]
    assert gone <= set(refs_of([unit for unit in units if unit.removable]))


def test_fold_cuts_only_what_goes_into_the_window() -> None:
    """The first window of three holds shortened items, the rest waits as it was."""
    units = [text_unit(place, 8000) for place in range(6)]
    window, rest = fold_window(units, 1500, 1500, 3, estimate_tokens)
    assert window.shortened == set(refs_of(window.units))
    assert list(rest) == units[len(window.units) :]


def test_a_larger_window_now_takes_more() -> None:
    """What this window has room for beyond the later ones is used."""
    units = [text_unit(place, 2000) for place in range(8)]
    small, _ = fold_window(units, 1200, 1200, 4, estimate_tokens)
    large, _ = fold_window(units, 2400, 1200, 4, estimate_tokens)
    assert len(large.units) > len(small.units)


@SLOW
@given(unit_lists(), st.integers(1, 3000))
def test_the_transcript_itself_is_never_changed(units: list[Unit], capacity: int) -> None:
    """Whatever is cut is cut from copies."""
    before = copy.deepcopy(units)
    for cut in (cut_to, cut_by):
        try:
            cut(units, capacity, estimate_tokens)
        except DoesNotFit:
            continue
    assert units == before

"""Shortening: nothing longer than asked, nothing cut without saying how much, and the line that matters stays."""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litellm_compaction.conversation.items import classify_items
from litellm_compaction.conversation.shorten import shorten_item, shorten_text, shrink, write_mark
from tests.support.bodies import assistant, call, output, png, system, user

MARK = re.compile(r"\n\[… ([\d,]+) characters cut …\]\n")
SMALLEST = 36  # characters of the longest mark

# Any text, lone surrogates included, but for the sign that only a mark has.
anything = st.text(st.characters(exclude_categories=(), exclude_characters="…"), max_size=60)
fragments = st.one_of(
    anything,
    st.sampled_from(
        ["a", " ", "\n", "=", "-", "b" * 63, "Q" * 64, "word " * 60, "e\u0301" * 30, "\U0001f469\u200d" * 20]
    ),
    st.binary(max_size=200).map(lambda data: base64.b64encode(data).decode()),
)
long_texts = st.builds(
    lambda parts, glue, times: glue.join(parts * times),
    st.lists(fragments, min_size=1, max_size=8),
    st.sampled_from(["\n", " ", ""]),
    st.integers(1, 30),
)


def kept_of(text: str, shortened: str) -> list[tuple[int, str]]:
    """What is left of a text, each with its place there; fails unless the marks account for every other character."""
    written = MARK.split(shortened)
    at, kept = 0, []
    for segment, cut in itertools.zip_longest(written[::2], written[1::2], fillvalue="0"):
        assert text[at : at + len(segment)] == segment
        kept.append((at, segment))
        at += len(segment) + int(cut.replace(",", ""))
    assert at == len(text)
    return kept


@settings(deadline=None)  # a slow machine is no wrong answer
@given(long_texts, st.integers(0, 5))
def test_text_that_fits_is_the_same_text(text: str, more: int) -> None:
    """Not a character changes where there is room for all."""
    assert shorten_text(text, len(text) + more) == text


@settings(deadline=None)  # a slow machine is no wrong answer
@given(long_texts, st.integers(-5, 1500))
def test_never_longer_than_asked(text: str, limit: int) -> None:
    """The marks count too."""
    assert len(shorten_text(text, limit)) <= max(0, limit)


@settings(deadline=None)  # a slow machine is no wrong answer
@given(long_texts.filter(lambda text: len(text) > SMALLEST), st.data())
def test_marks_say_exactly_what_is_missing(text: str, data: st.DataObject) -> None:
    """What is left stands in its order, and the numbers add up to all the rest; both ends are there."""
    limit = data.draw(st.integers(SMALLEST, max(SMALLEST, len(text) - 1)))
    kept = kept_of(text, "\n" * (limit == SMALLEST) + shorten_text(text, limit) + "\n" * (limit == SMALLEST))
    assert len(kept) > 1
    if limit >= 2 * SMALLEST:
        assert kept[0][1]
        assert kept[-1][1]


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (-1, ""),
        (0, ""),
        (1, "["),
        (9, "[… 5,000 "),
        (36, "[… 5,000 characters cut …]"),
        (37, "\n[… 4,999 characters cut …]\n!"),
        (41, "a a\n[… 4,995 characters cut …]\n !"),
    ],
    ids=["negative", "nothing", "one", "half-a-mark", "a-mark", "one-character", "both-ends"],
)  # fmt: skip
def test_no_room_for_more_than_a_mark(limit: int, left: str) -> None:
    """Below a mark's size its own start is left, and from there on the ends come in."""
    assert shorten_text("a " * 1250 + " !" * 1250, limit) == left


@pytest.mark.parametrize(
    ("characters", "mark"),
    [(1, "\n[… 1 characters cut …]\n"), (1_234_567, "\n[… 1,234,567 characters cut …]\n")],
)
def test_mark(characters: int, mark: str) -> None:
    """A mark stands on a line of its own and names the number."""
    assert write_mark(characters) == mark


def test_a_mark_is_never_longer_than_the_room_reserved_for_it() -> None:
    """Room is kept for the mark of a text of almost ten billion characters."""
    assert len(write_mark(9_999_999_999)) <= SMALLEST + 1
    assert len(write_mark(999_999_999)) <= SMALLEST


def test_head_and_tail_have_their_share() -> None:
    """Where nothing in the middle says anything, three tenths of the room are the head and a fifth the tail."""
    text = "。" * 5000
    assert kept_of(text, shorten_text(text, 1072)) == [(0, "。" * 300), (4800, "。" * 200)]


@st.composite
def encoded(draw: st.DrawFn) -> tuple[str, str, str]:
    """Something before a run of base64, the run, something after it."""
    data = hashlib.shake_128(draw(st.binary(max_size=4))).digest(draw(st.integers(48, 6000)))
    data = bytes(len(data)) if draw(st.booleans()) else data
    before = draw(
        st.sampled_from(["", "x: ", '{"image": "data:image/png;base64,', "a line\n", "word " * 40, "," * 300, "k="])
    )
    after = draw(st.sampled_from(["", "\n", '"}', " and more", "\nend" * 30, "." * 300]))
    if draw(st.booleans()):
        # Lines as `base64` and MIME write them; all of them full.
        data = data[: len(data) // 57 * 57] or bytes(57)
        return before + "\n", base64.encodebytes(data).decode().rstrip("\n"), after
    return before, base64.b64encode(data).decode(), after


@settings(deadline=None)
@given(encoded(), st.integers(SMALLEST + 1, 3000))
def test_what_is_left_of_base64_can_be_decoded(parts: tuple[str, str, str], limit: int) -> None:
    """Head, tail and whatever is left between: cut only after whole groups of four."""
    before, run, after = parts
    text = before + run + after
    first, last = len(before), len(before) + len(run)
    for place, segment in kept_of(text, shorten_text(text, limit)):
        left = text[max(first, place) : max(0, min(last, place + len(segment)))].replace("\n", "")
        base64.b64decode(left, validate=True)


ODD = {
    "plain": "segmentation fault in the second worker",
    "path": "FAILED /usr/local/lib/python/site-packages/some_package/conversation/some_module",
    "digest": "digest mismatch, expected sha256 " + "0a1b2c3d" * 8,
    "number": "exit status 137, killed",
    "han": "错误 文件 不存在",
}
SIMILAR = {
    "same": lambda _: "all is well here, going on",
    "numbered": lambda number: f"[{number:05d}] read part {number * 7} of 4096 in {number % 13}.{number % 7} s, ok",
    "two-kinds": lambda number: f"step {number}: done" if number % 2 else f"waiting {number} ms for the next one",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("similar", SIMILAR.values(), ids=SIMILAR)
@pytest.mark.parametrize("place", [100, 300, 450])
def test_the_odd_line_survives(odd: str, similar: Any, place: int) -> None:
    """One line unlike hundreds of others is what a summary needs, wherever it stands."""
    lines = [similar(number) for number in range(600)]
    lines.insert(place, odd)
    text = "\n".join(lines)
    shortened = shorten_text(text, 460)
    assert f"{odd}\n" in shortened
    assert len(shortened) <= 460


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("similar", SIMILAR.values(), ids=SIMILAR)
def test_the_odd_words_of_one_long_line_survive(odd: str, similar: Any) -> None:
    """Where there are no lines at all, it is the piece between words that counts."""
    words = [similar(number) for number in range(600)]
    words.insert(300, odd)
    assert odd in shorten_text(" ".join(words), 1500)


def test_several_odd_lines_stand_in_their_order() -> None:
    """What is chosen by its oddness is still told in the order it happened."""
    lines = [f"tick {number}" for number in range(500)]
    lines[120], lines[250], lines[400] = "first alpha event", "then beta", "lastly gamma trouble"
    shortened = shorten_text("\n".join(lines), 700)
    assert re.search("alpha.*beta.*gamma", shortened, re.DOTALL)


def test_lines_of_base64_do_not_take_the_place_of_the_odd_line() -> None:
    """Every line of an encoded file is unlike the others, and none of them says anything."""
    lines = base64.encodebytes(hashlib.shake_128(b"file").digest(57 * 300)).decode().splitlines()
    lines.insert(150, "and here it went wrong")
    assert "and here it went wrong" in shorten_text("\n".join(lines), 600)


MEGABYTES = {
    "character": "a" * 5_000_000,
    "newlines": "\n" * 5_000_000,
    "spaces": " " * 5_000_000,
    "base64": base64.b64encode(hashlib.shake_128(b"x").digest(3_750_000)).decode(),
    "digits": "1 " * 2_500_000,
    "combining": "e\u0301" * 2_500_000,
    "surrogates": "\ud83d" * 5_000_000,
    "run-then-words": "a" * 1_000_000 + "! " * 2_000_000,
    "equals": "=" * 5_000_000,
}


@pytest.mark.parametrize("text", MEGABYTES.values(), ids=MEGABYTES)
def test_megabytes_of_anything_come_to_an_end(text: str) -> None:
    """Five megabytes of one kind are shortened to a size near what was asked, and every character is accounted for."""
    limit = 4_000_000
    shortened = shorten_text(text, limit)
    assert limit * 0.45 < len(shortened) <= limit
    kept_of(text, shortened)


LONG = "an ordinary line of output\n" * 400
CUT = shorten_text(LONG, 300)
IMAGE = {"type": "input_image", "image_url": png()}
TEXT = {"type": "input_text", "text": LONG}
SHORT = shorten_text(LONG, 150)

ITEMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # item, what it is in 300 characters
    "output": (output("c", LONG), output("c", CUT)),
    "output-of-parts": (
        {**output("c", ""), "output": [TEXT, IMAGE, TEXT]},
        {**output("c", ""), "output": [{**TEXT, "text": SHORT}, IMAGE, {**TEXT, "text": SHORT}]},
    ),
    "output-without-output": (
        {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
        {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
    ),
    "screenshot": (
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": png()}},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": png()}},
    ),
    "tools": (
        {"type": "tool_search_output", "call_id": "c", "tools": [{"name": "t"}]},
        {"type": "tool_search_output", "call_id": "c", "tools": [{"name": "t"}]},
    ),
    "shell": (
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": LONG, "stderr": LONG, "outcome": {}}]},
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": SHORT, "stderr": SHORT, "outcome": {}}]},
    ),
    "user": (user(LONG), user(CUT)),
    "assistant": (assistant(LONG), assistant(CUT)),
    "system": (system(LONG), system(CUT)),
    "message-without-content": ({"type": "message", "role": "user"}, {"type": "message", "role": "user"}),
    "nothing-to-cut": (user("short"), user("short")),
    "call": (call("c", arguments=LONG), call("c", arguments=LONG)),
    "custom-call": (
        {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": LONG},
        {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": LONG},
    ),
    "unknown": ({"type": "novel", "text": LONG}, {"type": "novel", "text": LONG}),
}  # fmt: skip


@pytest.mark.parametrize(("item", "expected"), ITEMS.values(), ids=ITEMS)
def test_item(item: dict[str, Any], expected: dict[str, Any]) -> None:
    """Text is shortened where it stands, all else stays, and the client's own item is untouched."""
    before = copy.deepcopy(item)
    (classified,) = classify_items([item])
    assert shorten_item(classified, 300) == expected
    assert item == before


@given(st.lists(st.integers(0, 900), min_size=1, max_size=6), st.integers(0, 3000))
def test_parts_share_the_limit_by_their_length(lengths: list[int], limit: int) -> None:
    """Together the texts of an item have at most the limit, and where all fits all stays."""
    parts = [{"type": "input_text", "text": "x " * length} for length in lengths]
    (classified,) = classify_items([{**output("c", ""), "output": [*parts, IMAGE]}])
    *texts, image = shorten_item(classified, limit)["output"]
    assert image is IMAGE
    assert sum(len(part["text"]) for part in texts) <= max(limit, 0)
    assert (texts == parts) == (2 * sum(lengths) <= limit)


@given(st.integers(0, 5_000_000), st.integers(1, 200), st.sampled_from([1, 2, 4, 7]), st.integers(-2, 2_000_000))
def test_shrink_finds_a_limit_that_fits(start: int, fixed: int, characters: int, budget: int) -> None:
    """A limit whose measured size is within the budget, and none only where even nothing is too large."""
    asked: list[int] = []

    def size(limit: int) -> int:
        asked.append(limit)
        return fixed - (-limit // characters)

    found = shrink(size, start, budget)
    assert (found is None) == (fixed > budget)
    assert len(asked) <= 25
    assert min(asked) >= 0
    if found is not None:
        assert fixed - (-found // characters) <= budget
        best = min(start, (budget - fixed) * characters)
        assert found <= best
        assert budget < 2 * fixed or found >= best * 0.9 - 2 * characters

"""Counting tokens: of a text, and of the pieces of a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.budget.counting import (
    Anchors,
    Count,
    Piece,
    TokenCache,
    bound_tokens,
    careful_counter,
    estimate_tokens,
    exact_counter,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()))
PIECES = st.builds(Piece, st.lists(ANY_TEXT, max_size=3).map(tuple), st.integers(0, 50))


def encode_bytes(text: str) -> list[int]:
    """The most tokens a byte-level tokenizer can make."""
    return [*text.encode("utf-8", "surrogatepass")]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("ä" * 4, 2), ("漢" * 4, 3), ("😀", 1), ("\ud800", 1)],
    ids=["empty", "one", "four", "five", "umlauts", "han", "emoji", "surrogate"],
)
def test_estimate(text: str, tokens: int) -> None:
    """Four bytes are a token; any text can be counted."""
    assert estimate_tokens(text) == tokens


@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
def test_estimate_of_parts_is_never_smaller_than_of_the_whole(first: str, second: str) -> None:
    """Counting in pieces over-estimates by a token at most and never under-estimates."""
    whole = len((first + second).encode("utf-8", "surrogatepass"))
    assert whole <= 4 * (estimate_tokens(first) + estimate_tokens(second)) <= whole + 6


@pytest.mark.parametrize(
    ("encoded", "text", "tokens"),
    [(0, "abcd", 1), (1, "abcde", 2), (2, "abcde", 2), (3, "abcde", 3), (7, "", 7), (1, "\ud800" * 8, 6)],
    ids=["encoding-says-none", "bytes-say-more", "equal", "encoding-says-more", "empty", "surrogates"],
)
def test_careful_counter_takes_the_larger(encoded: int, text: str, tokens: int) -> None:
    """Neither the encoding nor the bytes alone: whichever makes more of a text."""
    assert careful_counter(lambda _: [0] * encoded)(text) == tokens


def test_careful_counter_without_an_encoding() -> None:
    """Where there is none on the machine, the bytes are all there is to go by."""
    assert careful_counter(None)("abcde" * 3) == 4


@given(st.text(st.characters(exclude_categories=())))
def test_careful_counter_encodes_the_very_text(text: str) -> None:
    """The encoding sees the text once and as it is, and no count is below either of the two."""
    seen: list[str] = []

    def encode(given: str) -> list[int]:
        seen.append(given)
        return [ord(character) for character in given]

    assert careful_counter(encode)(text) == max(len(text), estimate_tokens(text))
    assert seen == [text]


def test_exact_counter_is_the_encoding_alone() -> None:
    """Where the encoding makes fewer tokens than a quarter of the bytes, that is the count."""
    assert exact_counter(lambda _: [0])("a" * 100) == 1
    assert exact_counter(None)("abcde") == 2


def test_long_texts_are_encoded_in_pieces_that_are_the_text() -> None:
    """No piece is above 100,000 characters, none is left out."""
    seen: list[str] = []

    def encode(text: str) -> list[int]:
        seen.append(text)
        return [0]

    text = "ab" * 125_000
    assert exact_counter(encode)(text) == 3
    assert "".join(seen) == text
    assert max(map(len, seen)) == 100_000


@given(st.lists(PIECES, max_size=5))
def test_bound_is_never_less_than_a_byte_level_count(pieces: list[Piece]) -> None:
    """For any text, lone surrogates too, it is the very most; characters instead of bytes would be less."""
    assert bound_tokens(pieces) == sum(piece.count(exact_counter(encode_bytes)) for piece in pieces)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (Piece(("a", "b"), 1), True),
        (Piece(("a", "b"), 2), False),
        (Piece(("ab",), 1), False),
        (Piece(("b", "a"), 1), False),
        (Piece(("a", "c"), 1), False),
    ],
    ids=["equal", "extra", "joined", "order", "text"],
)
def test_key_stands_for_all_that_is_counted(other: Piece, same: bool) -> None:
    """Texts, where they end, and the rest."""
    assert (Piece(("a", "b"), 1).key == other.key) is same


def test_count_with_its_error() -> None:
    """What it is at most."""
    assert Count(100, 3, "exact").high == 103


def counted(cache: TokenCache, pieces: list[Piece]) -> int:
    known, missing = cache.count(pieces)
    for piece in missing:
        cache.put(piece.key, piece.count(estimate_tokens))
    return known + sum(piece.count(estimate_tokens) for piece in missing)


@given(st.lists(st.lists(PIECES, max_size=6), max_size=6), st.integers(1, 4))
def test_cached_count_is_the_cold_count(requests: list[list[Piece]], size: int) -> None:
    """Whatever was asked before, and however little is remembered."""
    cache = TokenCache(size)
    for pieces in requests:
        cold = sum(piece.count(estimate_tokens) for piece in pieces)
        assert counted(cache, pieces) == cold
        assert counted(cache, pieces) == cold
        assert len(cache) <= 2 * size


def test_cache_hits_are_not_missing() -> None:
    """What was counted is known, also as an equal piece of a later request; nothing else is."""
    cache = TokenCache()
    first, second = Piece(("a",), 1), Piece(("b",), 1)
    assert cache.count([first, second]) == (0, [first, second])
    cache.put(first.key, 7)
    assert cache.count([Piece(("a",), 1), second, Piece(("a",), 1)]) == (14, [second])


def test_generations_forget_what_was_not_used() -> None:
    """A hit among the old ones makes a piece young again; the rest of the old ones go."""
    cache = TokenCache(2)
    used, unused, later = (Piece((name,), 0) for name in ("used", "unused", "later"))
    for piece in (used, unused, later):
        cache.put(piece.key, 5)
    assert cache.count([used]) == (5, [])
    cache.put(Piece(("last",), 0).key, 5)
    assert cache.count([used]) == (5, [])
    assert cache.count([unused]) == (0, [unused])


FIXED = Piece(("instructions",), 0)
ITEMS = [Piece((str(number),), number) for number in range(5)]


def test_anchor_of_the_longest_beginning() -> None:
    """Of two requests that a later one begins with, the longer; of itself, if it was there before."""
    anchors = Anchors()
    assert anchors.find("g", FIXED, ITEMS) is None
    anchors.remember("g", FIXED, ITEMS[:1], 10)
    anchors.remember("g", FIXED, ITEMS[:3], 30)
    assert anchors.find("g", FIXED, ITEMS) == (3, 30)
    assert anchors.find("g", FIXED, ITEMS[:2]) == (1, 10)
    assert anchors.find("g", FIXED, ITEMS[:3]) == (3, 30)
    assert anchors.find("g", FIXED, []) is None


OTHERS = {
    "group": ("h", FIXED, ITEMS),
    "instructions": ("g", Piece(("other",), 0), ITEMS),
    "first-item": ("g", FIXED, [Piece(("x",), 0), *ITEMS[1:]]),
    "last-item": ("g", FIXED, [*ITEMS[:2], Piece(("x",), 0), *ITEMS[3:]]),
    "order": ("g", FIXED, [ITEMS[1], ITEMS[0], *ITEMS[2:]]),
    "not-the-beginning": ("g", FIXED, [Piece(("x",), 0), *ITEMS]),
    "shorter": ("g", FIXED, ITEMS[:2]),
}


@pytest.mark.parametrize(("group", "fixed", "items"), OTHERS.values(), ids=OTHERS)
def test_no_anchor_of_another_request(group: str, fixed: Piece, items: list[Piece]) -> None:
    """The group, the fixed part and every item of the beginning are the same, in the same order."""
    anchors = Anchors()
    anchors.remember("g", FIXED, ITEMS[:3], 30)
    assert anchors.find(group, fixed, items) is None


def test_anchors_are_bounded() -> None:
    """The oldest go; a later report for the same request takes the place of the earlier."""
    anchors = Anchors(2)
    for number in range(9):
        anchors.remember(f"g{number}", FIXED, ITEMS, number)
        assert len(anchors) <= 4
    assert anchors.find("g0", FIXED, ITEMS) is None
    anchors.remember("g8", FIXED, ITEMS, 99)
    assert anchors.find("g8", FIXED, ITEMS) == (5, 99)

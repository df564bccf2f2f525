"""Counting tokens: a quarter of the UTF-8 bytes, rounded up, or what an encoding makes of a text if that is more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.budget.counting import careful_counter, estimate_tokens


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

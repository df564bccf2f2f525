"""The token estimate: a quarter of the UTF-8 bytes, rounded up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.budget.counting import estimate_tokens


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

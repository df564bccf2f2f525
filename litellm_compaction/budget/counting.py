"""Counting tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

_PIECE_CHARACTERS: Final = 100_000
# Gives the tokens of a text.
Counter = Callable[[str], int]


def estimate_tokens(text: str) -> int:
    """Tokens of a text, estimated at four UTF-8 bytes each, rounded up: no tokenizer, no download.

    Good within about a third for English and code. What is derived from it is called an estimate.
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def careful_counter(encode: Callable[[str], Sequence[int]] | None) -> Counter:
    """A counter that errs on the high side: the larger of an encoding's count and a quarter of the bytes.

    `encode` gives the tokens of one public encoding, None where there is none on this machine. A model's own tokenizer
    may make more of a text than that encoding, most of all of the plain prose and code it is best at.
    """
    if encode is None:
        return estimate_tokens

    def count(text: str) -> int:
        return max(estimate_tokens(text), sum([len(encode(piece)) for piece in _pieces(text)]))

    return count


def _pieces(text: str) -> list[str]:
    # tiktoken dies of a stack overflow, uncatchably, on about a million blanks in a row.
    if len(text) <= _PIECE_CHARACTERS:
        return [text]
    return [text[start : start + _PIECE_CHARACTERS] for start in range(0, len(text), _PIECE_CHARACTERS)]


# A model whose tokenizer is not the one counted with may need this much more than was counted (measured on code,
# prose, JSON and paths; facts: 10 % between the open families, 25 % for Claude).
OWN_TOKENIZER_ERROR: Final = 0.02
OTHER_TOKENIZER_ERROR: Final = 0.10
CLAUDE_TOKENIZER_ERROR: Final = 0.25

"""Counting tokens: of a text, and of the pieces of a request, most of which were counted in an earlier turn.

Cheapest first: the byte bound of everything; what a backend reported for the same beginning; what was counted before;
an encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

_PIECE_CHARACTERS: Final = 100_000
# Some 100 bytes each, twice: a generation holds 60 sessions of 1,700 items.
_CACHED_PIECES: Final = 100_000
_CACHED_ANCHORS: Final = 10_000
# Gives the tokens of a text.
Counter = Callable[[str], int]
# Tokens of a text in one public encoding; None where there is none on this machine.
Encoding = Callable[[str], Sequence[int]] | None


def estimate_tokens(text: str) -> int:
    """Tokens of a text, estimated at four UTF-8 bytes each, rounded up: no tokenizer, no download.

    Good within about a third for English and code. What is derived from it is called an estimate.
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def careful_counter(encode: Encoding) -> Counter:
    """A counter that errs on the high side: the larger of an encoding's count and a quarter of the bytes.

    `encode` gives the tokens of one public encoding, None where there is none on this machine. A model's own tokenizer
    may make more of a text than that encoding, most of all of the plain prose and code it is best at.
    """
    if encode is None:
        return estimate_tokens

    def count(text: str) -> int:
        return max(estimate_tokens(text), _encoded(text, encode))

    return count


def exact_counter(encode: Encoding) -> Counter:
    """A counter that says what the encoding makes of a text, a long one in pieces; an estimate where there is none."""
    return estimate_tokens if encode is None else lambda text: _encoded(text, encode)


def _encoded(text: str, encode: Callable[[str], Sequence[int]]) -> int:
    return sum([len(encode(piece)) for piece in _pieces(text)])


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


# Not frozen: there are thousands in every request, and a frozen one takes three times as long to make.
@dataclass(slots=True, init=False)
class Piece:
    """One item of a request, or its fixed part, as it is counted.

    `texts` are for a tokenizer, `extra` tokens are of what is no text: images, sealed reasoning, the framing. `key`
    stands for both in this process. Contents that are counted by their size alone are in it by their size alone.
    """

    texts: tuple[str, ...]
    extra: int
    key: int

    def __init__(self, texts: tuple[str, ...], extra: int) -> None:
        self.texts = texts
        self.extra = extra
        # Python's own SipHash: 64 bits, keyed anew in every process, three times as fast as the next best.
        self.key = hash((texts, extra))

    def count(self, count: Counter) -> int:
        """Tokens, each text by `count`."""
        return sum(map(count, self.texts)) + self.extra


def bound_tokens(pieces: Iterable[Piece]) -> int:
    """What pieces have at most in a tokenizer whose tokens are a byte or more, as all byte-level ones: UTF-8 bytes."""
    # One flat list and C's own loops: a method of each piece would take five times as long.
    texts: list[str] = []
    extra = 0
    for piece in pieces:
        texts += piece.texts
        extra += piece.extra
    # len() is the bytes of ASCII; the rest adds what its characters are longer.
    wide: Final = [text for text in texts if not text.isascii()]
    return extra + sum(map(len, texts)) + sum([len(text.encode("utf-8", "surrogatepass")) - len(text) for text in wide])


@dataclass(frozen=True, slots=True)
class Count:
    """`tokens`, and the `error` by which they may fall short; `method`: where the number is from.

    `bound` is more than it can be, `usage` a backend's own number for the beginning, `exact` an encoding's.
    """

    tokens: int
    error: int
    method: Literal["bound", "usage", "exact"]

    @property
    def high(self) -> int:
        """What it is at most."""
        return self.tokens + self.error


class _Generations:
    """Numbers remembered by a key, the most recently used ones: `size` at least, twice as many at most.

    Two plain dicts; a full young one becomes the old one, which is forgotten. cachetools' LRU keeps an order and pays
    for it at every hit, with a Python call of about a microsecond: for 1,700 items a quarter of parsing the body.
    """

    def __init__(self, size: int) -> None:
        self._size: Final = size
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get_all(self, keys: Sequence[int]) -> list[int | None]:
        """The number of each key in order, None where it is not known."""
        found: Final = [*map(self._young.get, keys)]
        if self._old and None in found:
            for place, number in enumerate(found):
                if number is None:
                    found[place] = self.get(keys[place])
        return found

    def get(self, key: int) -> int | None:
        """The number of a key, and that it was used."""
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.put(key, found)
        return found

    def put(self, key: int, number: int) -> None:
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[key] = number


class TokenCache:
    """What pieces were found to have, so that a turn counts only what is new in it. Not for several threads."""

    def __init__(self, size: int = _CACHED_PIECES) -> None:
        self._known: Final = _Generations(size)

    def __len__(self) -> int:
        return len(self._known)

    def count(self, pieces: Sequence[Piece]) -> tuple[int, list[Piece]]:
        """Tokens of all the pieces that are known, and those that are not."""
        found: Final = self._known.get_all([piece.key for piece in pieces])
        missing: Final = [piece for piece, tokens in zip(pieces, found, strict=True) if tokens is None]
        return sum([tokens for tokens in found if tokens is not None]), missing

    def put(self, key: int, tokens: int) -> None:
        """A piece with this key has so many tokens."""
        self._known.put(key, tokens)


class Anchors:
    """What backends reported for whole requests: the tokens of every later one that begins with the same items.

    A request is known by its chain: h0 = hash(group, fixed part), hk = hash(hk-1, item k). Not for several threads.
    """

    def __init__(self, size: int = _CACHED_ANCHORS) -> None:
        self._reported: Final = _Generations(size)

    def __len__(self) -> int:
        return len(self._reported)

    def remember(self, group: str, fixed: Piece, items: Sequence[Piece], tokens: int) -> None:
        """`tokens` of input were reported for exactly this request."""
        self._reported.put(_chain(group, fixed, items)[-1], tokens)

    def find(self, group: str, fixed: Piece, items: Sequence[Piece]) -> tuple[int, int] | None:
        """How many items the longest known beginning has, and the tokens reported for it with the fixed part."""
        if not len(self._reported):
            return None
        chain: Final = _chain(group, fixed, items)
        for length in range(len(items), -1, -1):
            tokens = self._reported.get(chain[length])
            if tokens is not None:
                return length, tokens
        return None


def _chain(group: str, fixed: Piece, items: Sequence[Piece]) -> list[int]:
    start: Final = hash((group, fixed.key))
    return [*accumulate([item.key for item in items], lambda last, key: hash((last, key)), initial=start)]

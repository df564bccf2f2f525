"""Shortening one item: its head, its tail, and of what lies between the lines unlike the others.

Long tool output is mostly one line over and over with small changes; the line that matters is the odd one. A cut stands
in the text as a mark that says how much is missing.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from litellm_compaction.conversation.content import IMAGE_TYPES
from litellm_compaction.conversation.items import Item, Kind

IMAGE_LEFT_OUT: Final = "[image, left out: there was no room for it]"

# Shares of what stays. Below _SMALL characters there is room for a head and a tail only.
_HEAD, _TAIL, _SMALL = 0.3, 0.2, 160
_PIECE_CHARACTERS: Final = 240
# More pieces than this are not weighed: what follows in a very long text is taken in longer ones.
_MOST_PIECES: Final = 100_000
_MARK_CHARACTERS: Final = 36
_WORD: Final = re.compile(r"[^\W\d_]+|\d+")
# What looks like base64 for this many characters is taken for it: cut anywhere else than after every fourth
# character, it could not be decoded at all.
_BASE64_RUN: Final = 64
_BASE64: Final = string.ascii_letters + string.digits + "+/_-"
_LONG_RUN: Final = re.compile(r"[A-Za-z0-9+/_-]{64,}")
_RUN_AT_START: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")


def shorten_text(text: str, limit: int) -> str:
    """A text in at most `limit` characters, whole where it fits. Never cuts inside a character or, in a run of base64,
    inside a group of four. A limit too small for a mark leaves nothing but the mark's own start."""
    if len(text) <= limit:
        return text
    room: Final = limit - 2 * _MARK_CHARACTERS
    if room < _SMALL:
        return _ends(text, limit)
    head, tail = _cut_head(text, int(room * _HEAD)), _cut_tail(text, int(room * _TAIL))
    chosen: Final = _choose(text, len(head), len(text) - len(tail), room - len(head) - len(tail))
    return _join(text, head, chosen, tail)


def _ends(text: str, limit: int) -> str:
    room: Final = limit - _MARK_CHARACTERS
    if room <= 0:
        return write_mark(len(text)).strip()[: max(0, limit)]
    head: Final = _cut_head(text, room * 3 // 5)
    tail: Final = _cut_tail(text, room - room * 3 // 5)
    return head + write_mark(len(text) - len(head) - len(tail)) + tail


def write_mark(characters: int) -> str:
    """What stands where characters were cut out."""
    return f"\n[… {characters:,} characters cut …]\n"


def _cut_head(text: str, limit: int) -> str:
    before, _ = _run_around(text, limit, limit)
    return text[: limit - before % 4]


def _cut_tail(text: str, limit: int) -> str:
    start: Final = len(text) - limit
    _, after = _run_around(text, start, limit)
    return text[start + after % 4 :]


def _run_around(text: str, place: int, reach: int) -> tuple[int, int]:
    """How many characters before and after a place belong to one run of base64 that a cut there would break, looked for
    as far as `reach`; zeros where there is none."""
    reach = max(reach, _BASE64_RUN)
    padding: Final = int(text[max(0, place - 1) : place + 1] == "==")
    head: Final = text[max(0, place - reach) : place - padding]
    before: Final = len(head) - len(head.rstrip(_BASE64)) + padding
    run: Final = _RUN_AT_START.match(text, place, place + reach)
    after: Final = len(run.group()) if run else 0
    return (before, after) if before and after and before + after >= _BASE64_RUN else (0, 0)


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    text: str


def _pieces(text: str) -> list[_Piece]:
    """The lines of a text; a line of unusual length in parts, cut between words."""
    return [piece for line in _lines(text) for piece in _parts(line)]


def _lines(text: str) -> Iterator[_Piece]:
    start, end = 0, len(text)
    least: Final = end // _MOST_PIECES
    while start < end:
        stop = text.find("\n", start + least, end)
        stop = end if stop < 0 else stop + 1
        yield _Piece(start, text[start:stop])
        start = stop


def _parts(line: _Piece) -> Iterator[_Piece]:
    start = 0
    while len(line.text) - start > _PIECE_CHARACTERS:
        stop = line.text.rfind(" ", start + _PIECE_CHARACTERS // 2, start + _PIECE_CHARACTERS) + 1
        stop = stop or start + _PIECE_CHARACTERS
        yield _Piece(line.start + start, line.text[start:stop])
        start = stop
    yield _Piece(line.start + start, line.text[start:])


def _choose(text: str, start: int, end: int, room: int) -> list[_Piece]:
    """The oddest pieces between two places that fit the room, marks between them counted, in their order."""
    pieces, order = _weigh(text)
    chosen: set[int] = set()
    for place in order:
        if room <= _MARK_CHARACTERS:
            break
        piece = pieces[place]
        inside = start <= piece.start and piece.start + len(piece.text) <= end
        cost = len(piece.text) + (0 if place - 1 in chosen else _MARK_CHARACTERS)
        if inside and cost <= room and not _is_base64(text, piece):
            chosen.add(place)
            room -= cost
    return [pieces[place] for place in sorted(chosen)]


# One text is shortened several times over, until it has as many tokens as it may.
@functools.lru_cache(maxsize=1)
def _weigh(text: str) -> tuple[Sequence[_Piece], Sequence[int]]:
    """The pieces of a text, and the places of those that hold words, the oddest first."""
    pieces: Final = _pieces(text)
    words: Final = [[word.lower() for word in _words(piece.text)] for piece in pieces]
    seen: Final = Counter(word for piece in words for word in set(piece))
    odd: Final = [_oddness(entry, seen, len(pieces)) for entry in words]
    return pieces, sorted((place for place, entry in enumerate(words) if entry), key=lambda place: -odd[place])


def _is_base64(text: str, piece: _Piece) -> bool:
    """Whether a piece is cut out of a long run, or holds one that is more than a path or a digest."""
    ends: Final = (piece.start, piece.start + len(piece.text))
    return any(any(_run_around(text, place, _BASE64_RUN)) for place in ends) or any(
        not run.isupper() and not run.islower() and not run.isalpha() and "-" not in run and "_" not in run
        for run in _LONG_RUN.findall(piece.text)
    )


def _words(text: str) -> Iterator[str]:
    # Numbers count as one word: a counter in every line must not make every line odd.
    for match in _WORD.finditer(text):
        word = match.group()
        yield "0" if word[0].isdigit() else word


def _oddness(words: Sequence[str], seen: Mapping[str, int], pieces: int) -> float:
    """How rare a piece's words are among all pieces, as the mean of their logarithms of rarity."""
    distinct: Final = set(words)
    return sum(math.log(pieces / seen[word]) for word in distinct) / len(distinct) if distinct else 0.0


def _join(text: str, head: str, pieces: Sequence[_Piece], tail: str) -> str:
    written = [head]
    at = len(head)
    for piece in (*pieces, _Piece(len(text) - len(tail), tail)):
        if piece.start > at:
            written.append(write_mark(piece.start - at))
        written.append(piece.text)
        at = piece.start + len(piece.text)
    return "".join(written)


def shorten_item(item: Item, limit: int, *, images: bool = True) -> Mapping[str, Any]:
    """The item's own mapping with its text in at most about `limit` characters, and without its images if not `images`;
    a call stays whole, since its arguments have to remain what ran."""
    if item.kind is Kind.OUTPUT:
        member = "output" if "output" in item.raw else "tools"
    elif item.kind is Kind.MESSAGE:
        member = "content"
    else:
        return item.raw
    return (
        {**item.raw, member: _shorten_content(item.raw[member], limit, images=images)}
        if member in item.raw
        else item.raw
    )


def _shorten_content(content: Any, limit: int, *, images: bool) -> Any:
    if isinstance(content, str):
        return shorten_text(content, limit)
    if isinstance(content, list):
        total: Final = sum(len(text) for part in content for text in _texts(part).values())
        share: Final = min(1.0, limit / max(1, total))
        return [_shorten_part(part, share, images=images) for part in content]
    return content


def _shorten_part(part: Any, share: float, *, images: bool) -> Any:
    if not images and isinstance(part, Mapping) and part.get("type") in IMAGE_TYPES:
        return {"type": "input_text", "text": IMAGE_LEFT_OUT}
    texts: Final = _texts(part)
    if not texts:
        return part
    return {**part, **{member: shorten_text(text, int(len(text) * share)) for member, text in texts.items()}}


def _texts(part: object) -> dict[str, str]:
    """The text of a part of content, or of one command's output in a `shell_call_output`."""
    if not isinstance(part, Mapping):
        return {}
    return {member: part[member] for member in ("text", "stdout", "stderr") if isinstance(part.get(member), str)}


def shrink(size: Callable[[int], int], limit: int, budget: int) -> int | None:
    """The largest of some tried `limit`s, in characters, for which `size` stays within the budget of tokens; None if
    even nothing at all is too large. Characters a token differ from text to text: the size is measured, not assumed."""
    for _ in range(24):
        tokens = size(limit)
        if tokens <= budget:
            return limit
        if limit == 0:
            return None
        limit = max(0, min(limit * 9 // 10, int(limit * budget / tokens)))
    return 0 if size(0) <= budget else None

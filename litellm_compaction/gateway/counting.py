"""The tokens of an ordinary request: as little work as the question needs, and the event loop kept free."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from litellm_compaction.budget.counting import (
    Anchors,
    Count,
    Counter,
    Encoding,
    Piece,
    TokenCache,
    bound_tokens,
    exact_counter,
)
from litellm_compaction.conversation.measure import Measured, draft_request
from litellm_compaction.gateway.profiles import load_encoding

# What a backend reported holds for the same request but for what it adds or drops by itself.
_REPORTED_ERROR: Final = 0.01
# A report outside of these shares of the own count is of a prompt that was cut, or invented.
_BELIEVED: Final = (0.5, 2.0)
_ENOUGH_TO_COMPARE: Final = 1_000
# Encoded in about a millisecond; a thread would cost a fifth of that and finish later.
_INLINE_BYTES: Final = 20_000
# Plain items that take about 10 ms to measure.
_MANY_ITEMS: Final = 10_000


class RequestCounter:
    """Measures and counts requests. One for an event loop: what it remembers is only touched from there."""

    def __init__(
        self,
        load: Callable[[], Encoding] = load_encoding,
        cache: TokenCache | None = None,
        anchors: Anchors | None = None,
    ) -> None:
        self._load: Final = load
        self._cache: Final = TokenCache() if cache is None else cache
        self._anchors: Final = Anchors() if anchors is None else anchors
        self._counter: Counter | None = None

    async def measure(self, body: Mapping[str, Any]) -> Measured:
        """The pieces of a body; in a thread where it is so large that others would wait.

        The size of its texts matters little: 20 MB are hashed in 6 ms. What takes time are many items and values.
        """
        given: Final = body.get("input")
        draft: Final = (
            await asyncio.to_thread(draft_request, body)
            if isinstance(given, list) and len(given) > _MANY_ITEMS
            else draft_request(body)
        )
        return await asyncio.to_thread(draft.finish) if draft.is_heavy else draft.finish()

    async def count(self, measured: Measured, group: str, error: float, enough: int | None) -> Count:
        """Tokens of a request to `group`; `error` is the share by which an own count may fall short of the model's.

        A request whose bytes are no more than `enough` is not counted any further. Else a number that the group's
        backend reported for the same beginning, and the own count of the items after it; else the own count.
        """
        known: Final = measured.counts.get((group, error))
        if known is not None:
            return known
        if enough is not None and measured.bound <= enough:
            return Count(measured.bound, 0, "bound")
        count: Final = await self._count_pieces(measured, group, error)
        measured.counts[group, error] = count
        return count

    async def _count_pieces(self, measured: Measured, group: str, error: float) -> Count:
        tokens: Final = await self._exact(measured.pieces)
        found: Final = self._anchors.find(group, measured.fixed, measured.items)
        if found is not None:
            length, reported = found
            appended: Final = await self._exact(measured.items[length:])
            if _is_believable(reported, tokens - appended):
                added: Final = math.ceil(appended * _ratio(reported, tokens - appended))
                own: Final = math.ceil(added * error)
                return Count(reported + added, math.ceil(reported * _REPORTED_ERROR) + own, "usage")
        return Count(tokens, math.ceil(tokens * error), "exact")

    def remember(self, measured: Measured, group: str, input_tokens: int) -> None:
        """The backend of `group` reported so many tokens of input for exactly this request."""
        self._anchors.remember(group, measured.fixed, measured.items, input_tokens)

    async def _exact(self, pieces: Sequence[Piece]) -> int:
        known, missing = self._cache.count(pieces)
        if not missing:
            return known
        counted: Final = await self._encode(missing)
        for key, tokens in counted.items():
            self._cache.put(key, tokens)
        return known + sum([counted[piece.key] for piece in missing])

    async def _encode(self, pieces: Sequence[Piece]) -> dict[int, int]:
        """Tokens by key; what was counted is not read back from the cache, which may have forgotten it by now."""
        if self._counter is None:
            self._counter = exact_counter(await asyncio.to_thread(self._load))
        if bound_tokens(pieces) > _INLINE_BYTES:
            return await asyncio.to_thread(_count_each, pieces, self._counter)
        return _count_each(pieces, self._counter)


def _is_believable(reported: int, own: int) -> bool:
    least, most = _BELIEVED
    return own * least <= reported <= own * most


def _ratio(reported: int, own: int) -> float:
    """How many tokens of the backend's the next text takes for one of ours: what the same conversation has shown. Of a
    short one, what the backend adds by itself would be taken for it."""
    return max(1.0, reported / own) if own >= _ENOUGH_TO_COMPARE else 1.0


def _count_each(pieces: Sequence[Piece], count: Counter) -> dict[int, int]:
    counted: Final[dict[int, int]] = {}
    for piece in pieces:
        if piece.key not in counted:
            counted[piece.key] = piece.count(count)
    return counted

"""Summaries of prefixes: a client that sends its whole history again, without the item, does not pay again.

A prefix is known by the digest of exactly its items, who asks, the model and the settings. Beside the summaries stand
marks on conversations that compaction did not make smaller: they are left alone until they have grown by a quarter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from litellm_compaction.conversation.items import RawItem
from litellm_compaction.gateway.flights import Result
from litellm_compaction.gateway.pending import Pending
from litellm_compaction.gateway.store import Store

SUMMARY_SECONDS: Final = 24 * 3600.0
STUCK_SECONDS: Final = 600.0
_GROWTH: Final = 1.25


def digest_prefixes(pending: Pending, items: Sequence[RawItem]) -> list[str]:
    """Digests of the first item, the first two, and so on to all of them. Reads every byte: for requests over a
    threshold, in a thread."""
    running: Final = hashlib.blake2b(digest_size=16)
    for part in pending.identity:
        running.update(json.dumps(part, sort_keys=True, default=str).encode() + b"\n")
    digests: Final[list[str]] = []
    for item in items:
        running.update(json.dumps(item, sort_keys=True, default=str).encode() + b"\n")
        digests.append(running.hexdigest())
    return digests


class Prefixes:
    """What is remembered of prefixes, in the store that the workers share."""

    def __init__(self, store: Store) -> None:
        self._store: Final = store

    async def find(self, digests: Sequence[str]) -> tuple[int, Result] | None:
        """The longest prefix that was compacted: how many items it has, and what came of it."""
        found: Final = await self._store.read_first([f"prefix:{digest}" for digest in reversed(digests)])
        if found is None:
            return None
        try:
            return digests.index(found[0].partition(":")[2]) + 1, Result.model_validate_json(found[1])
        except ValidationError:  # another version of the plugin wrote it in a way of its own
            return None

    async def remember(self, digest: str, result: Result) -> None:
        await self._store.write(f"prefix:{digest}", result.model_dump_json().encode(), SUMMARY_SECONDS)

    async def is_stuck(self, digests: Sequence[str], tokens: int) -> bool:
        """Whether compacting this conversation was no use lately, and it has not grown by a quarter since."""
        found: Final = await self._store.read_first([f"stuck:{digest}" for digest in reversed(digests)])
        return found is not None and tokens < int(found[1]) * _GROWTH

    async def mark_stuck(self, digest: str, tokens: int, seconds: float = STUCK_SECONDS) -> None:
        await self._store.write(f"stuck:{digest}", str(tokens).encode(), seconds)

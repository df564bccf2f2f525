"""Summaries of prefixes: a client that sends its whole history again, without the item, does not pay again.

A prefix is known by the digest of exactly its items, who asks, the model and the settings. Beside the summaries stand
marks on conversations that compaction did not make smaller: they are left alone until they have grown by a quarter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from litellm_compaction.conversation.items import RawItem
from litellm_compaction.errors import CompactionError
from litellm_compaction.gateway.flights import FAILURE_SECONDS, Result, read_failure, write_failure
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


@dataclass(frozen=True, slots=True)
class Mark:
    """A conversation that is left alone; `failure` is what compacting it ended in, None where it was only no use."""

    failure: CompactionError | None


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

    async def find_mark(self, digests: Sequence[str], tokens: int) -> Mark | None:
        """Why compacting this conversation is not tried again now; None if it is: it was of use, or has grown since."""
        found: Final = await self._store.read_first([f"stuck:{digest}" for digest in reversed(digests)])
        if found is None:
            return None
        try:
            told: Final = json.loads(found[1])
            failure: Final = None if told["failure"] is None else read_failure(told["failure"])
            return Mark(failure) if tokens < told["tokens"] * _GROWTH else None
        except (ValueError, KeyError, TypeError):
            return None

    async def mark(self, digest: str, tokens: int, failure: CompactionError | None = None) -> None:
        """Leave a conversation of so many tokens alone for a while: compacting it failed, or made it no smaller."""
        told: Final = {"tokens": tokens, "failure": None if failure is None else write_failure(failure)}
        seconds: Final = STUCK_SECONDS if failure is None else FAILURE_SECONDS
        await self._store.write(f"stuck:{digest}", json.dumps(told).encode(), seconds)

"""What there is to tell of a compaction: ids, names, counts, seconds; never text. Log, metrics and spans tell the same.

`source` says who paid: `run` is a compaction that ran, once however many wait for it; the others are answers made of
one that ran for another request: `joined` while it ran, `remembered` afterwards, `extended` a remembered summary with
the items that came after it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from litellm.exceptions import BudgetExceededError

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.errors import CompactionError
from litellm_compaction.gateway.flights import Result
from litellm_compaction.gateway.pending import Pending

Source = Literal["run", "joined", "remembered", "extended"]
COMPLETED, LEDGER, CANCELLED, REFUSED, OTHER = "completed", "ledger", "cancelled", "invalid_request", "error"
_BY_STATUS: Final = {
    401: "invalid_api_key",
    402: "budget_exceeded",
    403: "permission_denied",
    404: "not_found",
    429: "rate_limit_exceeded",
}
_TOKEN_HASH: Final = re.compile(r"[0-9a-f]{64}")
# A client may choose the id of its call.
_ID_CHARACTERS: Final = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asked for what, as ids and names. `model` is the group the client asked for, `writer` the one that writes."""

    door: str
    model: str
    writer: str
    response: str | None
    call: str | None
    key: str | None
    team: str | None

    @classmethod
    def of(cls, pending: Pending, writer: str | None = None) -> Asked:
        """`writer`: the group that LiteLLM fell back to, None for the one that was to write."""
        return cls(
            door=pending.origin,
            model=pending.model,
            writer=writer or pending.writer_model,
            # An item in front of an answer travels in a response that has its id from its backend.
            response=pending.frame.response_id if pending.origin in {"trigger", "compact"} else None,
            call=pending.call_id[:_ID_CHARACTERS] or None,
            key=key_id(pending.caller.key),
            team=pending.caller.team,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One compaction, or one answer made of it. None is what is not known, as after a failure.

    `items` are those of the transcript, `window` and `window_source` what is known of the writer's window (tokens),
    `ledger_after` is the code of what kept a model from writing, `error` the class of what it all failed with, and
    `refused` says that it was the request's fault and nothing was called. `cut`: the backend seems to have read only a
    part of a prompt.
    """

    asked: Asked
    source: Source
    outcome: str
    attempts: int = 0
    windows: int | None = None
    items: int = 0
    dropped: int | None = None
    shortened: int | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    usage: Usage = field(default_factory=Usage)
    window: int | None = None
    window_source: str | None = None
    seconds: float = 0.0
    item: str | None = None
    ledger_after: str | None = None
    error: str | None = None
    refused: bool = False
    cut: bool = False

    @property
    def is_notable(self) -> bool:
        """Whether an operator should look at it."""
        return self.source == "run" and bool(self.outcome != COMPLETED or self.dropped or self.shortened or self.cut)

    def fields(self) -> Iterator[tuple[str, str | int | float]]:
        """Names and values, in the order of the log line; what is not known is left out."""
        asked: Final = self.asked
        known: Final[Mapping[str, str | int | float | None]] = {
            "door": asked.door,
            "source": self.source,
            "outcome": self.outcome,
            "model": asked.model,
            "writer": asked.writer,
            "attempts": self.attempts,
            "windows": self.windows,
            "dropped": self.dropped,
            "shortened": self.shortened,
            "items": self.items,
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens,
            "window": self.window,
            "window_source": self.window_source,
            "seconds": self.seconds,
            "item": self.item,
            "response": asked.response,
            "call": asked.call,
            "key": asked.key,
            "team": asked.team,
            "ledger_after": self.ledger_after,
            "error": self.error,
        }
        return ((name, value) for name, value in known.items() if value is not None)


def key_id(key: str | None) -> str | None:
    """A key's hash as LiteLLM stores it, whatever an operator's own authentication took for the key's id."""
    if not key:
        return None
    return key if _TOKEN_HASH.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()


def outcome_of(ended: Result | BaseException) -> str:
    """One word of a small set, fit for a label: `completed`, `ledger`, `cancelled` or the code of an error."""
    if isinstance(ended, Result):
        return LEDGER if ended.degraded else COMPLETED
    if isinstance(ended, CompactionError):
        return ended.code if ended.code in CODES else REFUSED
    if isinstance(ended, Exception):
        spent: Final = isinstance(ended, BudgetExceededError)
        return _BY_STATUS.get(402 if spent else getattr(ended, "status_code", 0), OTHER)
    return CANCELLED


def _codes(tree: type[CompactionError]) -> Iterator[str]:
    if tree.code is not None:
        yield tree.code
    for branch in tree.__subclasses__():
        yield from _codes(branch)


CODES: Final = frozenset(_codes(CompactionError))

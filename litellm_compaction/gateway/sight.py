"""What an operator sees of compactions: one place that tells the log, the metrics and the traces the same.

Whatever goes wrong in telling is said once and changes nothing for a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, ParamSpec

from litellm._logging import verbose_proxy_logger

from litellm_compaction.budget.limits import ModelLimits
from litellm_compaction.compaction.compact import Outcome
from litellm_compaction.compaction.engine import Account
from litellm_compaction.envelope.sealing import Caller, content_digest
from litellm_compaction.errors import CompactionError, InvalidRequest, UnreadableItem
from litellm_compaction.gateway import account_log, metrics, tracing
from litellm_compaction.gateway.errors import CompactionProxyException
from litellm_compaction.gateway.flights import Flight, Result
from litellm_compaction.gateway.pending import Pending
from litellm_compaction.gateway.record import COMPLETED, LEDGER, Asked, Record, Source, key_id, outcome_of
from litellm_compaction.gateway.router import current_router

_P = ParamSpec("_P")


class Run:
    """A compaction on its way. `account` counts what it uses, `metadata` makes its inner calls belong to it, `writer`
    is the group that writes, or that LiteLLM fell back to."""

    def __init__(self, metadata: Mapping[str, Any], writer: str) -> None:
        self.metadata: Final = metadata
        self.writer = writer
        self.account: Final = Account()
        self._limits = ModelLimits()
        self._outcome: Outcome | None = None

    def writes_within(self, limits: ModelLimits) -> None:
        """What is known of the writer's window."""
        self._limits = limits

    def has_ended(self, outcome: Outcome) -> None:
        """It has a result, which only has to be handed over."""
        self._outcome = outcome

    def record(self, pending: Pending, item_id: str, seconds: float, error: BaseException | None) -> Record:
        """What there is to tell of it; `error` is what ended it."""
        ended: Final = None if error is not None else self._outcome
        failure: Final = None if ended is None else ended.failure
        return Record(
            asked=Asked.of(pending, self.writer),
            source="run",
            outcome=outcome_of(error) if error is not None else LEDGER if failure is not None else COMPLETED,
            attempts=self.account.attempts,
            windows=None if ended is None else ended.windows,
            items=len(pending.expansion.items),
            dropped=None if ended is None else ended.dropped,
            shortened=None if ended is None else ended.shortened,
            tokens_before=None if ended is None else ended.tokens_before,
            tokens_after=None if ended is None else ended.tokens_after,
            usage=self.account.usage,
            window=self._limits.context,
            window_source=self._limits.source or None,
            seconds=seconds,
            item=None if ended is None else item_id,
            ledger_after=None if failure is None else failure.code,
            error=None if error is None else type(error).__name__,
            refused=isinstance(error, InvalidRequest),
            cut=self.account.unread,
        )


@contextmanager
def watch_run(pending: Pending, metadata: Mapping[str, Any], item_id: str, started: float) -> Iterator[Run]:
    """One compaction; told when the block ends, however it does. `started`: seconds of the event loop's clock."""
    with tracing.open_span(metadata) as span:
        run: Final = Run(tracing.under(metadata, span), pending.writer_model)
        error: BaseException | None = None
        try:
            yield run
        except BaseException as raised:
            error = raised
            raise
        finally:
            seconds: Final = asyncio.get_running_loop().time() - started
            record: Final = run.record(pending, item_id, seconds, error)
            _tell(pending, record)
            if span is not None:
                _safely(tracing.describe, span, record)


def watch_flight(flight: Flight, pending: Pending, metadata: Mapping[str, Any], ran: Callable[[], bool]) -> None:
    """Tell of this request when its flight ends, unless the compaction `ran` for it: then that is told already."""
    joined: Final = asyncio.get_running_loop().time()

    def landed(task: asyncio.Task[Result]) -> None:
        if ran() or task.cancelled():
            return
        ended: Final = task.exception() or task.result()
        seconds: Final = asyncio.get_running_loop().time() - joined
        tell_reuse(pending, metadata, "remembered" if flight.remembered else "joined", ended, seconds)

    flight.task.add_done_callback(landed)


def tell_reuse(
    pending: Pending,
    metadata: Mapping[str, Any],
    source: Source,
    ended: Result | BaseException,
    seconds: float = 0.0,
) -> None:
    """Tell of an answer made of a compaction that ran for another request."""
    known: Final = ended if isinstance(ended, Result) else None
    record: Final = Record(
        asked=Asked.of(pending, None if known is None else known.writer),
        source=source,
        outcome=outcome_of(ended),
        items=len(pending.expansion.items),
        dropped=None if known is None else known.dropped,
        tokens_before=None if known is None else known.tokens_before,
        tokens_after=None if known is None else known.tokens_after,
        seconds=seconds,
        item=None if known is None else known.item_id,
        error=None if known is not None else type(ended).__name__,
    )
    _tell(pending, record)
    _safely(tracing.add_span, metadata, record)


def tell_refused_item(error: UnreadableItem, content: object, handling: str, caller: Caller) -> None:
    """Tell why an item could not be opened, which its client never learns."""
    digest: Final = content_digest(content) if isinstance(content, str) else "-"
    _safely(metrics.count_refused_item, error.reason, handling)
    _safely(account_log.write_refused_item, error.reason, handling, digest, key_id(caller.key), caller.team)


def refuse(error: CompactionError) -> CompactionProxyException:
    """The refusal of a request, counted, as LiteLLM hands it to the client."""
    return CompactionProxyException(counted(error))


def counted(error: CompactionError) -> CompactionError:
    """An error that a request ends in, counted if the request could not be served as it was: a compaction that failed
    has been told of as such."""
    if isinstance(error, InvalidRequest):
        _safely(metrics.count_refused_request, error)
    return error


def tell_skipped(group: str, team: str | None, reason: str) -> None:
    """Count a request that was over its threshold and goes on as it is."""
    _safely(_count_skipped, group, team, reason)


def _count_skipped(group: str, team: str | None, reason: str) -> None:
    metrics.count_skipped(metrics.label_model(current_router(), group, team), reason)


def _tell(pending: Pending, record: Record) -> None:
    _safely(account_log.write_line, record)
    _safely(_count, pending, record)


def _count(pending: Pending, record: Record) -> None:
    metrics.count_record(record, metrics.label_model(current_router(), pending.model, pending.caller.team))


def _safely(tell: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
    try:
        tell(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # a full disk, a registry of somebody's own: no reason to fail
        _complain(type(error).__name__)


@cache
def _complain(kind: str) -> None:
    verbose_proxy_logger.warning("litellm_compaction: metrics or traces cannot be written: %s", kind)

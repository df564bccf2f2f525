"""Running one compaction: limits, profile and policy of its model, the summariser, the sealed item."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from litellm_compaction.budget.arithmetic import ImpossibleBudget
from litellm_compaction.budget.limits import ModelLimits, min_known, summary_room
from litellm_compaction.compaction.compact import Outcome, Task, compact, make_plan
from litellm_compaction.compaction.plan import Limits
from litellm_compaction.compaction.policy import Policy
from litellm_compaction.compaction.prompt import write_instructions
from litellm_compaction.compaction.summarizer import Tries
from litellm_compaction.compaction.threads import run_heavy
from litellm_compaction.envelope.payload import Payload, TooLarge
from litellm_compaction.envelope.sealing import Caller, KeyRing, seal_payload, write_unsealed
from litellm_compaction.errors import CompactionFailed
from litellm_compaction.gateway.budgets import Budgets
from litellm_compaction.gateway.flights import Result
from litellm_compaction.gateway.pending import Pending
from litellm_compaction.gateway.profiles import load_counter, read_profile
from litellm_compaction.gateway.router import RouterSummarizer, current_router
from litellm_compaction.gateway.sight import Run, watch_run
from litellm_compaction.gateway.windows import GroupWindows
from litellm_compaction.settings import Settings

if TYPE_CHECKING:
    from litellm.router import Router

# A quarter at most stays as it is, so that the result is always smaller.
_RECENT_SHARE: Final = 4


def write_key(pending: Pending) -> str:
    """What makes two requests the same: who asks, for which model, under which settings, and the transcript."""
    digest: Final = hashlib.blake2b(digest_size=32)
    for part in (
        *pending.identity,
        (pending.origin, pending.application),
        pending.extra,
        sorted(pending.expansion.summaries),
        *pending.expansion.items,
    ):
        digest.update(json.dumps(part, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


async def seal(payload: Payload, settings: Settings, ring: KeyRing, caller: Caller) -> str:
    """The content of an item. Raises CompactionFailed for what no item can hold."""
    try:
        if not settings.seal:
            return await run_heavy(write_unsealed, payload)
        return await run_heavy(seal_payload, payload, ring, caller, settings.bind, os.urandom)
    except TooLarge:
        reason: Final = "what has to be kept is too large for one compaction item."
        raise CompactionFailed(reason, settings.failure_status) from None


class Runner:
    """Runs a pending compaction to its end."""

    def __init__(self, pending: Pending, metadata: Mapping[str, Any], budgets: Budgets) -> None:
        self._pending: Final = pending
        self._metadata: Final = metadata
        self._budgets: Final = budgets
        self.has_run = False

    async def run(self, item_id: str, started: float) -> Result:
        """The sealed item with what was spent on it. `started`: when the deadline began, in the loop's seconds.

        Raises the compaction's errors, and LiteLLM's own unchanged.
        """
        self.has_run = True
        pending: Final = self._pending
        with watch_run(pending, self._metadata, item_id, started) as run:
            outcome: Final = await self._compact(run, started)
            content: Final = await seal(outcome.payload, pending.settings, pending.ring, pending.caller)
            run.has_ended(outcome)
        return Result(
            item_id=item_id,
            content=content,
            usage=outcome.usage,
            attempts=outcome.attempts,
            dropped=outcome.dropped,
            tokens_before=outcome.tokens_before,
            tokens_after=outcome.tokens_after,
            message_tokens=outcome.message_tokens,
            degraded=outcome.failure is not None,
            writer=None if run.writer == pending.writer_model else run.writer,
        )

    async def _compact(self, run: Run, started: float) -> Outcome:
        pending: Final = self._pending
        router: Final = current_router()
        if router is None:
            raise RuntimeError("LiteLLM has no router: a model_list is needed")
        # Megabytes of transcript: counting, rendering and sealing them would hold the event loop.
        count: Final = await run_heavy(load_counter)
        reader: Final = self._limits(router, pending.model)
        writer: Final = self._limits(router, pending.writer_model)
        run.writes_within(writer)
        task: Final = Task(
            expansion=pending.expansion,
            origin=pending.origin,
            model=pending.shown_writer,
            limits=lambda tokens: kept_limits(
                pending.settings, self._limits(router, pending.model), tokens, pending.target
            ),
            user_message_tokens=pending.settings.user_message_tokens,
            application=pending.application,
            ledger_on_failure=pending.settings.on_failure == "ledger",
        )
        plan: Final = await run_heavy(make_plan, task, count)
        profile: Final = read_profile(router, pending.writer_model, pending.caller.team)
        policy: Final = Policy(
            instructions=write_instructions(pending.settings.instructions),
            mark=lambda: secrets.token_hex(6),
            count=count,
            room=summary_room(writer, reader, profile.count_error),
            count_error=profile.count_error,
            max_attempts=pending.settings.max_attempts,
            trim_fraction=pending.settings.trim_fraction,
            oversize=pending.settings.oversize,
            max_passes=pending.settings.max_passes,
            deadline_seconds=pending.settings.deadline_seconds,
            started_at=started,
            failure_status=pending.settings.failure_status,
            first_style=profile.first_style,
            images=profile.images,
            truncates=profile.truncates,
            tries=Tries() if pending.settings.count_retries else None,
            learn=lambda overflow: self._budgets.learn(summarizer.answered, overflow.limit or overflow.read),
        )
        summarizer: Final = RouterSummarizer(
            router,
            pending.writer_model,
            run.metadata,
            pending.extra,
            GroupWindows(router, self._budgets, pending.caller.team, reader, count),
            policy.tries,
        )
        try:
            return await compact(task, plan, summarizer, policy, run.account, lambda: int(time.time()))
        finally:
            run.writer = summarizer.answered

    def _limits(self, router: Router, group: str) -> ModelLimits:
        return self._budgets.limits(router, group, self._pending.caller.team)


def kept_limits(settings: Settings, reader: ModelLimits, transcript_tokens: int, target: int | None = None) -> Limits:
    """What stays verbatim, in tokens: of the newest a quarter of the transcript and of the threshold at most, of
    all together the operator's share of the window."""
    recent: Final = min_known(settings.keep_recent_tokens, transcript_tokens // _RECENT_SHARE)
    threshold: Final = min_known(target, _threshold(settings, reader))
    budget: Final = None if threshold is None else threshold // _RECENT_SHARE
    window: Final = reader.context if reader.context is not None else reader.max_input
    return Limits(
        recent=min_known(recent, budget) or 0,
        kept=None if window is None else int(window * settings.retained_fraction),
        # The same request is answered from it: a question cut short would be answered as if it had been asked so.
        whole=target is not None,
    )


def _threshold(settings: Settings, reader: ModelLimits) -> int | None:
    try:
        budget: Final = reader.budget(settings.threshold_rule, settings.threshold)
    except ImpossibleBudget:
        return 0  # a window that has no room for an answer has none for kept items
    return reader.max_input if budget is None else budget.threshold

"""One compaction from items to a payload: plan, summarise, select, describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from litellm_compaction.budget.counting import Counter
from litellm_compaction.budget.limits import MAX_SUMMARY_TOKENS, min_known
from litellm_compaction.compaction.answer import Usage
from litellm_compaction.compaction.engine import Account, Summary, summarize
from litellm_compaction.compaction.plan import (
    Limits,
    Plan,
    plan_compaction,
    select_kept,
)
from litellm_compaction.compaction.policy import Policy
from litellm_compaction.compaction.summarizer import Summarizer
from litellm_compaction.compaction.threads import run_heavy
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.conversation.items import Item, RawItem, classify_items
from litellm_compaction.conversation.ledger import read_ledger, write_ledger
from litellm_compaction.conversation.transcript import count_content, render_blocks
from litellm_compaction.envelope.payload import Origin, Payload
from litellm_compaction.errors import CompactionError, CompactionFailed, CompactionTimeout

# An item names at most this many earlier ones; a client that still sends older ones has kept them by mistake.
_MAX_FOLDED: Final = 64


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation to compact: the expanded input, what it was born from, and the operator's numbers (tokens).

    `ledger_on_failure`: where no model writes a valid summary, what the transcript says by itself takes its place.
    """

    expansion: Expansion
    origin: Origin
    model: str
    limits: Callable[[int], Limits]
    user_message_tokens: int
    application: str | None = None
    ledger_on_failure: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished compaction; tokens are counts of the transcript.

    `dropped`: items that are not in the summary, or should have been kept and could not be. `shortened`: items
    summarised from a part of them. `windows`: parts the transcript was summarised in. `message_tokens`: what user
    messages beside the item may have. `failure`: why no model's summary is in it, if so. `unread`: the backend seems to
    have read only a part of a prompt.
    """

    payload: Payload
    usage: Usage
    attempts: int
    dropped: int
    shortened: int
    windows: int
    tokens_before: int
    tokens_after: int
    message_tokens: int
    unread: bool = False
    failure: CompactionError | None = None


def make_plan(task: Task, count: Counter) -> Plan:
    """The plan of a task; all refusals of a transcript come from here, before anything is paid."""
    return plan_compaction(classify_items(task.expansion.items), task.expansion.summaries, count, task.limits)


async def compact(
    task: Task, plan: Plan, summarizer: Summarizer, policy: Policy, account: Account, now: Callable[[], int]
) -> Outcome:
    """Run the compaction. Raises what `summarize` raises; nothing is changed by a failure."""
    failure: CompactionError | None = None
    try:
        summary = await summarize(plan.units, summarizer, policy, account, task.application)
    except (CompactionFailed, CompactionTimeout) as error:
        if not task.ledger_on_failure:
            raise
        failure, summary = error, await run_heavy(_ledger_summary, task, policy, error)
    return await run_heavy(_describe, task, plan, summary, policy, account, now(), failure)


def _describe(
    task: Task,
    plan: Plan,
    summary: Summary,
    policy: Policy,
    account: Account,
    created_at: int,
    failure: CompactionError | None,
) -> Outcome:
    # Asked for again: an overflow on the way may have taught what the window is.
    limits: Final = task.limits(plan.tokens)
    ceiling: Final = limits.kept
    selection: Final = select_kept(
        plan, summary.retain, task.expansion.summaries, ceiling, policy.count, whole=limits.whole
    )
    kept_tokens: Final = _count_items(selection.kept, policy.count)
    lost: Final = summary.left_out - selection.refs
    dropped: Final = plan.unseen + len(selection.left_out | lost)
    shortened: Final = len(summary.shortened - selection.refs)
    text: Final = _head(len(lost), shortened) + summary.text
    payload: Final = Payload(
        origin=task.origin,
        summary=text,
        kept=selection.kept,
        system=tuple(dict(raw) for raw in plan.system),
        dropped=dropped,
        folded=_folded(task.expansion),
        model=task.model,
        created_at=created_at,
    )
    return Outcome(
        payload=payload,
        usage=account.usage,
        attempts=account.attempts,
        dropped=dropped,
        shortened=shortened,
        windows=summary.windows,
        tokens_before=plan.tokens,
        tokens_after=policy.count(text) + kept_tokens + _count_items(plan.system, policy.count),
        message_tokens=min_known(task.user_message_tokens, None if ceiling is None else max(0, ceiling - kept_tokens))
        or 0,
        unread=account.unread,
        failure=failure,
    )


def _ledger_summary(task: Task, policy: Policy, error: CompactionError) -> Summary:
    items: Final[Sequence[Item]] = [item for item in classify_items(task.expansion.items) if item.is_history]
    head: Final = (
        f"[No model could write a summary of the conversation so far: {error.code}. What follows was read off the "
        "conversation itself, without a model.]\n\n"
    )
    limit: Final = min_known(policy.room.summary, MAX_SUMMARY_TOKENS) or MAX_SUMMARY_TOKENS
    budget: Final = max(64, limit - policy.count(head))
    text: Final = head + write_ledger(read_ledger(items, task.expansion.summaries), budget, policy.count)
    # A lone surrogate, out of a call's escaped arguments, is no text that could be sent on.
    return Summary(text.encode("utf-8", "replace").decode(), windows=0)


def _head(left_out: int, shortened: int) -> str:
    """What a reader of the summary has to know of it: what its writer never saw."""
    lines: Final = [
        f"[{number} {kind} {'item was' if number == 1 else 'items were'} {what}]"
        for number, kind, what in (
            (left_out, "older transcript", "left out before this summary was written: they did not fit the window."),
            (shortened, "transcript", "shortened before this summary was written: its writer saw parts of them."),
        )
        if number
    ]
    return "\n".join([*lines, ""]) + "\n" if lines else ""


def _folded(expansion: Expansion) -> tuple[str, ...]:
    digests: Final = [digest for opened in expansion.opened for digest in (*opened.state.folded, opened.digest)]
    return tuple(dict.fromkeys(digests))[-_MAX_FOLDED:]


def _count_items(items: Sequence[RawItem], count: Counter) -> int:
    """Tokens of items as they stand in a request."""
    return sum(count_content(block, count) for block in render_blocks(classify_items(items)))

"""One compaction from items to a payload: plan, summarise, select, describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.compaction.engine import Ledger, Policy, Summarizer, summarize
from litellm_compaction.compaction.plan import (
    Counter,
    Limits,
    Plan,
    count_block,
    plan_compaction,
    select_kept,
    select_user_messages,
)
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.conversation.items import RawItem, classify_items
from litellm_compaction.conversation.transcript import render_blocks
from litellm_compaction.envelope.payload import Origin, Payload

# An item names at most this many earlier ones; a client that still sends older ones has kept them by mistake.
_MAX_FOLDED: Final = 64


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation to compact: the expanded input, what it was born from, and the operator's numbers (tokens)."""

    expansion: Expansion
    origin: Origin
    model: str
    limits: Callable[[int], Limits]
    user_message_tokens: int
    application: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished compaction. `user_messages` only for /responses/compact; tokens are estimates of the transcript."""

    payload: Payload
    usage: Usage
    attempts: int
    dropped: int
    tokens_before: int
    tokens_after: int
    user_messages: tuple[RawItem, ...]


def make_plan(task: Task, count: Counter) -> Plan:
    """The plan of a task; all refusals of a transcript come from here, before anything is paid."""
    return plan_compaction(classify_items(task.expansion.items), task.expansion.summaries, count, task.limits)


async def compact(
    task: Task, plan: Plan, summarizer: Summarizer, policy: Policy, count: Counter, now: Callable[[], int]
) -> Outcome:
    """Run the compaction. Raises what `summarize` raises; nothing is changed by a failure."""
    ledger: Final = Ledger()
    answer: Final = await summarize(plan, summarizer, policy, ledger, task.application)
    summaries: Final = task.expansion.summaries
    selection: Final = select_kept(plan, answer.retain, summaries)
    dropped: Final = plan.unseen + selection.left_out
    payload: Final = Payload(
        origin=task.origin,
        summary=answer.summary,
        kept=selection.kept,
        system=tuple(dict(raw) for raw in plan.system),
        dropped=dropped,
        folded=_folded(task.expansion),
        model=task.model,
        created_at=now(),
    )
    messages: Final = (
        select_user_messages(classify_items(task.expansion.items), summaries, task.user_message_tokens, count)
        if task.origin == "compact"
        else []
    )
    return Outcome(
        payload=payload,
        usage=ledger.usage,
        attempts=ledger.attempts,
        dropped=dropped,
        tokens_before=plan.tokens,
        tokens_after=_tokens_after(answer.summary, selection.kept, plan, count),
        user_messages=tuple(messages),
    )


def _folded(expansion: Expansion) -> tuple[str, ...]:
    digests: Final = [digest for opened in expansion.opened for digest in (*opened.state.folded, opened.digest)]
    return tuple(dict.fromkeys(digests))[-_MAX_FOLDED:]


def _tokens_after(summary: str, kept: Sequence[RawItem], plan: Plan, count: Counter) -> int:
    """Tokens the conversation holds once the item stands for it: system text, summary, kept items."""
    blocks: Final = render_blocks(classify_items([*plan.system, *kept]))
    return count(summary) + sum(count_block(block, count) for block in blocks)

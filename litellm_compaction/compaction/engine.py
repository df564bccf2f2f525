"""The work itself: ask for a summary, check it, repair it once, within a number of inferences and a deadline.

| state  | event                                   | next                                             |
|--------|-----------------------------------------|--------------------------------------------------|
| ask    | valid answer                            | done                                             |
| ask    | invalid answer, an inference is left    | repair, told what was wrong                      |
| ask    | invalid answer, none is left            | CompactionFailed                                 |
| repair | valid answer                            | done                                             |
| repair | invalid answer                          | CompactionFailed                                 |
| any    | backend refuses the form of the request | the same state in the next style (no inference)  |
| any    | backend refuses the last style          | its error, unchanged                             |
| any    | transcript over the backend's window    | CompactionFailed                                 |
| any    | backend down or broken                  | CompactionFailed                                 |
| any    | any other error                         | that error, unchanged                            |
| any    | deadline                                | CompactionTimeout                                |

Styles are tool call, JSON schema, JSON in the text. A repair asks for a JSON schema where the first answer held no tool
call at all: some servers accept a forced `tool_choice` and ignore it, and enforce a schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from litellm_compaction.compaction.answer import Answer, InvalidAnswer, Reply, Usage, read_answer
from litellm_compaction.compaction.plan import Plan
from litellm_compaction.compaction.prompt import Style, next_style, write_messages, write_parameters
from litellm_compaction.conversation.transcript import write_blocks
from litellm_compaction.errors import CompactionFailed, CompactionTimeout


class StyleRefused(Exception):
    """The backend does not take tools, or not this response format; `cause` is its own error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause: Final = cause


class Overflow(Exception):
    """The backend says that the request does not fit its window."""


class BackendFailed(Exception):
    """The backend could not answer at all, for a reason that is neither the caller's nor the request's."""


class Summarizer(Protocol):
    """One inference of the summarising model.

    Takes chat messages and the parameters that force the answer's form. Raises StyleRefused, Overflow, BackendFailed,
    or the host's own error unchanged (rate limits, access, unknown models).
    """

    async def __call__(self, messages: list[dict[str, Any]], parameters: dict[str, Any]) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """How hard to try, and what to say. `mark` makes a fence for the transcript, new for each inference."""

    instructions: str
    mark: Callable[[], str]
    max_attempts: int = 3
    deadline_seconds: float = 240
    failure_status: int = 400
    first_style: Style = Style.TOOL
    images: bool = True


@dataclass(slots=True)
class Ledger:
    """What a compaction has used so far; true also when it fails."""

    attempts: int = 0
    usage: Usage = field(default_factory=Usage)


async def summarize(
    plan: Plan, summarizer: Summarizer, policy: Policy, ledger: Ledger, context: str | None = None
) -> Answer:
    """A checked answer for the plan's transcript; `ledger` counts inferences and tokens on the way."""
    try:
        async with asyncio.timeout(policy.deadline_seconds) as deadline:
            return await _attempts(plan, summarizer, policy, ledger, context)
    except Overflow as overflow:
        reason: Final = f"the transcript does not fit the summarising model's window ({overflow})."
        raise CompactionFailed(reason, policy.failure_status) from None
    except BackendFailed as failed:
        raise CompactionFailed(f"the summarising model's backend failed: {failed}", policy.failure_status) from failed
    except TimeoutError:
        if not deadline.expired():
            raise  # the backend's own timeout is its own error
        raise CompactionTimeout(policy.deadline_seconds) from None


async def _attempts(plan: Plan, summarizer: Summarizer, policy: Policy, ledger: Ledger, context: str | None) -> Answer:
    style = policy.first_style
    problem: str | None = None
    allowed: Final = min(policy.max_attempts, 2)  # the first and one repair
    while True:
        mark = policy.mark()
        transcript = write_blocks(plan.blocks, mark, images=policy.images)
        messages = write_messages(policy.instructions, transcript, mark, style, problem, context)
        try:
            reply = await summarizer(messages, write_parameters(style))
        except StyleRefused as refused:
            following = next_style(style)
            if following is None:
                raise refused.cause from None
            style = following
            continue
        ledger.attempts += 1
        ledger.usage += reply.usage
        try:
            return read_answer(reply, plan.refs)
        except InvalidAnswer as invalid:
            if ledger.attempts >= allowed:
                reason = f"the model gave no valid summary in {ledger.attempts} attempts; {invalid}"
                raise CompactionFailed(reason, policy.failure_status) from None
            problem = str(invalid)
            if style is Style.TOOL and not reply.calls:
                style = Style.SCHEMA

"""The work itself: ask for a summary, check it, repair it once, trim or fold what is too long, within a deadline.

| state  | event                                        | next                                                       |
|--------|----------------------------------------------|------------------------------------------------------------|
| plan   | it fits, or the window is unknown            | ask, everything in one window                              |
| plan   | too large, `oversize: fold`                  | ask the oldest window that fits                            |
| plan   | too large, `oversize: trim`                  | ask what remains when the oldest removable are left out    |
| plan   | too large whatever is left out               | CompactionFailed, no inference                             |
| ask    | valid answer, more windows                   | plan the rest; the summary so far goes first               |
| ask    | valid answer, no more windows                | done                                                       |
| ask    | invalid answer, an inference is left         | repair, told what was wrong                                |
| ask    | invalid answer, none is left                 | CompactionFailed                                           |
| repair | valid answer                                 | as for ask                                                 |
| repair | invalid answer                               | CompactionFailed                                           |
| any    | overflow, the first, an inference is left    | the same state, trimmed to the limit named, else by a share|
| any    | overflow, the second, or none is left        | CompactionFailed                                           |
| any    | overflow, and nothing can be left out        | CompactionFailed                                           |
| any    | prompt silently cut, backend known for it    | as an overflow                                             |
| any    | prompt silently cut, any other backend       | as if it were not, noted                                   |
| any    | rate limit that ends before the deadline     | the same state after the wait (no inference), as often as  |
|        |                                              | that holds                                                 |
| any    | any other rate limit                         | its error, unchanged                                       |
| any    | backend refuses the form of the request      | the same state in the next style (no inference)            |
| any    | backend refuses the last style               | its error, unchanged                                       |
| any    | a smaller window would answer instead        | plan, everything not yet summarised, for that window       |
| any    | the same window, or a larger one, again      | CompactionFailed                                           |
| any    | backend down or broken                       | CompactionFailed                                           |
| any    | any other error                              | that error, unchanged                                      |
| any    | deadline                                     | CompactionTimeout                                          |

Inferences are what a model answered or refused for its length; where `tries` are counted, whatever was sent. All rows
but those of `plan` hold for each window, which may take `max_attempts` of them: the first, one after an overflow, one
to repair. Styles are tool call, JSON schema, JSON in the text. A repair asks for a JSON schema where the first answer
held no tool call at all: some servers accept a forced `tool_choice` and ignore it, and enforce a schema.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from litellm_compaction.budget.limits import Room, min_known
from litellm_compaction.compaction.answer import Answer, InvalidAnswer, Reply, Usage, read_answer
from litellm_compaction.compaction.policy import SPARE_TOKENS, Policy, fixed_tokens, learned_room, shown_context
from litellm_compaction.compaction.prompt import Briefing, Style, next_style, write_messages, write_parameters
from litellm_compaction.compaction.summarizer import (
    BackendFailed,
    Overflow,
    RateLimited,
    SmallerWindow,
    StyleRefused,
    Summarizer,
)
from litellm_compaction.compaction.threads import run_heavy
from litellm_compaction.compaction.trim import Cut, DoesNotFit, Unit, cut_by, cut_to, fold_window
from litellm_compaction.conversation.transcript import count_block, summary_block, write_blocks
from litellm_compaction.errors import CompactionFailed, CompactionTimeout

# Seconds that the n-th wait for one request takes at least: a provider that says "soon" for ever is not believed.
_BACKOFF: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
# A summary may be this much longer than what it was told: models count words badly, and counts err on the high side.
_TOLERANCE: Final = 1.25
# Reported prompt tokens below this share of what was sent mean that the rest was never read; differences between
# tokenizers are far smaller. Below _NOTICEABLE tokens nothing is cut by anybody.
_READ_SHARE, _NOTICEABLE = 0.5, 1_000


@dataclass(slots=True)
class Account:
    """What a compaction has used so far, true also when it fails. `unread`: a prompt was silently cut on the way."""

    attempts: int = 0
    usage: Usage = field(default_factory=Usage)
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """The text, the refs the model wants kept, the refs it never saw or saw only in part, and the windows it took."""

    text: str
    retain: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()
    shortened: frozenset[str] = frozenset()
    windows: int = 1


async def summarize(
    units: Sequence[Unit], summarizer: Summarizer, policy: Policy, account: Account, context: str | None = None
) -> Summary:
    """A checked summary of the units; `account` counts inferences and tokens on the way.

    `context`: the application's own instructions, shown as data.
    """
    started: Final = asyncio.get_running_loop().time() if policy.started_at is None else policy.started_at
    ends: Final = started + policy.deadline_seconds
    try:
        async with asyncio.timeout_at(ends) as deadline:
            return await _Run(summarizer, policy, account, context, ends).summarize(tuple(units))
    except DoesNotFit:
        reason: Final = "the transcript does not fit the summarising model's window, whatever is left out of it."
        raise CompactionFailed(reason, policy.failure_status) from None
    except BackendFailed as failed:
        words: Final = str(failed).rstrip(". ")
        raise CompactionFailed(f"the summarising model's backend failed: {words}.", policy.failure_status) from failed
    except TimeoutError:
        if not deadline.expired():
            raise  # the backend's own timeout is its own error
        raise CompactionTimeout(policy.deadline_seconds) from None


class _Run:
    """One compaction on its way: what it has learned of the backend, and what it had to leave out."""

    def __init__(
        self, summarizer: Summarizer, policy: Policy, account: Account, context: str | None, ends: float
    ) -> None:
        self._summarizer: Final = summarizer
        self._policy: Final = policy
        self._account: Final = account
        self._count: Final = policy.count
        self._ends: Final = ends
        self._application: Final = context
        self._enter(policy.room)
        self._style = policy.first_style
        self._images = policy.images
        self._attempts = 0  # of the window on its way
        self._moved_to: int | None = None
        self._left_out: frozenset[str] = frozenset()
        self._shortened: frozenset[str] = frozenset()

    async def summarize(self, units: tuple[Unit, ...]) -> Summary:
        rest = units
        shown: frozenset[str] = frozenset()
        retain: dict[str, None] = {}
        answer: Answer | None = None
        windows = 0
        while True:
            windows += 1
            before = () if answer is None else (self._carried(answer.summary),)
            whole, noted = rest, (self._left_out, self._shortened)
            # In a thread: to shorten megabytes takes seconds.
            window, rest = await run_heavy(self._plan, rest, before, self._policy.max_passes - windows + 1)
            part = windows if rest or windows > 1 else 0
            try:
                answer = await self._ask(before, window, shown, part, last=not rest)
            except SmallerWindow as smaller:
                self._move_to(smaller)
                windows, rest, (self._left_out, self._shortened) = windows - 1, whole, noted
                continue
            self._attempts = 0
            shown |= _refs(window) - self._left_out
            retain.update(dict.fromkeys(answer.retain))
            if not rest:
                return Summary(answer.summary, tuple(retain), self._left_out, self._shortened, windows)

    def _move_to(self, smaller: SmallerWindow) -> None:
        """Go on for the window of another model. Raises DoesNotFit for one that was planned for already."""
        if self._moved_to is not None and (smaller.room.prompt or 0) >= self._moved_to:
            raise DoesNotFit
        self._moved_to = smaller.room.prompt
        self._style, self._images = smaller.first_style, smaller.images
        self._enter(smaller.room)

    def _enter(self, room: Room) -> None:
        """What a request may take from now on, and what of it is taken by what is not the transcript."""
        self._room = room
        self._context = shown_context(self._application, room, self._policy)
        self._fixed = fixed_tokens(self._policy, self._context)

    def _carried(self, summary: str) -> Unit:
        block: Final = summary_block(summary)
        return Unit((block,), (count_block(block, self._count),), spoken=True)

    def _plan(
        self, rest: tuple[Unit, ...], before: Sequence[Unit], windows: int
    ) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
        """The next window and what remains after it. Raises DoesNotFit."""
        capacity: Final = self._capacity(before)
        if capacity is None or sum(unit.tokens for unit in rest) <= capacity:
            return rest, ()
        if self._policy.oversize == "trim":
            return self._noted(cut_to(rest, capacity, self._count)), ()
        later: Final = capacity if windows <= 1 else min(capacity, (self._capacity(()) or 0) - self._expected(before))
        # What comes later is planned anew: by then it is known how long the summary before it really is.
        cut, remaining = fold_window(rest, capacity, later, max(1, windows), self._count)
        return self._noted(cut), remaining

    def _expected(self, before: Sequence[Unit]) -> int:
        """Tokens that the summary so far may take in later windows: it grows, up to its limit."""
        most: Final = int((self._summary_limit() or 0) * _TOLERANCE) + SPARE_TOKENS
        return min(most, 2 * sum(unit.tokens for unit in before)) if before else most // 2

    def _noted(self, cut: Cut) -> tuple[Unit, ...]:
        self._left_out |= cut.left_out
        self._shortened = (self._shortened | cut.shortened) - cut.left_out
        return cut.units

    def _capacity(self, before: Sequence[Unit]) -> int | None:
        """Tokens left for the transcript in one request, None where the window is unknown."""
        if self._room.prompt is None:
            return None
        return self._room.prompt - self._fixed - sum(unit.tokens for unit in before)

    def _summary_limit(self) -> int | None:
        """Tokens a summary may have: small windows must hold it beside something to summarise."""
        whole: Final = self._capacity(())
        return min_known(self._room.summary, None if whole is None else max(1, whole // 2))

    async def _ask(
        self, before: Sequence[Unit], window: tuple[Unit, ...], shown: frozenset[str], part: int, *, last: bool
    ) -> Answer:
        """A checked answer for one window: the first inference, one after an overflow, one to repair. `shown`: refs of
        the windows before, which the answer may name too."""
        trimmed = repaired = False
        problem: str | None = None
        while True:
            try:
                reply = await self._infer([*before, *window], self._briefing(problem, part, last=last))
            except StyleRefused as refused:
                following = next_style(self._style)
                if following is None or self._is_spent():
                    raise refused.cause from None
                self._style = following
                continue
            except Overflow as overflow:
                if trimmed or self._attempts >= self._policy.max_attempts:
                    reason = f"the transcript does not fit the summarising model's window ({overflow})."
                    raise CompactionFailed(reason, self._policy.failure_status) from None
                window, trimmed = await run_heavy(self._trim, window, before, overflow), True
                continue
            try:
                return self._checked(read_answer(reply, shown | _refs(window)))
            except InvalidAnswer as invalid:
                if repaired or self._attempts >= self._policy.max_attempts:
                    tried = self._account.attempts
                    reason = f"the model gave no valid summary in {tried} attempt{'s' * (tried > 1)}; {invalid}"
                    raise CompactionFailed(reason, self._policy.failure_status) from None
                problem, repaired = str(invalid), True
                if self._style is Style.TOOL and not reply.calls:
                    self._style = Style.SCHEMA

    def _briefing(self, problem: str | None, part: int, *, last: bool) -> Briefing:
        return Briefing(
            instructions=self._policy.instructions,
            mark=self._policy.mark(),
            style=self._style,
            problem=problem,
            context=self._context,
            left_out=len(self._left_out),
            shortened=len(self._shortened),
            part=part,
            last=last,
            limit=self._summary_limit(),
        )

    async def _infer(self, units: Sequence[Unit], briefing: Briefing) -> Reply:
        """One inference, after as many waits as a rate limit asks for and the deadline allows."""
        messages: Final = await run_heavy(self._write, units, briefing)
        waits = 0
        while True:
            try:
                reply = await self._send(messages, write_parameters(briefing.style, self._room.answer))
            except RateLimited as limited:
                seconds = max(limited.seconds, _BACKOFF[min(waits, len(_BACKOFF) - 1)])
                if asyncio.get_running_loop().time() + seconds >= self._ends or self._is_spent():
                    raise limited.cause from None
                waits += 1
                await self._policy.sleep(seconds)
                continue
            self._account.usage += reply.usage
            self._notice_cut(reply, sum(unit.tokens for unit in units))
            return reply

    async def _send(self, messages: list[dict[str, Any]], parameters: dict[str, Any]) -> Reply:
        """What the model answers; counted, also where it is an error."""
        tries: Final = self._policy.tries
        if tries is not None:
            tries.most, tries.taken = max(0, self._policy.max_attempts - self._attempts), 0
        try:
            reply: Final = await self._summarizer(messages, parameters)
        except Exception as error:
            self._count_tries(at_least=int(isinstance(error, Overflow)))
            raise
        self._count_tries(at_least=1)
        return reply

    def _count_tries(self, at_least: int = 0) -> None:
        """One inference that was answered, or all that were sent, whichever the policy counts."""
        taken: Final = at_least if self._policy.tries is None else max(at_least, self._policy.tries.taken)
        self._attempts += taken
        self._account.attempts += taken

    def _is_spent(self) -> bool:
        return self._policy.tries is not None and self._attempts >= self._policy.max_attempts

    def _write(self, units: Sequence[Unit], briefing: Briefing) -> list[dict[str, Any]]:
        blocks: Final = sorted((block for unit in units for block in unit.blocks), key=lambda block: block.ref)
        return write_messages(write_blocks(blocks, briefing.mark, images=self._images), briefing)

    def _notice_cut(self, reply: Reply, shown: int) -> None:
        """Whether the backend read far less than it was sent. Raises Overflow where it is known to do that."""
        read: Final = reply.usage.input_tokens
        if shown < _NOTICEABLE or not 0 < read < shown * _READ_SHARE:
            return
        if self._policy.truncates:
            raise Overflow(f"the backend read {read} of about {shown} tokens and cut the rest off", read=read)
        self._account.unread = True

    def _checked(self, answer: Answer) -> Answer:
        limit: Final = self._summary_limit()
        length: Final = self._count(answer.summary)
        if limit is not None and length > limit * _TOLERANCE:
            raise InvalidAnswer(f"the summary is about {length} tokens long and {limit} is the most; write less.")
        return answer

    def _trim(self, window: tuple[Unit, ...], before: Sequence[Unit], overflow: Overflow) -> tuple[Unit, ...]:
        """What of a window remains after an overflow; later windows are planned with what it taught."""
        tokens: Final = sum(unit.tokens for unit in window)
        amount: Final = math.ceil(tokens * self._policy.trim_fraction)
        sent: Final = tokens + self._fixed + sum(unit.tokens for unit in before)
        self._policy.learn(overflow)
        self._enter(learned_room(self._room, overflow, sent, self._policy))
        capacity: Final = self._capacity(before)
        if capacity is None or tokens - amount < capacity:
            return self._noted(cut_by(window, amount, self._count, capacity))
        return self._noted(cut_to(window, capacity, self._count))


def _refs(units: Sequence[Unit]) -> frozenset[str]:
    return frozenset(block.ref for unit in units for block in unit.blocks)

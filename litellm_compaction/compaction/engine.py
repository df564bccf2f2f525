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
| any    | prompt silently cut, backend known for it    | as an overflow                                             |
| any    | prompt silently cut, any other backend       | as if it were not, noted                                   |
| any    | rate limit that ends before the deadline     | the same state after the wait (no inference)               |
| any    | any other rate limit                         | its error, unchanged                                       |
| any    | backend refuses the form of the request      | the same state in the next style (no inference)            |
| any    | backend refuses the last style               | its error, unchanged                                       |
| any    | backend down or broken                       | CompactionFailed                                           |
| any    | any other error                              | that error, unchanged                                      |
| any    | deadline                                     | CompactionTimeout                                          |

Inferences are what a model answered or refused for its length. Each window may take `max_attempts` of them: the first,
one after an overflow, one to repair. Styles are tool call, JSON schema, JSON in the text. A repair asks for a JSON
schema where the first answer held no tool call at all: some servers accept a forced `tool_choice` and ignore it, and
enforce a schema.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from litellm_compaction.budget.counting import Counter, estimate_tokens
from litellm_compaction.budget.limits import ModelLimits, Room, min_known
from litellm_compaction.compaction.answer import Answer, InvalidAnswer, Reply, Usage, read_answer
from litellm_compaction.compaction.prompt import Briefing, Style, next_style, write_messages, write_parameters
from litellm_compaction.compaction.summarizer import BackendFailed, Overflow, RateLimited, StyleRefused, Summarizer
from litellm_compaction.compaction.trim import Cut, DoesNotFit, Unit, cut_by, cut_to, fold_into, take_window
from litellm_compaction.conversation.shorten import shorten_text
from litellm_compaction.conversation.transcript import SAMPLE_MARK, count_block, summary_block, write_blocks
from litellm_compaction.errors import CompactionFailed, CompactionTimeout

# How often a rate limit is waited for: a provider that says "soon" for ever is not believed.
_MAX_WAITS: Final = 3
# A summary may be this much longer than what it was told: models count words badly, and counts err on the high side.
_TOLERANCE: Final = 1.25
# Reported prompt tokens below this share of what was sent mean that the rest was never read; differences between
# tokenizers are far smaller. Below _NOTICEABLE tokens nothing is cut by anybody.
_READ_SHARE, _NOTICEABLE = 0.5, 1_000
_FENCE_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Policy:
    """How hard to try, and what to say.

    `mark` makes a fence for the transcript, new for each inference. `room` is what a request may take, `count_error`
    the share by which `count` may fall short. `truncates`: the backend cuts prompts without a word. `started_at`: when
    the deadline began, in the event loop's seconds; None: now.
    """

    instructions: str
    mark: Callable[[], str]
    count: Counter = estimate_tokens
    room: Room = field(default_factory=Room)
    count_error: float = 0.0
    max_attempts: int = 3
    trim_fraction: float = 0.2
    oversize: Literal["fold", "trim"] = "fold"
    max_passes: int = 8
    deadline_seconds: float = 240
    started_at: float | None = None
    failure_status: int = 400
    first_style: Style = Style.TOOL
    images: bool = True
    truncates: bool = False
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


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
        raise CompactionFailed(f"the summarising model's backend failed: {failed}", policy.failure_status) from failed
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
        self._room = policy.room
        self._style = policy.first_style
        self._waits = 0
        self._context: Final = _shown_context(context, policy)
        self._fixed: Final = _fixed_tokens(policy, self._context)
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
            # In a thread: to shorten megabytes takes seconds.
            window, rest = await asyncio.to_thread(self._plan, rest, before, self._policy.max_passes - windows + 1)
            part = windows if rest or windows > 1 else 0
            answer = await self._ask(before, window, shown, part, last=not rest)
            shown |= _refs(window) - self._left_out
            retain.update(dict.fromkeys(answer.retain))
            if not rest:
                return Summary(answer.summary, tuple(retain), self._left_out, self._shortened, windows)

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
        cut: Final = fold_into(rest, later, max(1, windows), self._count)
        window, _ = take_window(cut.units, capacity)
        # What comes later is planned anew: by then it is known how long the summary before it really is.
        taken: Final = _refs(window) | cut.left_out
        self._noted(Cut(window, cut.left_out, cut.shortened & _refs(window)))
        return window, tuple(unit for unit in rest if not _refs([unit]) & taken)

    def _expected(self, before: Sequence[Unit]) -> int:
        """Tokens that the summary so far may take in later windows: it grows, up to its limit."""
        most: Final = int((self._summary_limit() or 0) * _TOLERANCE) + _FENCE_TOKENS
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
        attempts = 0
        trimmed = repaired = False
        problem: str | None = None
        while True:
            try:
                reply = await self._infer([*before, *window], self._briefing(problem, part, last=last))
            except StyleRefused as refused:
                following = next_style(self._style)
                if following is None:
                    raise refused.cause from None
                self._style = following
                continue
            except Overflow as overflow:
                attempts += 1
                if trimmed or attempts >= self._policy.max_attempts:
                    reason = f"the transcript does not fit the summarising model's window ({overflow})."
                    raise CompactionFailed(reason, self._policy.failure_status) from None
                window, trimmed = await asyncio.to_thread(self._trim, window, before, overflow), True
                continue
            attempts += 1
            try:
                return self._checked(read_answer(reply, shown | _refs(window)))
            except InvalidAnswer as invalid:
                if repaired or attempts >= self._policy.max_attempts:
                    reason = f"the model gave no valid summary in {self._account.attempts} attempts; {invalid}"
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
        messages: Final = await asyncio.to_thread(self._write, units, briefing)
        while True:
            try:
                reply = await self._summarizer(messages, write_parameters(briefing.style, self._room.answer))
            except RateLimited as limited:
                clock = asyncio.get_running_loop().time
                if self._waits >= _MAX_WAITS or clock() + limited.seconds >= self._ends:
                    raise limited.cause from None
                self._waits += 1
                await self._policy.sleep(limited.seconds)
                continue
            except Overflow:
                self._account.attempts += 1
                raise
            self._account.attempts += 1
            self._account.usage += reply.usage
            self._notice_cut(reply, sum(unit.tokens for unit in units))
            return reply

    def _write(self, units: Sequence[Unit], briefing: Briefing) -> list[dict[str, Any]]:
        blocks: Final = sorted((block for unit in units for block in unit.blocks), key=lambda block: block.ref)
        return write_messages(write_blocks(blocks, briefing.mark, images=self._policy.images), briefing)

    def _notice_cut(self, reply: Reply, shown: int) -> None:
        """Whether the backend read far less than it was sent. Raises Overflow where it is known to do that."""
        read: Final = reply.usage.input_tokens
        if shown < _NOTICEABLE or not 0 < read < shown * _READ_SHARE:
            return
        self._account.unread = True
        if self._policy.truncates:
            raise Overflow(f"the backend read {read} of about {shown} tokens and cut the rest off", read=read)

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
        self._room = _learned(self._room, overflow, sent, self._policy)
        capacity: Final = self._capacity(before)
        if capacity is None or tokens - amount < capacity:
            return self._noted(cut_by(window, amount, self._count, capacity))
        return self._noted(cut_to(window, capacity, self._count))


def _refs(units: Sequence[Unit]) -> frozenset[str]:
    return frozenset(block.ref for unit in units for block in unit.blocks)


def _learned(room: Room, overflow: Overflow, sent: int, policy: Policy) -> Room:
    """The room as a refusal shows it to be. `sent`: what the refused prompt was counted as."""
    if overflow.read is not None:
        return replace(room, prompt=int(overflow.read / (1 + policy.count_error)))
    if overflow.limit is None:
        known: Final = None if room.prompt is None else int(min(room.prompt, sent) * (1 - policy.trim_fraction))
        return replace(room, prompt=known)
    limits: Final = ModelLimits(context=overflow.limit, output=room.answer)
    budget: Final = limits.input_budget or 0
    # The backend's own count of the same prompt corrects ours.
    ratio: Final = min(1.0, sent / overflow.requested) if overflow.requested else 1.0
    return Room(
        prompt=min_known(room.prompt, int(budget * ratio / (1 + policy.count_error))),
        answer=min_known(room.answer, limits.output_budget if room.answer is not None else None),
        summary=min_known(room.summary, max(1, overflow.limit // 4)),
    )


def _shown_context(context: str | None, policy: Policy) -> str | None:
    """The application's instructions, in a quarter of the prompt at most."""
    if context is None or policy.room.prompt is None:
        return context
    budget: Final = policy.room.prompt // 4
    size: Final = policy.count(context)
    return context if size <= budget else shorten_text(context, len(context) * budget // size)


def _fixed_tokens(policy: Policy, context: str | None) -> int:
    """Tokens of a request without its transcript, on the high side."""
    briefing: Final = Briefing(
        instructions=policy.instructions,
        mark=SAMPLE_MARK,
        style=policy.first_style,
        problem="x" * 200,
        context=context,
        left_out=1,
        shortened=1,
        part=2,
        limit=1,
    )
    messages: Final = write_messages((), briefing)
    texts: Final = [str(message["content"]) for message in messages]
    return sum(map(policy.count, [*texts, json.dumps(write_parameters(Style.TOOL, None))])) + _FENCE_TOKENS

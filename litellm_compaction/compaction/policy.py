"""How hard to try for a summary, and what one request has room for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from litellm_compaction.budget.counting import Counter, estimate_tokens
from litellm_compaction.budget.limits import ModelLimits, Room, min_known
from litellm_compaction.compaction.prompt import Briefing, Style, write_messages, write_parameters
from litellm_compaction.compaction.summarizer import Overflow, Tries
from litellm_compaction.conversation.shorten import shorten_text
from litellm_compaction.conversation.transcript import SAMPLE_MARK

# What a count of the fixed parts may fall short by.
SPARE_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Policy:
    """How hard to try, and what to say.

    `mark` makes a fence for the transcript, new for each inference. `room` is what a request may take, `count_error`
    the share by which `count` may fall short. `truncates`: the backend cuts prompts without a word. `started_at`: when
    the deadline began, in the event loop's seconds; None: now. `learn` is told of each overflow. `tries`: shared with
    the summarizer where its own repetitions count as attempts; None where they don't.
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
    tries: Tries | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    learn: Callable[[Overflow], None] = lambda _: None


def learned_room(room: Room, overflow: Overflow, sent: int, policy: Policy) -> Room:
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


def shown_context(context: str | None, room: Room, policy: Policy) -> str | None:
    """The application's instructions, in a quarter of the prompt at most."""
    if context is None or room.prompt is None:
        return context
    budget: Final = room.prompt // 4
    size: Final = policy.count(context)
    return context if size <= budget else shorten_text(context, len(context) * budget // size)


def fixed_tokens(policy: Policy, context: str | None) -> int:
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
    return sum(map(policy.count, [*texts, json.dumps(write_parameters(Style.TOOL, None))])) + SPARE_TOKENS

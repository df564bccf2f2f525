"""What a compaction of a saved request would do, found out by the engine itself with nobody writing a summary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from litellm_compaction.budget.arithmetic import Budget
from litellm_compaction.budget.counting import OTHER_TOKENIZER_ERROR
from litellm_compaction.budget.limits import min_known, summary_room
from litellm_compaction.cli.config import Config
from litellm_compaction.cli.planning.fates import Fate, Line, list_lines
from litellm_compaction.compaction.answer import Reply
from litellm_compaction.compaction.compact import Task, make_plan
from litellm_compaction.compaction.engine import Account, summarize
from litellm_compaction.compaction.plan import select_kept
from litellm_compaction.compaction.policy import Policy, fixed_tokens
from litellm_compaction.compaction.prompt import SUMMARY_TOOL, write_instructions
from litellm_compaction.compaction.summarizer import Summarizer
from litellm_compaction.conversation.expansion import Expansion, Opened, expand_items
from litellm_compaction.conversation.items import TRIGGER_TYPE, RawItem, normalize_input
from litellm_compaction.conversation.measure import measure_request
from litellm_compaction.envelope.sealing import KeyRing, content_digest, open_item
from litellm_compaction.errors import UnreadableItem
from litellm_compaction.gateway.catalogue import params_of
from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.operator import Mode, resolve_mode
from litellm_compaction.gateway.profiles import count_error_of, load_counter
from litellm_compaction.gateway.runner import kept_limits
from litellm_compaction.settings import Settings

# One token, and four bytes.
_WORD: Final = "and "
# The gateway's note in the place of an item it cannot read is about as long.
_NOTE: Final = "[Here stood the summary of an earlier part of this conversation, made by another server.]"


@dataclass(frozen=True, slots=True)
class Outline:
    """The plan for a request. `counted`: tokens of all of it, `error`: by how many that may fall short.

    `windows`: parts the transcript is summarised in, as far as that can be said without the summaries. `mode`: whether
    this plugin compacts for the model, or its backend.
    """

    model: str
    writer: str
    mode: Mode
    budget: Budget | None
    counted: int
    error: int
    windows: int
    lines: list[Line]

    def tokens(self, fate: Fate) -> int:
        return sum(line.tokens for line in self.lines if line.fate == fate)

    def items(self, fate: Fate) -> int:
        return sum(line.fate == fate for line in self.lines)

    @property
    def is_over(self) -> bool:
        """Whether more is counted than the threshold."""
        return self.budget is not None and self.counted > self.budget.threshold


def outline_request(body: Mapping[str, Any], model: str, config: Config, ring: Callable[[], KeyRing]) -> Outline:
    """The outline for a body of /v1/responses or /responses/compact; `ring` is called where there is an item to open.

    Raises SettingsError, UnreadableItem and what a plan raises: NothingToCompact, InvalidToolPairing, InvalidInput,
    UnsupportedImage; CompactionFailed where no window can hold it.
    """
    settings: Final = config.settings(model)
    expansion: Final = _expand(body, settings, ring)
    count: Final = load_counter()
    reader: Final = config.limits(model)
    writer: Final = settings.summary_model or model
    task: Final = Task(
        expansion=expansion,
        origin="trigger",
        model=model,
        limits=lambda tokens: kept_limits(settings, reader, tokens),
        user_message_tokens=settings.user_message_tokens,
    )
    plan: Final = make_plan(task, count)
    error: Final = _error(config, writer)
    policy: Final = Policy(
        instructions=write_instructions(settings.instructions),
        mark=lambda: "0" * 12,
        count=count,
        room=summary_room(config.limits(writer), reader, error),
        count_error=error,
        oversize=settings.oversize,
        max_passes=settings.max_passes,
    )
    summary: Final = asyncio.run(summarize(plan.units, _stand_in(policy), policy, Account()))
    selection: Final = select_kept(plan, (), expansion.summaries, task.limits(plan.tokens).kept, count)
    measured: Final = measure_request({**body, "input": expansion.items})
    counted: Final = asyncio.run(RequestCounter().count(measured, "", _error(config, model), None))
    return Outline(
        model=model,
        writer=writer,
        mode=resolve_mode(settings, [params_of(entry) for entry in config.deployments(model)]),
        budget=config.budget(model),
        counted=counted.tokens,
        error=counted.error,
        windows=summary.windows,
        lines=list_lines(expansion, measured, selection, summary),
    )


def _expand(body: Mapping[str, Any], settings: Settings, ring: Callable[[], KeyRing]) -> Expansion:
    def open_one(raw: RawItem) -> Opened | RawItem:
        try:
            payload: Final = open_item(raw, ring(), None, allow_unsealed=True)
        except UnreadableItem:
            if settings.foreign_items == "reject":
                raise
            return {"type": "message", "role": "user", "content": _NOTE}
        return Opened(payload, content_digest(str(raw.get("encrypted_content"))))

    items: Final = [item for item in normalize_input(body.get("input")) if item.get("type") != TRIGGER_TYPE]
    return expand_items(items, open_one, settings.summary_role, keep_open=True)


def _error(config: Config, model: str) -> float:
    """The share by which a count may fall short of the model's own."""
    return max(map(count_error_of, config.deployments(model)), default=OTHER_TOKENIZER_ERROR)


def _stand_in(policy: Policy) -> Summarizer:
    """The summariser that calls no model: for each window that the engine plans, words of half the length that a
    summary may have, which is what the engine expects of it."""
    room: Final = policy.room
    whole: Final = None if room.prompt is None else room.prompt - fixed_tokens(policy, None)
    most: Final = min_known(room.summary, None if whole is None else whole // 2) or 0
    arguments: Final = json.dumps({"summary": _WORD * max(1, most // 2)})

    async def write(messages: list[dict[str, Any]], parameters: dict[str, Any]) -> Reply:  # noqa: ARG001
        return Reply(calls=((SUMMARY_TOOL, arguments),))

    return write

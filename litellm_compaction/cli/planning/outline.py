"""What a compaction of a saved request would do, found out by the engine itself with nobody writing a summary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from litellm_compaction.budget.arithmetic import Budget
from litellm_compaction.budget.counting import exact_counter
from litellm_compaction.budget.limits import summary_room
from litellm_compaction.cli.config import Config
from litellm_compaction.compaction.answer import Reply
from litellm_compaction.compaction.compact import Task, make_plan
from litellm_compaction.compaction.engine import Account, Summary, summarize
from litellm_compaction.compaction.plan import select_kept
from litellm_compaction.compaction.policy import Policy
from litellm_compaction.compaction.prompt import SUMMARY_TOOL, write_instructions
from litellm_compaction.conversation.expansion import Expansion, Opened, expand_items
from litellm_compaction.conversation.items import TRIGGER_TYPE, Kind, RawItem, classify_items, normalize_input
from litellm_compaction.conversation.measure import Measured, measure_request
from litellm_compaction.conversation.transcript import item_ref
from litellm_compaction.envelope.sealing import KeyRing, content_digest, open_item
from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.profiles import count_error_of, load_counter, load_encoding
from litellm_compaction.gateway.runner import kept_limits

Fate = Literal["kept", "summarised", "shortened", "left out", "carried"]
# A stand-in for what a model would write; its length is not known before.
_STAND_IN: Final = "The summary."


@dataclass(frozen=True, slots=True)
class Line:
    """One item of the expanded input: its place, what it is, its tokens, and what becomes of it.

    `carried`: system and developer messages and tools, which are no part of the transcript.
    """

    index: int
    type: str
    role: str
    tokens: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class Outline:
    """The plan for a request. `counted`: tokens of all of it; `windows`: parts the transcript is summarised in."""

    model: str
    writer: str
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
        """Whether `auto_compact` would compact it."""
        return self.budget is not None and self.counted > self.budget.threshold


def outline_request(body: Mapping[str, Any], model: str, config: Config, ring: KeyRing) -> Outline:
    """The outline for a body of /v1/responses or /responses/compact.

    Raises SettingsError, UnreadableItem and what a plan raises: NothingToCompact, InvalidToolPairing, InvalidInput,
    UnsupportedImage; CompactionFailed where no window can hold it.
    """
    settings: Final = config.settings(model)
    expansion: Final = _expand(body, ring)
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
    error: Final = max(map(count_error_of, config.deployments(writer)), default=0.0)
    policy: Final = Policy(
        instructions=write_instructions(settings.instructions),
        mark=lambda: "0" * 12,
        count=count,
        room=summary_room(config.limits(writer), reader, error),
        count_error=error,
        oversize=settings.oversize,
        max_passes=settings.max_passes,
    )
    summary: Final = asyncio.run(summarize(plan.units, _write_nothing, policy, Account()))
    selection: Final = select_kept(plan, (), expansion.summaries, task.limits(plan.tokens).kept, count)
    measured: Final = measure_request({**body, "input": expansion.items})
    counted: Final = asyncio.run(RequestCounter().count(measured, "", error, None))
    return Outline(
        model=model,
        writer=writer,
        budget=config.budget(model),
        counted=counted.tokens,
        error=counted.error,
        windows=summary.windows,
        lines=_lines(expansion.items, measured, selection.refs, summary),
    )


def _expand(body: Mapping[str, Any], ring: KeyRing) -> Expansion:
    def open_one(raw: RawItem) -> Opened:
        payload: Final = open_item(raw, ring, None, allow_unsealed=True)
        return Opened(payload, content_digest(str(raw.get("encrypted_content"))))

    items: Final = [item for item in normalize_input(body.get("input")) if item.get("type") != TRIGGER_TYPE]
    return expand_items(items, open_one, keep_open=True)


async def _write_nothing(messages: list[dict[str, Any]], parameters: dict[str, Any]) -> Reply:  # noqa: ARG001
    """The summariser that calls no model: the engine plans its windows, and is given a stand-in for each."""
    arguments: Final = json.dumps({"summary": _STAND_IN, "retain_item_ids": []})
    return Reply(calls=((SUMMARY_TOOL, arguments),))


def _lines(items: Sequence[RawItem], measured: Measured, kept: frozenset[str], summary: Summary) -> list[Line]:
    count: Final = exact_counter(load_encoding())
    # Tools among the items are measured with the tools.
    pieces: Final = iter(measured.items)
    classified: Final = classify_items(items)
    sizes: Final = [0 if item.kind is Kind.TOOLS else next(pieces).count(count) for item in classified]

    def fate(ref: str, *, is_carried: bool) -> Fate:
        if is_carried:
            return "carried"
        if ref in kept:
            return "kept"
        if ref in summary.left_out:
            return "left out"
        return "shortened" if ref in summary.shortened else "summarised"

    return [
        Line(
            index=item.index,
            type=item.type,
            role=item.role,
            tokens=sizes[item.index],
            fate=fate(item_ref(item.index), is_carried=item.is_system or not item.is_history),
        )
        for item in classified
    ]

"""Calls and outputs: groups that stay or go together, open calls, parallel batches.

Providers refuse an output without its call, a call without its output, and (Gemini, DeepSeek) a batch of parallel
calls that lost a member: so the unit of keeping is a group, never an item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from litellm_compaction.conversation.items import OUTPUT_CALLS, Item, Kind
from litellm_compaction.errors import InvalidToolPairing


# Not frozen, though nothing changes it: see `Item`.
@dataclass(slots=True)
class Group:
    """Items that stay or go together, in their order.

    `open`: holds a call that has no output yet, or outputs no later reasoning, call or assistant message reacts to.
    """

    items: tuple[Item, ...]
    open: bool = False

    @property
    def last_index(self) -> int:
        return self.items[-1].index


def group_items(items: Sequence[Item]) -> tuple[Group, ...]:
    """Groups in the order of their first items: each call with its output, parallel calls as one, all else alone.

    Raises InvalidToolPairing on an output without an earlier call and on a call id used twice.
    """
    outputs: Final = _match_outputs(items)
    batches: Final = _batches(items)
    last_reaction: Final = _last_reaction(items)
    groups: list[Group] = []
    grouped: set[int] = set()
    for item in items:
        if item.index in grouped:
            continue
        if item.kind is not Kind.CALL:
            groups.append(Group((item,)))
            continue
        calls = batches[item.index]
        answers = [answer for call in calls if (answer := outputs.get(call.index))]
        members = sorted([*calls, *answers], key=_index) if len(calls) > 1 else [*calls, *answers]
        grouped.update([member.index for member in members])
        groups.append(Group(tuple(members), _is_open(calls, members, outputs, last_reaction)))
    return tuple(groups)


def _match_outputs(items: Sequence[Item]) -> dict[int, Item]:
    """call index -> its output item."""
    calls: dict[tuple[str, str], Item] = {}
    matched: dict[int, Item] = {}
    for item in items:
        if item.kind is Kind.CALL and item.call_id is not None:
            key = (item.type, item.call_id)
            if key in calls:
                raise InvalidToolPairing(item.index, f"Duplicate call id {item.call_id!r}.")
            calls[key] = item
        elif item.kind is Kind.OUTPUT:
            if item.call_id is None:
                continue  # a standalone output (Codex sends some with a name only) answers nothing
            # Older Codex answers every call, and newer Codex local shell calls, with a function's output.
            call = (
                calls.get((OUTPUT_CALLS[item.type], item.call_id))
                or calls.get(("function_call", item.call_id))
                or calls.get(("local_shell_call", item.call_id))
            )
            if call is None:
                raise InvalidToolPairing(item.index, f"Tool output without its call {item.call_id!r}.")
            if call.index in matched:
                raise InvalidToolPairing(item.index, f"Second output for call {item.call_id!r}.")
            matched[call.index] = item
    return matched


def _index(item: Item) -> int:
    return item.index


def _batches(items: Sequence[Item]) -> dict[int, tuple[Item, ...]]:
    """index of a call -> the calls made in one step with it: a run of calls, reasoning between them allowed."""
    batches: dict[int, tuple[Item, ...]] = {}
    run: list[Item] = []

    def close() -> None:
        batch: Final = tuple(run)
        for call in run:
            batches[call.index] = batch
        run.clear()

    for item in items:
        if item.kind is Kind.CALL:
            run.append(item)
        elif run and item.kind is not Kind.REASONING:
            close()
    close()
    return batches


def _last_reaction(items: Sequence[Item]) -> int:
    """Index of the newest item by which the model went on, -1 if there is none."""
    reactions: Final = (
        item.index
        for item in reversed(items)
        if item.kind is Kind.REASONING or item.kind is Kind.CALL or item.is_assistant
    )
    return next(reactions, -1)


def _is_open(calls: Sequence[Item], members: Sequence[Item], outputs: dict[int, Item], last_reaction: int) -> bool:
    if members[-1].index > last_reaction:
        return True
    return any(call.index not in outputs for call in calls if call.call_id is not None)

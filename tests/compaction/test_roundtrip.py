"""A whole compaction in memory, for any conversation and any choice of the model: what comes back is whole."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.compaction.answer import Reply, Usage
from litellm_compaction.compaction.compact import Outcome, Task, compact, make_plan
from litellm_compaction.compaction.engine import Account
from litellm_compaction.compaction.plan import Limits
from litellm_compaction.compaction.policy import Policy
from litellm_compaction.compaction.prompt import SUMMARY_TOOL
from litellm_compaction.conversation.expansion import Expansion, Opened, expand_items
from litellm_compaction.conversation.items import COMPACTION_TYPES, Item, Kind, classify_items
from litellm_compaction.conversation.pairs import group_items
from litellm_compaction.envelope.payload import Origin
from litellm_compaction.envelope.sealing import Caller, KeyRing, content_digest, open_item, seal_payload
from tests.item_strategies import Json, conversations

RING = KeyRing(["a secret of the operator"])
CALLER = Caller(key="k", team="t", user="u")
TURN = {"type": "message", "role": "user", "content": "and then?"}
SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def open_raw(raw: Any) -> Opened:
    return Opened(open_item(raw, RING, CALLER), content_digest(raw["encrypted_content"]))


def run(items: list[Any], choices: list[int], origin: Origin = "trigger") -> tuple[Outcome, Json]:
    """Compact an input whose model chooses items by number; the outcome and the sealed item."""
    task = Task(
        expand_items(items, open_raw, keep_open=True), origin, "m", lambda tokens: Limits(tokens // 4, None), 64_000
    )
    plan = make_plan(task, estimate_tokens)
    refs = sorted({sorted(plan.refs)[choice % len(plan.refs)] for choice in choices})
    arguments = json.dumps({"summary": "what happened", "retain_item_ids": refs})

    async def summarizer(messages: list[Json], parameters: Json) -> Reply:
        return Reply(calls=((SUMMARY_TOOL, arguments),), usage=Usage(1, 1))

    policy = Policy(instructions="", mark=lambda: "mark")
    outcome = asyncio.run(compact(task, plan, summarizer, policy, Account(), lambda: 0))
    content = seal_payload(outcome.payload, RING, CALLER, "team", os.urandom)
    return outcome, {"type": "compaction", "id": "cmp_1", "encrypted_content": content}


def expand(items: list[Any]) -> list[Item]:
    """The items a model gets, checked for what must hold of every expansion."""
    expansion = expand_items(items, open_raw)
    assert expand_items(expansion.items, open_raw).items == expansion.items, "expanding twice changes something"
    assert not any(item.get("type") in COMPACTION_TYPES for item in expansion.items)
    expanded = list(classify_items(expansion.items))
    group_items(expanded)  # raises on an output without its call, on doubles, on wrong order
    return expanded


def lone_calls(items: list[Item]) -> set[str | None]:
    answered = {item.call_id for item in items if item.kind is Kind.OUTPUT}
    return {item.call_id for item in items if item.kind is Kind.CALL} - answered


def texts_of(items: Sequence[Any]) -> Counter[str]:
    """Items by content, ids aside."""
    return Counter(json.dumps({k: v for k, v in item.items() if k != "id"}, sort_keys=True) for item in items)


CHOICES = st.lists(st.integers(0, 99), max_size=5)


@SLOW
@given(conversations(), CHOICES)
def test_item_alone_restores_whole_pairs_in_order(items: list[Json], choices: list[int]) -> None:
    """From the item alone come whole pairs, in the old order, each item at most as often as it was."""
    outcome, item = run(items, choices)
    expanded = expand([item, TURN])
    assert not lone_calls(expanded)
    kept = outcome.payload.kept
    places = {json.dumps({k: v for k, v in raw.items() if k != "id"}, sort_keys=True): n for n, raw in enumerate(items)}
    order = [places[json.dumps(raw, sort_keys=True)] for raw in kept if json.dumps(raw, sort_keys=True) in places]
    if len(set(order)) == len(order) and len(places) == len(items):
        assert order == sorted(order)
    assert texts_of(kept) <= texts_of(items)
    assert expanded[-1].raw == TURN


@SLOW
@given(conversations(), CHOICES)
def test_nothing_protected_is_lost(items: list[Json], choices: list[int]) -> None:
    """System text, open calls, results nobody reacted to and the unanswered request are in the item, verbatim."""
    outcome, item = run(items, choices)
    classified = classify_items(items)
    history = [entry for entry in classified if entry.is_history]
    held = texts_of([*outcome.payload.kept, *outcome.payload.system])
    system = [entry.raw for entry in history if entry.is_system]
    open_groups = [entry.raw for group in group_items(history) if group.open for entry in group.items]
    said = [entry for entry in history if entry.is_user or entry.is_assistant]
    unanswered = [said[-1].raw] if said[-1].is_user else []
    assert texts_of([*system, *open_groups, *unanswered]) <= held
    assert [entry.raw for entry in expand([item, TURN]) if entry.is_system] == system


@SLOW
@given(conversations(), CHOICES)
def test_client_that_keeps_user_messages(items: list[Json], choices: list[int]) -> None:
    """A client that keeps the user's messages before the item (Codex) gets none of them twice."""
    _, item = run(items, choices)
    kept = [raw for raw in items if raw.get("role") == "user"]
    expanded = expand([*kept, item, TURN])
    assert not lone_calls(expanded)
    said = texts_of([entry.raw for entry in expanded if entry.is_user and entry.type == "message"])
    before = texts_of([*kept, TURN])
    # Beside the user's own words: the summary, and an open call told as text.
    told = ("<conversation_summary", "[This tool call record")
    assert all(count <= before[text] for text, count in said.items() if not any(mark in text for mark in told))


@SLOW
@given(conversations(), CHOICES)
def test_client_that_keeps_everything(items: list[Json], choices: list[int]) -> None:
    """A client that sends the whole history again before the item gets it back once, with its own open calls."""
    _, item = run(items, choices)
    expanded = expand([*items, item, TURN])
    assert texts_of([entry.raw for entry in expanded if entry.kind in {Kind.CALL, Kind.OUTPUT}]) == texts_of(
        [entry.raw for entry in classify_items(items) if entry.kind in {Kind.CALL, Kind.OUTPUT}]
    )
    assert lone_calls(expanded) == lone_calls(list(classify_items(items)))


@SLOW
@given(conversations(), conversations(), CHOICES, st.booleans())
def test_second_compaction_replaces_the_first(
    items: list[Json], later: list[Json], choices: list[int], keeps: bool
) -> None:
    """A later compaction folds the earlier one in: both in one input give one summary, and system text survives."""
    first, item = run(items, choices)
    fresh = [
        {**raw, "call_id": f"later_{raw['call_id']}"} if "call_id" in raw else raw
        for raw in later
        if raw.get("role") not in {"system", "developer"}
    ]
    second, newer = run([item, *fresh], choices)
    assert second.payload.system == first.payload.system
    assert second.payload.folded == (content_digest(item["encrypted_content"]),)
    expanded = expand([*([item] if keeps else []), newer, TURN])
    summaries = [entry for entry in expanded if "<conversation_summary" in str(entry.raw)]
    assert len(summaries) == 1
    assert not lone_calls(expanded)


@SLOW
@given(conversations())
def test_input_is_never_changed(items: list[Json]) -> None:
    """A compaction leaves the client's items as they were."""
    before = json.dumps(items)
    run(items, [0])
    assert json.dumps(items) == before


def test_output_that_comes_after_the_item_finds_its_call() -> None:
    """The output of a call that was open at the compaction pairs with the call the item holds."""
    call = {"type": "function_call", "call_id": "c", "name": "tool", "arguments": "{}"}
    _, item = run([{"role": "user", "content": "go"}, call], [])
    output = {"type": "function_call_output", "call_id": "c", "output": "done"}
    kinds = [entry.kind for entry in expand([item, output])]
    assert kinds[-2:] == [Kind.CALL, Kind.OUTPUT]


def test_inline_item_supersedes_what_stands_before_it() -> None:
    """Before an item born inline only the client's own system text and tools stay."""
    own = {"role": "system", "content": "own rules"}
    tools = {"type": "additional_tools", "role": "developer", "tools": []}
    old = {"role": "user", "content": "old words"}
    _, item = run([{"role": "system", "content": "old rules"}, old], [], "auto")
    expanded = [entry.raw for entry in expand([own, tools, old, item, TURN])]
    assert expanded[:2] == [own, tools]
    assert "old rules" not in str(expanded)
    assert Expansion(expanded, ()).items[-1] == TURN

"""A compaction as a whole: what it says of what it lost, what it keeps, what happens without a model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.budget.limits import ModelLimits, Room, summary_room
from litellm_compaction.compaction.answer import Reply, Usage
from litellm_compaction.compaction.compact import Outcome, Task, compact, make_plan
from litellm_compaction.compaction.engine import Account
from litellm_compaction.compaction.plan import Limits
from litellm_compaction.compaction.policy import Policy
from litellm_compaction.compaction.summarizer import BackendFailed, Overflow
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.conversation.items import classify_items
from litellm_compaction.conversation.transcript import count_content, render_blocks
from litellm_compaction.errors import CompactionFailed, CompactionTimeout
from tests.support.bodies import assistant, call, output, user

GOOD = Reply(calls=(("create_summary", '{"summary": "what happened"}'),), usage=Usage(10, 5))
HANG = object()
PROSE = Reply(text="Sure, I will go on.", usage=Usage(7, 2))


async def run(
    items: list[Any],
    *script: Any,
    ceiling: int | None = None,
    recent: int = 0,
    ledger: bool = False,
    **changes: Any,
) -> Outcome:
    """A compaction whose model answers in turn; exceptions are raised."""
    steps = list(script)

    async def summarizer(messages: list[dict[str, Any]], parameters: dict[str, Any]) -> Reply:
        step = steps.pop(0)
        if step is HANG:
            await asyncio.sleep(30)
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, Reply)
        return step

    limits = Limits(recent, ceiling)
    task = Task(Expansion(items, ()), "trigger", "m", lambda _: limits, 64_000, ledger_on_failure=ledger)
    policy = Policy(instructions="I", mark=lambda: "mark", **changes)
    outcome = await compact(task, make_plan(task, estimate_tokens), summarizer, policy, Account(), lambda: 5)
    assert not steps, "fewer inferences than expected"
    return outcome


STEPS = [user("the task"), *(assistant(f"step {n} " + "word " * 80) for n in range(10)), user("go on")]


async def test_whole_transcript_needs_no_head() -> None:
    """Where nothing was lost the summary is what the model wrote."""
    outcome = await run(STEPS, GOOD)
    assert (outcome.payload.summary, outcome.dropped, outcome.shortened) == ("what happened", 0, 0)
    assert (outcome.payload.created_at, outcome.payload.model) == (5, "m")


async def test_summary_begins_with_what_was_left_out() -> None:
    """How many items went stands at the head of the summary and is counted."""
    outcome = await run(STEPS, Overflow("too long"), GOOD)
    assert outcome.payload.summary.startswith("[3 older transcript items were left out before this summary was written")
    assert outcome.payload.summary.endswith("]\n\nwhat happened")
    assert (outcome.dropped, outcome.payload.dropped, outcome.attempts) == (3, 3, 2)


async def test_what_is_kept_was_not_lost() -> None:
    """An item the summariser did not see but that is kept word for word does not count as left out."""
    outcome = await run(STEPS, Overflow("too long"), GOOD, recent=10**6)
    assert outcome.dropped == 0
    assert outcome.payload.summary == "what happened"


async def test_shortened_items_are_told_apart() -> None:
    """Items seen in part are named as such, and are not counted as left out."""
    items = [user("t"), assistant("x " * 60_000), user("n")]
    outcome = await run(items, GOOD, room=Room(prompt=3_000, answer=500, summary=500))
    assert outcome.payload.summary.startswith("[1 transcript item was shortened before this summary was written")
    assert (outcome.dropped, outcome.shortened) == (0, 1)


@pytest.mark.parametrize("script", [(PROSE, PROSE), (BackendFailed("503"),), (Overflow("x"), Overflow("x"))])
async def test_without_a_valid_summary_the_ledger_takes_its_place(script: tuple[Any, ...]) -> None:
    """`on_failure: ledger`: the item says that no model wrote it, holds what the transcript says, and what was paid."""
    patch = "*** Begin Patch\n*** Update File: src/parser.py\n*** End Patch"
    items = [
        user("please fix the parser, keep the API"),
        {"type": "custom_tool_call", "call_id": "p", "name": "apply_patch", "input": patch},
        {"type": "custom_tool_call_output", "call_id": "p", "output": "Success. Updated the following files"},
        assistant("done " * 200),
        user("now run the tests"),
    ]
    outcome = await run(items, *script, ledger=True)
    summary = outcome.payload.summary
    assert summary.startswith("[No model could write a summary of the conversation so far: compaction_failed.")
    assert "src/parser.py" in summary
    assert "now run the tests" in summary
    assert isinstance(outcome.failure, CompactionFailed)
    assert outcome.usage == sum((step.usage for step in script if isinstance(step, Reply)), Usage())
    assert [raw["content"] for raw in outcome.payload.kept] == [user("now run the tests")["content"]]


async def test_ledger_holds_no_half_characters() -> None:
    """A lone surrogate escaped in a call's arguments comes out as a question mark; the item can be sent on."""
    arguments = json.dumps({"command": "echo \ud800 x"})
    items = [user("go"), {**call("c"), "arguments": arguments}, output("c", "Exit code: 1"), assistant("a"), user("n")]
    outcome = await run(items, BackendFailed("down"), ledger=True)
    outcome.payload.summary.encode()
    assert "echo ? x" in outcome.payload.summary


async def test_ledger_fits_its_room() -> None:
    """The deterministic item is as short as a summary has to be."""
    items = [*(user(f"wish {n} " + "word " * 300) for n in range(50)), assistant("a"), user("n")]
    room = Room(prompt=3_000, answer=500, summary=300)
    outcome = await run(items, *[BackendFailed("down")], ledger=True, room=room)
    assert estimate_tokens(outcome.payload.summary) <= 300


async def test_deadline_gives_the_ledger_too() -> None:
    """The operator who wants the ledger gets it in place of a timeout."""
    outcome = await run(STEPS, HANG, ledger=True, deadline_seconds=0.05)
    assert isinstance(outcome.failure, CompactionTimeout)
    assert "compaction_timeout" in outcome.payload.summary


async def test_access_errors_are_no_case_for_the_ledger() -> None:
    """An error of the caller's (rate limit, key, budget) is passed on, ledger or not."""
    with pytest.raises(PermissionError):
        await run(STEPS, PermissionError("no"), ledger=True)


async def test_without_the_setting_a_failure_is_an_error() -> None:
    """The default is the error, and nothing is handed out."""
    with pytest.raises(CompactionFailed):
        await run(STEPS, PROSE, PROSE)


@pytest.mark.parametrize("number", [10, 200, 2_000])
async def test_transcript_of_any_length_ends_in_an_item_that_fits(number: int) -> None:
    """Kept items stay under the ceiling, the summary under its room: the whole is a part of the window."""
    window = 8_000
    items: list[Any] = [user("t")]
    for place in range(number):
        items += [call(f"c{place}"), output(f"c{place}", f"result {place} " + "text " * 100)]
    items += [call("open"), output("open", "x " * 100_000)]
    limits = ModelLimits(context=window)
    room = summary_room(limits, limits, 0.1)
    answers = [GOOD] * 8
    steps = iter(answers)

    async def summarizer(messages: list[dict[str, Any]], parameters: dict[str, Any]) -> Reply:
        sent = sum(estimate_tokens(str(message["content"])) for message in messages)
        sent += estimate_tokens(json.dumps(parameters.get("tools", "")))
        assert sent + parameters["max_tokens"] <= window
        return next(steps)

    task = Task(Expansion(items, ()), "trigger", "m", lambda _: Limits(20_000, int(window * 0.4)), 64_000)
    policy = Policy(instructions="I", mark=lambda: "mark", room=room, count_error=0.1)
    outcome = await compact(task, make_plan(task, estimate_tokens), summarizer, policy, Account(), lambda: 5)
    kept = render_blocks(classify_items(list(outcome.payload.kept)))
    assert sum(count_content(block, estimate_tokens) for block in kept) <= window * 0.4
    assert {raw.get("call_id") for raw in outcome.payload.kept} >= {"open"}
    assert outcome.tokens_after <= window * 0.6


async def test_user_messages_share_the_ceiling() -> None:
    """What /responses/compact returns beside the item has the rest of the ceiling, and never more than the setting."""
    assert (await run(STEPS, GOOD)).message_tokens == 64_000
    outcome = await run(STEPS, GOOD, ceiling=1_000, recent=10**6)
    kept = render_blocks(classify_items(list(outcome.payload.kept)))
    assert outcome.message_tokens == 1_000 - sum(count_content(block, estimate_tokens) for block in kept)
    assert 0 < outcome.message_tokens < 1_000

"""The engine's rows on what a router does by itself: another model with a smaller window, and tries that count."""

from __future__ import annotations

from typing import Any

import pytest

from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.budget.limits import Room
from litellm_compaction.compaction.engine import Account, summarize
from litellm_compaction.compaction.prompt import Style
from litellm_compaction.compaction.summarizer import BackendFailed, RateLimited, SmallerWindow, StyleRefused, Tries
from litellm_compaction.errors import CompactionFailed
from tests.compaction.test_engine import GOOD, GOOD_TEXT, PROSE, HostsError, Model, a_plan, a_policy, run
from tests.support.bodies import assistant, user

LARGE = Room(prompt=100_000, answer=4_000, summary=2_000)
SMALL = SmallerWindow(Room(prompt=6_000, answer=500, summary=500), Style.TOOL, images=True)
TINY = SmallerWindow(Room(prompt=3_000, answer=300, summary=300), Style.TOOL, images=True)
LONG = (user("fix it"), *(assistant(f"FACT-{number} " + "word " * 400) for number in range(40)))


class Tireless(Model):
    """Goes on with good answers when its script has ended."""

    async def __call__(self, messages: list[dict[str, Any]], parameters: dict[str, Any]) -> Any:
        self.script = self.script or [GOOD]
        return await super().__call__(messages, parameters)


def sizes(model: Model) -> list[int]:
    return [sum(estimate_tokens(str(message["content"])) for message in messages) for messages, _ in model.asked]


async def test_everything_is_planned_again_for_the_smaller_window() -> None:
    """Ask, a smaller window would answer: the same transcript in more windows, none too large, nothing left out, and
    no inference counted for what was not sent."""
    model = Tireless(SMALL)
    ledger = Account()
    summary = await summarize(a_plan(*LONG).units, model, a_policy(room=LARGE, max_passes=20), ledger)
    assert summary.left_out == frozenset()
    assert summary.windows == ledger.attempts == len(model.asked) - 1 > 1
    assert max(sizes(model)[1:]) <= 6_000 < sizes(model)[0]
    told = "".join(model.said(place) for place in range(1, len(model.asked)))
    assert all(f"FACT-{number} " in told for number in range(40))
    assert model.asked[1][1]["max_tokens"] == 500


async def test_planned_again_in_the_middle_of_a_fold() -> None:
    """What was summarised before stays; the rest is planned for the window that is smaller still."""
    model = Tireless(SMALL, GOOD, TINY)
    summary = await summarize(a_plan(*LONG).units, model, a_policy(room=LARGE, max_passes=60), Account())
    assert summary.left_out == frozenset()
    assert max(sizes(model)[3:]) <= 3_000
    # The first window was answered and is not shown again; the second was not sent.
    shown_first = [number for number in range(40) if f"FACT-{number} " in model.said(1)]
    assert shown_first
    later = "".join(model.said(place) for place in range(3, len(model.asked)))
    assert not any(f"FACT-{number} " in later for number in shown_first)


async def test_what_the_other_model_can_do_is_what_it_is_asked_for() -> None:
    """A model without tools is asked in its own style."""
    model = Model(SmallerWindow(LARGE, Style.SCHEMA, images=False), GOOD_TEXT)
    await run(model, room=LARGE)
    assert model.styles == ["tool", "schema"]


async def test_what_no_window_holds_fails() -> None:
    """A window that has no room for a summary request at all is an error, not another try."""
    none = SmallerWindow(Room(prompt=10, answer=5, summary=5), Style.TOOL, images=True)
    with pytest.raises(CompactionFailed, match="does not fit"):
        await summarize(a_plan(*LONG).units, Model(none), a_policy(room=LARGE), Account())


async def test_planned_once_for_each_window() -> None:
    """The same smaller window again, for which everything was planned, is an error and not another plan."""
    model = Model(SMALL, SMALL)
    with pytest.raises(CompactionFailed, match="does not fit"):
        await summarize(a_plan(*LONG).units, model, a_policy(room=LARGE, max_passes=20), Account())
    assert model.script == []


class Counting(Model):
    """Each step says how many inferences it took."""

    def __init__(self, tries: Tries, *script: tuple[int, Any]) -> None:
        super().__init__(*(step for _, step in script))
        self.tries = tries
        self.taken = [taken for taken, _ in script]
        self.allowed: list[int | None] = []

    async def __call__(self, messages: list[dict[str, Any]], parameters: dict[str, Any]) -> Any:
        self.allowed.append(self.tries.most)
        self.tries.taken = self.taken.pop(0)
        return await super().__call__(messages, parameters)


async def test_tries_count_as_attempts() -> None:
    """Two tries for the first answer leave one to repair it; all three are in the account."""
    tries = Tries()
    model = Counting(tries, (2, PROSE), (1, GOOD_TEXT))
    _, ledger = await run(model, tries=tries, max_attempts=3)
    assert (model.allowed, ledger.attempts) == ([3, 1], 3)


async def test_no_try_is_left_to_repair() -> None:
    """Three tries for an invalid answer are all there were."""
    tries = Tries()
    with pytest.raises(CompactionFailed, match="3 attempts"):
        await run(Counting(tries, (3, PROSE)), tries=tries, max_attempts=3)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (RateLimited(0, HostsError("limit")), HostsError),
        (StyleRefused(HostsError("no tools")), HostsError),
        (BackendFailed("down"), CompactionFailed),
    ],
    ids=["rate-limit", "style", "failure"],
)
async def test_no_try_is_left_after_an_error(step: Exception, error: type[Exception]) -> None:
    """What the last try ended in is the answer: no wait and no other style when nothing may be sent any more, and the
    account holds the tries."""
    tries, ledger = Tries(), Account()
    with pytest.raises(error):
        await summarize(a_plan().units, Counting(tries, (2, step)), a_policy(tries=tries, max_attempts=2), ledger)
    assert ledger.attempts == 2


async def test_each_window_has_its_own_tries() -> None:
    """As attempts do, tries count for each window of a fold."""
    tries = Tries()
    model = Counting(tries, *[(2, GOOD)] * 40)
    policy = a_policy(room=SMALL.room, tries=tries, max_attempts=2, max_passes=40)
    await summarize(a_plan(*LONG).units, model, policy, Account())
    assert len(model.allowed) > 1
    assert set(model.allowed) == {2}

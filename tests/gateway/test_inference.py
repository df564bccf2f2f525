"""One inference on its way: what is let out, what is not, and which error is the real one."""

from __future__ import annotations

import copy

import pytest
from litellm.exceptions import InternalServerError

from litellm_compaction.budget.limits import Room
from litellm_compaction.gateway.inference import Inference, NotSent, real_error

ROOMS = {"small": Room(prompt=10, answer=5), "smaller": Room(prompt=8, answer=4), "large": Room(prompt=100, answer=50)}


def inference(most: int | None = None, tokens: int = 20) -> Inference:
    async def count() -> int:
        return tokens

    return Inference("named", most, lambda group: ROOMS.get(group, Room()), count)


async def test_the_group_it_was_planned_for_gets_it_as_it_is() -> None:
    """Nothing is counted or changed, as often as LiteLLM repeats it."""
    asked = inference()
    for _ in range(3):
        assert await asked.admit("named", {"max_tokens": 99}) == {"max_tokens": 99}
    assert (asked.taken, asked.answering) == (3, "named")


async def test_a_group_that_is_too_small_does_not_get_it() -> None:
    """It is refused with a status that LiteLLM neither repeats nor cools down for, and remembered."""
    asked = inference()
    for group in ("smaller", "small"):
        with pytest.raises(NotSent) as refused:
            await asked.admit(group, {})
        assert refused.value.status_code == 422
    assert (asked.taken, asked.largest_refused()) == (0, "small")


async def test_a_group_that_holds_it_answers_within_its_output() -> None:
    """A fallback with room gets it, with no more output asked for than it has; of unknown ones nothing is guessed."""
    asked = inference()
    assert await asked.admit("large", {"max_tokens": 99}) == {"max_tokens": 50}
    assert await asked.admit("large", {"max_completion_tokens": 9}) == {"max_completion_tokens": 9}
    assert await asked.admit("unknown", {"max_tokens": 99}) == {"max_tokens": 99}
    assert (asked.answering, asked.largest_refused()) == ("unknown", None)


async def test_no_more_tries_than_allowed() -> None:
    """The third of two is not sent."""
    asked = inference(most=2)
    await asked.admit("named", {})
    await asked.admit("large", {})
    with pytest.raises(NotSent):
        await asked.admit("named", {})
    assert (asked.taken, asked.answering) == (2, "large")


def test_copies_are_the_same_one() -> None:
    """LiteLLM copies arguments; what counts is counted in one place."""
    asked = inference()
    assert copy.deepcopy({"key": [asked]})["key"][0] is asked


def test_the_error_behind_refusals_is_the_backends() -> None:
    """LiteLLM raises what came last; what the client is told is what went wrong."""
    down, once, twice = InternalServerError("on fire", "m", "p"), NotSent("m", "no more"), NotSent("m", "no more")
    # As it is where one is raised while another is handled.
    twice.__context__, once.__context__ = once, down
    assert [real_error(error) for error in (twice, once, down)] == [down] * 3
    alone = NotSent("m", "no more")
    assert real_error(alone) is alone

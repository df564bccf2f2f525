"""Clamps and refusals as functions of a budget and a count; tests/wire/test_budget.py sees them on a live proxy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litellm.exceptions import ContextWindowExceededError

from litellm_compaction.budget.arithmetic import Budget, derive_budget
from litellm_compaction.budget.counting import Count
from litellm_compaction.budget.limits import ModelLimits
from litellm_compaction.errors import ContextLengthExceeded
from litellm_compaction.gateway.budgets import GroupBudget
from litellm_compaction.gateway.enforcement import OverBudget, asked_output, clamp, enough_tokens, refusal
from litellm_compaction.settings import Settings

BUDGET = derive_budget(8_192, 1_234)


def held(budget: Budget = BUDGET, source: str = "catalogue", **settings: Any) -> GroupBudget:
    limits = ModelLimits(budget.context, budget.output, budget.max_input, source)
    return GroupBudget(Settings.model_validate(settings), "own", limits, budget, 0.1)


ASKED: dict[str, tuple[dict[str, Any], int | None]] = {
    "nothing": ({}, None),
    "number": ({"max_output_tokens": 5}, 5),
    "null": ({"max_output_tokens": None}, None),
    "zero-is-the-backends-to-refuse": ({"max_output_tokens": 0}, None),
    "text-is-the-backends-to-refuse": ({"max_output_tokens": "5"}, None),
    "boolean": ({"max_output_tokens": True}, None),
    "operators-own": ({"max_tokens": 7}, 7),
    "lowest-of-all-spellings": ({"max_output_tokens": 9, "max_tokens": 7, "max_completion_tokens": 8}, 7),
}


@pytest.mark.parametrize(("body", "asked"), ASKED.values(), ids=ASKED)
def test_asked_output(body: dict[str, Any], asked: int | None) -> None:
    """The lowest bound that stands in the request, in any of its three spellings."""
    assert asked_output(body) == asked


CLAMPED: dict[str, tuple[dict[str, Any], int, int, dict[str, int]]] = {  # body, tokens, error, what changes
    "fits": ({"max_output_tokens": 100}, 1_000, 100, {}),
    "over-the-output": ({"max_output_tokens": 2_000}, 1_000, 100, {"max_output_tokens": 1_234}),
    "over-the-window": ({"max_output_tokens": 1_234}, 7_000, 192, {"max_output_tokens": 1_000}),
    "nothing-asked": ({}, 1_000, 100, {}),
    "nothing-asked-and-little-left": ({}, 7_000, 192, {"max_output_tokens": 1_000}),
    "only-the-spelling-that-is-there": ({"max_tokens": 2_000}, 1_000, 0, {"max_tokens": 1_234}),
}


@pytest.mark.parametrize(("body", "tokens", "error", "changes"), CLAMPED.values(), ids=CLAMPED)
def test_clamp(body: dict[str, Any], tokens: int, error: int, changes: dict[str, int]) -> None:
    """min(asked, O, C - the count with its error), and nothing where that changes nothing."""
    assert clamp(body, held(), BUDGET, Count(tokens, error, "exact")) == changes


def test_operators_output_bounds_who_asks_for_nothing() -> None:
    """An `output` of the settings is sent along; a model's own limit is the backend's to know."""
    count = Count(10, 1, "exact")
    assert clamp({}, held(output=1_234), BUDGET, count) == {"max_output_tokens": 1_234}
    assert clamp({"max_output_tokens": None}, held(output=1_234), BUDGET, count) == {"max_output_tokens": 1_234}
    assert clamp({"max_output_tokens": 0}, held(output=1_234), BUDGET, count) == {}
    assert clamp({}, held(), BUDGET, count) == {}


budgets = st.integers(2, 2_000_000).flatmap(
    lambda context: st.builds(
        derive_budget,
        st.just(context),
        st.integers(1, context - 1),
        st.none() | st.integers(1, context),
    )
)


@given(budgets, st.none() | st.integers(1, 3_000_000), st.integers(0, 2_000_000))
def test_what_is_enough_changes_nothing(budget: Budget, asked: int | None, tokens: int) -> None:
    """A prompt up to the number that counting may stop at fits, and leaves all of the output that can be had."""
    if tokens > enough_tokens(budget, asked):
        return
    assert budget.fits(tokens, asked)
    body = {} if asked is None else {"max_output_tokens": asked}
    wanted = budget.output if asked is None else min(asked, budget.output)
    sent = clamp(body, held(budget), budget, Count(tokens, 0, "exact")).get("max_output_tokens", wanted)
    assert sent == wanted


@given(budgets, st.none() | st.integers(1, 3_000_000), st.integers(0, 3_000_000))
def test_what_fits_is_never_sent_too_long(budget: Budget, asked: int | None, tokens: int) -> None:
    """Prompt and output fit the window, the output is one at least and never more than asked for."""
    if not budget.fits(tokens, asked):
        return
    body = {} if asked is None else {"max_output_tokens": asked}
    sent = {**body, **clamp(body, held(budget, output=budget.output), budget, Count(tokens, 0, "exact"))}
    assert 1 <= sent["max_output_tokens"] <= budget.context - tokens
    assert asked is None or sent["max_output_tokens"] <= asked
    assert budget.max_input is None or tokens <= budget.max_input


def test_refusal_says_the_numbers() -> None:
    """What was counted, with its error, the fixed part, the window, the output, the input budget."""
    told = refusal(held(), BUDGET, Count(9_000, 900, "exact"), 4_321)
    for number in ("9000", "9900", "4321", "8192", "1234", "6958"):
        assert number in told.message
    assert "as its backend said" in refusal(held(source="learned"), BUDGET, Count(1, 0, "usage")).message


def test_over_budget_is_litellms_own_error_for_its_fallbacks() -> None:
    """LiteLLM looks for a larger model where it meets this class, and never retries it: status 400."""
    error = OverBudget(ContextLengthExceeded("numbers"), "group")
    assert isinstance(error, ContextWindowExceededError)
    assert error.status_code == 400
    assert error.told.code == "context_length_exceeded"

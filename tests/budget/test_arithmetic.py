"""Budgets as arithmetic: every row that was computed by hand, and what holds for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.budget.arithmetic import (
    LEAST_ANSWER,
    Budget,
    ImpossibleBudget,
    Rule,
    clamp_output,
    derive_budget,
    derive_output,
    derive_reserve,
)

# C, O, cap, then I, D, R, T as facts/budgets.md 1.2 (`contract`) and 1.4 print them, rule `seed`.
Row = tuple[int, int, int | None, int, int, int, int]
ROWS: dict[str, Row] = {
    "contract-1": (500_000, 128_000, None, 372_000, 75_000, 128_000, 372_000),
    "contract-2": (500_000, 64_000, None, 436_000, 75_000, 75_000, 425_000),
    "contract-3": (1_050_000, 128_000, None, 922_000, 157_500, 157_500, 892_500),
    "contract-4": (8_192, 1_234, None, 6_958, 1_228, 1_234, 6_958),
    "4-output-almost-the-window": (500_000, 499_999, None, 1, 75_000, 499_999, 1),
    "6-smallest-legal": (2, 1, None, 1, 1, 1, 1),
    "7-share-of-zero-is-one": (6, 1, None, 5, 1, 1, 5),
    "8-tiny": (10, 1, None, 9, 1, 1, 9),
    "9-ollamas-default": (4_096, 2_048, None, 2_048, 614, 2_048, 2_048),
    "10-last-recovered": (19_275, 1_024, None, 18_251, 2_891, 2_891, 16_384),
    "11-first-unrecovered": (19_276, 1_024, None, 18_252, 16_384, 16_384, 2_892),
    "12-20k": (20_000, 1_024, None, 18_976, 16_384, 16_384, 3_616),
    "13-32k": (32_768, 8_192, None, 24_576, 16_384, 16_384, 16_384),
    "14-64k": (65_536, 8_192, None, 57_344, 16_384, 16_384, 49_152),
    "15-crossover": (109_227, 16_384, None, 92_843, 16_384, 16_384, 92_843),
    "16-gpt-5": (400_000, 128_000, 272_000, 272_000, 60_000, 128_000, 272_000),
    "17-gpt-5-small-output": (400_000, 16_384, 272_000, 272_000, 60_000, 128_000, 272_000),
    "18-qwen3-max": (262_144, 65_536, 258_048, 196_608, 39_321, 65_536, 196_608),
    "19-qwen3-max-small-output": (262_144, 2_048, 258_048, 258_048, 39_321, 39_321, 222_823),
    "20-claude": (200_000, 64_000, None, 136_000, 30_000, 64_000, 136_000),
    "21-claude-small-output": (200_000, 8_192, None, 191_808, 30_000, 30_000, 170_000),
    "22-claude-1m": (1_000_000, 128_000, None, 872_000, 150_000, 150_000, 850_000),
    "23-gemini-total": (1_048_576, 65_536, None, 983_040, 157_286, 157_286, 891_290),
    "24-gemini-split": (1_114_112, 65_536, 1_048_576, 1_048_576, 167_116, 167_116, 946_996),
    "25-deepseek": (1_000_000, 393_216, None, 606_784, 150_000, 393_216, 606_784),
    "26-gpt-5-pro": (400_000, 272_000, None, 128_000, 60_000, 272_000, 128_000),
    "27-glm": (200_000, 131_072, None, 68_928, 30_000, 131_072, 68_928),
    "29-10m": (10_000_000, 16_384, None, 9_983_616, 1_500_000, 1_500_000, 8_500_000),
    "30-output-is-the-share": (500_000, 75_000, None, 425_000, 75_000, 75_000, 425_000),
    "31-one-less": (500_000, 74_999, None, 425_001, 75_000, 75_000, 425_000),
    "32-cap-above": (500_000, 128_000, 999_999, 372_000, 75_000, 128_000, 372_000),
    "33-cap-binds": (500_000, 64_000, 300_000, 300_000, 75_000, 200_000, 300_000),
    "34-cap-spelled-out": (1_050_000, 128_000, 922_000, 922_000, 157_500, 157_500, 892_500),
    "36-recovery": (16_384, 512, None, 15_872, 2_457, 2_457, 13_927),
    "37-claude-code": (32_768, 20_000, None, 12_768, 16_384, 20_000, 12_768),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_rows(row: Row) -> None:
    """I, D, R and T to the number."""
    context, output, cap, room, derived, reserve, threshold = row
    assert derive_budget(context, output, cap) == Budget(context, output, cap, room, threshold)
    assert derive_reserve(context) == derived
    assert context - threshold == reserve


def test_rows_without_an_output() -> None:
    """Rows 1 and 28, where the output is missing or says nothing: a quarter of the window, within two bounds."""
    assert derive_output(500_000) == 125_000
    assert derive_output(262_144) == 65_536
    assert [derive_output(context) for context in (1, 1_023, 1_024, 1_028)] == [256, 256, 256, 257]
    assert [derive_output(context) for context in (511_996, 512_000, 10_000_000)] == [127_999, 128_000, 128_000]


REFUSED: dict[str, tuple[int, int, int | None, str]] = {
    "2-output-is-the-window": (128_000, 128_000, None, "output 128000 .* window 128000"),
    "3-output-over-the-window": (8_192, 16_384, None, "output 16384 .* window 8192"),
    "28-output-copied-from-the-window": (262_144, 262_144, None, "output 262144 .* window 262144"),
    "5-window-of-one": (1, 1, None, "output 1 .* window 1 "),
    "5-window-of-one-without-output": (1, 0, None, "less than 1"),
    "negative-output": (100, -1, None, "output -1 "),
    "window-of-zero": (0, 1, None, "window 0 "),
    "no-input": (100, 10, 0, "max_input 0"),
}


@pytest.mark.parametrize(("context", "output", "cap", "words"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("rule", ["seed", "smooth"])
def test_impossible_budgets(context: int, output: int, cap: int | None, words: str, rule: Rule) -> None:
    """Refused, the number named."""
    with pytest.raises(ImpossibleBudget, match=words):
        derive_budget(context, output, cap, rule)


SMOOTH = {20_000: 17_000, 24_576: 20_480, 32_768: 24_576, 49_152: 32_768}


@pytest.mark.parametrize(("context", "threshold"), SMOOTH.items(), ids=map(str, SMOOTH))
def test_smooth_values(context: int, threshold: int) -> None:
    """Those that facts/budgets.md 1.3 names."""
    assert derive_budget(context, 1_024, None, "smooth").threshold == threshold


def test_both_sides_of_the_cliff() -> None:
    """`seed` falls from 16,384 to 2,892 between windows of 19,275 and 19,276 tokens; `smooth` does not fall."""
    seed = [derive_budget(context, 1_024).threshold for context in (19_275, 19_276)]
    smooth = [derive_budget(context, 1_024, None, "smooth").threshold for context in (19_275, 19_276)]
    assert seed == [16_384, 2_892]
    assert smooth[0] == 16_384
    assert smooth[1] >= smooth[0]


@pytest.mark.parametrize("name", ["contract-1", "contract-2", "contract-3", "contract-4"])
def test_contracts_rows_are_the_same_in_both_rules(name: str) -> None:
    """`smooth` changes nothing for them."""
    context, output, cap, *_ = ROWS[name]
    assert derive_budget(context, output, cap, "smooth") == derive_budget(context, output, cap, "seed")


rules = st.sampled_from(["seed", "smooth"])
windows = st.integers(2, 3_000_000) | st.integers(2, 60_000)
budgets = windows.flatmap(
    lambda context: st.builds(
        derive_budget,
        st.just(context),
        st.integers(1, context - 1),
        st.none() | st.integers(1, 2 * context),
        rules,
    )
)


@given(budgets)
def test_what_always_holds(budget: Budget) -> None:
    """T within I, I within the window without the output and within the cap, T and O together within the window."""
    assert 1 <= budget.threshold <= budget.input <= budget.context - budget.output
    assert budget.threshold + budget.output <= budget.context
    assert budget.max_input is None or budget.input <= budget.max_input


@given(budgets, rules)
def test_deriving_twice_changes_nothing(budget: Budget, rule: Rule) -> None:
    """From its own numbers the same budget, also with I written as the cap: the output is never deducted twice."""
    again = derive_budget(budget.context, budget.output, budget.max_input, rule)
    assert derive_budget(again.context, again.output, again.max_input, rule) == again
    capped = derive_budget(budget.context, budget.output, again.input, rule)
    assert (capped.input, capped.threshold) == (again.input, again.threshold)


@given(windows, st.integers(1, 5_000), st.integers(1, 60_000), st.none() | st.integers(1, 3_000_000))
def test_smooth_never_falls_when_the_window_grows(context: int, more: int, output: int, cap: int | None) -> None:
    """A larger window compacts no earlier."""
    if output >= context:
        return
    smaller, larger = (derive_budget(size, output, cap, "smooth") for size in (context, context + more))
    assert larger.threshold >= smaller.threshold


@given(
    (st.integers(2, 19_275) | st.integers(49_152, 3_000_000)).flatmap(
        lambda size: st.tuples(st.just(size), st.integers(1, size - 1))
    )
)
def test_rules_differ_only_in_windows_between(sizes: tuple[int, int]) -> None:
    """Up to 19,275 tokens and from 49,152 on `smooth` is `seed`."""
    assert derive_budget(*sizes, None, "smooth") == derive_budget(*sizes, None, "seed")


@given(windows, st.integers(1, 3_000_000), st.integers(1, 3_000_000), rules)
def test_more_output_compacts_no_later(context: int, one: int, other: int, rule: Rule) -> None:
    """T never rises with O."""
    less, more = sorted((one, other))
    if more >= context:
        return
    assert derive_budget(context, more, None, rule).threshold <= derive_budget(context, less, None, rule).threshold


@given(budgets, st.none() | st.integers(1, 3_000_000), st.integers(0, 3_000_000), st.integers(0, 10_000))
def test_clamp(budget: Budget, asked: int | None, counted: int, more: int) -> None:
    """Never more than asked for, than O, than the window leaves; never more for a longer prompt."""
    sent = clamp_output(budget, asked, counted)
    assert sent <= min(budget.output, budget.context - counted)
    assert asked is None or sent <= asked
    assert sent in {budget.output, budget.context - counted, asked}
    assert clamp_output(budget, asked, counted + more) <= sent


@given(budgets, st.integers(-10, 4_000_000))
def test_chosen_threshold(budget: Budget, tokens: int) -> None:
    """What somebody chose, within 1 and I."""
    chosen = budget.with_threshold(tokens)
    assert chosen.threshold == max(1, min(tokens, budget.input))
    assert chosen.with_threshold(budget.threshold) == budget


def test_fits() -> None:
    """Up to the last token that leaves a useful answer, or the shorter one that was asked for; never over the cap."""
    budget = derive_budget(8_192, 1_234)
    assert budget.fits(8_192 - LEAST_ANSWER)
    assert not budget.fits(8_192 - LEAST_ANSWER + 1)
    assert budget.fits(8_192 - 16, 16)
    assert not budget.fits(8_192 - 15, 16)
    assert derive_budget(100, 10).fits(90)
    assert not derive_budget(100, 10).fits(91)
    capped = derive_budget(8_192, 1_234, 2_000)
    assert capped.fits(2_000)
    assert not capped.fits(2_001)

"""What a model takes and gives: budgets from limits known and unknown, and the room of a summary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.budget.arithmetic import Budget, ImpossibleBudget
from litellm_compaction.budget.limits import (
    MAX_ANSWER_TOKENS,
    MAX_SUMMARY_TOKENS,
    ModelLimits,
    Room,
    Threshold,
    min_known,
    smallest,
    summary_room,
)

tokens = st.integers(1, 2_000_000)
known_or_not = st.none() | tokens
limits = st.builds(ModelLimits, known_or_not, known_or_not, known_or_not, st.sampled_from(["", "config", "catalogue"]))

BUDGETS: dict[str, tuple[int | None, int | None, int | None, int | None, int | None]] = {
    # context, output, the model's own input limit; output budget, input budget
    "contract-1": (500_000, 128_000, None, 128_000, 372_000),
    "contract-2": (500_000, 64_000, None, 64_000, 436_000),
    "contract-3": (1_050_000, 128_000, 922_000, 128_000, 922_000),
    "contract-4": (8192, 1234, None, 1234, 6958),
    "own-limit-is-smaller": (200_000, 8_000, 100_000, 8_000, 100_000),
    "own-limit-is-larger": (200_000, 8_000, 199_000, 8_000, 192_000),
    "output-is-the-window": (8192, 8192, None, 2048, 6144),
    "output-is-more-than-the-window": (8192, 100_000, None, 2048, 6144),
    "output-is-one-less-than-the-window": (8192, 8191, None, 8191, 1),
    "output-unknown": (40_000, None, None, 10_000, 30_000),
    "output-unknown-of-a-large-window": (1_000_000, None, None, 128_000, 872_000),
    "output-unknown-of-a-middling-window": (400_000, None, None, 100_000, 300_000),
    "output-unknown-of-a-small-window": (512, None, None, 256, 256),
    "window-smaller-than-any-answer": (100, None, None, 256, 0),
    "window-unknown": (None, 4096, None, 4096, None),
    "window-unknown-own-limit-known": (None, 4096, 60_000, 4096, 60_000),
    "nothing-known": (None, None, None, None, None),
}


@pytest.mark.parametrize(("context", "output", "own", "answer", "prompt"), BUDGETS.values(), ids=BUDGETS)
def test_budgets(context: int | None, output: int | None, own: int | None, answer: int | None, prompt: int) -> None:
    """The contract's table, a stand-in for an output limit that is no help, and nothing guessed without a window."""
    found = ModelLimits(context, output, own)
    assert (found.output_budget, found.input_budget) == (answer, prompt)


@given(tokens, known_or_not, known_or_not)
def test_prompt_and_answer_share_the_window(context: int, output: int | None, own: int | None) -> None:
    """Together they are never more than the window, and the model's own input limit holds."""
    found = ModelLimits(context, output, own)
    assert found.input_budget is not None
    assert found.output_budget is not None
    assert found.input_budget == 0 or found.input_budget + found.output_budget <= context
    assert own is None or found.input_budget <= own
    assert found.input_budget >= 0


THRESHOLDS: dict[str, tuple[Threshold, int]] = {  # as an operator writes it, T of a window of 500,000 with 64,000 out
    "derived": ("auto", 425_000),
    "tokens": (300_000, 300_000),
    "over-the-derived": (430_000, 430_000),
    "the-input-budget": (436_000, 436_000),
    "over-the-input-budget": (436_001, 436_000),
    "one": (1, 1),
    "share": (0.5, 250_000),
    "share-that-floats-fall-short-of": (0.29, 145_000),
    "share-of-nearly-nothing": (1e-9, 1),
    "share-of-nearly-all": (0.99, 436_000),
}


@pytest.mark.parametrize(("threshold", "tokens"), THRESHOLDS.values(), ids=THRESHOLDS)
def test_threshold_as_it_is_written(threshold: Threshold, tokens: int) -> None:
    """Derived, tokens, or a share of the window; within what the window leaves for input."""
    budget = ModelLimits(500_000, 64_000).budget("seed", threshold)
    assert budget == Budget(500_000, 64_000, None, 436_000, tokens)


def test_share_is_of_the_number_that_is_written() -> None:
    """0.29 of 100 tokens is 29; as floats it is 28.999."""
    budget = ModelLimits(100, 10).budget("seed", 0.29)
    assert budget is not None
    assert budget.threshold == 29


def test_budget_follows_the_rule() -> None:
    """And derives the output where its limit is unknown."""
    limits = ModelLimits(32_768, None, 30_000)
    assert limits.budget("seed") == Budget(32_768, 8_192, 30_000, 24_576, 16_384)
    assert limits.budget("smooth") == Budget(32_768, 8_192, 30_000, 24_576, 24_576)


@pytest.mark.parametrize("threshold", ["auto", 1_000, 0.5], ids=["auto", "tokens", "share"])
def test_no_budget_without_a_window(threshold: Threshold) -> None:
    """Nothing is guessed: not from the output, not from the model's own input limit, not for a written threshold."""
    assert ModelLimits().budget("seed", threshold) is None
    assert ModelLimits(None, 128_000, 60_000).budget("smooth", threshold) is None


@pytest.mark.parametrize("context", [1, 100, 256])
def test_window_without_room_is_impossible(context: int) -> None:
    """A window no larger than the least output has no budget, and says so."""
    with pytest.raises(ImpossibleBudget, match=f"output 256 is not less than the context window {context} "):
        ModelLimits(context).budget("seed")


LOWERED: dict[str, tuple[ModelLimits, int | None, ModelLimits]] = {  # limits, the window learned, what holds then
    "nothing-learned": (ModelLimits(1000, 10, 900, "a"), None, ModelLimits(1000, 10, 900, "a")),
    "smaller": (ModelLimits(1000, 10, 900, "a"), 500, ModelLimits(500, 10, 900, "a, learned")),
    "larger": (ModelLimits(1000, 10, 900, "a"), 2000, ModelLimits(1000, 10, 900, "a")),
    "equal": (ModelLimits(1000, 10, 900, "a"), 1000, ModelLimits(1000, 10, 900, "a")),
    "unknown-before": (ModelLimits(), 500, ModelLimits(500, source="learned")),
    "unknown-still": (ModelLimits(), None, ModelLimits()),
}


@pytest.mark.parametrize(("before", "window", "after"), LOWERED.values(), ids=LOWERED)
def test_lowered(before: ModelLimits, window: int | None, after: ModelLimits) -> None:
    """A window that a refusal named counts where it is smaller or the only one known, and is told as learned."""
    assert before.lowered_to(window) == after


@given(limits, known_or_not)
def test_a_learned_window_never_enlarges_a_prompt(before: ModelLimits, window: int | None) -> None:
    """The same refusal twice teaches nothing more, and the input budget stays within the window."""
    after = before.lowered_to(window)
    assert after.lowered_to(window) == after
    assert window is None or (after.input_budget is not None and after.input_budget <= window)
    assert before.context is None or (after.context is not None and after.context <= before.context)


@pytest.mark.parametrize(
    ("values", "least"),
    [((), None), ((None,), None), ((None, 3, 2), 2), ((0, None), 0), ((5,), 5)],
    ids=["none-given", "unknown", "some", "zero-is-known", "one"],
)
def test_min_known(values: tuple[int | None, ...], least: int | None) -> None:
    """Unknown values say nothing, zero does."""
    assert min_known(*values) == least


def test_smallest_of_a_group() -> None:
    """Each number is the smallest that any deployment has, each source is named once."""
    group = [
        ModelLimits(200_000, 8_000, None, "config"),
        ModelLimits(128_000, None, 100_000, "catalogue"),
        ModelLimits(None, 16_000, 120_000, "config"),
        ModelLimits(),
    ]
    assert smallest(group) == ModelLimits(128_000, 8_000, 100_000, "config, catalogue")
    assert smallest([]) == ModelLimits()


@given(st.lists(limits, min_size=1, max_size=5))
def test_smallest_holds_for_every_deployment(group: list[ModelLimits]) -> None:
    """No known limit of any of them is passed, and a group of one is that one."""
    found = smallest(group)
    for entry in group:
        for member in ("context", "output", "max_input"):
            theirs, ours = getattr(entry, member), getattr(found, member)
            assert theirs is None or (ours is not None and ours <= theirs)
    assert smallest(group[:1]) == group[0]


UNKNOWN = ModelLimits()
ROOMS: dict[str, tuple[ModelLimits, ModelLimits, float, Room]] = {  # writer, reader, error, room
    "nothing-known": (UNKNOWN, UNKNOWN, 0.25, Room()),
    "all-known": (ModelLimits(200_000, 8_000), ModelLimits(200_000, 8_000), 0.0, Room(192_000, 8_000, 8_000)),
    "error-of-a-quarter": (ModelLimits(200_000, 8_000), UNKNOWN, 0.25, Room(153_600, 8_000, 8_000)),
    "rounded-down": (ModelLimits(1000, 1), UNKNOWN, 0.1, Room(908, 1, 1)),
    "large-answers": (ModelLimits(500_000, 128_000), UNKNOWN, 0.0, Room(372_000, 32_768, 16_384)),
    "small-reader": (ModelLimits(200_000, 8_000), ModelLimits(8_192), 0.0, Room(192_000, 8_000, 2_048)),
    "tiny-reader": (ModelLimits(200_000, 8_000), ModelLimits(512), 0.0, Room(192_000, 8_000, 256)),
    "only-the-reader": (UNKNOWN, ModelLimits(40_000), 0.0, Room(None, None, 10_000)),
    "only-a-large-reader": (UNKNOWN, ModelLimits(1_000_000), 0.0, Room(None, None, 16_384)),
    "only-an-output-limit": (ModelLimits(output=4_096), UNKNOWN, 0.0, Room(None, 4_096, 4_096)),
    "only-an-input-limit": (ModelLimits(max_input=50_000), UNKNOWN, 0.25, Room(40_000, None, None)),
    "output-unknown": (ModelLimits(8_192), ModelLimits(8_192), 0.0, Room(6_144, 2_048, 2_048)),
}


@pytest.mark.parametrize(("writer", "reader", "error", "room"), ROOMS.values(), ids=ROOMS)
def test_summary_room(writer: ModelLimits, reader: ModelLimits, error: float, room: Room) -> None:
    """What the writer's window takes, and a summary that leaves the reader room to work; unknown stays unknown."""
    assert summary_room(writer, reader, error) == room


@given(limits, limits, st.floats(0, 1), st.floats(0, 1))
def test_room_stays_within_both_windows(writer: ModelLimits, reader: ModelLimits, first: float, second: float) -> None:
    """A prompt that falls short by the error still fits, a larger error never gives more, a summary leaves room."""
    room, other = (summary_room(writer, reader, error) for error in sorted((first, second)))
    error = min(first, second)
    assert (room.prompt is None) == (writer.input_budget is None)
    if room.prompt is not None and other.prompt is not None and writer.input_budget is not None:
        assert room.prompt * (1 + error) <= writer.input_budget + 1e-6
        assert other.prompt <= room.prompt
    if room.answer is not None and writer.output_budget is not None:
        assert room.answer <= writer.output_budget
        assert writer.context is None or room.answer <= MAX_ANSWER_TOKENS
        assert room.summary is not None
        assert room.summary <= room.answer
    assert room.summary is None or room.summary <= MAX_SUMMARY_TOKENS
    if reader.context is not None:
        assert room.summary is not None
        assert room.summary <= max(256, reader.context // 4)

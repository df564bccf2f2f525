"""What a model takes and gives, in tokens, and the room a summary request has in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, Literal

from litellm_compaction.budget.arithmetic import Budget, Rule, derive_budget, derive_output

# A longer summary than this helps nobody; reasoning before it may take as much again.
MAX_SUMMARY_TOKENS: Final = 16_384
MAX_ANSWER_TOKENS: Final = 32_768
_MIN_OUTPUT_TOKENS: Final = 256


# T as an operator may write it: derived, tokens, or a fraction of C.
Threshold = Literal["auto"] | int | float


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """`context`: total window, shared by input and output. `output`: most tokens of one answer. `max_input`: an input
    limit of the model's own below context - output. None: unknown. `source` says where they come from."""

    context: int | None = None
    output: int | None = None
    max_input: int | None = None
    source: str = ""

    @property
    def output_budget(self) -> int | None:
        """O: the output limit, else what is derived from the window."""
        if self.context is None:
            return self.output
        if self.output is not None and self.output < self.context:
            return self.output
        return derive_output(self.context)

    @property
    def input_budget(self) -> int | None:
        """I of the contract's section 6: the window without the answer, or the model's own input limit if smaller."""
        left: Final = None if self.context is None else max(0, self.context - (self.output_budget or 0))
        return min_known(left, self.max_input)

    def budget(self, rule: Rule, threshold: Threshold = "auto") -> Budget | None:
        """C, O, I and T; None where the window is unknown. `threshold`: tokens, or a fraction of the window.

        Raises ImpossibleBudget.
        """
        if self.context is None or self.output_budget is None:
            return None
        derived: Final = derive_budget(self.context, self.output_budget, self.max_input, rule)
        if threshold == "auto":
            return derived
        # Decimal: 0.29 of 100 is 29.
        tokens: Final = threshold if isinstance(threshold, int) else int(Decimal(str(threshold)) * self.context)
        return derived.with_threshold(tokens)

    def lowered_to(self, window: int | None) -> ModelLimits:
        """With a window that a refusal was seen to name, where that is the smaller one."""
        if window is None or (self.context is not None and self.context <= window):
            return self
        return replace(self, context=window, source=f"{self.source}, learned".lstrip(", "))


@dataclass(frozen=True, slots=True)
class Room:
    """What one summary request may take: `prompt` and `answer` tokens as the backend bounds them, `summary` tokens of
    the text that goes into the item. None: unknown, and then nothing is bounded."""

    prompt: int | None = None
    answer: int | None = None
    summary: int | None = None


def min_known(*values: int | None) -> int | None:
    """The smallest of the values that are known."""
    return min((value for value in values if value is not None), default=None)


def smallest(limits: Sequence[ModelLimits]) -> ModelLimits:
    """Limits that hold for every one of a group's deployments: the smallest window, output and input budget."""
    if len(limits) == 1:
        return limits[0]
    return ModelLimits(
        context=min_known(*(entry.context for entry in limits)),
        output=min_known(*(output for entry in limits for output in (entry.output, entry.output_budget))),
        max_input=min_known(*(entry.max_input for entry in limits)),
        source=", ".join(dict.fromkeys(entry.source for entry in limits if entry.source)),
    )


def summary_room(writer: ModelLimits, reader: ModelLimits, error: float) -> Room:
    """The room for a summary that `writer` writes and `reader` goes on from; `error` is the share by which a count of
    the prompt may fall short."""
    budget: Final = writer.input_budget
    answer: Final = min_known(writer.output_budget, None if writer.context is None else MAX_ANSWER_TOKENS)
    quarter: Final = None if reader.context is None else max(_MIN_OUTPUT_TOKENS, reader.context // 4)
    return Room(
        prompt=None if budget is None else int(budget / (1 + error)),
        answer=answer,
        summary=min_known(answer, quarter, MAX_SUMMARY_TOKENS if answer or quarter else None),
    )

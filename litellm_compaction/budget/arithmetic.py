"""A model's budget as arithmetic: integers, tokens, section 6 of the contract.

    I = min(C - O, cap)                      input: instructions, tools, history, attachments, this turn
    P = max(1, floor(C * 15 / 100))
    D = max(P, 16384);  if D >= C - P: D = P           (rule `seed`)
    D = max(P, min(16384, max(0, (C - 16384) // 2)))   (rule `smooth`)
    R = max(D, O, C - I)
    T = C - R                                compaction when the used context is strictly greater than T

`smooth` is `seed` without its cliff: there T falls from 16,384 to 2,892 between windows of 19,275 and 19,276 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Rule = Literal["seed", "smooth"]
_RESERVE: Final = 16_384
_LEAST_DERIVED_OUTPUT: Final = 256
_MOST_DERIVED_OUTPUT: Final = 128_000
# Tokens below which an answer helps nobody: the request is compacted or refused instead.
LEAST_ANSWER: Final = 256


class ImpossibleBudget(ValueError):
    """Numbers that leave no room for a prompt or an answer; the text names them."""


@dataclass(frozen=True, slots=True)
class Budget:
    """`context` C, `output` O, `max_input` cap (None: none), `input` I, `threshold` T. Always 1 <= T <= I <= C - O."""

    context: int
    output: int
    max_input: int | None
    input: int
    threshold: int

    def with_threshold(self, tokens: int) -> Budget:
        """With a threshold somebody chose; one outside of what the window allows becomes the nearest that it does."""
        return replace(self, threshold=max(1, min(tokens, self.input)))

    def fits(self, tokens: int, asked: int | None = None) -> bool:
        """Whether a prompt of so many tokens leaves room for an answer: of what was asked for, at least of a useful
        length."""
        needed: Final = min(self.output, LEAST_ANSWER, self.output if asked is None else asked)
        return tokens + needed <= self.context and (self.max_input is None or tokens <= self.max_input)


def derive_budget(context: int, output: int, max_input: int | None = None, rule: Rule = "seed") -> Budget:
    """The budget of a window. Deriving it from its own numbers gives the same again.

    Raises ImpossibleBudget if the output is not a part of the window, or a number is below 1.
    """
    if output < 1:
        raise ImpossibleBudget(f"output {output} is less than 1")
    if output >= context:
        raise ImpossibleBudget(f"output {output} is not less than the context window {context} it is a part of")
    if max_input is not None and max_input < 1:
        raise ImpossibleBudget(f"max_input {max_input} is less than 1")
    room: Final = context - output if max_input is None else min(context - output, max_input)
    reserve: Final = max(derive_reserve(context, rule), output, context - room)
    return Budget(context, output, max_input, room, context - reserve)


def derive_reserve(context: int, rule: Rule = "seed") -> int:
    """D: what a window keeps free before anything is known of its output."""
    share: Final = max(1, context * 15 // 100)
    if rule == "smooth":
        return max(share, min(_RESERVE, max(0, (context - _RESERVE) // 2)))
    reserve: Final = max(share, _RESERVE)
    return share if reserve >= context - share else reserve


def derive_output(context: int) -> int:
    """O of a window whose output limit nobody knows: a quarter of it, from 256 to 128,000 tokens."""
    return min(_MOST_DERIVED_OUTPUT, max(_LEAST_DERIVED_OUTPUT, context // 4))


def clamp_output(budget: Budget, asked: int | None, counted: int) -> int:
    """Tokens of an answer to a prompt of `counted` tokens: never more than asked, than O, than what the window leaves.

    Zero or less means that nothing fits.
    """
    left: Final = budget.context - counted
    return min(budget.output, left) if asked is None else min(asked, budget.output, left)

"""The budget of a model enforced on one request: the output clamped, what cannot fit refused before it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from litellm.exceptions import ContextWindowExceededError

from litellm_compaction.budget.arithmetic import Budget, clamp_output
from litellm_compaction.budget.counting import Count
from litellm_compaction.envelope.sealing import Caller
from litellm_compaction.errors import CompactionError, ContextLengthExceeded
from litellm_compaction.gateway.budgets import Budgets, GroupBudget
from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.limits import LEARNED
from litellm_compaction.gateway.router import current_router
from litellm_compaction.gateway.turn import Turn

OUTPUT: Final = "max_output_tokens"
# How an operator may bound the output in `litellm_params`; LiteLLM hands all three on.
_SPELLINGS: Final = (OUTPUT, "max_tokens", "max_completion_tokens")


class OverBudget(ContextWindowExceededError):
    """A refusal in LiteLLM's own class, so that its `context_window_fallbacks` can go to a larger model.

    What the client is told, if none does, is `told`.
    """

    def __init__(self, told: CompactionError, group: str) -> None:
        super().__init__(message=told.message, model=group, llm_provider="")
        self.told: Final = told


class Enforcer:
    """Holds ordinary requests to the budget of the group that answers them."""

    def __init__(self, budgets: Budgets, counter: RequestCounter) -> None:
        self._budgets: Final = budgets
        self._counter: Final = counter

    async def hold(self, turn: Turn | None, group: str, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """The request as it may be sent. `turn` is told what was measured; None: the way in has no turns.

        Raises OverBudget, or what went wrong with the compaction that would have made it fit.
        """
        if turn is not None:
            turn.sent, turn.answering_group = body, group
        router: Final = current_router()
        held: Final = None if router is None else self._budgets.of(router, group, caller.team)
        # A native backend that was told to cut the input by itself does.
        if held is None or (held.mode == "native" and body.get("truncation") == "auto"):
            return body
        budget: Final = held.budget
        if budget is None or not held.settings.enforce_budget:
            return body
        known: Final = None if turn is None else turn.measured_of(body)
        measured: Final = await self._counter.measure(body) if known is None else known
        if turn is not None:
            turn.was_measured(measured, body)
        asked: Final = asked_output(body)
        count: Final = await self._counter.count(measured, group, held.count_error, enough_tokens(budget, asked))
        if budget.fits(count.high, asked):
            return {**body, **clamp(body, held, budget, count)}
        if turn is not None and turn.failure is not None:
            raise turn.failure
        fixed: Final = await self._counter.count(replace(measured, items=[]), "", held.count_error, None)
        raise OverBudget(refusal(held, budget, count, fixed.tokens), group)


def asked_output(body: Mapping[str, Any]) -> int | None:
    """Tokens of output the request asks for at most; None: it does not say, or says nothing that can be compared."""
    return min((body[name] for name in _SPELLINGS if type(body.get(name)) is int and body[name] >= 1), default=None)


def enough_tokens(budget: Budget, asked: int | None) -> int:
    """Prompts up to this many tokens can neither be too long nor make the output shorter."""
    left: Final = budget.context - min(budget.output, budget.output if asked is None else asked)
    return left if budget.max_input is None else min(left, budget.max_input)


def clamp(body: Mapping[str, Any], held: GroupBudget, budget: Budget, count: Count) -> dict[str, int]:
    """Members of the request to change so that prompt and answer fit the window together; a bound is never raised.

    A request that names none gets one only where the operator set the output, or where the window leaves less than it.
    """
    asked: Final = asked_output(body)
    bound: Final = clamp_output(budget, asked, count.high)
    if asked is None:
        # What is there and no number of tokens is the backend's to refuse.
        silent: Final = all(body.get(name) is None for name in _SPELLINGS)
        return {OUTPUT: bound} if silent and (held.settings.output is not None or bound < budget.output) else {}
    return {name: bound for name in _SPELLINGS if type(body.get(name)) is int and body[name] > bound}


def refusal(held: GroupBudget, budget: Budget, count: Count, fixed: int | None = None) -> ContextLengthExceeded:
    """The refusal with the numbers. `fixed`: tokens of instructions and tools."""
    spread: Final = f" (up to {count.high} by the model's own count)" if count.error else ""
    own: Final = f", of which {fixed} are instructions and tools" if fixed else ""
    learned: Final = ", as its backend said" if LEARNED in held.limits.source else ""
    limit: Final = "" if budget.max_input is None else f" and at most {budget.max_input} input tokens"
    return ContextLengthExceeded(
        f"It counts {count.tokens} tokens{spread}{own}. The window is {budget.context} tokens{learned}, shared by "
        f"input and output, with up to {budget.output} output tokens{limit}: {budget.input} tokens of input leave all "
        "of the output. Compact the conversation or shorten the input."
    )

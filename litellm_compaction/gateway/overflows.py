"""Refusals of ordinary requests that say the input is too long: the plugin's own and any backend's, as one error."""

from __future__ import annotations

import re
from typing import Final

from litellm.exceptions import MidStreamFallbackError

from litellm_compaction.budget.overflow import Refusal
from litellm_compaction.conversation.measure import measure_request
from litellm_compaction.errors import CompactionError, ContextLengthExceeded
from litellm_compaction.gateway.budgets import Budgets
from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.enforcement import OverBudget
from litellm_compaction.gateway.errors import without_router_words
from litellm_compaction.gateway.router import current_router, overflow_of
from litellm_compaction.gateway.turn import Turn

_SHOWN_CHARACTERS: Final = 500
# What LiteLLM puts around a backend's message: its classes before it, advice behind it.
_LITELLMS_WORDS: Final = re.compile(
    r"\A(?:(?:litellm\.)?\w+(?:Error|Exception): )*(?:\w+Exception - )?|\nmodel=[^\n]*context_window_fallbacks=.*\Z",
    re.DOTALL,
)
# An error longer than this may hold a part of the request.
_ECHO_CHARACTERS: Final = 600


class Overflows:
    """Reads errors. What they teach is remembered: the window a backend names for its model group, and for the
    conversation that it is over it, whatever was counted."""

    def __init__(self, budgets: Budgets, counter: RequestCounter) -> None:
        self._budgets: Final = budgets
        self._counter: Final = counter

    def read(self, turn: Turn, error: Exception) -> CompactionError | None:
        """What the client is told if the error says that the input is too long, else None."""
        original: Final = _original(error)
        if isinstance(original, OverBudget):
            return original.told
        refusal: Final = overflow_of(original)
        if refusal is None or _is_echo(refusal, original, turn):
            return None
        group: Final = turn.answering_group or turn.group
        self._budgets.learn(group, refusal.limit)
        over: Final = self._least_tokens(turn, group, refusal)
        if over is not None:
            # The next turn, or this one tried again, is compacted where that is asked for, and else not sent in vain.
            self._counter.remember(turn.measured or measure_request(turn.sent), group, over)
        words: Final = _LITELLMS_WORDS.sub("", without_router_words(str(getattr(original, "message", original))))
        return ContextLengthExceeded(f"The backend refused it: {words[:_SHOWN_CHARACTERS]}")

    def _least_tokens(self, turn: Turn, group: str, refusal: Refusal) -> int | None:
        """What the refused prompt takes at least, as far as the refusal or the budget say."""
        told: Final = [number for number in (refusal.requested, refusal.limit) if number]
        router: Final = current_router()
        if told or router is None:
            return max(told) + 1 if told else None
        budget: Final = self._budgets.of(router, group, turn.caller.team).budget
        return None if budget is None else budget.context + 1


def _original(error: Exception) -> Exception:
    while isinstance(error, MidStreamFallbackError) and error.original_exception is not None:
        error = error.original_exception
    return error


def _is_echo(refusal: Refusal, error: Exception, turn: Turn) -> bool:
    """Whether the words are the conversation's own, in an error that shows the request again."""
    if not refusal.words or len(str(error)) < _ECHO_CHARACTERS:
        return False
    measured: Final = turn.measured or measure_request(turn.sent)
    return any(refusal.words in " ".join(text.split()) for piece in measured.pieces for text in piece.texts)

"""Refusals of ordinary requests that say the input is too long: the plugin's own and any backend's, as one error."""

from __future__ import annotations

import re
from typing import Final

from litellm.exceptions import MidStreamFallbackError

from litellm_compaction.budget.overflow import Refusal
from litellm_compaction.conversation.measure import measure_request
from litellm_compaction.errors import CompactionError, ContextLengthExceeded
from litellm_compaction.gateway.budgets import Budgets
from litellm_compaction.gateway.enforcement import OverBudget
from litellm_compaction.gateway.errors import without_router_words
from litellm_compaction.gateway.router import overflow_of
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
    """Reads errors; the windows that backends name in them are remembered for the model group."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets: Final = budgets

    def read(self, turn: Turn, error: Exception) -> CompactionError | None:
        """What the client is told if the error says that the input is too long, else None."""
        original: Final = _original(error)
        if isinstance(original, OverBudget):
            return original.told
        refusal: Final = overflow_of(original)
        if refusal is None or _is_echo(refusal, original, turn):
            return None
        self._budgets.learn(turn.answering_group or turn.group, refusal.limit)
        words: Final = _LITELLMS_WORDS.sub("", without_router_words(str(getattr(original, "message", original))))
        return ContextLengthExceeded(f"The backend refused it: {words[:_SHOWN_CHARACTERS]}")


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

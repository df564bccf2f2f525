"""Errors of ordinary requests read as overflows, whoever words them."""

from __future__ import annotations

from typing import Any

import pytest
from litellm.exceptions import BadRequestError, MidStreamFallbackError
from litellm.router import Router

from litellm_compaction.envelope.sealing import Caller
from litellm_compaction.errors import ContextLengthExceeded
from litellm_compaction.gateway.budgets import Budgets
from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.enforcement import OverBudget
from litellm_compaction.gateway.errors import StreamRefused, SubstitutedError
from litellm_compaction.gateway.operator import Operator
from litellm_compaction.gateway.overflows import Overflows
from litellm_compaction.gateway.turn import Turn

WORDS = "This model's maximum context length is 3000 tokens. However, you requested 9000 tokens."


def known() -> Budgets:
    return Budgets(Operator({}, {}))


def learned(budgets: Budgets) -> int | None:
    """The window that is known of the group that answers."""
    router: Any = Router(model_list=[])
    return budgets.limits(router, "answers", None).context


def turn(text: str = "hello") -> Turn:
    made = Turn("group", "shown", Caller("k", None, None))
    made.sent, made.answering_group = {"input": text}, "answers"
    return made


def refused(message: str) -> Exception:
    return BadRequestError(message, model="m", llm_provider="p")


def test_a_backends_words_and_its_window() -> None:
    """The client is told in the backend's words; the window is remembered for the group that answered."""
    budgets = known()
    told = Overflows(budgets, RequestCounter()).read(turn(), refused(WORDS))
    assert isinstance(told, ContextLengthExceeded)
    assert WORDS in told.message
    assert learned(budgets) == 3_000


def test_inside_a_stream() -> None:
    """What LiteLLM wraps for a fallback in the middle of a stream is looked at itself."""
    wrapped = MidStreamFallbackError("wrapped", model="m", llm_provider="p", original_exception=refused(WORDS))
    assert Overflows(known(), RequestCounter()).read(turn(), wrapped) is not None


def test_the_plugins_own_refusal_keeps_its_words() -> None:
    """Nothing is learned from it, and it is not called the backend's."""
    own, budgets = ContextLengthExceeded("numbers"), known()
    assert Overflows(budgets, RequestCounter()).read(turn(), OverBudget(own, "group")) is own
    assert learned(budgets) is None


@pytest.mark.parametrize("message", ["invalid temperature", "Rate limit of 3000 tokens per minute exceeded"])
def test_other_errors_are_none(message: str) -> None:
    """They stay LiteLLM's."""
    assert Overflows(known(), RequestCounter()).read(turn(), refused(message)) is None


def test_an_error_that_shows_the_request_again_is_none() -> None:
    """The words are the user's own, who asks what such an error means."""
    budgets = known()
    shown = refused(f"invalid temperature in request {{'input': '{WORDS}{'x' * 600}'}}")
    assert Overflows(budgets, RequestCounter()).read(turn(WORDS), shown) is None
    assert learned(budgets) is None


def test_substituted_in_the_failure_hook() -> None:
    """LiteLLM takes an HTTPException there, and writes a ProxyException's own body and status."""
    error = SubstitutedError(ContextLengthExceeded("numbers"))
    assert (error.status_code, error.code) == (400, "400")
    assert error.to_dict()["code"] == "context_length_exceeded"
    assert "numbers" in str(error)


def test_at_the_end_of_a_stream() -> None:
    """LiteLLM reads the code for its `response.failed` out of the body."""
    error = StreamRefused(ContextLengthExceeded("numbers"))
    assert error.body["code"] == "context_length_exceeded"
    assert error.status_code == 400

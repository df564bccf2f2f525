"""Errors of ordinary requests read as overflows, whoever words them."""

from __future__ import annotations

import pytest
from litellm.exceptions import BadRequestError, MidStreamFallbackError

from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.conversation.measure import measure_request
from litellm_compaction.envelope.sealing import Caller
from litellm_compaction.errors import ContextLengthExceeded
from litellm_compaction.gateway.budgets import Windows
from litellm_compaction.gateway.enforcement import OverBudget
from litellm_compaction.gateway.errors import StreamRefused, SubstitutedError
from litellm_compaction.gateway.overflows import Overflows
from litellm_compaction.gateway.turn import Turn

WORDS = "This model's maximum context length is 3000 tokens. However, you requested 9000 tokens."


def turn(text: str = "hello") -> Turn:
    made = Turn("group", "shown", Caller("k", None, None), Expansion([], ()))
    made.measured, made.answering_group = measure_request({"input": text}), "answers"
    return made


def refused(message: str) -> Exception:
    return BadRequestError(message, model="m", llm_provider="p")


def test_a_backends_words_and_its_window() -> None:
    """The client is told in the backend's words; the window is remembered for the group that answered."""
    windows = Windows()
    told = Overflows(windows).read(turn(), refused(WORDS))
    assert isinstance(told, ContextLengthExceeded)
    assert WORDS in told.message
    assert windows.of("answers") == 3_000


def test_inside_a_stream() -> None:
    """What LiteLLM wraps for a fallback in the middle of a stream is looked at itself."""
    wrapped = MidStreamFallbackError("wrapped", model="m", llm_provider="p", original_exception=refused(WORDS))
    assert Overflows(Windows()).read(turn(), wrapped) is not None


def test_the_plugins_own_refusal_keeps_its_words() -> None:
    """Nothing is learned from it, and it is not called the backend's."""
    own, windows = ContextLengthExceeded("numbers"), Windows()
    assert Overflows(windows).read(turn(), OverBudget(own, "group")) is own
    assert windows.of("answers") is None


@pytest.mark.parametrize("message", ["invalid temperature", "Rate limit of 3000 tokens per minute exceeded"])
def test_other_errors_are_none(message: str) -> None:
    """They stay LiteLLM's."""
    assert Overflows(Windows()).read(turn(), refused(message)) is None


def test_an_error_that_shows_the_request_again_is_none() -> None:
    """The words are the user's own, who asks what such an error means."""
    windows = Windows()
    shown = refused(f"invalid temperature in request {{'input': '{WORDS}{'x' * 600}'}}")
    assert Overflows(windows).read(turn(WORDS), shown) is None
    assert windows.of("answers") is None


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

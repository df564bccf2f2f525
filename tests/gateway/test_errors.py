"""Between the plugin's errors and LiteLLM's."""

from __future__ import annotations

import httpx
import pytest
from litellm.types.router import RouterRateLimitError, RouterRateLimitErrorBasic

from litellm_compaction.errors import CompactionError, CompactionFailed, CompactionTimeout, TriggerNotLast
from litellm_compaction.gateway.errors import (
    CompactionProxyException,
    as_compaction_error,
    forget_router_words,
    read_seconds,
    retry_after_of,
    status_of,
)


@pytest.mark.parametrize(
    "error",
    [TriggerNotLast(), CompactionTimeout(1), CompactionFailed("No deployments available, no healthy deployment.", 400)],
    ids=["request", "timeout", "words-of-litellm"],
)
def test_proxy_exception_carries_status_and_body(error: CompactionError) -> None:
    """LiteLLM answers with the error's status and the error's own body, whatever words stand in it."""
    exception = CompactionProxyException(error)
    assert exception.code == str(error.status)
    assert exception.to_dict() == error.body()


class FromLiteLLM(Exception):
    def __init__(self, status: int | None = None, message: str = "words of LiteLLM", **members: object) -> None:
        super().__init__("text of the exception")
        self.status_code = status
        self.message = message
        self.__dict__.update(members)


@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [
        (401, 401, "invalid_api_key"),
        (429, 429, "rate_limit_exceeded"),
        (503, 503, "server_is_overloaded"),
        (500, 500, "server_error"),
        (404, 404, "server_error"),
        (None, 500, "server_error"),
    ],
)
def test_foreign_error_in_a_stream(status: int | None, expected: int, code: str) -> None:
    """LiteLLM's own error keeps its words and status; the code is the one clients know."""
    error = as_compaction_error(FromLiteLLM(status))
    assert (error.status, error.code, error.message) == (expected, code, "words of LiteLLM")
    assert error.body()["type"] == "api_error"


@pytest.mark.parametrize(
    "error",
    [
        RouterRateLimitErrorBasic(model="m"),
        RouterRateLimitError(model="m", cooldown_time=5, enable_pre_call_checks=False, cooldown_list=[]),
    ],
    ids=["limit", "cooldown"],
)
def test_a_router_without_deployments_is_a_rate_limit(error: Exception) -> None:
    """Whether or not this LiteLLM writes the status into its error."""
    assert status_of(error) == 429
    assert as_compaction_error(error).code == "rate_limit_exceeded"


def test_plain_error_in_a_stream() -> None:
    """Any other exception is a server error with its own text."""
    error = as_compaction_error(ValueError("odd"))
    assert (error.status, error.code, error.message) == (500, "server_error", "odd")


def test_own_error_stays_itself() -> None:
    """The plugin's own errors are not wrapped."""
    own = TriggerNotLast()
    assert as_compaction_error(own) is own


HEADERS = {"retry-after": "7"}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FromLiteLLM(response=httpx.Response(429, headers=HEADERS)), "7"),
        (FromLiteLLM(litellm_response_headers=HEADERS), "7"),
        (FromLiteLLM(response=httpx.Response(429), litellm_response_headers=HEADERS), "7"),
        (FromLiteLLM(response=None, litellm_response_headers=None), None),
        (FromLiteLLM(response=httpx.Response(429)), None),
        (ValueError(), None),
    ],
    ids=["response", "litellm", "either", "nulls", "silent", "plain"],
)
def test_retry_after_is_found(error: Exception, told: str | None) -> None:
    """When a provider said when to come back, it is known."""
    assert retry_after_of(error) == told


@pytest.mark.parametrize(
    "words",
    [
        "\n\nLiteLLM: model group m had no fallbacks",
        ". Received Model Group=m\nAvailable Model Group Fallbacks=None",
    ],
    ids=["now", "before-1.104"],
)
def test_words_of_the_inner_router_are_taken_off(words: str) -> None:
    """The sentence LiteLLM's router adds stands once: the outer router adds it again."""
    error = FromLiteLLM(message=f"slow down{words}")
    forget_router_words(error)
    assert error.message == "slow down"
    own, plain = CompactionFailed("x\n\nLiteLLM: model group y.", 400), ValueError("odd")
    forget_router_words(own)
    forget_router_words(plain)
    assert "model group y" in own.message
    assert str(plain) == "odd"


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("7", 7, 7),
        ("0", 0, 0),
        ("-3", 0, 0),
        ("1.5", 1.5, 1.5),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 10**8, 10**10),
        ("Wed, 21 Oct 2099 07:28:00 -0000", 10**8, 10**10),
        ("Wed, 21 Oct 2099 07:28:00", 10**8, 10**10),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, least: float, most: float) -> None:
    """Both forms of the header, dates without a zone too; what is past is now."""
    seconds = read_seconds(header)
    assert seconds is not None
    assert least <= seconds <= most


@pytest.mark.parametrize("header", ["", "soon", "Wed, 99 Oct 2099"])
def test_retry_after_that_says_nothing(header: str) -> None:
    """Anything else is no time."""
    assert read_seconds(header) is None

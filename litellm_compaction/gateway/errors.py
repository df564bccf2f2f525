"""Between the plugin's errors and LiteLLM's."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final

from fastapi import HTTPException
from litellm.proxy._types import ProxyException
from litellm.types.router import RouterRateLimitError, RouterRateLimitErrorBasic

from litellm_compaction.errors import CompactionError

# As LiteLLM words it now, and before 1.104.
_ROUTER_WORDS: Final = re.compile(r"\n\nLiteLLM: model group |\. Received Model Group=")


class CompactionProxyException(ProxyException):
    """An error that reaches the client exactly as the contract words it.

    LiteLLM puts the HTTP status into the body's `code`, and its router appends to `message`: the body is kept apart.
    """

    def __init__(self, error: CompactionError) -> None:
        super().__init__(message=error.message, type=error.type, param=error.param, code=error.status)
        # LiteLLM reads a status out of certain words in the message ("No deployments available"): not here.
        self.code = str(error.status)
        self.error: Final = error

    def to_dict(self) -> dict[str, Any]:
        return dict(self.error.body())


class _Unset:
    """Keeps ProxyException's constructor from reaching HTTPException's, which takes a status where it has a message."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)  # type: ignore[arg-type]  # whatever this is mixed into is one


class SubstitutedError(CompactionProxyException, _Unset, HTTPException):  # type: ignore[misc]  # both have `headers`
    """The same in the failure hook, where LiteLLM takes nothing but an HTTPException in place of a backend's error, and
    then looks for a ProxyException first."""

    def __init__(self, error: CompactionError) -> None:
        super().__init__(error)
        self.status_code = error.status
        self.detail = error.message


class StreamRefused(Exception):
    """An error that ends a stream. LiteLLM writes its own `response.failed`, with the code of `body`."""

    def __init__(self, error: CompactionError) -> None:
        super().__init__(error.message)
        self.message: Final = error.message
        self.status_code: Final = error.status
        self.body: Final = error.body()


def status_of(error: Exception) -> int | None:
    """The HTTP status of an error, as the proxy would answer it; None where it has none of its own.

    LiteLLM before 1.106 answers its router's cooldowns with a 429 that the errors do not carry yet.
    """
    status: Final = getattr(error, "status_code", None)
    if status is None and isinstance(error, (RouterRateLimitError, RouterRateLimitErrorBasic)):
        return HTTPStatus.TOO_MANY_REQUESTS.value
    return status if isinstance(status, int) else None


def retry_after_of(error: Exception) -> str | None:
    """What a provider, or LiteLLM of its own cooldown, said about when to come back."""
    headers: Final = getattr(getattr(error, "response", None), "headers", None) or {}
    told: Final = getattr(error, "litellm_response_headers", None) or {}
    cooldown: Final = getattr(error, "cooldown_time", None)
    return headers.get("retry-after") or told.get("retry-after") or (str(cooldown) if cooldown else None)


def read_seconds(retry_after: str) -> float | None:
    """Seconds of a `Retry-After` header, which holds a number or a date; None if it holds neither."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        when: Final = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    # A date without a zone, or with `-0000`, comes out naive; HTTP knows no other zone than this.
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def forget_router_words(error: Exception) -> None:
    """Take off the sentence a router adds to an error: the request's own router is about to add it again."""
    message: Final = getattr(error, "message", None)
    if isinstance(message, str) and not isinstance(error, CompactionError):
        error.message = without_router_words(message)  # type: ignore[attr-defined]  # LiteLLM's errors have it


def without_router_words(message: str) -> str:
    """A message as the backend's error had it, before a router told what became of it."""
    return _ROUTER_WORDS.split(message, maxsplit=1)[0]


def as_compaction_error(error: Exception) -> CompactionError:
    """Any failure as an error that can be written into a stream which has already begun.

    LiteLLM's own errors keep their words; the code is the one clients know for the status.
    """
    if isinstance(error, CompactionError):
        return error
    status: Final = status_of(error) or 500
    told: Final = CompactionError(str(getattr(error, "message", error)))
    told.status = status
    told.code = {401: "invalid_api_key", 429: "rate_limit_exceeded", 503: "server_is_overloaded"}.get(
        status, "server_error"
    )
    return told

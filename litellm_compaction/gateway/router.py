"""The summariser over LiteLLM's router: the caller's identity, the model's profile, errors told apart."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import litellm
from litellm.types.router import RetryPolicy

from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.budget.limits import Room
from litellm_compaction.budget.overflow import Refusal, read_overflow
from litellm_compaction.compaction.answer import Reply, Usage
from litellm_compaction.compaction.summarizer import (
    BackendFailed,
    Overflow,
    RateLimited,
    StyleRefused,
    Tries,
)
from litellm_compaction.compaction.threads import run_heavy
from litellm_compaction.gateway.delivery import UNCACHED
from litellm_compaction.gateway.errors import read_seconds, retry_after_of, status_of, without_router_words
from litellm_compaction.gateway.inference import INFERENCE_KEY, Inference, real_error
from litellm_compaction.gateway.tracing import inner_parent
from litellm_compaction.gateway.windows import GroupWindows

if TYPE_CHECKING:
    from litellm.router import Router

COMPACTION_TAG: Final = "compaction"
# Metadata that tells LiteLLM who pays and who may. What the outer request's routing wrote must not come along: the
# inner call would be logged under the wrong deployment.
_IDENTITY_PREFIX: Final = "user_api_key"
_IDENTITY_KEYS: Final = frozenset({"requester_ip_address", "requester_metadata", "spend_logs_metadata", "user_agent"})
# What LiteLLM has set aside of the key's budget for the outer request. The first inner call would settle it, and what
# the next ones cost would not be counted.
_RESERVATION: Final = "user_api_key_budget_reservation"
# Where LiteLLM's router looks for the tags it goes by, before the ones that are booked.
_ROUTING_TAGS: Final[str | None] = getattr(litellm.constants, "ROUTING_REQUEST_TAGS_METADATA_KEY", None)
_REFUSED_FORM: Final = re.compile(
    r"(tool|function.?call|response_format|json_schema|structured output)"
    r".{0,160}(not support|unsupported|n't support|not allowed|not available|unavailable|not enabled|requires|unknown)"
    r"|(unsupported|unknown|unrecognized|not support|n't support|no endpoints).{0,160}"
    r"(tool|function.?call|response_format|json_schema|structured output)",
    re.IGNORECASE | re.DOTALL,
)
_OTHER_BOUND: Final = re.compile(
    r"(unsupported|not supported).{0,120}max_completion_tokens|max_completion_tokens.{0,20}instead",
    re.IGNORECASE | re.DOTALL,
)
_CALLERS_STATUSES: Final = frozenset({401, 402, 403, 404, 429})
# Carries no status of its own; the proxy gives it one.
_CALLERS_ERRORS: Final = (litellm.exceptions.BudgetExceededError,)
_SHOWN_CHARACTERS: Final = 500
# An error longer than this may hold a part of the request.
_ECHO_CHARACTERS: Final = 600
_REFUSALS: Final = range(400, 500)
_RATE_LIMIT: Final = 429
_REQUEST_ERRORS: Final = frozenset({400, 404, 405, 422, 500, 501})


# The router of a program that is no proxy; tasks started for a call keep the one that made it.
_LIBRARY: Final[ContextVar[Router | None]] = ContextVar("litellm_compaction_router", default=None)


def current_router() -> Router | None:
    """The proxy's router; looked up each time, it is replaced on a reload. Without a proxy the one that makes the
    call."""
    from litellm.proxy import proxy_server

    return proxy_server.llm_router or _LIBRARY.get()


def serve_with(router: Router | None) -> None:
    """Make this the router of the call under way, where there is no proxy."""
    _LIBRARY.set(router)


def is_served(router: Router, group: str, team: str | None) -> bool:
    """Whether LiteLLM would route a request for this name at all."""
    return (
        router.is_recognized_model(group)
        or (team is not None and router.map_team_model(group, team) is not None)
        or group in router.deployment_names
        or router.default_deployment is not None
        or router.router_general_settings.pass_through_all_models
        or bool(router.pattern_router.get_pattern(group))
    )


def inner_metadata(outer: Mapping[str, Any], *, routes_by_tags: bool = False) -> dict[str, Any]:
    """The caller's identity for an inner call: a copy, since LiteLLM writes into what it is given.

    `routes_by_tags`: LiteLLM chooses deployments by the request's tags; by the plugin's own tag it must not.
    """
    kept: Final = {
        key: _copied(value)
        for key, value in outer.items()
        if (key.startswith(_IDENTITY_PREFIX) or key in _IDENTITY_KEYS) and key != _RESERVATION
    }
    auth: Final = kept.get("user_api_key_auth")
    if getattr(auth, "budget_reservation", None) is not None:
        kept["user_api_key_auth"] = auth.model_copy(update={"budget_reservation": None})  # type: ignore[attr-defined]
    tags: Final = outer.get("tags")
    own: Final = tags if isinstance(tags, list) else []
    identity: Final = {**kept, **inner_parent(outer)}
    if not routes_by_tags:
        return {**identity, "tags": [*own, COMPACTION_TAG]}
    if _ROUTING_TAGS is None:  # an older LiteLLM reads one list for both: the row goes without the plugin's tag
        return {**identity, "tags": [*own]}
    return {**identity, "tags": [*own, COMPACTION_TAG], _ROUTING_TAGS: tuple(own)}


def _copied(value: object) -> object:
    return copy.deepcopy(value) if isinstance(value, dict | list) else value


class RouterSummarizer:
    """One inference through LiteLLM's router: its retries, fallbacks, load balancing and cooldowns apply."""

    def __init__(
        self,
        router: Router,
        group: str,
        metadata: Mapping[str, Any],
        extra: Mapping[str, Any],
        windows: GroupWindows | None = None,
        tries: Tries | None = None,
    ) -> None:
        """`windows` tells what other groups have room for, None: nobody knows; `tries`: where LiteLLM's own count."""
        self._router: Final = router
        self._group: Final = group
        self._metadata: Final = metadata
        self._extra: Final = extra
        self._windows: Final = windows
        self._tries: Final = tries
        # The group that answered last, after LiteLLM's fallbacks.
        self.answered = group

    async def __call__(self, messages: list[dict[str, Any]], parameters: dict[str, Any]) -> Reply:
        inference: Final = Inference(
            group=self._group,
            most=None if self._tries is None else self._tries.most,
            room_of=self._room_of,
            count=functools.partial(self._count, messages, parameters),
        )
        try:
            response: Final = await self._complete(messages, parameters, inference)
        except Exception as error:
            real: Final = real_error(error)
            classed: Final = self._classed(real, messages, parameters)
            smaller: Final = inference.largest_refused()
            if smaller is None or self._windows is None or isinstance(classed, Overflow | StyleRefused):
                raise classed from error
            raise self._windows.smaller(smaller) from error
        finally:
            self.answered = inference.answering or self._group
            if self._tries is not None:
                self._tries.taken = inference.taken
        reply: Final = read_reply(response.model_dump())
        return reply if reply.usage.total_tokens else replace(reply, usage=_estimate_usage(messages, reply))

    def _room_of(self, group: str) -> Room:
        return Room() if self._windows is None else self._windows.room(group)

    async def _count(self, messages: list[dict[str, Any]], parameters: dict[str, Any]) -> int:
        return 0 if self._windows is None else await run_heavy(self._windows.count, messages, parameters)

    async def _complete(self, messages: list[dict[str, Any]], parameters: dict[str, Any], inference: Inference) -> Any:
        # Any: LiteLLM's overloads want TypedDicts, plain dicts are what it reads.
        call: Final[Any] = self._router.acompletion
        given: Final = {
            "model": self._group,
            "messages": messages,
            "stream": False,
            # Every request has a mark of its own: an answer from LiteLLM's response cache can't be meant for it, and a
            # transcript has no business in there.
            "cache": dict(UNCACHED),
            INFERENCE_KEY: inference,
            **self._rate_limit_policy(),
            **self._extra,
        }
        try:
            return await call(**given, metadata=self._inner_metadata(), **parameters)
        except Exception as error:
            if "max_tokens" not in parameters or not _wants_other_bound(error):
                raise
            renamed: Final = {**parameters, "max_completion_tokens": parameters["max_tokens"]}
            del renamed["max_tokens"]
            return await call(**given, metadata=self._inner_metadata(), **renamed)

    def _rate_limit_policy(self) -> dict[str, Any]:
        """Where there is no other deployment to go to, LiteLLM would sleep for a rate limit and know no deadline: the
        engine waits instead. All else of the operator's retry policy stays."""
        if len(self._router.get_model_list(model_name=self._group) or ()) != 1:
            return {}
        policies: Final = self._router.model_group_retry_policy or {}
        policy: Final = policies.get(self._group) or self._router.retry_policy or RetryPolicy()
        own: Final = RetryPolicy.model_validate(policy).model_copy(update={"RateLimitErrorRetries": 0})
        return {"model_group_retry_policy": {**policies, self._group: own}}

    def _inner_metadata(self) -> dict[str, Any]:
        return inner_metadata(self._metadata, routes_by_tags=bool(self._router.enable_tag_filtering))

    def _classed(self, error: Exception, messages: list[dict[str, Any]], parameters: Mapping[str, Any]) -> Exception:
        """What an error means to the engine; the host's own where it means nothing."""
        refusal: Final = overflow_of(error)
        if refusal is not None and not _is_echo(refusal, error, messages):
            return Overflow(_told(error), limit=refusal.limit, requested=refusal.requested)
        if (set(parameters) - {"max_tokens"}) and _refuses_form(error):
            return StyleRefused(error)
        wait: Final = retry_after_of(error)
        seconds: Final = None if wait is None else read_seconds(wait)
        if status_of(error) == _RATE_LIMIT and seconds is not None:
            return RateLimited(seconds, error)
        return error if _is_callers(error) else BackendFailed(_told(error))


def overflow_of(error: Exception) -> Refusal | None:
    """The refusal in an error that says the prompt is too long, however the provider or LiteLLM words it."""
    words: Final = without_router_words(str(error))
    if isinstance(error, litellm.exceptions.ContextWindowExceededError):
        return read_overflow(400, "context_length_exceeded", words) or Refusal()
    status: Final = status_of(error)
    code: Final = getattr(error, "code", None)
    return read_overflow(status, code if isinstance(code, str) else None, words)


def _is_echo(refusal: Refusal, error: Exception, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the words of a refusal are the transcript's own, in an error that shows the request again: people ask
    agents what such errors mean."""
    if not refusal.words or len(str(error)) < _ECHO_CHARACTERS:
        return False
    return any(refusal.words in " ".join(text.split()) for message in messages for text in _texts(message["content"]))


def _wants_other_bound(error: Exception) -> bool:
    """Reasoning models behind a name LiteLLM does not know take `max_completion_tokens` only."""
    return status_of(error) in _REQUEST_ERRORS and _OTHER_BOUND.search(str(error)) is not None


def _is_callers(error: Exception) -> bool:
    """Rate limit, authentication, permission, unknown model, budget: answered as LiteLLM answers them. The rest gets
    the status of `compaction_failed`: Codex repeats a 500 fifteen times."""
    return isinstance(error, _CALLERS_ERRORS) or status_of(error) in _CALLERS_STATUSES


def _told(error: Exception) -> str:
    """What a client may know: a refusal in the backend's words, an outage without addresses and internals."""
    status: Final = status_of(error)
    if status in _REFUSALS:
        return without_router_words(str(getattr(error, "message", error)))[:_SHOWN_CHARACTERS]
    return type(error).__name__ if status is None else f"{type(error).__name__} (status {status})"


def _refuses_form(error: Exception) -> bool:
    if isinstance(error, litellm.exceptions.UnsupportedParamsError):
        return True
    status: Final = status_of(error)
    return status in _REQUEST_ERRORS and _REFUSED_FORM.search(str(error)) is not None


def read_reply(body: Mapping[str, Any]) -> Reply:
    """LiteLLM's chat completion as a Reply. A reply without choices is an empty one."""
    choice: Final = (body.get("choices") or [{}])[0]
    message: Final = choice.get("message") or {}
    calls: Final = tuple(
        (function.get("name") or "", function.get("arguments") or "")
        for call in message.get("tool_calls") or ()
        if isinstance(function := call.get("function"), dict)
    )
    content: Final = message.get("content")
    refusal: Final = (message.get("provider_specific_fields") or {}).get("refusal") or message.get("refusal")
    return Reply(
        calls=calls,
        text=content if isinstance(content, str) else "",
        finish_reason=choice.get("finish_reason") or "stop",
        usage=_read_usage(body.get("usage") or {}),
        refusal=refusal if isinstance(refusal, str) else "",
        reasoned=bool(message.get("reasoning_content")),
    )


def _estimate_usage(messages: list[dict[str, Any]], reply: Reply) -> Usage:
    """For a backend that reports no usage: a compaction is never free, and clients reckon with what they are told."""
    written: Final = reply.text + "".join(arguments for _, arguments in reply.calls)
    texts: Final = [part for message in messages for part in _texts(message["content"])]
    return Usage(sum(map(estimate_tokens, texts)), max(1, estimate_tokens(written)))


def _texts(content: str | list[dict[str, Any]]) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


def _read_usage(usage: Mapping[str, Any]) -> Usage:
    prompt: Final = usage.get("prompt_tokens_details") or {}
    completion: Final = usage.get("completion_tokens_details") or {}
    return Usage(
        input_tokens=int(usage.get("prompt_tokens") or 0),
        output_tokens=int(usage.get("completion_tokens") or 0),
        cached_tokens=int(prompt.get("cached_tokens") or 0),
        reasoning_tokens=int(completion.get("reasoning_tokens") or 0),
    )

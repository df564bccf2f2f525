"""The summariser over LiteLLM's router: identity, replies, and which error is whose."""

from __future__ import annotations

from typing import Any, cast

import litellm
import pytest
from litellm.proxy._types import UserAPIKeyAuth
from litellm.router import Router
from litellm.types.router import RetryPolicy, RouterRateLimitError

from litellm_compaction.compaction.answer import Reply, Usage
from litellm_compaction.compaction.summarizer import BackendFailed, Overflow, RateLimited, StyleRefused
from litellm_compaction.gateway.inference import INFERENCE_KEY
from litellm_compaction.gateway.router import RouterSummarizer, inner_metadata, is_served, read_reply

MESSAGES = [{"role": "user", "content": "x" * 400}]
TOOL: dict[str, Any] = {"tools": [{}], "tool_choice": {}}


class Status(Exception):
    """An error as LiteLLM raises them, as far as the summariser looks at it."""

    def __init__(self, status: int, message: str = "upstream said no") -> None:
        super().__init__(message)
        self.status_code = status
        self.message = message


class Completion:
    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body

    def model_dump(self) -> dict[str, Any]:
        return self.body


class FakeRouter:
    """Answers one completion; `refusals` are raised before that."""

    def __init__(
        self, answer: object = None, *refusals: Exception, tag_filtering: bool = False, deployments: int = 2
    ) -> None:
        self.answer = answer
        self.refusals = list(refusals)
        self.enable_tag_filtering = tag_filtering
        self.deployments = deployments
        self.asked: dict[str, Any] = {}
        self.retry_policy: RetryPolicy | None = None
        self.model_group_retry_policy: dict[str, RetryPolicy] | None = None

    def get_model_list(self, model_name: str) -> list[dict[str, Any]]:
        return [{"model_name": model_name}] * self.deployments

    async def acompletion(self, **kwargs: Any) -> Completion:
        self.asked = kwargs
        if self.refusals:
            raise self.refusals.pop(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Completion(cast("dict[str, Any]", self.answer))


def body(content: str | None = "text", usage: object = None, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}, "finish_reason": "stop", **choice}], "usage": usage}


async def ask(router: FakeRouter, parameters: dict[str, Any] | None = None, **extra: Any) -> Reply:
    summarizer = RouterSummarizer(cast("Any", router), "group", {"user_api_key": "h", "model_group": "outer"}, extra)
    return await summarizer(MESSAGES, TOOL if parameters is None else parameters)


async def test_inner_call_is_the_callers() -> None:
    """The inference is asked of the group, unstreamed, with the caller's identity and routing wishes."""
    router = FakeRouter(body(usage={"prompt_tokens": 3, "completion_tokens": 2}))
    assert await ask(router, fallbacks=["other"]) == Reply(text="text", usage=Usage(3, 2))
    inference = router.asked.pop(INFERENCE_KEY)
    assert (inference.group, inference.most) == ("group", None)
    assert router.asked == {
        "model": "group",
        "messages": MESSAGES,
        "stream": False,
        "cache": {"no-cache": True, "no-store": True},
        "metadata": {"user_api_key": "h", "tags": ["compaction"]},
        "fallbacks": ["other"],
        **TOOL,
    }


async def test_own_tag_routes_nothing_under_tag_filtering() -> None:
    """With tag filtering LiteLLM would look for deployments of that tag; it is given the request's own for that."""
    router = FakeRouter(body(), tag_filtering=True)
    await ask(router)
    identity = {"user_api_key": "h"}
    assert router.asked["metadata"] == identity | {"tags": ["compaction"], "_routing_request_tags": ()}


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": 0, "completion_tokens": 0}], ids=["none", "empty", "zero"]
)
async def test_missing_usage_is_estimated(usage: object) -> None:
    """A compaction is never free: what the backend does not count is estimated."""
    assert (await ask(FakeRouter(body("x" * 40, usage)))).usage == Usage(100, 10)
    assert (await ask(FakeRouter(body(None, usage)))).usage == Usage(100, 1)


async def test_estimate_counts_the_text_of_parts_and_of_calls() -> None:
    """Images cost nothing in the estimate, arguments of a call count as written."""
    calls = [{"function": {"name": "f", "arguments": "y" * 8}}]
    router = FakeRouter(body(None, message={"content": None, "tool_calls": calls}))
    summarizer = RouterSummarizer(cast("Any", router), "group", {}, {})
    parts = [{"type": "text", "text": "x" * 20}, {"type": "image_url", "image_url": {"url": "y" * 999}}]
    assert (await summarizer([{"role": "user", "content": parts}], {})).usage == Usage(5, 2)


LITELLM: dict[str, Any] = {"message": "m", "model": "m", "llm_provider": "p"}
ERRORS: dict[str, tuple[Exception, type[Exception]]] = {
    "overflow": (litellm.exceptions.ContextWindowExceededError(**LITELLM), Overflow),
    "unsupported-parameter": (litellm.exceptions.UnsupportedParamsError(**LITELLM), StyleRefused),
    "no-tools": (Status(400, "this model does not support tools"), StyleRefused),
    "no-tool-choice": (Status(400, "`tool_choice` is not supported by this model"), StyleRefused),
    "no-endpoints": (Status(404, "No endpoints found that support tool use"), StyleRefused),
    "server-without-tools": (Status(500, "tools param requires --jinja flag"), StyleRefused),
    "rate-limit": (Status(429), Status),
    "rate-limit-of-tools": (Status(429, "tool calls are not available, slow down"), Status),
    "authentication": (Status(401), Status),
    "payment": (Status(402), Status),
    "permission": (Status(403), Status),
    "unknown-model": (Status(404, "no such model"), Status),
    "budget": (litellm.exceptions.BudgetExceededError(1, 1), litellm.exceptions.BudgetExceededError),
    "bad-request": (Status(400), BackendFailed),
    "server-error": (Status(500), BackendFailed),
    "overloaded": (Status(503), BackendFailed),
    "no-status": (ValueError("broken"), BackendFailed),
}


@pytest.mark.parametrize(("raised", "expected"), ERRORS.values(), ids=ERRORS)
async def test_errors_are_told_apart(raised: Exception, expected: type[Exception]) -> None:
    """Overflow, a refused form, the caller's own errors unchanged, the rest the backend's."""
    with pytest.raises(expected) as caught:
        await ask(FakeRouter(raised))
    if isinstance(caught.value, StyleRefused):
        assert caught.value.cause is raised
    elif not isinstance(caught.value, Overflow | BackendFailed):
        assert caught.value is raised


async def test_without_a_form_none_is_refused() -> None:
    """A request that forces no form cannot have been refused for it."""
    with pytest.raises(BackendFailed, match="does not support tools"):
        await ask(FakeRouter(Status(400, "this model does not support tools")), {})


async def test_backends_words_are_cut() -> None:
    """A page of HTML in an error does not reach the client whole."""
    with pytest.raises(BackendFailed) as caught:
        await ask(FakeRouter(Status(422, "x" * 10_000)))
    assert str(caught.value) == "x" * 500


async def test_outage_is_told_without_addresses() -> None:
    """What LiteLLM says of a backend that is down names hosts and internals; the client hears the kind of failure."""
    with pytest.raises(BackendFailed) as caught:
        await ask(FakeRouter(Status(503, "Cannot connect to host 10.0.0.7:8000")))
    assert str(caught.value) == "Status (status 503)"


METADATA = {
    "user_api_key": "hash",
    "user_api_key_team_id": "red",
    "user_api_key_metadata": {"nested": ["x"]},
    "requester_ip_address": "10.0.0.1",
    "spend_logs_metadata": {"a": 1},
    "model_group": "outer",
    "deployment": "outer",
    "litellm_parent_otel_span": object(),
    "tags": ["mine"],
}


def test_inner_metadata_keeps_who_pays_and_nothing_of_the_routing() -> None:
    """Identity and tags come along, what the outer request's routing wrote does not."""
    kept = {"user_api_key", "user_api_key_team_id", "user_api_key_metadata", "requester_ip_address"}
    inner = inner_metadata(METADATA)
    assert set(inner) == kept | {"spend_logs_metadata", "tags"}
    assert inner["tags"] == ["mine", "compaction"]


def test_the_plugins_tag_is_booked_and_routes_nothing() -> None:
    """Where LiteLLM routes by tags it is given the request's own ones for that."""
    inner = inner_metadata(METADATA, routes_by_tags=True)
    assert (inner["tags"], inner["_routing_request_tags"]) == (["mine", "compaction"], ("mine",))


def test_the_outer_requests_reservation_is_not_settled_by_an_inner_call() -> None:
    """What LiteLLM has set aside of a budget stays with the outer request, wherever it stands."""
    auth = UserAPIKeyAuth(api_key="hash", budget_reservation={"reserved_cost": 1.0})
    inner = inner_metadata({"user_api_key_auth": auth, "user_api_key_budget_reservation": {"reserved_cost": 1.0}})
    assert set(inner) == {"user_api_key_auth", "tags"}
    assert inner["user_api_key_auth"].budget_reservation is None
    assert inner["user_api_key_auth"].token == auth.token
    assert auth.budget_reservation == {"reserved_cost": 1.0}


def test_inner_metadata_is_a_copy() -> None:
    """What LiteLLM writes into the inner call's metadata does not reach the outer request."""
    inner = inner_metadata(METADATA)
    inner["tags"].append("written")
    inner["user_api_key_metadata"]["nested"].append("written")
    inner["spend_logs_metadata"]["b"] = 2
    assert METADATA["tags"] == ["mine"]
    assert METADATA["user_api_key_metadata"] == {"nested": ["x"]}
    assert METADATA["spend_logs_metadata"] == {"a": 1}


@pytest.mark.parametrize("tags", [None, "text", {}], ids=["none", "string", "object"])
def test_strange_tags_are_left_out(tags: object) -> None:
    """Tags that are no list do not break the call."""
    assert inner_metadata({"tags": tags}) == {"tags": ["compaction"]}


CALL = {"function": {"name": "f", "arguments": "{}"}}
REPLIES: dict[str, tuple[dict[str, Any], Reply]] = {
    "text": (body("hi"), Reply(text="hi")),
    "call": (
        body(message={"content": None, "tool_calls": [CALL, CALL]}, finish_reason="tool_calls"),
        Reply(calls=(("f", "{}"), ("f", "{}")), finish_reason="tool_calls"),
    ),
    "call-with-nulls": (
        body(message={"tool_calls": [{"function": {"name": None, "arguments": None}}, {"function": None}, {}]}),
        Reply(calls=(("", ""),)),
    ),
    "no-choices": ({"choices": []}, Reply()),
    "nothing": ({}, Reply()),
    "no-message": ({"choices": [{"message": None, "finish_reason": None}]}, Reply()),
    "content-parts": (body(message={"content": [{"type": "text", "text": "a"}]}), Reply()),
    "cut": (body("hi", finish_reason="length"), Reply(text="hi", finish_reason="length")),
    "usage": (
        body(
            "hi",
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
        ),
        Reply(text="hi", usage=Usage(10, 5, 4, 3)),
    ),
    "usage-nulls": (
        body("hi", {"prompt_tokens": 10, "completion_tokens": None, "prompt_tokens_details": None}),
        Reply(text="hi", usage=Usage(10)),
    ),
}


@pytest.mark.parametrize(("completion", "reply"), REPLIES.values(), ids=REPLIES)
def test_reply(completion: dict[str, Any], reply: Reply) -> None:
    """LiteLLM's completion as a reply, whatever a backend leaves out."""
    assert read_reply(completion) == reply


@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict:UserWarning")  # LiteLLM's own, at a late import
def test_group_is_served_by_name_alias_pattern_or_team() -> None:
    """A real router says which names it would route, and under which name of its own."""
    router = Router(
        model_list=[
            {"model_name": "plain", "litellm_params": {"model": "openai/a", "api_key": "k"}},
            {"model_name": "wild/*", "litellm_params": {"model": "openai/*", "api_key": "k"}},
            {
                "model_name": "model_name_red_1",
                "litellm_params": {"model": "openai/b", "api_key": "k"},
                "model_info": {"team_id": "red", "team_public_model_name": "ours"},
            },
        ],
        model_group_alias={"alias": "plain"},
    )
    served = {name: is_served(router, name, None) for name in ("plain", "alias", "wild/x", "unknown")}
    assert served == {"plain": True, "alias": True, "wild/x": True, "unknown": False}
    assert is_served(router, "ours", "red")


def limited(retry_after: str | None, status: int = 429) -> Exception:
    """An error with a `Retry-After`."""
    error = Status(status, "slow down")
    headers = {} if retry_after is None else {"retry-after": retry_after}
    error.litellm_response_headers = headers  # type: ignore[attr-defined]  # as LiteLLM's errors have it
    return error


@pytest.mark.parametrize(("retry_after", "seconds"), [("7", 7.0), ("0.5", 0.5), ("0", 0.0)])
async def test_rate_limit_with_a_time_can_be_waited_for(retry_after: str, seconds: float) -> None:
    """What the provider says about when to come back is told with its own error."""
    error = limited(retry_after)
    with pytest.raises(RateLimited) as caught:
        await ask(FakeRouter(error))
    assert (caught.value.seconds, caught.value.cause) == (seconds, error)


@pytest.mark.parametrize("error", [limited(None), limited("soon"), limited("7", 401)])
async def test_rate_limit_without_a_time_is_the_hosts_error(error: Exception) -> None:
    """No time, no number, another error: passed on."""
    with pytest.raises(Status) as caught:
        await ask(FakeRouter(error))
    assert caught.value is error


@pytest.mark.parametrize(
    ("words", "limit", "requested"),
    [
        ("prompt is too long: 9000 tokens > 3000 maximum", 3000, 9000),
        ("Your input exceeds the context window of this model.", None, None),
    ],
)
async def test_overflow_tells_its_numbers(words: str, limit: int | None, requested: int | None) -> None:
    """Numbers of a refusal reach the engine."""
    router = FakeRouter(Status(400, f"{words}\n\nLiteLLM: model group 'group' failed with the error above."))
    with pytest.raises(Overflow) as caught:
        await ask(router)
    assert (caught.value.limit, caught.value.requested) == (limit, requested)
    assert str(caught.value) == words


async def test_bound_is_renamed_for_models_that_want_it_so() -> None:
    """A reasoning model behind an unknown name refuses `max_tokens`: asked again with its own word."""
    refusal = Status(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    router = FakeRouter(body(), refusal)
    assert (await ask(router, {**TOOL, "max_tokens": 500})).text == "text"
    assert router.asked["max_completion_tokens"] == 500
    assert "max_tokens" not in router.asked


async def test_single_deployment_leaves_rate_limits_to_the_engine() -> None:
    """With nowhere else to go LiteLLM does not sleep for a rate limit; the rest of the operator's policy stays."""
    router = FakeRouter(body(), deployments=1)
    router.model_group_retry_policy = {"other": RetryPolicy(TimeoutErrorRetries=1)}
    router.retry_policy = RetryPolicy(RateLimitErrorRetries=5, InternalServerErrorRetries=4)
    await ask(router)
    policies = router.asked["model_group_retry_policy"]
    assert policies["other"] == RetryPolicy(TimeoutErrorRetries=1)
    assert policies["group"] == RetryPolicy(RateLimitErrorRetries=0, InternalServerErrorRetries=4)
    assert router.retry_policy.RateLimitErrorRetries == 5


@pytest.mark.parametrize(
    ("message", "refusal", "reasoned"),
    [
        ({"refusal": "no"}, "no", False),
        ({"provider_specific_fields": {"refusal": "no"}}, "no", False),
        ({"reasoning_content": "hm"}, "", True),
        ({"refusal": None}, "", False),
    ],
)
async def test_refusals_and_reasoning_are_read(message: dict[str, Any], refusal: str, reasoned: bool) -> None:
    """What stands in place of an answer is told apart."""
    reply = await ask(FakeRouter(body(message={"content": None, **message})))
    assert (reply.refusal, reply.reasoned) == (refusal, reasoned)


@pytest.mark.parametrize("echoed", [True, False])
async def test_words_of_the_transcript_in_an_error_are_no_overflow(echoed: bool) -> None:
    """A validation error that shows the request again, in which somebody quotes an overflow, is not one."""
    words = "prompt is too long: 9000 tokens > 50 maximum"
    sent = f"what does\n'{words}' mean?" if echoed else "hello"
    messages: list[dict[str, Any]] = [{"role": "user", "content": sent}]
    error = Status(422, "invalid body: " + "x" * 1000 + f" '{words}'")
    summarizer = RouterSummarizer(cast("Any", FakeRouter(error)), "group", {}, {})
    with pytest.raises(BackendFailed if echoed else Overflow):
        await summarizer(messages, TOOL)


async def test_litellms_own_cooldown_can_be_waited_for() -> None:
    """A group whose deployments all rest says for how long."""
    error = RouterRateLimitError(model="group", cooldown_time=5.0, enable_pre_call_checks=False, cooldown_list=["id"])
    with pytest.raises(RateLimited) as caught:
        await ask(FakeRouter(error))
    assert caught.value.seconds == 5.0

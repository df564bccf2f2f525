"""The hook LiteLLM calls: a list of steps, each done elsewhere.

1. pre-call: classify, expand what comes back, mark a compaction, or leave a turn for the steps below. No model is
   called: guardrails listed later must see the request first.
2. filter, before a deployment is picked: an ordinary request over its threshold is compacted.
3. deployment: the request is final now. A compaction is run, and LiteLLM handed the client that answers it; an ordinary
   request is held to the budget of its model.
4. success, stream, headers, failure: the exact keys of /responses/compact, the item in front of an answer, `usage`,
   what the compaction has to say of itself, a backend's overflow as the contract words it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger
from litellm.types.llms.openai import ResponsesAPIResponse

from litellm_compaction.conversation.bounds import TOO_DEEP
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.conversation.items import TRIGGER_TYPE, RawItem, normalize_input
from litellm_compaction.envelope.sealing import Caller
from litellm_compaction.errors import CompactionError, CompactionNotSupportedHere, InvalidInput
from litellm_compaction.gateway.access import Writers
from litellm_compaction.gateway.answers import Answers
from litellm_compaction.gateway.arguments import caller_of, client_body, group_of, metadata_of
from litellm_compaction.gateway.budgets import Budgets
from litellm_compaction.gateway.context_management import FIELD, read_context_management
from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.delivery import delivery_call, delivery_router_config, register_delivery_model
from litellm_compaction.gateway.direct import delivered_call, refuse_sync_calls, use_library_router
from litellm_compaction.gateway.door import ALL_CALLS, CompactionRequest, Request, application_of, classify_request
from litellm_compaction.gateway.enforcement import Enforcer
from litellm_compaction.gateway.errors import (
    CompactionProxyException,
    SubstitutedError,
    forget_router_words,
    retry_after_of,
)
from litellm_compaction.gateway.flights import Flights
from litellm_compaction.gateway.frames import WEBSOCKET_CALL, take_over
from litellm_compaction.gateway.guardrails import cover_compact_door
from litellm_compaction.gateway.inference import INFERENCE_KEY, Inference
from litellm_compaction.gateway.listing import Listing
from litellm_compaction.gateway.operator import Mode, Operator
from litellm_compaction.gateway.overflows import Overflows
from litellm_compaction.gateway.pending import Pending, new_frame
from litellm_compaction.gateway.prefixes import Prefixes
from litellm_compaction.gateway.router import current_router, is_served
from litellm_compaction.gateway.service import Service, expand_input, finish_events, strip_body
from litellm_compaction.gateway.session import load_chain
from litellm_compaction.gateway.sight import counted, refuse
from litellm_compaction.gateway.store import Store
from litellm_compaction.gateway.threshold import Thresholds
from litellm_compaction.gateway.turn import TURN_KEY, Turn
from litellm_compaction.settings import Settings

if TYPE_CHECKING:
    from litellm.caching.dual_cache import DualCache
    from litellm.proxy._types import UserAPIKeyAuth
    from litellm.types.utils import CallTypes

# Where the pre-call hook leaves a compaction for the deployment hook. A client may send the key, never the type.
PENDING_KEY: Final = "litellm_compaction_pending"
# The client's own routing wishes: meant for the inference, and in the way of the delivery.
_ROUTING_KEYS: Final = ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "api_base", "api_key")
_DOORS: Final = ALL_CALLS | {WEBSOCKET_CALL}
# Members of the body that the delivery needs as well.
_DELIVERED: Final = frozenset({"model", "input", "stream", "metadata", "litellm_metadata"})


@dataclass(frozen=True, slots=True)
class _Scene:
    """What holds for one request, looked up once: the group, who asks, the settings, who compacts."""

    group: str
    caller: Caller
    settings: Settings
    mode: Mode

    @property
    def normalizes(self) -> bool:
        return self.settings.misplaced_trigger == "normalize"


class CompactionHandler(CustomLogger):
    """The plugin as LiteLLM sees it. Of requests it keeps what is running, and for a while what came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.operator: Final = Operator.from_litellm()
        store: Final = Store(self.operator.settings.cache, lambda: self.operator.ring)
        self._flights: Final = Flights(store)
        self._budgets: Final = Budgets(self.operator)
        self._counter: Final = RequestCounter()
        self._enforcer: Final = Enforcer(self._budgets, self._counter)
        self._writers: Final = Writers(self.operator)
        self._overflows: Final = Overflows(self._budgets, self._counter)
        self._answers: Final = Answers(self._counter, self._overflows)
        self._thresholds: Final = Thresholds(
            self.operator, self._budgets, self._flights, Prefixes(store), self._counter, self._writers
        )
        register_delivery_model()
        cover_compact_door()
        refuse_sync_calls(lambda router, group: self.operator.resolve(router, group, None)[1] == "own")
        self._listing: Final = Listing(self.operator)

    # LiteLLM looks this method up in `vars()` of the class: it has to stand here, not on a base.
    async def async_pre_call_hook(
        self,
        user_api_key_dict: UserAPIKeyAuth,
        cache: DualCache,  # noqa: ARG002  # LiteLLM passes it by name
        data: dict[str, Any],
        call_type: str,
    ) -> dict[str, Any] | None:
        """Classify the request; expand what it brings back; mark a compaction. None leaves it as it is."""
        group: Final = data.get("model")
        if not isinstance(group, str) or call_type not in _DOORS:
            return None
        caller: Final = Caller(user_api_key_dict.api_key, user_api_key_dict.team_id, user_api_key_dict.user_id)
        try:
            scene: Final = self._resolve(group, caller)
            if call_type == WEBSOCKET_CALL:  # a native backend's own WebSocket is left alone
                return take_over(data, user_api_key_dict) if scene.mode == "own" else None
            request: Final = classify_request(call_type, data, normalize_trigger=scene.normalizes)
            if isinstance(request, CompactionRequest) and scene.mode == "own":
                if request.origin == "trigger":  # the other door ignores what it does not know
                    read_context_management(data.get(FIELD))
                return await self._mark(request, data, scene, user_api_key_dict)
            return await self._begin(request, data, scene)
        except CompactionError as error:
            raise refuse(error) from None
        except RecursionError:
            raise refuse(InvalidInput(TOO_DEEP)) from None

    def _resolve(self, group: str, caller: Caller) -> _Scene:
        router: Final = current_router()
        self._listing.refresh(router)
        settings, mode = self.operator.resolve(router, group, caller.team)
        return _Scene(group, caller, settings, mode)

    async def _begin(self, request: Request | None, data: dict[str, Any], scene: _Scene) -> dict[str, Any] | None:
        """An ordinary request, or one that a native backend compacts."""
        compacts: Final = isinstance(request, CompactionRequest) or (scene.mode == "native" and bool(data.get(FIELD)))
        # A native backend reads the field itself; any other would be sent something it does not know, or refused.
        wish: Final = read_context_management(data.pop(FIELD, None)) if scene.mode == "own" else None
        expansion: Final = None if request is None else await self._replay(request, data, scene)
        if compacts:
            return data
        data[TURN_KEY] = Turn(
            group=scene.group,
            shown_model=str(client_body(data).get("model") or scene.group),
            caller=scene.caller,
            expansion=expansion,
            compact_at=wish,
            native=scene.mode == "native",
            call_id=str(data.get("litellm_call_id") or ""),
            extra={key: data[key] for key in _ROUTING_KEYS if key in data},
        )
        return data

    async def _replay(self, request: Request, data: dict[str, Any], scene: _Scene) -> Expansion:
        """This plugin's items become input again."""
        expansion: Final = await self._expand(request, scene, chained=bool(data.get("previous_response_id")))
        if not _same_items(expansion.items, request.items):  # else the request passes untouched
            triggers: Final = [item for item in normalize_input(data["input"]) if item.get("type") == TRIGGER_TYPE]
            data["input"] = [*expansion.items, *triggers]
        return expansion

    async def _mark(
        self, request: CompactionRequest, data: dict[str, Any], scene: _Scene, auth: object
    ) -> dict[str, Any] | None:
        """Send the request to the delivery, with all that the deployment hook needs to answer it."""
        wishes: Final[dict[str, Any]] = {key: data[key] for key in _ROUTING_KEYS if key in data}
        pending: Final = await self._prepare(request, data, scene, auth, wishes)
        if pending is None:
            return None  # LiteLLM refuses the model in its own words; the deployment hook lets no trigger through
        pending.adds_usage = True
        # /responses/compact never streams; LiteLLM would try to read its answer as a stream.
        unsent: Final = ("previous_response_id", *wishes, *(["stream"] if request.origin == "compact" else []))
        for key in unsent:
            data.pop(key, None)
        data[PENDING_KEY] = pending
        data["input"] = pending.expansion.items
        data["num_retries"] = 0
        data["user_config"] = delivery_router_config()
        return data

    async def _prepare(
        self,
        request: CompactionRequest,
        data: Mapping[str, Any],
        scene: _Scene,
        auth: object,
        wishes: dict[str, Any],
    ) -> Pending | None:
        """The compaction of a request; None where LiteLLM serves no such model. `wishes`: the client's own routing."""
        router: Final = current_router()
        if router is None or not is_served(router, scene.group, scene.caller.team):
            return None
        previous: Final = data.get("previous_response_id")
        chain: Final = await load_chain(previous) if previous else []
        expansion: Final = await self._expand(replace(request, items=[*chain, *request.items]), scene)
        writer, writer_settings = await self._writers.choose(router, scene.group, scene.settings, auth)
        asked: Final = client_body(data)
        return Pending(
            origin=request.origin,
            stream=request.stream,
            model=scene.group,
            frame=new_frame(str(asked.get("model") or scene.group)),
            settings=scene.settings,
            writer_model=writer,
            writer_settings=writer_settings,
            ring=self.operator.ring,
            caller=scene.caller,
            expansion=expansion,
            application=application_of(request, data),
            extra=wishes,
            client_members=frozenset(asked) - _DELIVERED,
            call_id=str(data.get("litellm_call_id") or ""),
        )

    async def _expand(self, request: Request, scene: _Scene, *, chained: bool = False) -> Expansion:
        # Opening an item decrypts and inflates up to megabytes: not on the event loop.
        return await asyncio.to_thread(
            expand_input,
            request.items,
            scene.settings,
            self.operator.ring,
            scene.caller,
            scene.mode,
            allow_unsealed=self.operator.allows_unsealed,
            chained=chained,
            keep_open=isinstance(request, CompactionRequest) and scene.mode == "own",
        )

    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: CallTypes | None
    ) -> dict[str, Any] | None:
        """Answer a marked compaction; keep triggers and items of other ways in from being dropped silently."""
        name: Final = "" if call_type is None else call_type.value
        pending, turn = kwargs.pop(PENDING_KEY, None), kwargs.pop(TURN_KEY, None)
        inference: Final = kwargs.pop(INFERENCE_KEY, None)
        if isinstance(inference, Inference):
            return await inference.admit(group_of(kwargs), kwargs)
        if not isinstance(pending, Pending) and name not in ALL_CALLS:
            return None
        try:
            if isinstance(pending, Pending):
                return await self._answer(pending, kwargs)
            if not isinstance(turn, Turn):
                served: Final = await self._guard(name, kwargs)
                if served is not None:
                    return served
                return await self._enforcer.hold(None, group_of(kwargs), caller_of(metadata_of(kwargs)), kwargs)
            return await self._hold(turn, kwargs)
        except CompactionError as error:
            # A compaction that ran has been told of.
            raise (CompactionProxyException if isinstance(pending, Pending) else refuse)(error) from None
        except RecursionError:
            raise CompactionProxyException(InvalidInput(TOO_DEEP)) from None

    async def _answer(self, pending: Pending, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Every pre-call hook has passed the request by now; the transcript is what they made of it."""
        pending.take_final_input(normalize_input(kwargs.get("input")))
        metadata: Final = metadata_of(kwargs)
        await self._follow(pending, group_of(kwargs), metadata.get("user_api_key_auth"))
        try:
            transport: Final = await Service(pending, metadata, self._flights, self._budgets).deliver()
        except Exception as error:
            pending.retry_after = retry_after_of(error)
            forget_router_words(error)
            raise
        # The delivery answers from the transcript alone; LiteLLM would check everything else that the client sent
        # against what the delivery's model can do, and refuse.
        rest: Final = {key: value for key, value in kwargs.items() if key not in pending.client_members}
        return {**rest, **delivery_call(transport)}

    async def _follow(self, pending: Pending, group: str, auth: object) -> None:
        """A hook listed later may have chosen another model, such as one that may see what a guardrail has found."""
        if group and group != pending.model:
            pending.model, pending.settings = group, self._resolve(group, pending.caller).settings
            pending.was_moved = True
            chosen: Final = await self._writers.choose(current_router(), group, pending.settings, auth)
            pending.writer_model, pending.writer_settings = chosen

    async def _hold(self, turn: Turn, kwargs: dict[str, Any]) -> dict[str, Any]:
        if not turn.was_filtered:  # LiteLLM's older routing strategies, and a deployment asked for by its id
            await self._thresholds.apply(turn, group_of(kwargs), kwargs, metadata_of(kwargs))
        turn.was_filtered = False
        turn.put_compacted(kwargs)
        return await self._enforcer.hold(turn, group_of(kwargs), turn.caller, kwargs)

    async def _guard(self, name: str, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The router used as a library comes without a pre-call hook. Returns the call that answers a compaction, the
        very same where a native backend does: how much it takes for that is its own affair."""
        metadata: Final = metadata_of(kwargs)
        use_library_router(metadata)
        scene: Final = self._resolve(group_of(kwargs), caller_of(metadata))
        request: Final = classify_request(name, kwargs, normalize_trigger=scene.normalizes)
        if scene.mode == "own" and isinstance(request, CompactionRequest):
            # What routes here is the deployment's own.
            pending: Final = await self._prepare(request, kwargs, scene, metadata.get("user_api_key_auth"), {})
            if pending is None:
                raise CompactionNotSupportedHere
            transport: Final = await Service(pending, metadata, self._flights, self._budgets).deliver()
            return delivered_call(kwargs, metadata, transport)
        if scene.mode == "own" and kwargs.pop(FIELD, None) is not None:
            raise CompactionNotSupportedHere
        if request is not None:
            await self._replay(request, kwargs, scene)
        return kwargs if isinstance(request, CompactionRequest) or kwargs.get(FIELD) else None

    async def async_post_call_success_hook(
        self,
        data: dict[str, Any],
        user_api_key_dict: UserAPIKeyAuth,  # noqa: ARG002  # LiteLLM passes it by name
        response: Any,
    ) -> Any:
        """Take off the null keys that LiteLLM adds to a compaction; put an item in front of an answer, and `usage`."""
        pending, turn = data.get(PENDING_KEY), data.get(TURN_KEY)
        if isinstance(pending, Pending) and hasattr(response, "output"):
            return strip_body(pending, response)
        if isinstance(turn, Turn) and isinstance(response, ResponsesAPIResponse):
            return await self._answers.finish(turn, response)
        return response

    # Plainly `def`: a stream that is none of the plugin's passes as the very object it is.
    def async_post_call_streaming_iterator_hook(  # type: ignore[override]  # awaited by nobody, iterated by LiteLLM
        self,
        user_api_key_dict: UserAPIKeyAuth,  # noqa: ARG002  # LiteLLM passes it by name
        response: Any,
        request_data: dict[str, Any],
    ) -> AsyncIterator[Any]:
        """The same for streams; a failure that comes after the first events is told by both events of the contract."""
        pending, turn = request_data.get(PENDING_KEY), request_data.get(TURN_KEY)
        passed: Final[AsyncIterator[Any]] = response
        if isinstance(pending, Pending):
            return finish_events(pending, passed)
        return self._answers.stream(turn, passed) if isinstance(turn, Turn) else passed

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[Any],
        messages: list[Any] | None,  # noqa: ARG002  # LiteLLM passes it by name
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: Any = None,  # noqa: ARG002  # LiteLLM passes it by name
    ) -> list[Any]:
        """Compact an ordinary request over its threshold. The one hook after all pre-call hooks and before LiteLLM
        takes a slot of a deployment, which the summary's own call may need; it sees every retry and fallback."""
        turn: Final = (request_kwargs or {}).get(TURN_KEY)
        if request_kwargs is not None and isinstance(turn, Turn):
            group: Final = model if request_kwargs.get("fallback_depth") else group_of(request_kwargs)
            await self._thresholds.apply(turn, group, request_kwargs, metadata_of(request_kwargs))
            turn.was_filtered = True
        return healthy_deployments

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: UserAPIKeyAuth,  # noqa: ARG002  # LiteLLM passes it by name
        traceback_str: str | None = None,  # noqa: ARG002  # LiteLLM passes it by name
    ) -> HTTPException | None:
        """A backend's overflow, and the plugin's own, by the code that clients know."""
        turn: Final = request_data.get(TURN_KEY)
        if not isinstance(turn, Turn):
            return None
        if isinstance(original_exception, CompactionError):
            return SubstitutedError(original_exception)
        told: Final = self._overflows.read(turn, original_exception)
        return None if told is None else SubstitutedError(counted(told))

    async def async_post_call_response_headers_hook(
        self,
        data: dict[str, Any],
        user_api_key_dict: UserAPIKeyAuth,  # noqa: ARG002  # LiteLLM passes it by name
        response: Any,
        request_headers: dict[str, str] | None = None,  # noqa: ARG002  # LiteLLM passes it by name
        litellm_call_info: dict[str, Any] | None = None,  # noqa: ARG002  # LiteLLM passes it by name
    ) -> dict[str, str] | None:
        """`x-litellm-compaction` and its companions on every answered compaction, `Retry-After` on a refused one."""
        pending, turn = data.get(PENDING_KEY), data.get(TURN_KEY)
        if isinstance(pending, Pending):
            return pending.headers() if response is not None else pending.failure_headers()
        return turn.headers() if isinstance(turn, Turn) and response is not None else None


def _same_items(one: Sequence[RawItem], other: Sequence[RawItem]) -> bool:
    """Whether two lists hold the very same items; by identity, since comparing megabytes costs."""
    return len(one) == len(other) and all(left is right for left, right in zip(one, other, strict=True))

"""Handing a compaction to the client: LiteLLM is given the plugin as if it were an OpenAI server inside the process.

A pre-call hook cannot answer a request. So the request is routed (`user_config`) to one deployment at a reserved name,
and the deployment hook gives LiteLLM an HTTP client whose transport is below. LiteLLM's own auth, limits, headers,
logging, ids and SSE writing all stay in force.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import httpx
import litellm
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

from litellm_compaction.errors import CompactionError
from litellm_compaction.gateway.responses import Event, EventWriter

# The model LiteLLM routes a compaction to. Registered so that LiteLLM streams it for real (a model unknown to its
# catalogue is fake-streamed) and books no cost: the inferences are booked where they happen.
DELIVERY_MODEL: Final = "litellm-compaction-delivery"
_BASE_URL: Final = "http://litellm-compaction.invalid/v1"
# Out of LiteLLM's response cache, and not into it.
UNCACHED: Final[Mapping[str, bool]] = {"no-cache": True, "no-store": True}
EARLY_SECONDS: Final = 3.0
TICK_SECONDS: Final = 30.0
# Clients type the content as a string.
PRELIMINARY: Final = "pending"


def register_delivery_model() -> None:
    litellm.register_model(
        {
            f"openai/{DELIVERY_MODEL}": {
                "litellm_provider": "openai",
                "mode": "responses",
                "supported_endpoints": ["/v1/responses"],
                "supports_native_streaming": True,
                "input_cost_per_token": 0.0,
                "output_cost_per_token": 0.0,
                # Without these LiteLLM warns the operator of a model that he never wrote.
                "cache_creation_input_token_cost": 0.0,
                "cache_read_input_token_cost": 0.0,
            }
        }
    )


def delivery_router_config() -> dict[str, Any]:
    """`user_config` of a request: a router of its own with one deployment, so that a failure of a compaction puts no
    real deployment into cooldown and is never retried. For every name: a hook listed later may choose another model."""
    return _router_config("openai")


def socket_router_config() -> dict[str, Any]:
    """The same for a WebSocket connection, by a provider that has no WebSockets of its own, so that LiteLLM opens none.
    No slot of a real deployment is held while the connection lasts."""
    return _router_config("hosted_vllm")


def _router_config(provider: str) -> dict[str, Any]:
    deployment: Final = {"model_name": "*", "litellm_params": delivery_params(provider)}
    return {
        "model_list": [{**deployment, "model_info": {"id": DELIVERY_MODEL}}],
        "num_retries": 0,
        "disable_cooldowns": True,
    }


def delivery_params(provider: str) -> dict[str, Any]:
    """How LiteLLM calls the delivery."""
    return {
        "model": f"{provider}/{DELIVERY_MODEL}",
        "api_base": _BASE_URL,
        "api_key": "-",
        "input_cost_per_token": 0.0,
        "output_cost_per_token": 0.0,
        "cache_creation_input_token_cost": 0.0,
        "cache_read_input_token_cost": 0.0,
    }


def delivery_call(transport: httpx.AsyncBaseTransport) -> dict[str, Any]:
    """What of a call's arguments makes it one that `transport` answers.

    One user message stands for the transcript: LiteLLM logs what it sends, and this is not what was summarised. With
    that every compaction looks alike to LiteLLM's response cache, which must never answer one.
    """
    return {"input": "compaction", "client": client_for(transport), "cache": dict(UNCACHED)}


def client_for(transport: httpx.AsyncBaseTransport) -> AsyncHTTPHandler:
    """LiteLLM's HTTP client on a transport of the plugin's own."""
    handler: Final = AsyncHTTPHandler()
    handler.client = httpx.AsyncClient(transport=transport)
    return handler


class JsonTransport(httpx.AsyncBaseTransport):
    """Answers one request with one JSON body."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body: Final = body

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=self._body, request=request)


class EventTransport(httpx.AsyncBaseTransport):
    """Answers one request with a stream of server-sent events."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events: Final = events

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        stream: Final = _EventStream(self._events)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=stream, request=request)


class _EventStream(httpx.AsyncByteStream):
    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events: Final = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self._events:
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


async def stream_events(
    writer: EventWriter,
    running: asyncio.Task[Any],
    finished: Callable[[], Awaitable[Iterable[Event]]],
    as_error: Callable[[Exception], CompactionError],
    leave: Callable[[], None],
) -> AsyncIterator[Event]:
    """The events of a compaction that still runs: the opening now, a tick now and then, the end when it is there.

    `finished` gives the last events, `leave` is called when the stream ends, by itself or because its client has gone.
    """
    try:
        for event in writer.opening():
            yield event
        # LiteLLM's router holds `created` and `in_progress` back, for a fallback, until an event of another kind comes:
        # without `added` now the client would see nothing. Its content is a placeholder; no client keeps it.
        yield writer.added(PRELIMINARY)
        while not running.done():
            await asyncio.wait({running}, timeout=TICK_SECONDS)
            if running.done():
                break
            yield writer.compacting()
        try:
            closing: Final = await finished()
        except Exception as error:  # noqa: BLE001  # whatever went wrong, the client gets an end it can read
            yield writer.failed(as_error(error))
            return
        for event in closing:
            yield event
    finally:
        leave()


async def replay_events(events: Iterable[Event]) -> AsyncIterator[Event]:
    for event in events:
        yield event

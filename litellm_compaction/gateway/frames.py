"""WebSocket mode of /v1/responses: each `response.create` frame is served as a POST to the same door.

LiteLLM shows a connection to its hooks once, with the model's name alone, and calls the backend for the frames behind
their back, or hands the socket to a provider's own. So for every group that this plugin compacts, the connection is
taken over: a frame passes what an HTTP request passes (access, limits, guardrails, this plugin), and its events go back
as frames. What HTTP has no word for is kept here: the warm-up, and the conversation behind a `previous_response_id`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from fastapi import WebSocketDisconnect

from litellm_compaction.conversation.items import COMPACTION_TYPES, RawItem, normalize_input
from litellm_compaction.errors import InvalidRequest
from litellm_compaction.gateway.delivery import socket_router_config
from litellm_compaction.gateway.inside import App, Refusal, post_events

if TYPE_CHECKING:
    from litellm.proxy._types import UserAPIKeyAuth

# LiteLLM's name of the route.
WEBSOCKET_CALL: Final = "_aresponses_websocket"
# Frames of a client that does not wait for its answers.
_WAITING: Final = 8
_TERMINAL: Final = frozenset({"response.completed", "response.incomplete"})
_CREATE: Final = "response.create"


class Socket(Protocol):
    """What is used of Starlette's WebSocket."""

    @property
    def scope(self) -> Mapping[str, Any]: ...
    @property
    def app(self) -> App: ...
    async def receive_text(self) -> str: ...
    async def send_text(self, data: str) -> None: ...
    async def close(self, code: int = 1000, reason: str | None = None) -> None: ...


def take_over(data: dict[str, Any], auth: UserAPIKeyAuth) -> dict[str, Any]:
    """Have the frames of a connection served here. LiteLLM's handler waits meanwhile for its first frame."""
    first: Final = data.pop("first_message", None)
    data["websocket"] = FrameSocket(data["websocket"], str(data["model"]), first, auth)
    data["user_config"] = socket_router_config()
    return data


class FrameSocket:
    """The client's socket as LiteLLM's handler sees it: nothing comes until the client has left."""

    def __init__(self, socket: Socket, model: str, first: str | None, auth: UserAPIKeyAuth) -> None:
        self._socket: Final = socket
        self._auth: Final = auth
        self._session: Final = Session(socket, model, first)

    async def receive_text(self) -> NoReturn:
        await _give_back(self._auth)
        await self._session.run()
        raise WebSocketDisconnect

    async def send_text(self, data: str) -> None:
        await self._socket.send_text(data)

    async def close(self, code: int = 1000, reason: str | None = None) -> None:
        await self._socket.close(code, reason)


async def _give_back(auth: UserAPIKeyAuth) -> None:
    """Give back what LiteLLM holds for a connection of the key's parallel requests and of its budget: each frame takes
    its own, and a key that has no more than that could otherwise never be answered."""
    from litellm.proxy import proxy_server
    from litellm.proxy.hooks.parallel_request_limiter_v3 import _PROXY_MaxParallelRequestsHandler_v3

    try:
        from litellm.proxy.spend_tracking.budget_reservation import release_or_invalidate_budget_reservation
    except ImportError:  # an older LiteLLM sets nothing aside, or has another way to give it back
        pass
    else:
        await release_or_invalidate_budget_reservation(auth.budget_reservation)
    logging: Final = proxy_server.proxy_logging_obj
    release: Final = getattr(logging, "arelease_responses_websocket_slot", None)
    # The older limiter counts down again when the connection ends, whatever has been given back before.
    newer: Final = isinstance(logging.get_proxy_hook("parallel_request_limiter"), _PROXY_MaxParallelRequestsHandler_v3)
    if release is not None and newer:
        await release(auth)


class Session:
    """One connection: frames in, one after the other, events out."""

    def __init__(self, socket: Socket, model: str, first: str | None) -> None:
        self._socket: Final = socket
        self._model: Final = model
        self._frames: Final[asyncio.Queue[str | None]] = asyncio.Queue(_WAITING)
        self._gone: Final = asyncio.Event()
        # The conversation up to and with each response of this connection, by the id the client knows it by.
        self._conversations: Final[dict[str, list[RawItem]]] = {}
        if first is not None:
            self._frames.put_nowait(first)

    async def run(self) -> None:
        """Serve frames until the client leaves; a client that leaves in between ends what is under way."""
        reading: Final = asyncio.create_task(self._read())
        try:
            while (text := await self._frames.get()) is not None:
                await self._serve(text)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                await self._frames.put(await self._socket.receive_text())
        except Exception:  # noqa: BLE001  # however a connection ends, it has ended
            self._gone.set()
            await self._frames.put(None)

    async def _serve(self, text: str) -> None:
        try:
            frame: Final = read_frame(text)
            if frame is None:
                return
            body: Final = self._with_conversation({**frame, "model": frame.get("model") or self._model})
            if body.pop("generate", None) is False:
                await self._warm_up(body)
            else:
                await self._answer(body)
        except InvalidRequest as error:
            await self._tell(Refusal(error.status, dict(error.body())))
        except Refusal as refusal:
            await self._tell(refusal)

    def _with_conversation(self, body: dict[str, Any]) -> dict[str, Any]:
        """The request with the items that its `previous_response_id` stands for; an id that is not of this connection
        is left for LiteLLM to look up."""
        known: Final = self._conversations.get(str(body.get("previous_response_id")))
        if known is None:
            return body
        rest: Final = {name: value for name, value in body.items() if name != "previous_response_id"}
        return {**rest, "input": [*known, *normalize_input(body.get("input") or [])]}

    async def _answer(self, body: dict[str, Any]) -> None:
        output: Final[list[RawItem]] = []
        async for text, event in post_events(
            self._socket.app, self._socket.scope, {**body, "stream": True}, self._gone
        ):
            kind = event.get("type")
            if kind is None and "error" in event:  # LiteLLM's way to end a stream that breaks
                await self._tell(Refusal(500, event["error"]))
                continue
            if kind == "response.output_item.done":
                output.append(event["item"])
            elif kind in _TERMINAL:
                self._conversations[event["response"]["id"]] = follow(normalize_input(body.get("input")), output)
            await self._send(text)

    async def _warm_up(self, body: dict[str, Any]) -> None:
        """Answered without a model: nothing could be kept warm. What came along is part of the conversation."""
        response: Final[dict[str, Any]] = {
            "id": f"resp_warmup_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "completed",
            "model": body["model"],
            "output": [],
            "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
        }
        self._conversations[response["id"]] = normalize_input(body.get("input") or [])
        begun: Final = {"type": "response.created", "response": {**response, "status": "in_progress"}}
        await self._send(json.dumps(begun))
        await self._send(json.dumps({"type": "response.completed", "response": response}))

    async def _tell(self, refusal: Refusal) -> None:
        headers: Final = {"headers": refusal.headers} if refusal.headers else {}
        await self._send(json.dumps({"type": "error", "status": refusal.status, "error": refusal.error, **headers}))

    async def _send(self, text: str) -> None:
        try:
            await self._socket.send_text(text)
        except Exception:  # noqa: BLE001  # the reading side learns of it too, and ends the session
            self._gone.set()


class InvalidFrame(InvalidRequest):
    """A frame that is no JSON object."""

    param = None

    def __init__(self) -> None:
        super().__init__("A frame has to be a JSON object.")


def read_frame(text: str) -> dict[str, Any] | None:
    """The request in a `response.create` frame, whose members stand in it or in its `response`; None for frames of
    other types. Raises InvalidFrame."""
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidFrame from None
    if not isinstance(frame, dict):
        raise InvalidFrame
    if frame.get("type") != _CREATE:
        return None
    nested: Final = frame.get("response")
    if isinstance(nested, dict) and nested:
        return dict(nested)
    return {name: value for name, value in frame.items() if name != "type"}


def follow(sent: list[RawItem], output: list[RawItem]) -> list[RawItem]:
    """The conversation after an answer. A compaction item in it holds all that came before."""
    if any(item.get("type") in COMPACTION_TYPES for item in output):
        return output
    return [*sent, *output]

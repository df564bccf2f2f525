"""A request to the proxy's own application from inside its process: the doors, hooks and limits are as from outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final

from litellm._logging import verbose_proxy_logger

from litellm_compaction.errors import CompactionError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

_OK: Final = 200
# What belongs to the connection, not to the request: the body is another one, and nothing is upgraded or compressed.
_OWN_HEADERS: Final = frozenset(
    {b"connection", b"upgrade", b"content-length", b"content-type", b"content-encoding", b"transfer-encoding"}
    | {b"accept", b"accept-encoding"}
)
_SOCKET_HEADERS: Final = b"sec-websocket-"
# How a browser, which cannot set headers on a WebSocket, sends its key.
_KEY_PROTOCOL: Final = "openai-insecure-api-key."


@dataclass(slots=True)
class Refusal(Exception):
    """The proxy answered with an error: `status`, the value of `error`, and headers that a client goes by."""

    status: int
    error: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


async def post_events(
    app: App, scope: Mapping[str, Any], body: Mapping[str, Any], gone: asyncio.Event
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The events of a streamed POST, each as it came and as it reads, with the headers of the WebSocket of `scope`.

    `gone`: the client has left; the request then ends as one whose client has hung up. Raises Refusal.
    """
    sent: Final = json.dumps(body).encode()
    messages: Final[asyncio.Queue[Message | None]] = asyncio.Queue()
    unread = [{"type": "http.request", "body": sent, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.put_nowait(message)

    async def run() -> None:
        try:
            await app(post_scope(scope, len(sent)), receive, send)
        except Exception as error:  # noqa: BLE001  # a server would log it; the client has been told by the application
            verbose_proxy_logger.error("litellm_compaction: a WebSocket frame failed: %s", type(error).__name__)
        finally:
            messages.put_nowait(None)

    # A context of its own, as a request from outside has: LiteLLM keeps what it reserved for a request in there.
    running: Final = asyncio.get_running_loop().create_task(run(), context=Context())
    try:
        await _check_start(messages)
        rest = b""
        while (message := await messages.get()) is not None:
            *lines, rest = (rest + message.get("body", b"")).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    text = line[6:].decode()
                    yield text, json.loads(text)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _check_start(messages: asyncio.Queue[Message | None]) -> None:
    """Returns where a stream of events begins; raises Refusal with what came in its place."""
    start: Final = await messages.get()
    if start is None:
        raise Refusal(500, CompactionError("The proxy gave no answer.").body())
    headers: Final = {name.decode().lower(): value.decode() for name, value in start.get("headers", ())}
    status: Final = int(start.get("status", 500))
    if status == _OK and headers.get("content-type", "").startswith("text/event-stream"):
        return
    whole = b""
    while (message := await messages.get()) is not None:
        whole += message.get("body", b"")
    kept: Final = {name: headers[name] for name in ("retry-after",) if name in headers}
    raise Refusal(status if status != _OK else 500, _error_of(whole), kept)


def _error_of(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        error = None
    return error if isinstance(error, dict) else CompactionError("The proxy gave no stream of events.").body()


def post_scope(scope: Mapping[str, Any], length: int) -> dict[str, Any]:
    """The scope of a POST to where a WebSocket was opened, from the same client with the same headers."""
    headers = [
        (name, value)
        for name, value in scope.get("headers", ())
        if name not in _OWN_HEADERS and not name.startswith(_SOCKET_HEADERS)
    ]
    names: Final = {name for name, _ in headers}
    key: Final = next((word for word in scope.get("subprotocols", ()) if word.startswith(_KEY_PROTOCOL)), None)
    if key is not None and not names & {b"authorization", b"api-key"}:
        headers.append((b"authorization", b"Bearer " + key.removeprefix(_KEY_PROTOCOL).encode()))
    headers += [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]
    kept: Final = ("path", "raw_path", "root_path", "client", "server")
    return {
        **{name: scope[name] for name in kept if name in scope},
        "type": "http",
        # By this version Starlette listens for a client that leaves, and ends the stream. By the newer one of a
        # WebSocket it would wait for a write that fails.
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "https" if scope.get("scheme") == "wss" else "http",
        "query_string": b"",
        "headers": [*headers, (b"content-length", str(length).encode())],
        "state": {},
    }

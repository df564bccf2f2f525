"""Frames of a WebSocket read, and the request inside the process that serves them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import litellm
import pytest
from litellm.proxy._types import UserAPIKeyAuth

from litellm_compaction.gateway.frames import InvalidFrame, follow, read_frame
from litellm_compaction.gateway.hook import CompactionHandler
from litellm_compaction.gateway.inside import Refusal, post_events, post_scope
from tests.support.bodies import Json, assistant, user

ITEM: Json = {"type": "compaction", "encrypted_content": "c"}


async def read_all(app: Any) -> list[Json]:
    return [event async for _, event in post_events(app, {"headers": []}, {}, asyncio.Event())]


def answering(status: int, kind: str, *bodies: bytes) -> Any:
    """An application that answers so."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        headers = [(b"content-type", kind.encode()), (b"retry-after", b"7")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for body in bodies:
            await send({"type": "http.response.body", "body": body, "more_body": True})

    return app


def test_a_frame_holds_its_request_in_itself_or_in_response() -> None:
    """Both forms of `response.create` are read; frames of other types are nobody's request."""
    assert read_frame('{"type": "response.create", "input": "hi"}') == {"input": "hi"}
    assert read_frame('{"type": "response.create", "response": {"input": "hi"}}') == {"input": "hi"}
    assert read_frame('{"type": "ping"}') is None


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "1", "[" * 100_000])
def test_a_frame_that_is_no_object_is_refused(text: str) -> None:
    """Whatever is no JSON object is an error that the client can read."""
    with pytest.raises(InvalidFrame):
        read_frame(text)


def test_an_item_takes_the_place_of_what_came_before() -> None:
    """The conversation after an answer is what was sent and what was said, from a compaction item on."""
    sent, said = [user("a")], [assistant("b")]
    assert follow([*sent], [*said]) == [*sent, *said]
    assert follow([*sent], [ITEM, *said]) == [ITEM, *said]


async def test_events_are_read_across_the_pieces_they_come_in() -> None:
    """An event may be cut anywhere, even inside a letter."""
    whole = 'data: {"type": "a", "text": "ü"}\n\n: comment\n\ndata: {"type": "b"}\n\ndata: [DONE]\n\n'.encode()
    pieces = [whole[place : place + 1] for place in range(len(whole))]
    events = await read_all(answering(200, "text/event-stream", *pieces))
    assert [event["type"] for event in events] == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "kind", "body", "told", "message"),
    [
        (429, "application/json", b'{"error": {"message": "slow"}}', 429, "slow"),
        (502, "text/html", b"<html>", 502, "The proxy gave no stream of events."),
        (200, "application/json", b"{}", 500, "The proxy gave no stream of events."),
    ],
)
async def test_what_is_no_stream_is_a_refusal(status: int, kind: str, body: bytes, told: int, message: str) -> None:
    """An answer that is no stream of events becomes an error with its status, words and wait."""
    with pytest.raises(Refusal) as refused:
        await read_all(answering(status, kind, body[:3], body[3:]))
    assert (refused.value.status, refused.value.error["message"]) == (told, message)
    assert refused.value.headers == {"retry-after": "7"}


async def test_an_application_that_breaks_is_a_refusal() -> None:
    """An application that ends without an answer is told as an error."""

    async def app(*_: Any) -> None:
        raise RuntimeError

    with pytest.raises(Refusal) as refused:
        await read_all(app)
    assert refused.value.status == 500


def test_a_post_takes_the_connections_headers_along_and_its_own_length() -> None:
    """Who asks and from where stays; what belongs to the upgrade goes; a browser's key becomes a header."""
    headers = [(b"host", b"h"), (b"upgrade", b"websocket"), (b"sec-websocket-key", b"k"), (b"x-team", b"red")]
    socket = {"type": "websocket", "scheme": "wss", "path": "/v1/responses", "client": ("10.0.0.1", 1)}
    scope = post_scope({**socket, "headers": headers, "subprotocols": ["openai-insecure-api-key.sk-1"]}, 12)
    assert (scope["type"], scope["method"], scope["scheme"], scope["path"]) == (
        "http",
        "POST",
        "https",
        "/v1/responses",
    )
    assert scope["client"] == ("10.0.0.1", 1)
    assert dict(scope["headers"]) == {
        b"host": b"h",
        b"x-team": b"red",
        b"authorization": b"Bearer sk-1",
        b"content-type": b"application/json",
        b"accept": b"text/event-stream",
        b"content-length": b"12",
    }


@pytest.mark.parametrize("mode", ["native", "own"])
async def test_a_native_backends_own_websocket_is_left_alone(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for a group that the plugin compacts is a connection taken over."""
    monkeypatch.setattr(litellm, "callback_settings", {"litellm_compaction": {"mode": mode, "keys": ["k" * 32]}})
    socket = SimpleNamespace()
    data = {"model": "m", "websocket": socket, "first_message": "{}"}
    cache: Any = None
    await CompactionHandler().async_pre_call_hook(UserAPIKeyAuth(), cache, data, "_aresponses_websocket")
    assert (data["websocket"] is socket) == (mode == "native")
    assert ("user_config" in data) == (mode == "own")

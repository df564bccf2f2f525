"""Packed request bodies: what is unpacked, what is refused, and that a bomb stays small."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from litellm_compaction.gateway.bodies import MAX_BODY_BYTES, Message, UnpackedBodies, most_bytes, unpack_bodies

BODY = json.dumps({"model": "m", "input": "die Brücke über den Fluss " * 2000}).encode()
Pack = Callable[[bytes], bytes]


def pack_zstd(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(plain)


def pack_zstd_stream(plain: bytes) -> bytes:
    """As a stream is packed: the frame does not say how long it is."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(plain) + packer.flush()


PACKS: dict[str, Pack] = {"zstd": pack_zstd, "gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}


class Answered:
    """What one request came to: the body and headers that the application saw (None: it was not called), and what the
    client was answered."""

    def __init__(self) -> None:
        self.seen: bytes | None = None
        self.scope: dict[str, Any] = {}
        self.last: Message = {}
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.error: dict[str, Any] = {}

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        parts = []
        while (message := await receive())["type"] == "http.request":
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        self.seen = b"".join(parts)
        self.last = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.error = json.loads(message["body"])["error"]


def ask(
    body: bytes | Sequence[bytes],
    coding: str | None,
    path: str = "/v1/responses",
    *,
    limit: int = MAX_BODY_BYTES,
    ends: bool = True,
) -> Answered:
    """Send a body, in the given pieces; `ends`: whether the client stays until its end."""
    pieces = [body] if isinstance(body, bytes) else list(body)
    last = len(pieces) - 1
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": number < last or not ends}
        for number, piece in enumerate(pieces)
    ]
    waiting = [*messages, {"type": "http.disconnect"}]
    headers = [(b"content-length", b"%d" % sum(map(len, pieces))), (b"content-type", b"application/json")]
    if coding is not None:
        headers.append((b"content-encoding", coding.encode()))
    answered = Answered()

    async def receive() -> Message:
        return waiting.pop(0)

    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(UnpackedBodies(answered.app, limit)(scope, receive, answered.send))
    return answered


@pytest.mark.parametrize("coding", sorted(PACKS))
@pytest.mark.parametrize("path", ["/v1/responses", "/responses/compact", "/root/openai/v1/responses/"])
def test_body_is_unpacked_and_its_headers_are_put_right(coding: str, path: str) -> None:
    """On both doors the application sees a plain body with its true length and no coding, then what the client does."""
    answered = ask(PACKS[coding](BODY), coding.upper(), path)
    assert answered.seen == BODY
    headers = dict(answered.scope["headers"])
    assert headers == {b"content-length": b"%d" % len(BODY), b"content-type": b"application/json"}
    assert answered.last == {"type": "http.disconnect"}


@pytest.mark.parametrize("coding", [*sorted(PACKS), "stream"])
def test_pieces_and_frames_are_one_body(coding: str) -> None:
    """However the body was cut on the way, and also where it was packed in several frames, it is the same body."""
    pack = PACKS.get(coding, pack_zstd_stream)
    packed = pack(BODY) + pack(BODY)
    pieces = [packed[start : start + 7] for start in range(0, len(packed), 7)]
    assert ask(pieces, "zstd" if coding == "stream" else coding).seen == BODY + BODY


@pytest.mark.parametrize("coding", [None, "", "identity", "Identity, identity"])
def test_plain_body_passes_untouched(coding: str | None) -> None:
    """Without a coding the application gets the very scope and messages of the server."""
    answered = ask([b"abc", b"def"], coding)
    assert answered.seen == b"abcdef"
    assert (b"content-length", b"6") in answered.scope["headers"]


def test_other_routes_are_left_alone() -> None:
    """What goes to another route passes as it came: a pass-through hands it on."""
    packed = pack_zstd(BODY)
    for path in ("/v1/chat/completions", "/v1/responses/resp_1/input_items"):
        assert ask(packed, "zstd", path).seen == packed


@pytest.mark.parametrize("coding", ["br", "compress", "gzip, zstd", "zstd, zstd", "\xff", "x" * 5000])
def test_unknown_coding_is_415(coding: str) -> None:
    """A coding that is not read here, and one on top of another, is refused with those that are."""
    answered = ask(BODY, coding)
    assert (answered.status, answered.seen) == (415, None)
    assert answered.headers[b"accept-encoding"] == b"zstd, gzip, deflate"
    assert answered.error["type"] == "invalid_request_error"
    assert (answered.error["param"], answered.error["code"]) == (None, "unsupported_content_encoding")
    assert len(answered.error["message"]) < 200


@pytest.mark.parametrize("coding", sorted(PACKS))
def test_broken_body_is_400(coding: str) -> None:
    """A plain body that claims to be packed, every cut, and bytes behind the end: one clear error."""
    packed = PACKS[coding](os.urandom(300_000))
    cuts = [packed[:length] for length in (0, 1, 4, 20, len(packed) // 2, len(packed) - 1)]
    for broken in (b"{}", BODY, *cuts, packed + b"x", packed + b"\0" * 64):
        answered = ask(broken, coding)
        assert (answered.status, answered.seen, answered.error["code"]) == (400, None, "invalid_body")


@pytest.mark.parametrize("coding", sorted(PACKS))
def test_bomb_is_413_and_stays_small(coding: str) -> None:
    """A small body that stands for 400 MB is refused before it takes more memory than a long session does."""
    bomb = PACKS[coding](bytes(400_000_000))
    assert len(bomb) < 500_000
    tracemalloc.start()
    try:
        answered = ask(bomb, coding)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answered.status, answered.seen, answered.error["code"]) == (413, None, "request_too_large")
    assert peak < most_bytes(len(bomb)) + 20_000_000 < 70_000_000


@pytest.mark.parametrize("coding", sorted(PACKS))
def test_limit_is_of_the_unpacked_body(coding: str) -> None:
    """To the byte, and for what is too long even while it is packed."""
    assert ask(PACKS[coding](BODY), coding, limit=len(BODY)).seen == BODY
    assert ask(PACKS[coding](BODY), coding, limit=len(BODY) - 1).status == 413
    assert ask([os.urandom(600)] * 3, coding, limit=1500).status == 413


def test_dense_bodies_are_bounded_by_what_was_sent() -> None:
    """As long as a session may be anything, more only for what came with it, and never more than the limit."""
    assert most_bytes(10) == most_bytes(100_000) == 16 * 1024 * 1024
    assert most_bytes(1_000_000) == 100_000_000
    assert most_bytes(50_000_000) == MAX_BODY_BYTES


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
def test_frames_without_end_are_refused(coding: str) -> None:
    """A hundred thousand empty frames cost no more than a thousand."""
    assert ask(PACKS[coding](b"") * 100_000, coding).status == 400


def test_zstd_window_is_that_of_http() -> None:
    """A frame that asks for 128 MB of memory to be unpacked is refused; one of 8 MB is read."""
    for log, status in ((23, 200), (27, 400)):
        parameters = zstandard.ZstdCompressionParameters(window_log=log)
        packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        assert ask(packer.compress(BODY) + packer.flush(), "zstd").status == status


def test_client_that_goes_away_is_nobodys_request() -> None:
    """Half a body and no client: the application is not called, and nobody is answered."""
    answered = ask(pack_zstd(BODY)[:100], "zstd", ends=False)
    assert (answered.seen, answered.status) == (None, 0)


def test_other_scopes_pass() -> None:
    """WebSockets and the lifespan have no body."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    for kind in ("websocket", "lifespan"):
        asyncio.run(UnpackedBodies(app)({"type": kind, "path": "/v1/responses", "headers": []}, nothing, nothing))
    assert seen == ["websocket", "lifespan"]


def test_proxy_is_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that has started is wrapped around its stack, however often it is asked for."""
    stack = object()
    app = SimpleNamespace(middleware_stack=stack)
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", SimpleNamespace(app=app))
    unpack_bodies()
    wrapped = app.middleware_stack
    unpack_bodies()
    assert isinstance(wrapped, UnpackedBodies)
    assert (app.middleware_stack, wrapped.app) == (wrapped, stack)


def test_proxy_that_has_not_started_takes_a_middleware(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the start the front way is open; without a proxy there is nothing to do."""
    added: list[object] = []
    app = SimpleNamespace(middleware_stack=None, add_middleware=added.append)
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", SimpleNamespace(app=app))
    unpack_bodies()
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", None)
    unpack_bodies()
    assert added == [UnpackedBodies]

"""Packed request bodies: Codex sends zstd where it is signed in with ChatGPT, and LiteLLM reads the raw bytes as JSON.

| Content-Encoding                    | outcome                                                      |
|-------------------------------------|--------------------------------------------------------------|
| none, `identity`                    | passes untouched                                             |
| `zstd`, `gzip`, `x-gzip`, `deflate` | unpacked, the headers put right, before LiteLLM sees it      |
| the same, broken or cut             | 400                                                          |
| the same, larger than `most_bytes`  | 413; unpacking stops there                                   |
| any other, or several               | 415, with the codings that are read in `Accept-Encoding`     |

Only the two doors of the Responses API; a pass-through route hands its body on as it came.
"""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import zstandard

from litellm_compaction.errors import INVALID_REQUEST

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# A million tokens are about 5 MB of JSON and pictures as much again: this is ten times what a session comes to.
MAX_BODY_BYTES: Final = 128 * 1024 * 1024
# LiteLLM reads a body before it knows who sent it, and what it makes of `[],[],` is thirty times as large. Sessions
# pack to a third or a tenth, logs to a fiftieth: what is denser may be no larger than a long session.
_DENSE_BYTES: Final = 16 * 1024 * 1024
_MOST_DENSE: Final = 100
# RFC 9659: a frame in HTTP needs no larger window, and a decoder sets aside as much memory as a frame asks for.
_ZSTD_WINDOW_BYTES: Final = 8 * 1024 * 1024
# zstd has no bound on what one call gives. A block of 4 bytes may stand for 128 KiB: at most 8 MiB come of so many.
_ZSTD_PIECE_BYTES: Final = 256
# zlib has one, and copies what it has not read yet.
_ZLIB_PIECE_BYTES: Final = 16 * 1024
_PIECE_BYTES: Final = 1024 * 1024
# A frame costs something to begin with, and empty ones are small; what is written in parallel has some dozens.
_MOST_FRAMES: Final = 1_000
_DOORS: Final = ("/responses", "/responses/compact")
# Codings by zlib's number for their framing.
_ZLIB_BITS: Final[Mapping[str, int]] = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_READ_HERE: Final = "zstd, gzip, deflate"


class _Refused(Exception):
    """A body that is not passed on: HTTP status, code and message of the answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status: Final = status
        self.body: Final = {"message": message, "type": INVALID_REQUEST, "param": None, "code": code}


class UnpackedBodies:
    """An ASGI application in front of another one, which gets the bodies of both doors unpacked."""

    def __init__(self, app: App, limit: int = MAX_BODY_BYTES) -> None:
        self.app: Final = app
        self._limit: Final = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        coding: Final = _coding(scope) if scope["type"] == "http" else ""
        if not coding or not scope["path"].rstrip("/").endswith(_DOORS):
            await self.app(scope, receive, send)
            return
        try:
            unpack = _unpacker(coding)
            packed: Final = await _read(receive, self._limit)
            if packed is None:
                return  # the client has gone
            # Never on the event loop: a small body can stand for a large one.
            body: Final = await asyncio.to_thread(_join, unpack(packed), most_bytes(len(packed), self._limit))
        except _Refused as refused:
            await _refuse(send, refused)
            return
        await self.app({**scope, "headers": _put_right(scope, len(body))}, _replay(body, receive), send)


def unpack_bodies() -> None:
    """Put UnpackedBodies in front of the proxy that this process is, once; does nothing in any other process.

    LiteLLM loads callbacks while it starts, when Starlette has built its stack and takes no middleware any more.
    """
    app: Final[Any] = getattr(sys.modules.get("litellm.proxy.proxy_server"), "app", None)
    if app is None:
        return
    if app.middleware_stack is None:
        app.add_middleware(UnpackedBodies)
    elif not isinstance(app.middleware_stack, UnpackedBodies):
        app.middleware_stack = UnpackedBodies(app.middleware_stack)


def most_bytes(packed: int, limit: int = MAX_BODY_BYTES) -> int:
    """What a body of so many bytes may be when it is unpacked."""
    return min(limit, max(_DENSE_BYTES, packed * _MOST_DENSE))


def _coding(scope: Scope) -> str:
    """The coding of a request's body, lower case, "" for none; several are joined by commas."""
    given: Final = [value.decode("latin-1") for name, value in scope["headers"] if name == b"content-encoding"]
    if not given:
        return ""
    codings: Final = [part.strip().lower() for part in ",".join(given).split(",")]
    return ", ".join(part for part in codings if part not in {"", "identity"})


def _unpacker(coding: str) -> Callable[[bytes], Iterator[bytes]]:
    if coding == "zstd":
        return _unpack_zstd
    bits: Final = _ZLIB_BITS.get(coding)
    if bits is None:
        message: Final = f"Unsupported Content-Encoding {coding[:40]!r}. Send the body as it is, or as {_READ_HERE}."
        raise _Refused(415, "unsupported_content_encoding", message)
    return lambda packed: _unpack_zlib(packed, bits)


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The whole body as it came, None if the client goes away before its end."""
    parts: Final[list[bytes]] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _join(pieces: Iterator[bytes], limit: int) -> bytes:
    """The pieces as one, never more than a piece over the limit in memory."""
    parts: Final[list[bytes]] = []
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            parts.append(piece)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise _Refused(400, "invalid_body", "The body is not what its Content-Encoding says, or was cut.") from error
    return b"".join(parts)


def _unpack_zstd(packed: bytes) -> Iterator[bytes]:
    decompressor: Final = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    return _unpack(packed, _ZSTD_PIECE_BYTES, decompressor.decompressobj)


def _unpack_zlib(packed: bytes, bits: int) -> Iterator[bytes]:
    return _unpack(packed, _ZLIB_PIECE_BYTES, lambda: zlib.decompressobj(bits), _PIECE_BYTES)


def _unpack(packed: bytes, piece_bytes: int, begin: Callable[[], Any], *most: int) -> Iterator[bytes]:
    """What an engine makes of a body, read in pieces; `most`: the bytes of one call, where the engine has a bound.

    Raises the engine's errors, EOFError on a body that ends too early or has too many frames.
    """
    engine = begin()
    frames = 1
    for start in range(0, len(packed), piece_bytes):
        piece = packed[start : start + piece_bytes]
        while piece:
            if engine.eof:
                frames = _next_frame(frames)
                engine = begin()
            yield engine.decompress(piece, *most)
            piece = engine.unconsumed_tail or engine.unused_data
    while not engine.eof:
        piece = engine.decompress(b"", *most)
        if not piece and not engine.eof:
            raise EOFError
        yield piece


def _next_frame(frames: int) -> int:
    if frames >= _MOST_FRAMES:
        raise EOFError
    return frames + 1


def _too_large(limit: int) -> _Refused:
    return _Refused(413, "request_too_large", f"The body is larger than {limit} bytes when it is unpacked.")


def _put_right(scope: Scope, length: int) -> list[tuple[bytes, bytes]]:
    gone: Final = {b"content-encoding", b"content-length", b"transfer-encoding"}
    kept: Final = [(name, value) for name, value in scope["headers"] if name not in gone]
    return [*kept, (b"content-length", str(length).encode())]


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message; after it what the server says, so that a client that goes away is noticed."""
    waiting = [body]

    async def replayed() -> Message:
        return {"type": "http.request", "body": waiting.pop(), "more_body": False} if waiting else await receive()

    return replayed


async def _refuse(send: Send, refused: _Refused) -> None:
    body: Final = json.dumps({"error": refused.body}).encode()
    headers: Final = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 415:  # noqa: PLR2004  # RFC 9110 asks for it
        headers.append((b"accept-encoding", _READ_HERE.encode()))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

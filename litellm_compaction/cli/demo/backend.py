"""The model behind the demo's proxy: a chat-completions server on loopback, in a thread of this process.

It speaks the flavour that most self-hosted servers speak, with streaming and tool calls, and keeps what it received.
Paths other than `/chat/completions` are a 404, as on those servers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from litellm_compaction.cli.demo.extractive_model import answer, summarise
from litellm_compaction.cli.demo.transcript_reader import read_entries, read_messages

JsonObject = dict[str, Any]

SUMMARY_TOOL: Final = "create_summary"
MODEL_NAME: Final = "embedded-extractive"
_BYTES_PER_TOKEN: Final = 4  # good enough for the usage of a model that has no tokens
_WORDS_PER_CHUNK: Final = 8


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived. `messages`: (role, text) of each; `bytes`: size of the body."""

    is_summary: bool
    messages: tuple[tuple[str, str], ...]
    bytes: int


class EmbeddedBackend:
    """Serves on `url` while its block runs; `received` holds every request, oldest first."""

    def __init__(self) -> None:
        self.received: Final[list[Received]] = []
        self._server: Final = _Server(self)
        self._thread: Final = threading.Thread(target=self._server.serve_forever, name="demo-backend", daemon=True)

    @property
    def url(self) -> str:
        """Base URL for `api_base`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> EmbeddedBackend:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def complete(self, body: Mapping[str, Any], size: int) -> JsonObject:
        """The assistant message for one chat request of `size` bytes, with `usage`."""
        messages: Final = read_messages(body)
        asks_summary: Final = any(
            tool.get("function", {}).get("name") == SUMMARY_TOOL for tool in body.get("tools") or []
        )
        self.received.append(Received(asks_summary, tuple(messages), size))
        message: Final = _summary_message(messages) if asks_summary else _answer_message(messages)
        written: Final = len(json.dumps(message).encode()) // _BYTES_PER_TOKEN
        read: Final = size // _BYTES_PER_TOKEN
        usage: Final = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        return {"message": message, "usage": usage, "finish_reason": "tool_calls" if asks_summary else "stop"}


def _summary_message(messages: list[tuple[str, str]]) -> JsonObject:
    transcript: Final = "\n".join(text for role, text in messages if role not in {"system", "developer"})
    summary: Final = summarise(read_entries(transcript))
    arguments: Final = {"summary": summary.text, "retain_item_ids": list(summary.retain)}
    function: Final = {"name": SUMMARY_TOOL, "arguments": json.dumps(arguments)}
    call: Final = {"id": "call_summary", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _answer_message(messages: list[tuple[str, str]]) -> JsonObject:
    # The question itself is no knowledge: only what stands before it can be quoted.
    *known, question = messages or [("user", "")]
    return {"role": "assistant", "content": answer(question[1], (text for _, text in known))}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, backend: EmbeddedBackend) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend: Final = backend


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        found: Final = self.path.rstrip("/").endswith("/models")
        models: Final = {"object": "list", "data": [{"id": MODEL_NAME, "object": "model", "owned_by": "demo"}]}
        self._send_json(200 if found else 404, models if found else _error("no such path"))

    def do_POST(self) -> None:
        raw: Final = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.path.rstrip("/").endswith("/chat/completions"):
            self._send_json(404, _error(f"no such path: {self.path}"))
            return
        try:
            body = json.loads(raw)
        except ValueError:
            self._send_json(400, _error("the body is no JSON"))
            return
        done: Final = self.server.backend.complete(body, len(raw))
        if body.get("stream"):
            self._send_stream(done)
        else:
            choice = {"index": 0, "message": done["message"], "finish_reason": done["finish_reason"]}
            self._send_json(200, {**_frame("chat.completion"), "choices": [choice], "usage": done["usage"]})

    def _send_json(self, status: int, body: JsonObject) -> None:
        raw: Final = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _send_stream(self, done: JsonObject) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for chunk in _chunks(done):
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
        """Silent: the demo prints what arrived itself."""


def _chunks(done: JsonObject) -> Iterator[JsonObject]:
    frame: Final = _frame("chat.completion.chunk")
    message: Final = done["message"]
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
    if message.get("tool_calls"):
        deltas.append({"tool_calls": [{"index": 0, **message["tool_calls"][0]}]})
    else:
        words = message["content"].split(" ")
        pieces = [" ".join(words[at : at + _WORDS_PER_CHUNK]) for at in range(0, len(words), _WORDS_PER_CHUNK)]
        deltas += [{"content": (" " if at else "") + piece} for at, piece in enumerate(pieces)]
    for delta in deltas:
        yield {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": done["finish_reason"]}]}
    yield {**frame, "choices": [], "usage": done["usage"]}


def _frame(kind: str) -> JsonObject:
    return {"id": f"chatcmpl-{time.monotonic_ns()}", "object": kind, "created": int(time.time()), "model": MODEL_NAME}


def _error(message: str) -> JsonObject:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}

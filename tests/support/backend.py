"""A scripted model provider: a real HTTP server on loopback that enforces what real ones enforce.

It fails on what it was not told to expect: an unexpected request, a left-over step, a request no provider would take.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.support.rules import OVERFLOW, Json, RefusedError, check_chat_request, message_texts, request_text

__all__ = [
    "SUMMARY_TOOL",
    "Answering",
    "BrokenStream",
    "CutBody",
    "Drip",
    "Failure",
    "Gated",
    "Hangup",
    "Json",
    "JsonText",
    "RefusedError",
    "Reply",
    "ScriptedBackend",
    "Step",
    "Summary",
    "Text",
    "ToolCall",
    "check_chat_request",
    "is_summary_request",
    "message_texts",
    "request_text",
    "running_backend",
]
_GATE_SECONDS: Final = 60
_DRIP_SECONDS: Final = 0.5
SUMMARY_TOOL: Final = "create_summary"


@dataclass(frozen=True)
class Summary:
    """Answers the forced `create_summary` call. `usage` is (prompt, completion) tokens."""

    text: str
    retain: tuple[str, ...] = ()
    usage: tuple[int, int] | None = (100, 20)


@dataclass(frozen=True)
class Text:
    """An ordinary answer of text."""

    text: str
    usage: tuple[int, int] | None = (10, 5)
    finish_reason: str = "stop"


@dataclass(frozen=True)
class JsonText:
    """An ordinary answer whose text is a value written as JSON."""

    value: Any
    usage: tuple[int, int] | None = (10, 5)


@dataclass(frozen=True)
class ToolCall:
    """An answer that calls tools: (name, arguments as JSON)."""

    calls: tuple[tuple[str, str], ...]
    usage: tuple[int, int] | None = (10, 5)


@dataclass(frozen=True)
class Failure:
    """An error: status, OpenAI error body, headers."""

    status: int
    error: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hangup:
    """No answer at all: the connection is closed."""


@dataclass(frozen=True)
class CutBody:
    """An answer whose connection is closed in the middle of the body."""

    step: Summary


@dataclass(frozen=True)
class Drip:
    """An answer that comes a byte at a time, far too slowly, until its client goes away or the gate opens."""

    step: Summary
    gate: threading.Event


@dataclass(frozen=True)
class BrokenStream:
    """A stream that begins with some words and ends with an error inside of it."""

    text: str
    error: Mapping[str, Any]


Reply = Summary | Text | JsonText | ToolCall


@dataclass(frozen=True)
class Gated:
    """A step that is answered only when the gate opens, so that tests wait for states and not for times."""

    step: Reply | Failure | Hangup | CutBody
    gate: threading.Event


Step = Reply | Failure | Hangup | Gated | CutBody | Drip | BrokenStream
Answering = Callable[[Json], Step]


def is_summary_request(body: Json) -> bool:
    """Whether the request forces the summary tool."""
    choice = body.get("tool_choice")
    return isinstance(choice, dict) and choice.get("function", {}).get("name") == SUMMARY_TOOL


class ScriptedBackend:
    """The provider. `url` is its OpenAI base; `requests` are its chat bodies, `raw` and `headers` beside them."""

    def __init__(self) -> None:
        self.requests: list[Json] = []
        self.raw: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.window: int | None = None
        self._steps: deque[Step] = deque()
        self._answering: Answering | None = None
        self._problems: list[str] = []
        self._elsewhere: list[tuple[str, Json]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def script(self, *steps: Step) -> None:
        """The answers of the next requests, in order."""
        self._steps.extend(steps)

    def answer_with(self, answering: Answering) -> None:
        """Answer every request by a function, for sessions of unknown length."""
        self._answering = answering

    def reset(self) -> None:
        """Forget everything of the test before."""
        for recorded in (self.requests, self.raw, self.headers, self._steps, self._problems, self._elsewhere):
            recorded.clear()
        self._answering = None
        self.window = None

    def take_elsewhere(self) -> list[tuple[str, Json]]:
        """(path, body) of the requests to other routes, all answered 404; a test that expects some takes them."""
        taken = list(self._elsewhere)
        self._elsewhere.clear()
        return taken

    def verify(self) -> None:
        """Raises AssertionError on anything unexpected, refused or left over."""
        assert not self._problems, self._problems
        assert not self._elsewhere, f"requests to {[path for path, _ in self._elsewhere]}"
        assert not self._steps, f"left-over steps: {list(self._steps)}"

    def report(self, problem: str) -> None:
        """Let `verify` fail with this."""
        self._problems.append(problem)

    def wait_for(self, gated: Gated) -> Reply | Failure | Hangup | CutBody:
        """What stands behind a gate, when it is open."""
        if not gated.gate.wait(_GATE_SECONDS):
            self.report("a gate was never opened")
        return gated.step

    def next_step(self, path: str, raw: bytes, headers: Mapping[str, str]) -> Step:
        """What to answer to a request; called by the server."""
        body = json.loads(raw)
        with self._lock:
            if not path.endswith("/chat/completions"):
                self._elsewhere.append((path, body))
                return Failure(404, {"message": f"no route {path}", "type": "invalid_request_error"})
            self.requests.append(body)
            self.raw.append(raw)
            self.headers.append(dict(headers))
            try:
                check_chat_request(body, self.window)
            except RefusedError as refused:
                if str(refused) == OVERFLOW:
                    words = f"This model's maximum context length is {self.window} tokens."
                    parts = {"type": "invalid_request_error", "param": "messages", "code": OVERFLOW}
                    return Failure(400, {"message": words, **parts})
                self.report(str(refused))
                return Failure(400, {"message": str(refused), "type": "invalid_request_error"})
            if self._answering is not None:
                step = self._answering(body)
            elif self._steps:
                step = self._steps.popleft()
            else:
                self.report(f"unexpected request: {request_text(body)[:300]}")
                return Failure(500, {"message": "unexpected request"})
            inner = step.step if isinstance(step, Gated) else step
            if isinstance(inner, Summary) and not is_summary_request(body):
                self.report("a summary was scripted, and the request forces none")
            return step


_call_numbers: Final = itertools.count()


def write_message(step: Reply) -> Json:
    """The assistant message of a step; call ids are never given twice."""
    if isinstance(step, Text | JsonText):
        text = step.text if isinstance(step, Text) else json.dumps(step.value)
        return {"role": "assistant", "content": text}
    if isinstance(step, Summary):
        arguments = json.dumps({"summary": step.text, "retain_item_ids": list(step.retain)})
        calls: Sequence[tuple[str, str]] = ((SUMMARY_TOOL, arguments),)
    else:
        calls = step.calls
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in zip(_call_numbers, calls, strict=False)
        ],
    }


def _finish_reason(step: Reply) -> str:
    if isinstance(step, Text):
        return step.finish_reason
    return "stop" if isinstance(step, JsonText) else "tool_calls"


def _usage(step: Reply) -> Json | None:
    if step.usage is None:
        return None
    prompt, completion = step.usage
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def write_completion(step: Reply, model: str) -> Json:
    """A chat completion."""
    choice = {"index": 0, "message": write_message(step), "finish_reason": _finish_reason(step)}
    body: Json = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
    usage = _usage(step)
    return body if usage is None else {**body, "usage": usage}


def write_chunks(step: Reply, model: str) -> Iterator[Json]:
    """The same completion as the chunks of a stream."""
    head: Json = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    delta = write_message(step)
    delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta.get("tool_calls") or ())] or None
    yield {**head, "choices": [{"index": 0, "delta": {k: v for k, v in delta.items() if v is not None}}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish_reason(step)}]}
    usage = _usage(step)
    if usage is not None:
        yield {**head, "choices": [], "usage": usage}


def _hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def _send_badly(handler: BaseHTTPRequestHandler, step: CutBody | Drip, payload: bytes) -> None:
    """Headers that promise a body, and half of it, or a byte now and then."""
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(payload)))
    handler.end_headers()
    with contextlib.suppress(OSError):  # the client may have gone
        if isinstance(step, CutBody):
            handler.wfile.write(payload[: len(payload) // 2])
        else:
            for byte in payload:
                handler.wfile.write(bytes([byte]))
                if step.gate.wait(_DRIP_SECONDS):
                    break
        _hang_up(handler)


class _Handler(BaseHTTPRequestHandler):
    backend: ScriptedBackend
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it
        pass

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        body = json.loads(raw)
        step = self.backend.next_step(self.path, raw, dict(self.headers))
        if isinstance(step, Gated):
            step = self.backend.wait_for(step)
        if isinstance(step, Hangup):
            _hang_up(self)
        elif isinstance(step, CutBody | Drip):
            _send_badly(self, step, json.dumps(write_completion(step.step, body["model"])).encode())
        elif isinstance(step, BrokenStream):
            begun = next(write_chunks(Text(step.text), body["model"]))
            self._send_events([begun, {"error": dict(step.error)}])
        elif isinstance(step, Failure):
            self._send(step.status, json.dumps({"error": dict(step.error)}), step.headers)
        elif body.get("stream"):
            self._send_events([*write_chunks(step, body["model"]), "[DONE]"])
        else:
            self._send(200, json.dumps(write_completion(step, body["model"])), {})

    def _send_events(self, frames: Sequence[Json | str]) -> None:
        written = [frame if isinstance(frame, str) else json.dumps(frame) for frame in frames]
        text = "".join(f"data: {frame}\n\n" for frame in written)
        self._send(200, text, {"content-type": "text/event-stream"})

    def _send(self, status: int, text: str, headers: Mapping[str, str]) -> None:
        payload = text.encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a client may have gone while a gate was shut
            self.wfile.write(payload)


def _handler_for(backend: ScriptedBackend) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"backend": backend})


@contextmanager
def running_backend() -> Iterator[ScriptedBackend]:
    """A backend that ends with the block."""
    backend = ScriptedBackend()
    backend.start()
    try:
        yield backend
    finally:
        backend.stop()

"""A scripted model provider: a real HTTP server on loopback that enforces what real ones enforce.

It fails on what it was not told to expect: an unexpected request, a left-over step, a request no provider would take.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

Json = dict[str, Any]
_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_PARTS: Final = frozenset({"text", "image_url", "input_audio", "file"})
_MEMBERS: Final = frozenset(
    {
        "model",
        "messages",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "reasoning_effort",
        "store",
        "user",
        "n",
        "stop",
        "service_tier",
        "prompt_cache_key",
        "verbosity",
        "web_search_options",  # what LiteLLM makes of the web_search tool that Codex brings
    }
)
_IMAGE: Final = re.compile(r"^data:image/(jpeg|png|webp|gif);base64,(.+)$", re.DOTALL)
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
class Gated:
    """A step that is answered only when the gate opens, so that tests wait for states and not for times."""

    step: Summary | Text | ToolCall | Failure
    gate: threading.Event


Step = Summary | Text | ToolCall | Failure | Gated
Answering = Callable[[Json], Step]


class RefusedError(Exception):
    """What a real provider would answer with a 400."""


def check_chat_request(body: Json, window: int | None = None) -> None:
    """Raises RefusedError on what providers refuse: members, roles, parts, tool pairs, tools rule, images, window."""
    unknown = set(body) - _MEMBERS
    if unknown:
        raise RefusedError(f"unknown parameter {sorted(unknown)}")
    messages = body.get("messages")
    if not messages:
        raise RefusedError("messages is empty")
    for message in messages:
        if message.get("role") not in _ROLES:
            raise RefusedError(f"unknown role {message.get('role')!r}")
        _check_content(message.get("content"))
    _check_pairs(messages)
    tool_history = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
    if tool_history and not body.get("tools"):
        raise RefusedError("tool history without tools")
    if window is not None and count_tokens(body) > window:
        raise RefusedError("context_length_exceeded")


def _check_pairs(messages: Sequence[Json]) -> None:
    """Each tool message answers a call just before it, each call is answered before the conversation goes on."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                raise RefusedError("tool message without its call")
            waiting.discard(message["tool_call_id"])
        elif waiting:
            raise RefusedError(f"tool calls without output: {sorted(waiting)}")
        waiting |= {call["id"] for call in message.get("tool_calls") or ()}
    if waiting:
        raise RefusedError(f"tool calls without output: {sorted(waiting)}")


def _check_content(content: object) -> None:
    if content is None or isinstance(content, str):
        return
    assert isinstance(content, list)
    for part in content:
        if part.get("type") not in _PARTS:
            raise RefusedError(f"unknown content part {part.get('type')!r}")
        if part["type"] == "image_url":
            _check_image(part["image_url"]["url"] if isinstance(part["image_url"], dict) else part["image_url"])


def _check_image(url: str) -> None:
    if url.startswith("https://"):
        return
    match = _IMAGE.match(url)
    if match is None:
        raise RefusedError("image is no data URL of a known format")
    base64.b64decode(match.group(2), validate=True)


def count_tokens(body: Json) -> int:
    """About four characters a token, images not counted."""
    return sum(len(text) for message in body["messages"] for text in message_texts(message)) // 4


def message_texts(message: Json) -> list[str]:
    """The texts of one chat message."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if part.get("type") == "text"]


def request_text(body: Json) -> str:
    """All text of a chat request, joined."""
    return "\n".join(text for message in body["messages"] for text in message_texts(message))


def is_summary_request(body: Json) -> bool:
    """Whether the request forces the summary tool."""
    choice = body.get("tool_choice")
    return isinstance(choice, dict) and choice.get("function", {}).get("name") == SUMMARY_TOOL


class ScriptedBackend:
    """The provider. `url` is its OpenAI base; `requests` are the bodies it got, `headers` beside them."""

    def __init__(self) -> None:
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.window: int | None = None
        self._steps: deque[Step] = deque()
        self._answering: Answering | None = None
        self._problems: list[str] = []
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
        self.requests.clear()
        self.headers.clear()
        self._steps.clear()
        self._problems.clear()
        self._answering = None
        self.window = None

    def verify(self) -> None:
        """Raises AssertionError on anything unexpected, refused or left over."""
        assert not self._problems, self._problems
        assert not self._steps, f"left-over steps: {list(self._steps)}"

    def next_step(self, path: str, body: Json, headers: Mapping[str, str]) -> Step:
        """What to answer to a request; called by the server."""
        with self._lock:
            if not path.endswith("/chat/completions"):
                return Failure(404, {"message": f"no route {path}"})
            self.requests.append(body)
            self.headers.append(dict(headers))
            try:
                check_chat_request(body, self.window)
            except RefusedError as refused:
                if str(refused) == "context_length_exceeded":
                    return Failure(400, {"message": "maximum context length", "code": str(refused)})
                self._problems.append(str(refused))
                return Failure(400, {"message": str(refused), "type": "invalid_request_error"})
            if self._answering is not None:
                step = self._answering(body)
            elif self._steps:
                step = self._steps.popleft()
            else:
                self._problems.append(f"unexpected request: {request_text(body)[:300]}")
                return Failure(500, {"message": "unexpected request"})
            inner = step.step if isinstance(step, Gated) else step
            if isinstance(inner, Summary) and not is_summary_request(body):
                self._problems.append("a summary was scripted, and the request forces none")
            return step


def write_message(step: Summary | Text | ToolCall) -> Json:
    """The assistant message of a step."""
    if isinstance(step, Text):
        return {"role": "assistant", "content": step.text}
    if isinstance(step, Summary):
        arguments = json.dumps({"summary": step.text, "retain_item_ids": list(step.retain)})
        calls: Sequence[tuple[str, str]] = ((SUMMARY_TOOL, arguments),)
    else:
        calls = step.calls
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, (name, arguments) in enumerate(calls)
        ],
    }


def _finish_reason(step: Summary | Text | ToolCall) -> str:
    return step.finish_reason if isinstance(step, Text) else "tool_calls"


def _usage(step: Summary | Text | ToolCall) -> Json | None:
    if step.usage is None:
        return None
    prompt, completion = step.usage
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def write_completion(step: Summary | Text | ToolCall, model: str) -> Json:
    """A chat completion."""
    choice = {"index": 0, "message": write_message(step), "finish_reason": _finish_reason(step)}
    body: Json = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
    usage = _usage(step)
    return body if usage is None else {**body, "usage": usage}


def write_chunks(step: Summary | Text | ToolCall, model: str) -> Iterator[Json]:
    """The same completion as the chunks of a stream."""
    head: Json = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    delta = write_message(step)
    delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta.get("tool_calls") or ())] or None
    yield {**head, "choices": [{"index": 0, "delta": {k: v for k, v in delta.items() if v is not None}}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish_reason(step)}]}
    usage = _usage(step)
    if usage is not None:
        yield {**head, "choices": [], "usage": usage}


def _handler_for(backend: ScriptedBackend) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            step = backend.next_step(self.path, body, dict(self.headers))
            if isinstance(step, Gated):
                step.gate.wait(60)
                step = step.step
            if isinstance(step, Failure):
                self._send(step.status, json.dumps({"error": dict(step.error)}), step.headers)
            elif body.get("stream"):
                frames = [json.dumps(chunk) for chunk in write_chunks(step, body["model"])]
                text = "".join(f"data: {frame}\n\n" for frame in [*frames, "[DONE]"])
                self._send(200, text, {"content-type": "text/event-stream"})
            else:
                self._send(200, json.dumps(write_completion(step, body["model"])), {})

        def _send(self, status: int, text: str, headers: Mapping[str, str]) -> None:
            payload = text.encode()
            self.send_response(status)
            for name, value in {"content-type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

    return Handler


@contextmanager
def running_backend() -> Iterator[ScriptedBackend]:
    """A backend that ends with the block."""
    backend = ScriptedBackend()
    backend.start()
    try:
        yield backend
    finally:
        backend.stop()

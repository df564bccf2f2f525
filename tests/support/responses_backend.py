"""A provider that speaks the Responses API itself, compaction included: a real HTTP server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.backend import Summary, write_completion

Json = dict[str, Any]
USAGE: Json = {
    "input_tokens": 321,
    "input_tokens_details": {"cached_tokens": 300},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 333,
}


@dataclass(frozen=True)
class Asked:
    """One request as it arrived: the route, its body, the bytes of it."""

    path: str
    body: Json
    raw: bytes


@dataclass
class ResponsesBackend:
    """Its OpenAI base, what it was asked, and the items it answers with; a summary asked for as a chat is written."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    output: list[Json] = field(default_factory=list)

    def reset(self, *output: Json) -> None:
        """Forget what was asked; answer with these items from now on."""
        self.asked.clear()
        self.output = list(output)

    def response(self, body: Json) -> Json:
        """A finished Response."""
        return {
            "id": "resp_native",
            "object": "response",
            "created_at": 7,
            "status": "completed",
            "model": body["model"],
            "output": self.output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": USAGE,
        }

    def events(self, body: Json) -> Iterator[Json]:
        """The same as a stream."""
        started = {**self.response(body), "status": "in_progress", "output": [], "usage": None}
        yield {"type": "response.created", "response": started}
        for place, item in enumerate(self.output):
            yield {"type": "response.output_item.added", "output_index": place, "item": item}
            yield {"type": "response.output_item.done", "output_index": place, "item": item}
        yield {"type": "response.completed", "response": self.response(body)}

    def answer(self, path: str, raw: bytes) -> tuple[str, str]:
        """Content type and text of an answer."""
        body = json.loads(raw)
        self.asked.append(Asked(path, body, raw))
        if path.endswith("/chat/completions"):
            return "application/json", json.dumps(write_completion(Summary("S-FACT"), body["model"]))
        if path.endswith("/compact"):
            compacted = {"id": "resp_native", "object": "response.compaction", "created_at": 7}
            return "application/json", json.dumps({**compacted, "output": self.output, "usage": USAGE})
        if not body.get("stream"):
            return "application/json", json.dumps(self.response(body))
        numbered = [{**event, "sequence_number": number} for number, event in enumerate(self.events(body))]
        return "text/event-stream", "".join(f"data: {json.dumps(event)}\n\n" for event in numbered) + "data: [DONE]\n\n"


@contextmanager
def running_responses_backend() -> Iterator[ResponsesBackend]:
    """A provider that ends with the block."""
    backend = ResponsesBackend()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it so
            """Quiet."""

        def do_POST(self) -> None:
            kind, text = backend.answer(self.path, self.rfile.read(int(self.headers["content-length"])))
            payload = text.encode()
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    backend.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield backend
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

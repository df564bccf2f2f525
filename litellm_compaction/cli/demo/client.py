"""What an agent does on the wire: POST a body, read JSON or server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from litellm_compaction.cli.demo.proxy import DemoError, Proxy

JsonObject = dict[str, Any]

HEADER: Final = "x-litellm-compaction"
# Longer than the deadline of the demo's proxy: it is the proxy that gives up.
_TIMEOUT: Final = httpx.Timeout(1000.0, connect=10.0)


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event and the seconds from the request to its arrival."""

    at: float
    data: JsonObject

    @property
    def type(self) -> str:
        return str(self.data.get("type", "?"))


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. `headers`: only those of the plugin. `events`: none where the answer was not streamed."""

    body: JsonObject
    headers: Mapping[str, str]
    seconds: float
    events: tuple[Event, ...] = ()


class AgentClient:
    """Talks to one proxy with its key; use as a context manager. Its methods raise DemoError on anything but a 200."""

    def __init__(self, proxy: Proxy) -> None:
        self._http: Final = httpx.Client(
            base_url=proxy.url, headers={"authorization": f"Bearer {proxy.key}"}, timeout=_TIMEOUT, trust_env=False
        )

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def post(self, path: str, body: JsonObject) -> Reply:
        """The JSON answer."""
        started: Final = time.monotonic()
        try:
            response = self._http.post(path, json=body)
        except httpx.HTTPError as error:
            raise DemoError(f"POST {path}: {type(error).__name__}: {error}") from error
        if response.status_code != httpx.codes.OK:
            raise DemoError(_refusal(path, response))
        return Reply(response.json(), _own_headers(response), time.monotonic() - started)

    def stream(self, path: str, body: JsonObject, on_event: Callable[[Event], None]) -> Reply:
        """The streamed answer; `on_event` is told of every event as it arrives. `body` is the final response object."""
        started: Final = time.monotonic()
        events: list[Event] = []
        try:
            with self._http.stream("POST", path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise DemoError(_refusal(path, response))
                for data in _read_events(response.iter_lines()):
                    events.append(Event(time.monotonic() - started, data))
                    on_event(events[-1])
                headers = _own_headers(response)
        except httpx.HTTPError as error:
            raise DemoError(f"POST {path}: {type(error).__name__}: {error}") from error
        last: Final = events[-1].data.get("response") if events else None
        return Reply(last if isinstance(last, dict) else {}, headers, time.monotonic() - started, tuple(events))


def _read_events(lines: Iterable[str]) -> Iterator[JsonObject]:
    """The JSON of every `data:` line; LiteLLM sends one line per event and no `event:` lines."""
    for line in lines:
        text = line.removeprefix("data:").strip()
        if line.startswith("data:") and text != "[DONE]":
            yield json.loads(text)


def _own_headers(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith(HEADER)}


def _refusal(path: str, response: httpx.Response) -> str:
    try:
        error = response.json()["error"]
        reason = f"{error.get('message')} (type {error.get('type')}, code {error.get('code')})"
    except (ValueError, KeyError, AttributeError, TypeError):
        reason = response.text[:500]
    return f"POST {path} was answered with HTTP {response.status_code}: {reason}"

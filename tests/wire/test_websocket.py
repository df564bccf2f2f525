"""WebSocket frames pass no pre-call hook: items are expanded all the same, triggers are refused, nothing is silent."""

from __future__ import annotations

import json
from typing import Any

from websockets.sync.client import connect

from tests.support.backend import ScriptedBackend, Summary, Text, request_text
from tests.support.bodies import HISTORY, TRIGGER, compact, user
from tests.support.proxy import MASTER_KEY, LiveProxy


def send_frame(proxy: LiveProxy, items: list[Any], **members: Any) -> dict[str, Any]:
    """One `response.create` frame; the last frame of its answer."""
    address = proxy.url.replace("http", "ws") + "/v1/responses?model=deepseek"
    headers = {"authorization": f"Bearer {MASTER_KEY}"}
    with connect(address, additional_headers=headers, proxy=None) as socket:
        socket.send(json.dumps({"type": "response.create", "model": "deepseek", "input": items, **members}))
        while True:
            frame: dict[str, Any] = json.loads(socket.recv(timeout=30))
            if frame["type"] in {"response.completed", "error"}:
                return frame


def test_item_in_a_frame_is_expanded(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """The model behind a WebSocket connection knows what the item holds."""
    backend.script(Summary("S-FACT"), Text("fine"))
    item = compact(proxy, HISTORY)
    assert send_frame(proxy, [item, user("go on")])["type"] == "response.completed"
    assert "S-FACT" in request_text(backend.requests[-1])


def test_trigger_in_a_frame_is_refused(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A trigger that this way in can't serve is an error, not an ordinary answer."""
    assert "cannot compact" in send_frame(proxy, [*HISTORY, TRIGGER])["error"]["message"]
    assert backend.requests == []


def test_context_management_in_a_frame_is_refused(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A wish for compaction that this way in can't serve is an error too."""
    wish = [{"type": "compaction", "compact_threshold": 1_000}]
    assert "cannot compact" in send_frame(proxy, list(HISTORY), context_management=wish)["error"]["message"]
    assert backend.requests == []

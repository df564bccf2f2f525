"""Request bodies and answers that many tests share."""

from __future__ import annotations

import base64
import uuid
import zlib
from struct import pack
from typing import Any

from tests.support.proxy import LiveProxy

Json = dict[str, Any]
TRIGGER: Json = {"type": "compaction_trigger"}
MODELS = ("local-model", "deepseek", "hosted")


def user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def system(text: str) -> Json:
    return {"type": "message", "role": "system", "content": text}


def call(call_id: str, name: str = "shell", arguments: str = "{}") -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, text: str) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def png() -> str:
    """A valid picture of one pixel as a data URL."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + name + data + pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    picture = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(picture).decode()


HISTORY: list[Json] = [user("fix the parser"), assistant("the code word is heron"), user("go on")]


def renew_history() -> None:
    """Make HISTORY a conversation nobody has compacted yet: a proxy gives what it remembers for ten minutes."""
    HISTORY[0]["id"] = f"msg_{uuid.uuid4().hex}"


def compact(proxy: LiveProxy, items: list[Json], model: str = "local-model", key: str | None = None) -> Json:
    """The item of a trigger."""
    body = {"model": model, "input": [*items, TRIGGER]}
    response = proxy.post("/v1/responses", body) if key is None else proxy.post("/v1/responses", body, key)
    assert response.status_code == 200, response.text
    item = response.json()["output"][0]
    assert isinstance(item, dict)
    return item

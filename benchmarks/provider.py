"""A fast model provider for benchmarks: plain asyncio on loopback, in a process of its own.

    python -m benchmarks.provider FOLDER

Prints its port. `POST /SECONDS/v1/chat/completions` is answered with a summary after so many seconds from when the
request has been read; each body goes into a file of the folder, so that the very same request can be sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SUMMARY = {"summary": "The parser was fixed and its tests pass. " * 40, "retain_item_ids": []}
_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True)
class Provider:
    """A running provider: its root URL, and the folder with the requests it was sent."""

    url: str
    folder: Path

    def take_requests(self) -> list[bytes]:
        """The bodies so far, which are forgotten."""
        files = sorted(self.folder.iterdir())
        bodies = [file.read_bytes() for file in files]
        for file in files:
            file.unlink()
        return bodies


@contextmanager
def running_provider() -> Iterator[Provider]:
    """A provider that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="litellm-compaction-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.provider", folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own arguments
        assert process.stdout is not None  # noqa: S101  # it was asked for
        try:
            yield Provider(f"http://127.0.0.1:{int(process.stdout.readline())}", Path(folder))
        finally:
            process.terminate()
            process.wait(20)
            process.stdout.close()


async def _serve(folder: Path) -> None:
    numbers = itertools.count()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                if not head.startswith("post "):  # LiteLLM asks some servers for their models
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                length = int(head.partition("content-length:")[2].partition("\r\n")[0])
                body = await reader.readexactly(length)
                await asyncio.to_thread((folder / f"{next(numbers):06d}.json").write_bytes, body)
                await asyncio.sleep(float(head.partition("/")[2].partition("/")[0]))
                payload = _completion(length)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(f"content-length: {len(payload)}\r\n\r\n".encode() + payload)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=_LIMIT)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def _completion(length: int) -> bytes:
    function = {"name": "create_summary", "arguments": json.dumps(_SUMMARY)}
    call = {"id": "call_1", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": length // 4, "completion_tokens": 500, "total_tokens": length // 4 + 500}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": usage}).encode()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(Path(sys.argv[1])))

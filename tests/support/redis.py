"""A real Redis process on loopback: what workers share is tested against it, not against an imitation."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_START_SECONDS = 30.0


@dataclass(frozen=True)
class LiveRedis:
    """A running Redis: its port on 127.0.0.1 and the file its output goes to."""

    port: int
    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def url(self) -> str:
        """As in the setting `cache`."""
        return f"redis://127.0.0.1:{self.port}"

    def command(self, *words: str) -> bytes:
        """The first bytes of the answer to one command, as Redis writes them."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(" ".join(words).encode() + b"\r\n")
            return connection.recv(65_536)

    def milliseconds(self, key: str) -> int:
        """How long a key has still to live."""
        return int(self.command("PTTL", key).removeprefix(b":"))

    def connections(self) -> int:
        """How many clients it has, with the one that asks."""
        return self.command("CLIENT", "LIST").count(b" addr=127.0.0.1")

    def stop(self) -> None:
        """End it before the block ends, or once more, which does nothing."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)


@contextmanager
def running_redis(port: int | None = None) -> Iterator[LiveRedis]:
    """A Redis on a free port, or on a given one, that keeps nothing and ends with the block. Skips the test where there
    is no `redis-server`, or fails it where it is required (REQUIRE_REDIS=1)."""
    with tempfile.TemporaryDirectory(prefix="litellm-compaction-redis-") as folder:
        log_file = Path(folder) / "redis.log"
        port = port or _free_port()
        command = [_find_server(), "--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--daemonize", "no"]
        command += ["--save", "", "--appendonly", "no"]
        with log_file.open("wb") as log:
            # No session of its own: a test run that is interrupted takes it along.
            process = subprocess.Popen(  # noqa: S603  # our own arguments, no shell
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        redis = LiveRedis(port, process, log_file)
        try:
            _wait_until_live(redis)
            yield redis
        finally:
            redis.stop()


def _find_server() -> str:
    server = shutil.which("redis-server")
    if server is None:
        reason = "redis-server is not installed (Debian package redis-server)"
        if os.environ.get("REQUIRE_REDIS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return server


def _wait_until_live(redis: LiveRedis) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up_at:
        assert redis.process.poll() is None, redis.log_file.read_text(errors="replace")
        try:
            if redis.command("PING") == b"+PONG\r\n":
                return
        except OSError:
            time.sleep(0.02)
    raise AssertionError(f"Redis did not start:\n{redis.log_file.read_text(errors='replace')}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

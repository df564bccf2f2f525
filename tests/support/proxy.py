"""A live LiteLLM proxy process on loopback, with the plugin."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

MASTER_KEY = "sk-test-master-0123456789abcdef"
_START_SECONDS = 120.0
# What a developer's shell may hold that would make this another proxy.
_NOT_INHERITED = ("DATABASE_URL", "REDIS_", "LITELLM_", "OPENAI_", "ANTHROPIC_", "CONFIG_FILE_PATH")
_NO_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@dataclass(frozen=True)
class LiveProxy:
    """A running proxy: its URL and the file its output goes to."""

    url: str
    log_file: Path

    def client(self, key: str = MASTER_KEY) -> httpx.Client:
        """A client with a key."""
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def post(self, path: str, body: object, key: str = MASTER_KEY) -> httpx.Response:
        """One request, one answer."""
        with self.client(key) as client:
            return client.post(path, json=body)

    def stream(self, path: str, body: object, key: str = MASTER_KEY) -> list[dict[str, Any]]:
        """The events of a streamed answer."""
        with self.client(key) as client, client.stream("POST", path, json=body) as response:
            assert response.status_code == 200, response.read()
            return read_events(response.iter_lines())

    def log(self) -> str:
        """What the process has printed so far."""
        return self.log_file.read_text(errors="replace")


def read_event(line: str) -> dict[str, Any] | None:
    """The event in one line of an event stream, None where there is none."""
    text = line.removeprefix("data: ")
    if text in {line, "[DONE]"}:
        return None
    event = json.loads(text)
    assert isinstance(event, dict)
    return event


def read_events(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The events of an event stream."""
    return [event for line in lines if (event := read_event(line)) is not None]


def base_config(backend_url: str, settings: Mapping[str, Any] | None = None, *, plugin: bool = True) -> dict[str, Any]:
    """A config with one model per way LiteLLM takes to a backend: bridged to chat by a switch, and by its provider."""
    shared = {"api_base": backend_url, "api_key": "x"}
    return {
        "model_list": [
            {
                "model_name": "local-model",
                "litellm_params": {"model": "openai/served-model", "use_chat_completions_api": True, **shared},
            },
            {"model_name": "deepseek", "litellm_params": {"model": "deepseek/served-model", **shared}},
            {
                "model_name": "hosted",
                "litellm_params": {
                    "model": "hosted_vllm/served-model",
                    "use_chat_completions_api": True,
                    **shared,
                },
            },
        ],
        "litellm_settings": {"callbacks": ["litellm_compaction.handler"] if plugin else []},
        "callback_settings": {"litellm_compaction": dict(settings or {})},
        "general_settings": {"master_key": MASTER_KEY},
    }


@contextmanager
def running_proxy(
    config: Mapping[str, Any],
    files: Mapping[str, str] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    workers: int = 1,
) -> Iterator[LiveProxy]:
    """A proxy on a free port that ends with the block. `files` are laid beside the config (callbacks, auth), `env` is
    added to its environment, `workers` are processes that share the port."""
    with tempfile.TemporaryDirectory(prefix="litellm-compaction-test-") as folder:
        place = Path(folder)
        for name, text in (files or {}).items():
            (place / name).write_text(text)
        config_file = place / "config.yaml"
        config_file.write_text(json.dumps(config))
        proxy = LiveProxy(f"http://127.0.0.1:{_free_port()}", place / "proxy.log")
        with proxy.log_file.open("wb") as log:
            process = _start(proxy, config_file, log.fileno(), env, workers)
            try:
                _wait_until_live(process, proxy, workers)
                yield proxy
            finally:
                _stop(process)


def start_and_fail(config: Mapping[str, Any]) -> str:
    """The output of a proxy that is expected not to start."""
    with tempfile.TemporaryDirectory(prefix="litellm-compaction-test-") as folder:
        config_file = Path(folder) / "config.yaml"
        config_file.write_text(json.dumps(config))
        proxy = LiveProxy(f"http://127.0.0.1:{_free_port()}", Path(folder) / "proxy.log")
        with proxy.log_file.open("wb") as log:
            process = _start(proxy, config_file, log.fileno())
            try:
                assert process.wait(_START_SECONDS) != 0
            finally:
                _stop(process)
        return proxy.log()


def _start(
    proxy: LiveProxy, config_file: Path, log: int, env: Mapping[str, str] | None = None, workers: int = 1
) -> subprocess.Popen[bytes]:
    dropped = (*_NOT_INHERITED, *_NO_PROXIES)
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(dropped)}
    loopback = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [str(Path(sys.executable).with_name("litellm")), "--config", str(config_file), "--host", "127.0.0.1"]
    command += ["--port", proxy.url.rpartition(":")[2], "--telemetry", "False"]
    if workers > 1:
        # uvicorn kills a worker that is silent for 5 seconds, and on a busy machine importing LiteLLM takes longer.
        command += ["--num_workers", str(workers), "--timeout_worker_healthcheck", str(int(_START_SECONDS))]
    return subprocess.Popen(  # noqa: S603  # our own arguments, no shell
        command,
        env={**kept, **loopback, **(env or {})},
        cwd=config_file.parent,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process that was started, by force where asking does not help; its workers end with it."""
    # No session of its own: a test run that is interrupted or timed out takes its proxies along.
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(20)


def _wait_until_live(process: subprocess.Popen[bytes], proxy: LiveProxy, workers: int) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up_at:
        assert process.poll() is None, proxy.log()
        # The first of several workers answers while the others still load.
        if workers > 1 and proxy.log().count("Application startup complete") < workers:
            time.sleep(0.1)
            continue
        try:
            if httpx.get(f"{proxy.url}/health/liveliness", timeout=2, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"the proxy did not start:\n{proxy.log()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

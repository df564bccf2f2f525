"""A LiteLLM proxy of the demo's own: its config, its process, its log."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

PUBLIC_NAME: Final = "demo-model"
INSTALL_HINT: Final = "This environment has no LiteLLM proxy. Install one: pip install 'litellm-compaction[proxy]'"
# A local model on a slow machine needs more than the default of 240 to read the session.
_DEADLINE_SECONDS: Final = 900
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 10.0
_LOG_TAIL_LINES: Final = 25
_BACKEND_KEY: Final = "LITELLM_COMPACTION_DEMO_BACKEND_KEY"
# What an operator's shell may hold that would make this a proxy with a database, a cache or keys of its own.
_NOT_INHERITED: Final = ("DATABASE_URL", "DIRECT_URL", "REDIS_", "LITELLM_", "STORE_MODEL_IN_DB", "CONFIG_FILE_PATH")


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Model:
    """The model behind the proxy. `name`: a LiteLLM model string. `context`: its window in tokens, where known."""

    name: str
    api_base: str | None = None
    api_key: str | None = None
    context: int | None = None

    @property
    def speaks_chat(self) -> bool:
        """Whether LiteLLM must be told to use chat completions: an OpenAI-like server that is not OpenAI."""
        openai_like: Final = self.name.partition("/")[0] in {"openai", "hosted_vllm"}
        return openai_like and self.api_base is not None and "api.openai.com" not in self.api_base


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy: where it listens, its master key, its log and its config."""

    url: str
    key: str
    log: Path
    config: Path


def write_config(model: Model, master_key: str) -> str:
    """config.yaml of the demo: one model, and the one line that enables the plugin."""
    params: dict[str, Any] = {"model": model.name, "api_key": f"os.environ/{_BACKEND_KEY}"}
    if model.api_key is None and model.api_base is None:
        del params["api_key"]  # a hosted provider: LiteLLM takes the key from its usual variable
    if model.api_base is not None:
        params["api_base"] = model.api_base
    if model.speaks_chat:
        params["use_chat_completions_api"] = True
    entry: dict[str, Any] = {"model_name": PUBLIC_NAME, "litellm_params": params}
    if model.context is not None:
        entry["model_info"] = {"compaction": {"context": model.context}}
    # The session is short: with the default of 20000 tokens nearly all of it would be kept as it is.
    settings: Final = {"mode": "own", "keep_recent_tokens": 2000, "deadline_seconds": _DEADLINE_SECONDS}
    return yaml.safe_dump(
        {
            "model_list": [entry],
            "litellm_settings": {"callbacks": ["litellm_compaction.handler"]},
            "callback_settings": {"litellm_compaction": settings},
            "general_settings": {"master_key": master_key},
        },
        sort_keys=False,
    )


@contextmanager
def running_proxy(model: Model, folder: Path) -> Iterator[Proxy]:
    """A proxy with the plugin on a free loopback port; it ends with the block.

    Raises DemoError when it cannot start, with the end of its log.
    """
    proxy: Final = _prepare(model, folder)
    with proxy.log.open("wb") as log:
        process = _start(proxy, model, log.fileno())
        try:
            _wait_until_live(process, proxy)
            yield proxy
        finally:
            _stop(process)


def _prepare(model: Model, folder: Path) -> Proxy:
    key: Final = f"sk-demo-{secrets.token_urlsafe(24)}"
    config: Final = folder / "config.yaml"
    # The key in it is good for this one proxy only; still nobody else is to read it.
    config.touch(mode=0o600)
    config.write_text(write_config(model, key), encoding="utf-8")
    return Proxy(f"http://127.0.0.1:{_free_port()}", key, folder / "proxy.log", config)


def _start(proxy: Proxy, model: Model, log: int) -> subprocess.Popen[bytes]:
    script: Final = Path(sys.executable).with_name("litellm")
    # The script comes with bare `litellm` as well; what it needs to serve comes with the extra only.
    if not script.exists() or any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
        raise DemoError(INSTALL_HINT)
    command: Final = [str(script), "--config", str(proxy.config), "--host", "127.0.0.1"]
    return subprocess.Popen(  # noqa: S603  our own arguments, no shell
        [*command, "--port", proxy.url.rpartition(":")[2]],
        env=_environment(os.environ, model),
        cwd=proxy.config.parent,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def _environment(inherited: Mapping[str, str], model: Model) -> dict[str, str]:
    kept: Final = {name: value for name, value in inherited.items() if not name.startswith(_NOT_INHERITED)}
    no_proxy: Final = ",".join(filter(None, [inherited.get("NO_PROXY") or inherited.get("no_proxy"), "127.0.0.1"]))
    return {
        **kept,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it tries to download the price list at the start
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        _BACKEND_KEY: model.api_key or "none",
    }


def _wait_until_live(process: subprocess.Popen[bytes], proxy: Proxy) -> None:
    give_up_at: Final = time.monotonic() + _START_SECONDS
    with httpx.Client(trust_env=False, timeout=2.0) as client:
        while time.monotonic() < give_up_at:
            if process.poll() is not None:
                raise DemoError(f"The proxy ended with exit code {process.returncode}.\n{_log_tail(proxy)}")
            try:
                if client.get(f"{proxy.url}/health/liveliness").is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
    raise DemoError(f"The proxy did not answer within {_START_SECONDS:g} seconds.\n{_log_tail(proxy)}")


def _log_tail(proxy: Proxy) -> str:
    lines: Final = proxy.log.read_text(encoding="utf-8", errors="replace").replace(proxy.key, "(master key)")
    return "\n".join(lines.splitlines()[-_LOG_TAIL_LINES:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

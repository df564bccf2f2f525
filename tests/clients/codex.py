"""The real Codex CLI, run non-interactively against a proxy on loopback.

Found in `$CODEX_PREFIX/<version>/node_modules/.bin/codex`, which `npm install --prefix <dir>/<version>
@openai/codex@<version>` makes; without CODEX_PREFIX in `.codex/` of the checkout. A test skips where it is missing,
and fails instead with REQUIRE_CODEX=1 (`.ci/run` sets it) or CI=true.

It reaches nothing but the proxy: no setting of the developer's shell or home comes along, what would call out is
switched off, and whatever calls out all the same is led to a listener on loopback that fails the test.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from tests.support.backend import Json
from tests.support.proxy import MASTER_KEY, LiveProxy

_RUN_SECONDS: Final = 120
# `plugins` off: with it, both releases fetch a list of plugins from github.com and chatgpt.com at every start.
_HEAD: Final = """
model = "{model}"
model_provider = "litellm"
model_context_window = 100000
model_auto_compact_token_limit = 80000
sandbox_mode = "read-only"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.litellm]
name = "{name}"
base_url = "{url}/v1"
env_key = "LITELLM_API_KEY"
wire_api = "responses"
{provider}
[features]
plugins = false
"""
_QUIET: Final = 'sandbox_mode = "read-only"\ncheck_for_update_on_startup = false\n'
_QUIET_TABLES: Final = "\n[analytics]\nenabled = false\n\n[features]\nplugins = false\n"
# Codex has no entry for our models and says so once a turn.
_HARMLESS: Final = "Model metadata for "


@dataclass(frozen=True)
class Way:
    """A way Codex compacts: a release, and how its config asks for it."""

    version: str
    provider_name: str
    door: str
    config: str = ""  # follows the [features] table
    provider: str = ""  # follows the other lines about the provider


BY_CAPABILITIES: Final = Way(
    "0.171.0",
    "LiteLLM",
    "/v1/responses",
    '[model_providers.litellm.capabilities]\nremote_compaction = "v2"\n',
)
BY_NAME: Final = Way("0.171.0", "OpenAI", "/v1/responses")
BY_ENDPOINT: Final = Way("0.153.4", "OpenAI", "/v1/responses/compact", "remote_compaction_v2 = false\n")


def with_websockets(way: Way) -> Way:
    """The same, over WebSockets where the proxy takes them."""
    return replace(way, provider="supports_websockets = true\n")


@dataclass(frozen=True)
class Turn:
    """What one run of Codex printed."""

    events: list[Json]
    returncode: int
    output: str

    @property
    def answer(self) -> str:
        """What the agent said."""
        return "\n".join(item["text"] for item in self._items("agent_message"))

    @property
    def commands(self) -> list[Json]:
        """The commands the agent ran."""
        return self._items("command_execution")

    @property
    def errors(self) -> list[str]:
        """Every error it told of, retries that went well in the end included."""
        told = [item["message"] for item in self._items("error")]
        told += [json.dumps(event) for event in self.events if event["type"] in {"error", "turn.failed"}]
        return [message for message in told if not message.startswith(_HARMLESS)]

    def _items(self, kind: str) -> list[Json]:
        items = [event["item"] for event in self.events if event["type"] == "item.completed"]
        return [item for item in items if item["type"] == kind]


@dataclass
class Codex:
    """One thread of Codex with a home of its own."""

    binary: Path
    folder: Path
    outside: str  # where everything but loopback is led to
    turns: int = 0

    @classmethod
    def at(cls, proxy: LiveProxy, way: Way, folder: Path, outside: str, model: str = "local-model") -> Codex:
        """Codex with a fresh home that knows the proxy and nothing else."""
        head = _HEAD.format(model=model, name=way.provider_name, url=proxy.url, provider=way.provider)
        return cls.with_config(head + way.config, way.version, folder, outside)

    @classmethod
    def with_generated(cls, lines: str, version: str, folder: Path, outside: str) -> Codex:
        """Codex with the lines of `litellm-compaction codex-config`, and what keeps it from calling out."""
        return cls.with_config(f"{_QUIET}{lines}{_QUIET_TABLES}", version, folder, outside)

    @classmethod
    def with_config(cls, config: str, version: str, folder: Path, outside: str) -> Codex:
        """Codex with a fresh home that holds one config."""
        for name in ("home", "work"):
            (folder / name).mkdir()
        (folder / "home" / "config.toml").write_text(config)
        return cls(find_codex(version), folder, outside)

    def say(self, prompt: str) -> Turn:
        """One turn that completes without any error; the second and later ones go on with the thread."""
        turn = self.attempt(prompt)
        assert turn.errors == [], turn.output
        assert turn.returncode == 0, turn.output
        assert [event["type"] for event in turn.events].count("turn.completed") == 1, turn.output
        return turn

    def attempt(self, prompt: str) -> Turn:
        """One turn, however it ends."""
        command = [str(self.binary), "exec", *(["resume", "--last"] if self.turns else [])]
        self.turns += 1
        process = subprocess.Popen(  # noqa: S603  # our own arguments, no shell
            [*command, "--json", "--skip-git-repo-check", prompt],
            env=self._environment(),
            cwd=self.folder / "work",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=_RUN_SECONDS)
        except BaseException:
            # The command is a script that starts the binary: both have to end.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        events = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
        return Turn(events, process.returncode, f"{stdout[-3000:]}\n{stderr[-3000:]}")

    def _environment(self) -> dict[str, str]:
        ways_out = {"HTTP_PROXY": self.outside, "HTTPS_PROXY": self.outside, "ALL_PROXY": self.outside}
        ways_out["NO_PROXY"] = "127.0.0.1"
        return {
            **ways_out,
            **{name.lower(): value for name, value in ways_out.items()},
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "CODEX_HOME": str(self.folder / "home"),
            "LITELLM_API_KEY": MASTER_KEY,
        }


def find_codex(version: str) -> Path:
    """The binary of a release; skips the test without it, or fails where it is required."""
    default = Path(__file__).parents[2] / ".codex"
    binary = Path(os.environ.get("CODEX_PREFIX", default)).absolute() / version / "node_modules" / ".bin" / "codex"
    if not binary.exists():
        reason = f"Codex {version} is not installed at {binary}"
        if os.environ.get("REQUIRE_CODEX") == "1" or os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return binary


def posts(log: str) -> list[tuple[str, int]]:
    """The POSTs in a piece of the proxy's log, in order: path and status."""
    found = re.findall(r'"POST (\S+) HTTP/1\.1" (\d+)', log)
    return [(path, int(status)) for path, status in found]


@contextmanager
def nothing_outside() -> Iterator[str]:
    """The URL of a web proxy that serves nobody; the block fails if anybody came."""
    came: list[str] = []

    class Refuse(socketserver.StreamRequestHandler):
        timeout = 5

        def handle(self) -> None:
            came.append(self.rfile.readline(200).decode(errors="replace").strip())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
    assert came == [], "Codex called out"

"""The real Codex CLI, run non-interactively against a proxy on loopback.

Found in `$CODEX_PREFIX/<version>/node_modules/.bin/codex`, which `npm install --prefix <dir>/<version>
@openai/codex@<version>` makes; without CODEX_PREFIX in `.codex/` of the checkout. A test skips where it is missing,
and fails instead with REQUIRE_CODEX=1, which `.ci/run` sets.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.backend import Json, Step, Summary, Text, ToolCall, is_summary_request, request_text
from tests.support.proxy import MASTER_KEY, LiveProxy

TRIGGER_RELEASE: Final = "0.171.0"  # compacts by a trigger
ENDPOINT_RELEASE: Final = "0.153.4"  # can still be told to use /responses/compact
CODE_WORD: Final = "heron-4711"
# Above the limit in the config below: Codex compacts before it asks again.
OVER_LIMIT: Final = (90_000, 10)
_RUN_SECONDS: Final = 120
_NOT_INHERITED: Final = ("OPENAI_", "CODEX_HOME", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")

BY_CAPABILITIES: Final = """
[model_providers.litellm]
name = "LiteLLM"
base_url = "{url}/v1"
env_key = "LITELLM_API_KEY"
wire_api = "responses"

[model_providers.litellm.capabilities]
remote_compaction = "v2"
"""
BY_NAME: Final = """
[model_providers.litellm]
name = "OpenAI"
base_url = "{url}/v1"
env_key = "LITELLM_API_KEY"
wire_api = "responses"
"""
BY_ENDPOINT: Final = (
    BY_NAME
    + """
[features]
remote_compaction_v2 = false
"""
)
_HEAD: Final = """
model = "local-model"
model_provider = "litellm"
model_context_window = 100000
model_auto_compact_token_limit = 80000
check_for_update_on_startup = false

[analytics]
enabled = false
"""


def find_codex(version: str) -> Path:
    """The binary of a release; skips the test without it, or fails where it is required."""
    default = Path(__file__).parents[2] / ".codex"
    binary = Path(os.environ.get("CODEX_PREFIX", default)) / version / "node_modules" / ".bin" / "codex"
    if not binary.exists():
        reason = f"Codex {version} is not installed at {binary}"
        if os.environ.get("REQUIRE_CODEX") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return binary


@dataclass(frozen=True)
class Codex:
    """One thread of Codex: its release and a home of its own."""

    binary: Path
    home: Path

    @classmethod
    def at(cls, proxy: LiveProxy, version: str, provider: str, folder: Path) -> Codex:
        """Codex with a fresh home that knows the proxy and nothing else."""
        binary = find_codex(version)
        home = folder / "codex-home"
        home.mkdir()
        (home / "config.toml").write_text(_HEAD + provider.format(url=proxy.url))
        (folder / "work").mkdir()
        return cls(binary, home)

    def say(self, prompt: str, *, resume: bool = False) -> list[Json]:
        """One turn; its JSON events. Fails on a turn that did not complete."""
        command = [str(self.binary), "exec", *(["resume", "--last"] if resume else [])]
        options = ["--json", "--skip-git-repo-check", "-c", 'sandbox_mode="danger-full-access"']
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        done = subprocess.run(  # noqa: S603  # our own arguments, no shell
            [*command, *options, prompt],
            env={**kept, "CODEX_HOME": str(self.home), "LITELLM_API_KEY": MASTER_KEY, "NO_PROXY": "127.0.0.1"},
            cwd=self.home.parent / "work",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
        assert any(event.get("type") == "turn.completed" for event in events), events
        return events


def answers(events: list[Json]) -> str:
    """What the agent said in a turn."""
    items = [event["item"] for event in events if event.get("type") == "item.completed"]
    return "\n".join(item["text"] for item in items if item.get("type") == "agent_message")


class Agent:
    """The model behind the proxy. It knows nothing but what it is sent: the code word it made up is said once, by the
    assistant, and Codex drops assistant messages when it compacts."""

    def __init__(self) -> None:
        self.summaries = 0
        self.after_compaction: list[Json] = []

    def __call__(self, body: Json) -> Step:
        text = request_text(body)
        known = re.search(rf"\b{CODE_WORD}\b", text)
        if is_summary_request(body):
            self.summaries += 1
            return Summary(f"The assistant chose the code word {CODE_WORD}." if known else "Nothing was decided.")
        if self.summaries:
            self.after_compaction.append(body)
        last = _last_words(body)
        if "TAKE A LONG LOOK" in last and not self.summaries:
            return _shell(body, "echo looked")
        if "choose a code word" in last:
            return Text(f"I choose {CODE_WORD}.", usage=OVER_LIMIT if "then compact" in last else (100, 10))
        return Text(f"The code word is {CODE_WORD}." if known else "I do not know any code word.")


def _last_words(body: Json) -> str:
    """The newest user message that is the user's own, not the restored summary."""
    said = [request_text({"messages": [message]}) for message in body["messages"] if message["role"] == "user"]
    return next((text for text in reversed(said) if "<conversation_summary" not in text), "")


def _shell(body: Json, command: str) -> ToolCall:
    """A call of whatever shell tool this release offers, in an answer that is over the limit."""
    tools: dict[str, Any] = {tool["function"]["name"]: tool["function"] for tool in body["tools"] if "function" in tool}
    if "exec_command" in tools:
        arguments: Json = {"cmd": command}
    else:
        assert "shell" in tools or "shell_command" in tools, sorted(tools)
        arguments = {"command": command if "shell_command" in tools else ["bash", "-lc", command]}
    name = next(name for name in ("exec_command", "shell_command", "shell") if name in tools)
    return ToolCall(((name, json.dumps(arguments)),), usage=OVER_LIMIT)

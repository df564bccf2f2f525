"""Codex with the lines of `litellm-compaction codex-config` compacts at the gateway's threshold, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from litellm_compaction.cli.main import main
from tests.clients.codex import BY_CAPABILITIES, BY_ENDPOINT, Codex
from tests.clients.conftest import GROUPS
from tests.clients.forgetful import kinds
from tests.support.backend import ScriptedBackend, Step, Summary, Text, is_summary_request
from tests.support.bodies import Json
from tests.support.proxy import LiveProxy

THRESHOLD = 80_000


def generated(folder: Path, proxy: LiveProxy, by: str) -> str:
    """The lines for the group `budgeted`, from a config as the operator has it."""
    entry = {"model_name": "budgeted", "litellm_params": {"model": "openai/served-model"}}
    config = folder / "proxy.yaml"
    config.write_text(yaml.safe_dump({"model_list": [{**entry, "model_info": {"compaction": GROUPS["budgeted"]}}]}))
    told = CliRunner().invoke(main, ["codex-config", str(config), "budgeted", "--base-url", proxy.url, "--by", by])
    assert told.exit_code == 0, told.output
    return told.stdout


@pytest.mark.parametrize(
    ("version", "by"),
    [(BY_CAPABILITIES.version, "capabilities"), (BY_CAPABILITIES.version, "name"), (BY_ENDPOINT.version, "name")],
)
def test_at_the_gateways_threshold_and_not_before(
    proxy: LiveProxy, backend: ScriptedBackend, tmp_path: Path, outside: str, version: str, by: str
) -> None:
    """A turn that used T tokens is followed by an ordinary one; one that used a token more, by a compaction."""
    used = iter((THRESHOLD, THRESHOLD + 1, 20_000))

    def answer(body: Json) -> Step:
        return Summary("SUM") if is_summary_request(body) else Text("fine", usage=(next(used) - 10, 10))

    backend.answer_with(answer)
    codex = Codex.with_generated(generated(tmp_path, proxy, by), version, tmp_path, outside)
    for prompt in ("one", "two", "three"):
        codex.say(prompt)
    assert kinds(backend.requests) == ["turn", "turn", "summary", "turn"]

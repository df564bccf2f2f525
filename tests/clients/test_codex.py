"""Codex compacts through the proxy and goes on, and what only the assistant said is still known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.codex import (
    BY_CAPABILITIES,
    BY_ENDPOINT,
    BY_NAME,
    CODE_WORD,
    ENDPOINT_RELEASE,
    TRIGGER_RELEASE,
    Agent,
    Codex,
    answers,
)
from tests.support.backend import ScriptedBackend, request_text
from tests.support.proxy import LiveProxy

WAYS = [
    pytest.param(TRIGGER_RELEASE, BY_CAPABILITIES, "/v1/responses", id="trigger-by-capabilities"),
    pytest.param(TRIGGER_RELEASE, BY_NAME, "/v1/responses", id="trigger-by-name"),
    pytest.param(ENDPOINT_RELEASE, BY_ENDPOINT, "/v1/responses/compact", id="compact-endpoint"),
]


@pytest.mark.parametrize(("release", "provider", "door"), WAYS)
def test_three_turns_with_a_compaction_between(
    proxy: LiveProxy, backend: ScriptedBackend, tmp_path: Path, release: str, provider: str, door: str
) -> None:
    """Codex compacts before its second turn and goes on in the second and third, the code word still known."""
    codex = Codex.at(proxy, release, provider, tmp_path)
    agent = Agent()
    backend.answer_with(agent)
    log_before = len(proxy.log())
    assert CODE_WORD in answers(codex.say("Please choose a code word, then compact."))
    assert agent.summaries == 0
    assert CODE_WORD in answers(codex.say("What is the word?", resume=True))
    assert agent.summaries == 1
    assert CODE_WORD in answers(codex.say("Say it once more.", resume=True))
    assert agent.summaries == 1
    _check_after_compaction(agent)
    assert f'"POST {door} HTTP/1.1" 200' in proxy.log()[log_before:]


@pytest.mark.parametrize(("release", "provider", "door"), WAYS)
def test_compaction_in_the_middle_of_a_turn(
    proxy: LiveProxy, backend: ScriptedBackend, tmp_path: Path, release: str, provider: str, door: str
) -> None:
    """Codex compacts between a tool's result and the model's next word, and the turn goes on."""
    codex = Codex.at(proxy, release, provider, tmp_path)
    agent = Agent()
    backend.answer_with(agent)
    log_before = len(proxy.log())
    assert CODE_WORD in answers(codex.say("Please choose a code word."))
    assert CODE_WORD in answers(codex.say("TAKE A LONG LOOK and tell me the word.", resume=True))
    assert agent.summaries == 1
    _check_after_compaction(agent)
    assert f'"POST {door} HTTP/1.1" 200' in proxy.log()[log_before:]


def _check_after_compaction(agent: Agent) -> None:
    """Codex has dropped what the assistant said; the word reached the model by the item, and only by it."""
    before, opening, after = request_text(agent.after_compaction[0]).partition("<conversation_summary")
    assert opening
    assert CODE_WORD not in before
    assert CODE_WORD in after.partition("</conversation_summary>")[0]

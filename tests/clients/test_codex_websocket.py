"""Codex with `supports_websockets = true`: the whole session goes over WebSockets, compactions included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.codex import BY_CAPABILITIES, Codex, posts, with_websockets
from tests.clients.forgetful import ForgetfulModel, check_known_by_the_item_alone, kinds
from tests.support.backend import ScriptedBackend, request_text
from tests.support.proxy import LiveProxy


@pytest.fixture
def model(backend: ScriptedBackend) -> ForgetfulModel:
    """The model behind the proxy."""
    model = ForgetfulModel()
    backend.answer_with(model)
    return model


# LiteLLM would hand the one to a WebSocket of the provider's, and bridge the other itself.
@pytest.mark.parametrize("group", ["local-model", "deepseek"])
def test_session_over_websockets_compacts(
    proxy: LiveProxy, backend: ScriptedBackend, model: ForgetfulModel, tmp_path: Path, outside: str, group: str
) -> None:
    """Codex compacts before its second turn and in the middle of its third, goes on, and never falls back to HTTP."""
    codex = Codex.at(proxy, with_websockets(BY_CAPABILITIES), tmp_path, outside, group)
    seen = len(proxy.log())
    assert model.word in codex.say("Please choose a code word, then compact.").answer
    assert model.word in codex.say("What is the word?").answer
    assert model.word in codex.say("Say it once more.").answer
    assert kinds(backend.requests) == ["turn", "summary", "turn", "turn"]
    check_known_by_the_item_alone(backend.requests[2], model.word)
    assert request_text(backend.requests[2]).count("Please choose a code word") == 1
    log = proxy.log()[seen:]
    assert posts(log) == []
    assert log.count('"WebSocket /v1/responses" [accepted]') == 3


def test_compaction_in_the_middle_of_a_turn_over_websockets(
    proxy: LiveProxy, backend: ScriptedBackend, model: ForgetfulModel, tmp_path: Path, outside: str
) -> None:
    """Codex sends a tool's result as what is new, compacts, and the model carries on with all of it known."""
    codex = Codex.at(proxy, with_websockets(BY_CAPABILITIES), tmp_path, outside)
    seen = len(proxy.log())
    assert model.word in codex.say("Please choose a code word.").answer
    turn = codex.say("Please take a look and tell me the word.")
    assert model.word in turn.answer
    assert kinds(backend.requests) == ["turn", "turn", "summary", "turn"]
    result = turn.commands[0]["aggregated_output"].strip()
    for request in backend.requests[2:]:
        assert result in request_text(request)
    check_known_by_the_item_alone(backend.requests[3], model.word)
    assert posts(proxy.log()[seen:]) == []


def test_failed_compaction_over_websockets(
    proxy: LiveProxy, model: ForgetfulModel, tmp_path: Path, outside: str
) -> None:
    """Codex is told why a compaction failed, and compacts in the next turn."""
    codex = Codex.at(proxy, with_websockets(BY_CAPABILITIES), tmp_path, outside)
    codex.say("Please choose a code word, then compact.")
    model.failing = True
    failed = codex.attempt("What is the word?")
    assert failed.returncode == 1
    assert any("compaction_failed" in error for error in failed.errors), failed.output
    model.failing = False
    assert model.word in codex.say("Say it all the same.").answer

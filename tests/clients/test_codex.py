"""Codex compacts through the proxy and goes on, and what only the assistant said is still known."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.codex import BY_CAPABILITIES, BY_ENDPOINT, BY_NAME, Codex, Way, posts
from tests.clients.forgetful import ForgetfulModel, check_known_by_the_item_alone, kinds, roles_after_summary
from tests.support.backend import ScriptedBackend, request_text
from tests.support.proxy import LiveProxy

TURN = ("/v1/responses", 200)
Start = Callable[..., Codex]


@pytest.fixture(
    params=[
        pytest.param(BY_CAPABILITIES, id="trigger-by-capabilities"),
        pytest.param(BY_NAME, id="trigger-by-name"),
        pytest.param(BY_ENDPOINT, id="compact-endpoint"),
    ]
)
def way(request: pytest.FixtureRequest) -> Way:
    """Each way in which Codex compacts."""
    chosen: Way = request.param
    return chosen


@pytest.fixture
def model(backend: ScriptedBackend) -> ForgetfulModel:
    """The model behind the proxy."""
    model = ForgetfulModel()
    backend.answer_with(model)
    return model


@pytest.fixture
def start(proxy: LiveProxy, way: Way, tmp_path: Path, outside: str) -> Start:
    """Starts a thread of Codex, by default with the model group `local-model`."""
    return lambda group="local-model": Codex.at(proxy, way, tmp_path, outside, group)


@pytest.mark.parametrize("group", ["local-model", "summary-alone"])
def test_three_turns_with_a_compaction_between(
    proxy: LiveProxy, backend: ScriptedBackend, model: ForgetfulModel, way: Way, start: Start, group: str
) -> None:
    """Codex compacts before its second turn and goes on in the second and third, the code word still known."""
    codex = start(group)
    seen = len(proxy.log())
    assert model.word in codex.say("Please choose a code word, then compact.").answer
    assert model.word in codex.say("What is the word?").answer
    assert model.word in codex.say("Say it once more.").answer
    assert kinds(backend.requests) == ["turn", "summary", "turn", "turn"]
    assert posts(proxy.log()[seen:]) == [TURN, (way.door, 200), TURN, TURN]
    # Codex has dropped what the assistant said: the word is there by the item, and only by it.
    check_known_by_the_item_alone(backend.requests[2], model.word, verbatim=group != "summary-alone")
    # It has kept what the user said, which the item does not say again.
    assert request_text(backend.requests[2]).count("Please choose a code word") == 1


def test_compaction_in_the_middle_of_a_turn(
    proxy: LiveProxy, backend: ScriptedBackend, model: ForgetfulModel, way: Way, start: Start
) -> None:
    """Codex compacts between a tool's result and the model's next word, and the turn and the next one go on."""
    codex = start()
    seen = len(proxy.log())
    assert model.word in codex.say("Please choose a code word.").answer
    turn = codex.say("Please take a look and tell me the word.")
    assert model.word in turn.answer
    assert model.word in codex.say("Say it once more.").answer
    assert kinds(backend.requests) == ["turn", "turn", "summary", "turn", "turn"]
    assert posts(proxy.log()[seen:]) == [TURN, TURN, (way.door, 200), TURN, TURN]
    assert len(turn.commands) == 1
    result = turn.commands[0]["aggregated_output"].strip()
    assert result
    assert result in request_text(backend.requests[2])
    check_known_by_the_item_alone(backend.requests[3], model.word)
    assert result in request_text(backend.requests[3])
    # The model carries on where it was; nobody has asked it anything anew.
    assert "user" not in roles_after_summary(backend.requests[3])


def test_second_compaction_replaces_the_first(
    proxy: LiveProxy, backend: ScriptedBackend, model: ForgetfulModel, way: Way, start: Start
) -> None:
    """A thread compacted twice still knows the word, and holds one summary, not a summary of a summary beside it."""
    codex = start("summary-alone")
    seen = len(proxy.log())
    assert model.word in codex.say("Please choose a code word, then compact.").answer
    assert model.word in codex.say("What is the word? Say it, then compact.").answer
    assert model.word in codex.say("Say it once more.").answer
    assert kinds(backend.requests) == ["turn", "summary", "turn", "summary", "turn"]
    assert posts(proxy.log()[seen:]) == [TURN, (way.door, 200), TURN, (way.door, 200), TURN]
    check_known_by_the_item_alone(backend.requests[4], model.word, verbatim=False)


def test_failed_compaction_costs_one_request_and_nothing_else(
    proxy: LiveProxy, model: ForgetfulModel, way: Way, start: Start
) -> None:
    """Codex asks once for a compaction that fails, says why, and in a later turn compacts and knows the word: the next
    one, but by the older door, which compacts the same transcript again, when the failure is no longer remembered."""
    codex = start()
    codex.say("Please choose a code word, then compact.")
    model.failing = True
    seen = len(proxy.log())
    failed = codex.attempt("What is the word?")
    assert posts(proxy.log()[seen:]) == [(way.door, 400)]
    assert failed.returncode == 1
    assert any("compaction_failed" in error for error in failed.errors), failed.output
    model.failing = False
    give_up_at = time.monotonic() + (90 if way.door.endswith("compact") else 0)
    while (turn := codex.attempt("Say it all the same.")).returncode and time.monotonic() < give_up_at:
        assert any("compaction_failed" in error for error in turn.errors), turn.output
        time.sleep(3)
    assert model.word in turn.answer, turn.output

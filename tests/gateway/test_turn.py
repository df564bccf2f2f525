"""An ordinary request between LiteLLM's hooks."""

from __future__ import annotations

from typing import Any

from litellm_compaction.conversation.items import RawItem
from litellm_compaction.envelope.sealing import Caller
from litellm_compaction.gateway.turn import Turn

GIVEN: list[RawItem] = [{"type": "message", "role": "user", "content": "long"}]
COMPACTED: list[RawItem] = [{"type": "message", "role": "user", "content": "short"}]


def compacted() -> Turn:
    turn = Turn("group", "group", Caller())
    turn.replaced = GIVEN, COMPACTED
    return turn


def test_a_change_that_the_host_lost_is_made_again() -> None:
    """LiteLLM 1.110 shows its routing hooks a copy of the request: the deployment gets the compacted input."""
    body: dict[str, Any] = {"input": [dict(item) for item in GIVEN]}
    compacted().put_compacted(body)
    assert body["input"] is COMPACTED


def test_what_a_later_hook_made_of_the_compacted_input_stays() -> None:
    """A masker between the two hooks is not undone."""
    masked = [{"type": "message", "role": "user", "content": "s***t"}]
    body: dict[str, Any] = {"input": masked}
    compacted().put_compacted(body)
    assert body["input"] is masked


def test_a_request_that_was_not_compacted_stays() -> None:
    """The very object."""
    body: dict[str, Any] = {"input": GIVEN}
    Turn("group", "group", Caller()).put_compacted(body)
    assert body["input"] is GIVEN

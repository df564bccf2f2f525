"""An item's state that goes on with what was said since."""

from __future__ import annotations

from litellm_compaction.compaction.extend import extend_payload
from litellm_compaction.envelope.payload import Payload
from tests.support.bodies import assistant, call, output, system, user

BEFORE = Payload(origin="auto", summary="S", kept=(user("old"),), system=(system("rules"),), dropped=2, created_at=1)


def test_appended_items_stand_behind_what_was_kept() -> None:
    """Word for word and in order; system text goes with system text, the summary and its counts stay."""
    appended = [assistant("said"), system("more rules"), call("c1"), output("c1", "done"), user("next")]
    after = extend_payload(BEFORE, appended, "threshold", 7)
    assert after.kept == (user("old"), assistant("said"), call("c1"), output("c1", "done"), user("next"))
    assert after.system == (system("rules"), system("more rules"))
    assert (after.summary, after.dropped, after.origin, after.created_at) == ("S", 2, "threshold", 7)


def test_what_is_no_history_or_bound_to_a_provider_stays_away() -> None:
    """Sealed reasoning, tools and server-side ids are left out; what was there is not changed."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    tools = {"type": "additional_tools", "tools": []}
    after = extend_payload(BEFORE, [reasoning, tools, {**user("next"), "id": "msg_1"}], "auto", 7)
    assert after.kept == (user("old"), user("next"))
    assert BEFORE.kept == (user("old"),)


def test_nothing_appended_changes_nothing_but_the_time() -> None:
    """The same state again."""
    assert extend_payload(BEFORE, [], "auto", 1) == BEFORE

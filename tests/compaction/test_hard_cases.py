"""Cases that once went wrong: repeated ids, half-answered batches, summaries of system rank, oversized items, depth."""

from __future__ import annotations

import os
from typing import Any

import pytest

from litellm_compaction.compaction.answer import Reply, read_answer
from litellm_compaction.compaction.plan import MAX_KEPT_BYTES
from litellm_compaction.conversation.expansion import Expansion, expand_items
from litellm_compaction.conversation.items import Kind, classify_items
from litellm_compaction.conversation.pairs import group_items
from litellm_compaction.envelope.payload import MAX_PLAIN_BYTES, Payload, TooLarge
from litellm_compaction.envelope.sealing import seal_payload
from tests.compaction.test_roundtrip import CALLER, RING, expand, open_raw, run
from tests.support.bodies import assistant, call, output, png, user


def shape(items: list[Any]) -> list[str]:
    """Kinds with their call ids."""
    return [f"{item.kind.value}:{item.call_id or item.role}" for item in classify_items(items)]


def test_many_parallel_calls_are_one_batch() -> None:
    """Twenty thousand calls made at once are grouped in linear time and memory."""
    count = 20_000
    calls = [call(f"c{number}") for number in range(count)]
    groups = group_items(classify_items([*calls, *[output(f"c{number}", "o") for number in range(count)]]))
    assert [len(group.items) for group in groups] == [2 * count]


def test_ids_used_again_by_the_client_stay_pairs() -> None:
    """A client's own history with one id used in two turns comes through an expansion as it was."""
    _, item = run([user("a"), assistant("b")], [])
    own = [user("n"), call("z"), output("z", "1"), assistant("p"), call("z"), output("z", "2"), user("q")]
    assert expand_items([item, *own], open_raw).items[-len(own) :] == own


def test_kept_pair_whose_id_is_used_again_is_not_lost() -> None:
    """A kept result survives another call under its id: the kept pair gets an id of its own."""
    _, item = run([user("a"), call("call_0", arguments="old"), output("call_0", "OLD")], [])
    expanded = [entry.raw for entry in expand([item, call("call_0", arguments="new"), output("call_0", "NEW")])]
    assert [raw["output"] for raw in expanded if "output" in raw] == ["OLD", "NEW"]


def test_kept_pair_the_client_still_has_is_not_repeated() -> None:
    """The same call on both sides stands once, even where the client has shortened its output."""
    pair = [call("c", arguments="x"), output("c", "long result")]
    _, item = run([user("a"), *pair], [])
    shortened = [{**pair[0], "id": "fc_1", "status": "completed"}, output("c", "cut")]
    assert shape(expand_items([user("a"), *shortened, item], open_raw).items) == [
        "message:user",
        "call:c",
        "output:c",
        "message:user",
    ]


def test_half_answered_batch_is_told_behind_its_results() -> None:
    """Of a batch with one result the open call is told as text after the result, so that no provider refuses it."""
    _, item = run([user("go"), call("o1"), call("o2"), output("o1", "r1")], [])
    expansion = expand_items([item, user("stop")], open_raw)
    assert shape(expansion.items) == [
        "message:user",
        "message:user",
        "call:o1",
        "output:o1",
        "message:user",
        "message:user",
    ]
    assert "has no result" in str(expansion.items[4])
    assert 4 in expansion.summaries  # the plugin's words, not the user's


@pytest.mark.parametrize("role", ["user", "developer", "tool"])
def test_summaries_never_nest_whatever_their_role(role: Any) -> None:
    """The third compaction carries one summary, and none of the earlier ones as system text."""
    items: list[Any] = [{"role": "system", "content": "rules"}, user("A"), assistant("B")]
    for _ in range(3):
        expansion: Expansion = expand_items(items, open_raw, role)
        assert sum("<conversation_summary" in str(raw) for raw in expansion.items) == (items[0].get("type") is not None)
        outcome, item = run(items, [])
        assert [raw["content"] for raw in outcome.payload.system] == ["rules"]
        items = [item]


def test_item_directly_before_a_trigger_is_something_to_compact() -> None:
    """An earlier item alone can be compacted again, in the role of a developer too."""
    _, item = run([user("A"), assistant("B")], [])
    outcome, _ = run([item], [])
    assert outcome.payload.summary


def test_foreign_note_is_nobodys_message() -> None:
    """A note in the place of a foreign item counts as the plugin's own text."""
    note = {"type": "message", "role": "user", "content": "a note"}
    expansion = expand_items([{"type": "compaction", "encrypted_content": "x"}, user("n")], lambda _: note)
    assert expansion.items == [note, user("n")]
    assert expansion.summaries == {0}


def test_provider_item_passes_where_it_is_native() -> None:
    """What the opener hands back stays the very same item."""
    foreign = {"type": "compaction", "encrypted_content": "gAAAA"}
    expansion = expand_items([foreign, user("n")], lambda raw: raw)
    assert expansion.items[0] is foreign
    assert expansion.summaries == frozenset()


def test_what_no_item_can_hold_is_left_out_and_counted() -> None:
    """A picture larger than an item can be is not kept, and the count says so."""
    picture = {"type": "input_image", "image_url": png() + "A" * MAX_KEPT_BYTES}
    outcome, item = run([user("a"), assistant("b"), {"type": "message", "role": "user", "content": [picture]}], [])
    assert outcome.payload.kept == ()
    assert outcome.dropped == 1
    expand([item])


def test_item_nobody_could_open_is_never_handed_out() -> None:
    """Sealing refuses what opening would refuse."""
    payload = Payload(origin="trigger", summary="s" * (MAX_PLAIN_BYTES + 1))
    with pytest.raises(TooLarge):
        seal_payload(payload, RING, CALLER, "team", os.urandom)


def test_file_in_a_tool_output_is_kept() -> None:
    """A file the summariser can't see stays with the conversation, in a tool's output too."""
    result = {**output("c", ""), "output": [{"type": "input_file", "filename": "a.pdf", "file_data": "data:x"}]}
    outcome, _ = run([user("a"), call("c"), result, assistant("seen" * 200), user("b"), assistant("c")], [])
    assert [raw["type"] for raw in outcome.payload.kept][:2] == ["function_call", "function_call_output"]


def test_type_that_is_no_string_is_opaque() -> None:
    """An item with a list or object as its type is data, not a crash."""
    items: list[Any] = [{"type": ["compaction"], "x": 1}, {"type": {"a": 1}}, user("a")]
    assert [item.kind for item in classify_items(items)] == [Kind.OPAQUE, Kind.OPAQUE, Kind.MESSAGE]
    assert expand_items(items, open_raw).items == items


def test_lone_surrogate_in_a_summary_is_replaced() -> None:
    """A summary is text that can be sent on, whatever the model wrote."""
    assert read_answer(Reply(text='{"summary": "a \\ud800 b"}'), set()).summary == "a ? b"

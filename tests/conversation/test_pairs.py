"""Calls and outputs stay together: groups, batches, open calls, and what cannot be paired."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from litellm_compaction.conversation.items import CALL_OUTPUTS, Kind, classify_items
from litellm_compaction.conversation.pairs import group_items
from litellm_compaction.errors import InvalidToolPairing
from tests.item_strategies import conversations
from tests.support.bodies import assistant, call, output, user

REASONING = {"type": "reasoning", "summary": []}
APPROVAL = {"type": "mcp_approval_request", "id": "r"}
APPROVED = {"type": "mcp_approval_response", "approval_request_id": "r"}

# items -> indexes of each group, and the groups that are open
GROUPS: dict[str, tuple[list[Any], list[list[int]], list[int]]] = {
    "nothing": ([], [], []),
    "messages": ([user("a"), assistant("b")], [[0], [1]], []),
    "pair": ([call("a"), output("a", "1"), assistant("b")], [[0, 1], [2]], []),
    "pair-apart": ([call("a"), user("x"), output("a", "1"), assistant("b")], [[0, 2], [1], [3]], []),
    "open": ([user("x"), call("a")], [[0], [1]], [1]),
    "open-in-the-middle": ([call("a"), user("x"), assistant("y")], [[0], [1], [2]], [0]),
    "no-reaction": ([call("a"), output("a", "1")], [[0, 1]], [0]),
    "user-is-no-reaction": ([call("a"), output("a", "1"), user("x")], [[0, 1], [2]], [0]),
    "reaction-reasoning": ([call("a"), output("a", "1"), REASONING], [[0, 1], [2]], []),
    "reaction-call": ([call("a"), output("a", "1"), call("b")], [[0, 1], [2]], [1]),
    "batch": (
        [call("a"), call("b"), output("b", "2"), output("a", "1"), assistant("c")],
        [[0, 1, 2, 3], [4]],
        [],
    ),
    "batch-half-answered": ([call("a"), call("b"), output("a", "1"), assistant("c")], [[0, 1, 2], [3]], [0]),
    "batch-over-reasoning": (
        [call("a"), REASONING, call("b"), output("a", "1"), output("b", "2"), assistant("c")],
        [[0, 2, 3, 4], [1], [5]],
        [],
    ),
    "message-ends-a-batch": (
        [call("a"), assistant("x"), call("b"), output("a", "1"), output("b", "2"), assistant("c")],
        [[0, 3], [1], [2, 4], [5]],
        [],
    ),
    "steps": (
        [call("a"), output("a", "1"), call("b"), output("b", "2"), assistant("c")],
        [[0, 1], [2, 3], [4]],
        [],
    ),
    "approval": ([APPROVAL, APPROVED, assistant("c")], [[0, 1], [2]], []),
    "standalone-output": ([user("a"), {"type": "function_call_output", "name": "n", "output": "o"}], [[0], [1]], []),
    "call-without-id": ([{"type": "tool_search_call"}, assistant("a")], [[0], [1]], []),
    "same-id-other-type": (
        [call("a"), {"type": "custom_tool_call", "call_id": "a"}, output("a", "1")],
        [[0, 1, 2]],
        [0],
    ),
    "codex-answers-a-local-shell-call-with-a-functions-output": (
        [{"type": "local_shell_call", "call_id": "a", "action": {}}, output("a", "o"), assistant("b")],
        [[0, 1], [2]],
        [],
    ),
    "older-codex-answers-a-function": (
        [call("a"), {"type": "custom_tool_call_output", "call_id": "a", "output": "o"}, assistant("b")],
        [[0, 1], [2]],
        [],
    ),
}


@pytest.mark.parametrize(("items", "groups", "open_groups"), GROUPS.values(), ids=GROUPS)
def test_groups(items: list[Any], groups: list[list[int]], open_groups: list[int]) -> None:
    """Which items stay or go together, and which groups still wait for something."""
    found = group_items(classify_items(items))
    assert [[item.index for item in group.items] for group in found] == groups
    assert [place for place, group in enumerate(found) if group.open] == open_groups
    assert [group.last_index for group in found] == [places[-1] for places in groups]


@pytest.mark.parametrize(("call_type", "output_type"), CALL_OUTPUTS.items(), ids=CALL_OUTPUTS)
def test_every_call_type_pairs_with_its_output(call_type: str, output_type: str) -> None:
    """One table says what answers what."""
    ids = {"id": "r", "approval_request_id": "r"} if call_type.startswith("mcp") else {"call_id": "r"}
    items = [{"type": call_type, **ids}, {"type": output_type, **ids}, assistant("a")]
    (first, second) = group_items(classify_items(items))
    assert ([item.type for item in first.items], first.open) == ([call_type, output_type], False)
    assert len(second.items) == 1


@pytest.mark.parametrize(
    ("items", "place", "words"),
    [
        ([user("a"), output("x", "1")], 1, "Tool output without its call 'x'."),
        ([output("x", "1"), call("x")], 0, "Tool output without its call 'x'."),
        ([call("x"), call("x")], 1, "Duplicate call id 'x'."),
        ([call("x"), output("x", "1"), call("x"), output("x", "2")], 2, "Duplicate call id 'x'."),
        ([call("x"), output("x", "1"), output("x", "2")], 2, "Second output for call 'x'."),
        ([{"type": "shell_call", "call_id": "x"}, output("x", "1")], 1, "Tool output without its call 'x'."),
    ],
    ids=["lone", "before-its-call", "twice", "used-again", "answered-twice", "wrong-type"],
)
def test_what_cannot_be_paired_is_refused(items: list[Any], place: int, words: str) -> None:
    """The error names the item and its call id."""
    with pytest.raises(InvalidToolPairing) as caught:
        group_items(classify_items(items))
    assert caught.value.message == f"input[{place}]: {words}"


@given(conversations())
def test_groups_are_a_partition_that_never_splits_a_pair(items: list[dict[str, Any]]) -> None:
    """Each item stands in exactly one group, an output in the group of its call, groups in order of their first."""
    classified = classify_items(items)
    groups = group_items(classified)
    assert sorted(item.index for group in groups for item in group.items) == list(range(len(items)))
    assert [group.items[0].index for group in groups] == sorted(group.items[0].index for group in groups)
    for group in groups:
        assert [item.index for item in group.items] == sorted(item.index for item in group.items)
        calls = {item.call_id for item in group.items if item.kind is Kind.CALL}
        outputs = {item.call_id for item in group.items if item.kind is Kind.OUTPUT}
        assert outputs <= calls
        assert group.open or calls == outputs

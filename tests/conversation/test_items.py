"""Every kind of item is told apart, and every shape of `input` becomes a list."""

from __future__ import annotations

from typing import Any

import pytest

from litellm_compaction.conversation.items import CALL_OUTPUTS, OUTPUT_CALLS, Kind, classify_items, normalize_input
from litellm_compaction.errors import InvalidInput

Row = tuple[dict[str, Any], Kind, str, str | None]  # the item, its kind, its role, what pairs it

TABLE: dict[str, Row] = {
    "user": ({"type": "message", "role": "user", "content": "a"}, Kind.MESSAGE, "user", None),
    "assistant": ({"type": "message", "role": "assistant", "content": []}, Kind.MESSAGE, "assistant", None),
    "system": ({"type": "message", "role": "system", "content": "a"}, Kind.MESSAGE, "system", None),
    "developer": ({"type": "message", "role": "developer", "content": "a"}, Kind.MESSAGE, "developer", None),
    "no-type": ({"role": "assistant", "content": "a"}, Kind.MESSAGE, "assistant", None),
    "null-type": ({"type": None, "role": "system", "content": "a"}, Kind.MESSAGE, "system", None),
    "no-role": ({"type": "message", "content": "a"}, Kind.MESSAGE, "user", None),
    "agent": ({"type": "agent_message", "role": "assistant", "content": "a"}, Kind.MESSAGE, "user", None),
    "reasoning": ({"type": "reasoning", "summary": []}, Kind.REASONING, "", None),
    "function_call": ({"type": "function_call", "call_id": "c", "id": "fc_1"}, Kind.CALL, "", "c"),
    "function_output": ({"type": "function_call_output", "call_id": "c"}, Kind.OUTPUT, "", "c"),
    "output-without-id": ({"type": "function_call_output", "name": "n"}, Kind.OUTPUT, "", None),
    "blank-call-id": ({"type": "function_call", "call_id": ""}, Kind.CALL, "", None),
    "number-call-id": ({"type": "function_call", "call_id": 7}, Kind.CALL, "", None),
    "custom_call": ({"type": "custom_tool_call", "call_id": "c"}, Kind.CALL, "", "c"),
    "custom_output": ({"type": "custom_tool_call_output", "call_id": "c"}, Kind.OUTPUT, "", "c"),
    "local_shell": ({"type": "local_shell_call", "call_id": "c", "id": "l"}, Kind.CALL, "", "c"),
    "local_shell-old": ({"type": "local_shell_call", "id": "l"}, Kind.CALL, "", "l"),
    "local_shell_output": ({"type": "local_shell_call_output", "id": "l"}, Kind.OUTPUT, "", "l"),
    "shell": ({"type": "shell_call", "call_id": "c"}, Kind.CALL, "", "c"),
    "shell_output": ({"type": "shell_call_output", "call_id": "c"}, Kind.OUTPUT, "", "c"),
    "patch": ({"type": "apply_patch_call", "call_id": "c"}, Kind.CALL, "", "c"),
    "patch_output": ({"type": "apply_patch_call_output", "call_id": "c"}, Kind.OUTPUT, "", "c"),
    "computer": ({"type": "computer_call", "call_id": "c"}, Kind.CALL, "", "c"),
    "computer_output": ({"type": "computer_call_output", "call_id": "c"}, Kind.OUTPUT, "", "c"),
    "tool_search": ({"type": "tool_search_call", "call_id": "c"}, Kind.CALL, "", "c"),
    "tool_search_output": ({"type": "tool_search_output", "call_id": "c"}, Kind.OUTPUT, "", "c"),
    "approval": ({"type": "mcp_approval_request", "id": "r", "call_id": "x"}, Kind.CALL, "", "r"),
    "approved": ({"type": "mcp_approval_response", "approval_request_id": "r", "id": "x"}, Kind.OUTPUT, "", "r"),
    "web_search": ({"type": "web_search_call", "id": "w"}, Kind.HOSTED, "", None),
    "file_search": ({"type": "file_search_call", "id": "w"}, Kind.HOSTED, "", None),
    "interpreter": ({"type": "code_interpreter_call", "id": "w"}, Kind.HOSTED, "", None),
    "image": ({"type": "image_generation_call", "id": "w"}, Kind.HOSTED, "", None),
    "mcp_call": ({"type": "mcp_call", "id": "w", "call_id": "x"}, Kind.HOSTED, "", None),
    "mcp_list": ({"type": "mcp_list_tools", "id": "w"}, Kind.HOSTED, "", None),
    "tools": ({"type": "additional_tools", "role": "developer", "tools": []}, Kind.TOOLS, "", None),
    "configuration": ({"type": "configuration_update"}, Kind.CONTROL, "", None),
    "reference": ({"type": "item_reference", "id": "i"}, Kind.REFERENCE, "", None),
    "bare-reference": ({"id": "i"}, Kind.REFERENCE, "", None),
    "null-reference": ({"id": "i", "type": None}, Kind.REFERENCE, "", None),
    "compaction": ({"type": "compaction"}, Kind.COMPACTION, "", None),
    "compaction_summary": ({"type": "compaction_summary"}, Kind.COMPACTION, "", None),
    "context_compaction": ({"type": "context_compaction"}, Kind.COMPACTION, "", None),
    "trigger": ({"type": "compaction_trigger", "id": "t"}, Kind.TRIGGER, "", None),
    "unknown": ({"type": "never_heard_of", "role": "system", "call_id": "c"}, Kind.OPAQUE, "", None),
    "nothing": ({}, Kind.OPAQUE, "", None),
    "type-is-a-list": ({"type": ["message"], "x": 1}, Kind.OPAQUE, "", None),
}


@pytest.mark.parametrize(("raw", "kind", "role", "call_id"), TABLE.values(), ids=TABLE)
def test_classification(raw: dict[str, Any], kind: Kind, role: str, call_id: str | None) -> None:
    """Kind, role and pairing id of one item; the item itself stays the client's own."""
    (item,) = classify_items([raw])
    assert (item.kind, item.role, item.call_id) == (kind, role, call_id)
    assert item.raw is raw
    assert item.is_system is (kind is Kind.MESSAGE and role in {"system", "developer"})
    assert item.is_user is (kind is Kind.MESSAGE and role == "user")
    assert item.is_assistant is (kind is Kind.MESSAGE and role == "assistant")
    assert item.is_history is (kind not in {Kind.TOOLS, Kind.CONTROL, Kind.TRIGGER})


def test_every_kind_is_in_the_table() -> None:
    """The table above names every kind, and each call type with its output."""
    assert {row[1] for row in TABLE.values()} == set(Kind)
    named = {row[0].get("type") for row in TABLE.values() if isinstance(row[0].get("type"), str)}
    assert {*CALL_OUTPUTS, *OUTPUT_CALLS} <= named


def test_items_are_numbered_in_their_order() -> None:
    """An index is the place in the list."""
    items = classify_items([row[0] for row in TABLE.values()])
    assert [item.index for item in items] == list(range(len(TABLE)))


ITEM = {"type": "message", "role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("given", "items"),
    [
        (None, []),
        ("", []),
        ("hi", [{"type": "message", "role": "user", "content": "hi"}]),
        (ITEM, [ITEM]),
        ([], []),
        ([ITEM, {}], [ITEM, {}]),
        ((ITEM,), [ITEM]),
    ],
    ids=["null", "blank", "string", "object", "empty", "list", "tuple"],
)
def test_input_becomes_a_list(given: object, items: list[Any]) -> None:
    """A string is one user message, a bare object one item, null nothing."""
    assert normalize_input(given) == items


@pytest.mark.parametrize(
    ("given", "named"),
    [(7, "'input'"), (True, "'input'"), ([ITEM, "text"], "'input[1]'"), ([None], "'input[0]'"), (b"ab", "'input[0]'")],
    ids=["number", "boolean", "string-inside", "null-inside", "bytes"],
)
def test_input_that_is_no_list_of_items_is_refused(given: object, named: str) -> None:
    """The error names the place that is wrong."""
    with pytest.raises(InvalidInput) as caught:
        normalize_input(given)
    assert named in caught.value.message

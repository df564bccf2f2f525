"""Responses items as data: every kind that Codex and the SDKs send, classified once.

An item is never changed here; `Item` is a view on the client's own mapping.
Source of kinds: OpenAI's ResponseInputItem union, and what Codex 0.120 to 0.171 was seen to send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from litellm_compaction.errors import InvalidInput

RawItem = Mapping[str, Any]


class Kind(StrEnum):
    """What an item is to a compaction."""

    # Looked up in sets for every item: an Enum's own hash is a Python function.
    __hash__ = str.__hash__

    MESSAGE = "message"
    REASONING = "reasoning"
    CALL = "call"  # asks for an output that is an item of its own
    OUTPUT = "output"  # answers a call
    HOSTED = "hosted"  # a tool the server ran: call and result in one item
    TOOLS = "tools"  # additional_tools: a part of the request, not of its history
    CONTROL = "control"  # configuration_update: speaks to the server, not to the model
    REFERENCE = "reference"  # item_reference: a pointer into a store
    COMPACTION = "compaction"
    TRIGGER = "compaction_trigger"
    OPAQUE = "opaque"  # a kind unknown here: data, handed on as it is


TRIGGER_TYPE: Final = "compaction_trigger"
COMPACTION_TYPES: Final = frozenset({"compaction", "compaction_summary", "context_compaction"})
_CONTROLS: Final = COMPACTION_TYPES | {TRIGGER_TYPE}
# Roles whose words are never removed and, for the first two, never summarised away.
SYSTEM_ROLES: Final = frozenset({"system", "developer"})

# call type -> output type. One table for classification, pairing and rendering.
CALL_OUTPUTS: Final[Mapping[str, str]] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
OUTPUT_CALLS: Final[Mapping[str, str]] = {output: call for call, output in CALL_OUTPUTS.items()}
_HOSTED: Final = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
    }
)
_PAIRED: Final = frozenset({Kind.CALL, Kind.OUTPUT})
_NO_HISTORY: Final = frozenset({Kind.TOOLS, Kind.CONTROL, Kind.TRIGGER})
# MCP approvals pair by the request's own id; local shell calls of older Codex carry only an id.
_CALL_ID: Final = ("call_id",)
_ID_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "mcp_approval_request": ("id",),
    "mcp_approval_response": ("approval_request_id",),
    "local_shell_call": ("call_id", "id"),
    "local_shell_call_output": ("call_id", "id"),
}
_FIXED: Final[Mapping[str, Kind]] = {
    "message": Kind.MESSAGE,
    "agent_message": Kind.MESSAGE,
    "reasoning": Kind.REASONING,
    "additional_tools": Kind.TOOLS,
    "configuration_update": Kind.CONTROL,
    "item_reference": Kind.REFERENCE,
    TRIGGER_TYPE: Kind.TRIGGER,
    **dict.fromkeys(COMPACTION_TYPES, Kind.COMPACTION),
    **dict.fromkeys(_HOSTED, Kind.HOSTED),
    **dict.fromkeys(CALL_OUTPUTS, Kind.CALL),
    **dict.fromkeys(OUTPUT_CALLS, Kind.OUTPUT),
}


# Not frozen, though nothing changes it: there are thousands, and a frozen one takes three times as long to make.
@dataclass(slots=True)
class Item:
    """One classified item.

    `index` is its place in the input, `type` the item's own type (`message` where it has only a role), `role` a
    message's role else "", `call_id` what pairs a call with its output, None where there is none.
    """

    index: int
    type: str
    kind: Kind
    role: str
    call_id: str | None
    raw: RawItem

    @property
    def is_system(self) -> bool:
        """A system or developer message: carried word for word, never summarised away."""
        return self.kind is Kind.MESSAGE and self.role in SYSTEM_ROLES

    @property
    def is_user(self) -> bool:
        return self.kind is Kind.MESSAGE and self.role == "user"

    @property
    def is_assistant(self) -> bool:
        return self.kind is Kind.MESSAGE and self.role == "assistant"

    @property
    def is_history(self) -> bool:
        """Part of what happened, as opposed to parts of the request that travel in the same list."""
        return self.kind not in _NO_HISTORY


def is_control(raw: RawItem) -> bool:
    """Whether an item speaks to the plugin: a compaction item or a trigger, in any spelling."""
    named: Final = raw.get("type")
    return isinstance(named, str) and named in _CONTROLS


def normalize_input(value: object) -> list[RawItem]:
    """`input` as a list of items: a string is one user message, a bare object one item, None nothing.

    Raises InvalidInput for anything else.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}] if value else []
    if isinstance(value, Mapping):
        return [value]
    if not isinstance(value, Sequence):
        raise InvalidInput("Invalid type for 'input': expected a string or an array of items.")
    for index, entry in enumerate(value):
        if not isinstance(entry, Mapping):
            raise InvalidInput(f"Invalid type for 'input[{index}]': expected an object.")
    return list(value)


def classify_items(raw_items: Sequence[RawItem]) -> tuple[Item, ...]:
    """Each item with its kind; the order and the items themselves stay as they are."""
    return tuple(_classify(index, raw) for index, raw in enumerate(raw_items))


def _classify(index: int, raw: RawItem) -> Item:
    named: Final = raw.get("type")
    item_type: Final = named if isinstance(named, str) else _untyped(raw)
    kind: Final = _FIXED.get(item_type, Kind.OPAQUE)
    if kind in _PAIRED:
        return Item(index, item_type, kind, "", _call_id(raw, item_type), raw)
    if kind is Kind.MESSAGE:
        role: Final = "user" if item_type == "agent_message" else str(raw.get("role") or "user")
        return Item(index, item_type, kind, role, None, raw)
    return Item(index, item_type, kind, "", None, raw)


def _untyped(raw: RawItem) -> str:
    if "role" in raw:
        return "message"
    # item_reference may leave its type out: an id and nothing else.
    return "item_reference" if set(raw) <= {"id", "type"} and "id" in raw else "unknown"


def _call_id(raw: RawItem, item_type: str) -> str | None:
    for name in _ID_MEMBERS.get(item_type, _CALL_ID):
        value = raw.get(name)
        if isinstance(value, str) and value:
            return value
    return None

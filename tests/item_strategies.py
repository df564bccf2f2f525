"""Hypothesis strategies for whole conversations: every kind of item, pairs whole, calls open only at the end."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

# Any text, lone surrogates included: tool output is not always valid UTF-8.
texts = st.text(st.characters(exclude_categories=()), min_size=1, max_size=40)
PAIRS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
}


def messages(role: str) -> st.SearchStrategy[Json]:
    part = "output_text" if role == "assistant" else "input_text"
    content = st.one_of(texts, texts.map(lambda text: [{"type": part, "text": text}]))
    return content.map(lambda value: {"type": "message", "role": role, "content": value})


@st.composite
def batches(draw: st.DrawFn) -> list[Json]:
    """One to three calls made at once, then their outputs; ids are given by `conversations`."""
    kinds = draw(st.lists(st.sampled_from(sorted(PAIRS)), min_size=1, max_size=3))
    calls = [{"type": kind, "name": "tool", "arguments": "{}", "input": draw(texts)} for kind in kinds]
    outputs = [{"type": PAIRS[kind], "output": draw(texts)} for kind in kinds]
    return [*calls, *outputs]


singles = st.one_of(
    messages("user"),
    messages("assistant"),
    messages("developer"),
    messages("system"),
    texts.map(lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], "content": None}),
    st.just({"type": "reasoning", "summary": [], "encrypted_content": "gAAAAopaque"}),
    texts.map(lambda text: {"type": "web_search_call", "status": "completed", "action": {"query": text}}),
    texts.map(lambda text: {"type": "mcp_call", "name": "m", "arguments": "{}", "output": text}),
    texts.map(lambda text: {"type": "agent_message", "author": "a", "recipient": "b", "content": text}),
    texts.map(lambda text: {"type": "never_heard_of", "payload": {"deep": [text]}}),
    st.just({"type": "item_reference", "id": "msg_1"}),
    st.just({"type": "additional_tools", "role": "developer", "tools": []}),
    st.just({"type": "configuration_update", "reasoning": {"effort": "high"}}),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    """A conversation with at least one user message; the last batch may be open."""
    steps = draw(st.lists(st.one_of(singles.map(lambda item: [item]), batches()), max_size=12))
    items = [draw(messages("user")), *(dict(item) for step in steps for item in step)]
    waiting: list[str] = []
    for place, item in enumerate(items):
        item["id"] = f"id_{place}"
        if item["type"] in PAIRS:
            item["call_id"] = f"call_{place}"
            waiting.append(item["call_id"])
        elif item["type"] in PAIRS.values():
            item["call_id"] = waiting.pop(0)
    if draw(st.booleans()):
        items.append({"type": "function_call", "call_id": "call_open", "name": "tool", "arguments": "{}"})
    return items

"""Whatever a client does with an item, nothing protected is lost, repeated or put out of order."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litellm_compaction.conversation.expansion import expand_items
from litellm_compaction.conversation.items import CALL_OUTPUTS, Item, Kind, classify_items
from litellm_compaction.conversation.pairs import group_items
from litellm_compaction.envelope.payload import Origin
from litellm_compaction.envelope.sealing import seal_payload
from tests.compaction.test_roundtrip import CALLER, RING, TURN, expand, open_raw, run
from tests.item_strategies import Json, conversations
from tests.support.bodies import png

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FILE: Json = {"type": "input_file", "filename": "a.pdf", "file_id": "f"}
IMAGE: Json = {"type": "input_image", "image_url": png()}
EXTRAS: list[list[Json]] = [
    [{"type": "message", "role": "user", "content": [FILE]}],
    [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"}, IMAGE]}],
    [{"type": "function_call", "name": "n"}, {"type": "function_call_output", "output": [IMAGE, FILE]}],
    [{"type": "mcp_approval_request", "name": "n"}, {"type": "mcp_approval_response", "approve": True}],
    [{"type": "function_call_output", "name": "standalone", "output": "o"}],
]


@st.composite
def marked(draw: st.DrawFn) -> list[Json]:
    """A conversation with files, images and approvals, each item with a mark that tells it from all others."""
    items = draw(conversations())
    for extra in draw(st.lists(st.sampled_from(EXTRAS), max_size=2)):
        place = draw(st.integers(0, len(items)))
        pair = [dict(item) for item in extra]
        if len(pair) == 2:
            name = f"extra_{place}_{len(items)}"
            pair[0] |= {"id": name, "call_id": name}
            pair[1] |= {"approval_request_id": name, "call_id": name}
        items[place:place] = pair
    return [_mark(item, f"<{place}>") for place, item in enumerate(items)]


def _mark(item: Json, mark: str) -> Json:
    if "content" not in item or item["type"] == "reasoning":
        return {**item, "mark": mark}
    content = item["content"]
    told = mark + content if isinstance(content, str) else [{"type": "input_text", "text": mark}, *content]
    return {**item, "content": told}


def marks(items: list[Any]) -> list[str]:
    """Marks in order; the plugin's own texts have none or quote one as text."""
    found = []
    for item in items:
        content = item.get("content")
        first = content[0].get("text") if isinstance(content, list) and content else content
        told = item.get("mark") or (first if isinstance(first, str) else "")
        found += re.findall(r"^<[0-9]+>", told)
    return found


def must_stay(items: list[Json]) -> set[str]:
    """Marks of open calls, results nobody reacted to, files, and the unanswered last request: by the words of the
    contract, not by the plugin's own selection."""
    history = [item for item in classify_items(items) if item.is_history]
    said = [item for item in history if item.is_user or item.is_assistant]
    answers = {item.call_id for item in history if item.kind is Kind.OUTPUT}
    reaction = max(
        (n for n, item in enumerate(history) if item.is_assistant or item.kind in {Kind.REASONING, Kind.CALL}),
        default=-1,
    )

    def stays(place: int, item: Item) -> bool:
        waiting = item.kind is Kind.CALL and item.call_id not in answers
        unseen = item.kind is Kind.OUTPUT and item.call_id is not None and place > reaction
        unanswered = item.is_user and item is said[-1]
        return waiting or unseen or unanswered or "'type': 'input_file'" in str(item.raw)

    kept = [item.raw for n, item in enumerate(history) if stays(n, item) and not item.is_system]
    return set(marks(kept))


def system_marks(items: list[Json]) -> list[str]:
    return marks([item.raw for item in classify_items(items) if item.is_system])


def answers_to(items: list[Any]) -> list[Json]:
    """The outputs that a client sends once its open calls are done."""
    classified = classify_items(items)
    done = {item.call_id for item in classified if item.kind is Kind.OUTPUT}
    return [
        {"type": CALL_OUTPUTS[item.type], "call_id": item.call_id, "id": item.call_id, "output": "done"}
        | {"approval_request_id": item.call_id}
        for item in classified
        if item.kind is Kind.CALL and item.call_id not in done
    ]


Behaviour = Callable[[list[Json], Json], list[Json]]
CLIENTS: dict[str, Behaviour] = {
    "item-alone": lambda _items, item: [item],
    "user-messages-before-it": lambda items, item: [*(raw for raw in items if raw.get("role") == "user"), item],
    "everything-before-it": lambda items, item: [*items, item],
    "item-twice": lambda _items, item: [item, item],
    "item-without-its-id": lambda _items, item: [{**item, "id": None, "created_by": "x", "extra": 1}],
    "item-wrapped-by-litellm": lambda _items, item: [
        {**item, "encrypted_content": f"litellm_enc:bQ==;{item['encrypted_content']}"}
    ],
}


def check(expanded: list[Item], wanted: set[str], system: list[str], order: list[str]) -> None:
    raws = [item.raw for item in expanded]
    found = marks(raws)
    assert len(found) == len(set(found)), "an item came back twice"
    assert wanted <= set(found), "something protected was lost"
    assert system_marks([dict(raw) for raw in raws]) == system, "system text was lost, repeated or reordered"
    start = next(n for n, raw in enumerate(raws) if "<conversation_summary id=" in str(raw))
    for part in (marks(raws[:start]), marks(raws[start:])):
        places = [order.index(mark) for mark in part if mark not in system]
        assert places == sorted(places), "the order was not kept"


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@SLOW
@given(items=marked(), choices=st.lists(st.integers(0, 99), max_size=4))
def test_nothing_protected_is_lost_whatever_the_client_keeps(
    client: Behaviour, items: list[Json], choices: list[int]
) -> None:
    """For every way a client brings an item back: all that must stay is there once, in order, pairs whole."""
    outcome, item = run(items, choices)
    sent = client(items, item)
    expanded = expand([*sent, *answers_to(items), TURN])
    wanted = must_stay(items) | set(marks(list(outcome.payload.kept)))
    check(expanded, wanted, system_marks(items), marks(items))
    answered = {entry.call_id for entry in expanded if entry.kind is Kind.OUTPUT}
    assert {entry.call_id for entry in expanded if entry.kind is Kind.CALL} <= answered


@SLOW
@given(marked(), st.lists(st.integers(0, 99), max_size=4))
def test_what_the_model_selects_is_kept_in_whole_groups(items: list[Json], choices: list[int]) -> None:
    """An item the model named is in the result, with everything that belongs to it; reasoning and system text aside."""
    outcome, _ = run(items, choices)
    history = [item for item in classify_items(items) if item.is_history]
    refs = sorted(f"item_{item.index + 1:06d}" for item in history)
    named = {refs[choice % len(refs)] for choice in choices}
    wanted = {
        mark
        for group in group_items(history)
        if any(f"item_{item.index + 1:06d}" in named and item.kind is not Kind.REASONING for item in group.items)
        for mark in marks([item.raw for item in group.items if not item.is_system and item.kind is not Kind.REASONING])
    }
    assert wanted <= set(marks(list(outcome.payload.kept)))


@pytest.mark.parametrize("client", list(CLIENTS.values())[:3], ids=list(CLIENTS)[:3])
@SLOW
@given(items=marked(), choices=st.lists(st.integers(0, 99), max_size=4))
def test_second_compaction_right_after_the_first(client: Behaviour, items: list[Json], choices: list[int]) -> None:
    """An item directly before another trigger: the new item alone still holds all that must stay, and one summary."""
    _, first = run(items, choices)
    sent = client(items, first)
    outcome, second = run(sent, [])
    expanded = expand([second, *answers_to(items), TURN])
    # A client that moved the user's words before the item has made another conversation of it.
    restored = expand_items(sent, open_raw, keep_open=True).items
    seen = [dict(raw) for raw in restored if "<conversation_summary id=" not in str(raw)]
    order = marks(list(seen))
    moved = order != [mark for mark in marks(list(items)) if mark in order]
    check(expanded, must_stay(seen if moved else items), system_marks(items), order)
    assert str([entry.raw for entry in expanded]).count("<conversation_summary id=") == 1
    assert len(outcome.payload.folded) == 1


@pytest.mark.parametrize("origin", ["threshold", "auto"])
@SLOW
@given(items=marked())
def test_inline_item_supersedes_the_history(origin: Origin, items: list[Json]) -> None:
    """Of what stands before an item born inline only system text and tools stay; what must stay comes from the item."""
    outcome, _ = run(items, [], origin)
    content = seal_payload(outcome.payload, RING, CALLER, "team", os.urandom)
    item = {"type": "compaction", "encrypted_content": content}
    expanded = expand([*items, item, *answers_to(items), TURN])
    check(expanded, must_stay(items), system_marks(items), marks(items))
    start = next(n for n, entry in enumerate(expanded) if "<conversation_summary id=" in str(entry.raw))
    assert all(entry.is_system or not entry.is_history for entry in expanded[:start])

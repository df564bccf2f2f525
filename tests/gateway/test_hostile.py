"""Valid requests with something senseless in any place of them: an error of the contract, or a whole compaction."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.compaction.answer import Reply
from litellm_compaction.compaction.compact import Outcome, Task, compact, make_plan
from litellm_compaction.compaction.engine import Account
from litellm_compaction.compaction.plan import Limits, select_user_messages
from litellm_compaction.compaction.policy import Policy
from litellm_compaction.compaction.prompt import SUMMARY_TOOL
from litellm_compaction.conversation.bounds import MOST_LEVELS
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.conversation.items import classify_items
from litellm_compaction.conversation.measure import measure_request
from litellm_compaction.envelope.payload import Payload
from litellm_compaction.envelope.sealing import Caller, KeyRing, seal_payload, write_unsealed
from litellm_compaction.errors import CompactionError, InvalidInput, UnreadableItem
from litellm_compaction.gateway.context_management import read_context_management
from litellm_compaction.gateway.door import CompactionRequest, classify_request
from litellm_compaction.gateway.pending import new_frame
from litellm_compaction.gateway.responses import write_compact_body
from litellm_compaction.gateway.service import expand_input
from litellm_compaction.settings import Settings
from tests.item_strategies import Json, conversations
from tests.support.bodies import TRIGGER, user

RING = KeyRing(["a secret of the operator"])
CALLER = Caller(key="k", team="t", user="u")
PAYLOAD = Payload(
    origin="trigger",
    summary="what happened",
    kept=(user("kept"), {"type": "function_call", "call_id": "call_k", "name": "f", "arguments": "{}"}),
    system=({"type": "message", "role": "system", "content": "be brief"},),
)
DEFAULTS = Settings.model_validate({})
READABLE = Settings.model_validate({"seal": False})
SUMMARY = json.dumps({"summary": "what happened", "retain_item_ids": []})

junk = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["\ud800", "\0", "user", "message", "compaction", "function_call", "call_0", "item_000001"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in a body, its own excepted."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [deep for key, entry in entries for deep in [(*path, key), *places(entry, (*path, key))]]


@st.composite
def bodies(draw: st.DrawFn, members: dict[str, Any]) -> Json:
    """A valid body with up to three of its values replaced, removed, or doubled."""
    body: Json = copy.deepcopy(members)
    items = copy.deepcopy(draw(conversations()))  # parts of it are the same object every time
    body["input"] = [*items[:2], *body["input"], *items[2:], *([dict(TRIGGER)] if draw(st.booleans()) else [])]
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(body)))
        holder: Any = body
        for key in way:
            holder = holder[key]
        change = draw(st.sampled_from(["replace", "remove", "double"]))
        if change == "replace":
            holder[last] = draw(junk)
        elif change == "remove":
            del holder[last]
        elif isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
        if not body:
            break
    return body


def serve(call_type: str, body: Json, chosen: Settings, *, answer: str = SUMMARY) -> Outcome | None:
    """What the hook does with a body, from the door to the sealed item and its way back. None: not compacted.

    Raises the contract's errors; anything else is a fault.
    """
    measure_request(body)
    request = classify_request(call_type, body, normalize_trigger=chosen.misplaced_trigger == "normalize")
    read_context_management(body.get("context_management"))
    if request is None:
        return None

    def expanded(items: list[Any]) -> Expansion:
        keep = isinstance(request, CompactionRequest)
        return expand_input(items, chosen, RING, CALLER, "own", allow_unsealed=not chosen.seal, keep_open=keep)

    expansion = expanded(request.items)
    if not isinstance(request, CompactionRequest):
        return None
    task = Task(expansion, request.origin, "m", lambda tokens: Limits(tokens // 4, 500), 64_000, ledger_on_failure=True)

    async def summarizer(messages: list[Json], parameters: Json) -> Reply:
        return Reply(calls=((SUMMARY_TOOL, answer),))

    policy = Policy(instructions="", mark=lambda: "mark", max_attempts=1)
    plan = make_plan(task, estimate_tokens)
    outcome = asyncio.run(compact(task, plan, summarizer, policy, Account(), lambda: 0))
    if chosen.seal:
        content = seal_payload(outcome.payload, RING, CALLER, "team", os.urandom)
    else:
        content = write_unsealed(outcome.payload)
    expanded([{"type": "compaction", "encrypted_content": content}, user("and then?")])
    said = select_user_messages(classify_items(expansion.items), expansion.summaries, 10_000, estimate_tokens)
    json.dumps(write_compact_body(new_frame("m"), said, content, outcome.usage, 0), allow_nan=False)
    return outcome


def refusal(call_type: str, body: Json, chosen: Settings, answer: str = SUMMARY) -> CompactionError | None:
    """The contract's error that comes of a body, None where it is served."""
    try:
        serve(call_type, body, chosen, answer=answer)
    except CompactionError as error:
        return error
    return None


def item(content: str) -> Json:
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": content}


SEALED: Json = {
    "model": "m",
    "input": [item(seal_payload(PAYLOAD, RING, CALLER, "team", os.urandom))],
    "instructions": "be kind",
    "max_output_tokens": 30_000,
    "context_management": [{"type": "compaction", "compact_threshold": 5000}],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
}
FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FUZZ
@given(bodies(SEALED), st.sampled_from(["aresponses", "acompact_responses"]), st.sampled_from([SUMMARY, "no JSON"]))
def test_senseless_request_is_refused_or_served(body: Json, call_type: str, answer: str) -> None:
    """Whatever stands in whatever place, nothing but an error of the contract comes of it, and that can be sent."""
    told = refusal(call_type, body, DEFAULTS, answer)
    assert told is None or told.status in {400, 500}
    assert told is None or len(json.dumps({"error": told.body()}, ensure_ascii=False).encode()) < 10_000


@st.composite
def readable_items(draw: st.DrawFn) -> str:
    """What a client may write where items are not sealed: a payload with senseless values in it."""
    payload = json.loads(write_unsealed(PAYLOAD))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(payload)))
        holder: Any = payload
        for key in way:
            holder = holder[key]
        holder[last] = draw(junk)
    return json.dumps(payload)


@FUZZ
@given(readable_items(), st.booleans(), st.sampled_from(["user", "developer", "tool"]))
def test_senseless_readable_item_is_refused_or_served(content: str, trigger: bool, role: Any) -> None:
    """The same for what stands inside of an item."""
    body = {"model": "m", "input": [user("a"), item(content), user("b"), *([TRIGGER] if trigger else [])]}
    told = refusal("aresponses", body, READABLE.model_copy(update={"summary_role": role}))
    assert told is None or told.status == 400


@pytest.mark.parametrize("nested", [TRIGGER, item("lcmp1.x"), {"type": "context_compaction"}], ids=lambda n: n["type"])
@pytest.mark.parametrize("member", ["kept", "system"])
def test_items_never_nest(nested: Json, member: str) -> None:
    """An item that holds an item or a trigger is unreadable, sealed or not: what it held would reach a backend."""
    payload = PAYLOAD.model_copy(update={member: (nested,)})
    for content, chosen in (
        (seal_payload(payload, RING, CALLER, "team", os.urandom), DEFAULTS),
        (write_unsealed(payload), READABLE),
    ):
        with pytest.raises(UnreadableItem):
            serve("aresponses", {"input": [item(content), user("go on")]}, chosen)


def nest(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("call_type", ["aresponses", "acompact_responses"])
def test_depth_is_bounded(call_type: str) -> None:
    """What is nested deeper than an answer could be written is refused, in the input and in an item."""
    trigger = [TRIGGER] if call_type == "aresponses" else []
    fits, deep = ({"type": "message", "role": "user", "content": nest(levels)} for levels in (MOST_LEVELS - 2, 900))
    assert serve(call_type, {"input": [fits, *trigger]}, DEFAULTS) is not None
    held = seal_payload(PAYLOAD.model_copy(update={"kept": (deep,)}), RING, CALLER, "team", os.urandom)
    for items in ([deep], [item(held)]):
        with pytest.raises(InvalidInput, match="nested too deeply"):
            serve(call_type, {"input": [*items, user("a"), *trigger]}, DEFAULTS)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_has_not_are_refused(number: float) -> None:
    """A body with them could be read, and no answer with them written."""
    body = {"input": [{**user("a"), "weight": [{"a": number}]}]}
    with pytest.raises(InvalidInput, match="JSON"):
        serve("acompact_responses", body, DEFAULTS)


def test_item_that_comes_again_is_opened_once() -> None:
    """A thousand copies of one large item take the memory of one, and stand for the conversation once."""
    large = PAYLOAD.model_copy(update={"kept": (user("a" * 12_000_000),)})
    copies = [item(seal_payload(large, RING, CALLER, "team", os.urandom))] * 1000
    tracemalloc.start()
    try:
        expansion = expand_input([*copies, user("go on")], DEFAULTS, RING, CALLER, "own")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(expansion.items) == len(expand_input([copies[0], user("go on")], DEFAULTS, RING, CALLER, "own").items)
    assert peak < 150_000_000


@pytest.mark.parametrize("held", ["a" * 12_000_000, [[]] * 1_000_000], ids=["text", "objects"])
def test_items_together_are_bounded(held: Any) -> None:
    """Small items that inflate to more than any conversation are refused together, each of which could be opened."""
    large = PAYLOAD.model_copy(update={"kept": ({"type": "message", "role": "user", "content": held},)})
    items = [item(seal_payload(large, RING, CALLER, "team", os.urandom)) for _ in range(30)]
    assert sum(len(entry["encrypted_content"]) for entry in items) < 1_000_000
    expand_input([items[0], user("go on")], DEFAULTS, RING, CALLER, "own")
    with pytest.raises(InvalidInput, match="more together"):
        expand_input([*items, user("go on")], DEFAULTS, RING, CALLER, "own")


def test_many_items_take_time_in_proportion() -> None:
    """Ten times the items take about ten times as long: none is compared with all that stand before it."""

    def seconds(number: int) -> float:
        items = [item(seal_payload(PAYLOAD, RING, CALLER, "team", os.urandom)) for _ in range(number)]
        started = time.process_time()
        expand_input([*items, user("go on")], DEFAULTS, RING, CALLER, "own")
        return time.process_time() - started

    seconds(10)
    assert seconds(2000) < 40 * seconds(200)

"""What a request is to the plugin: trigger, compact call, replay, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from litellm_compaction.errors import (
    CompactionError,
    InvalidInput,
    OutputLimitTooSmall,
    TooManyTriggers,
    TriggerNotLast,
    TriggerOnCompact,
)
from litellm_compaction.gateway.door import (
    COMPACT_CALLS,
    RESPONSES_CALLS,
    CompactionRequest,
    ReplayRequest,
    Request,
    classify_request,
    concerns_plugin,
)
from tests.support.bodies import TRIGGER, assistant, output, user

A, B = user("a"), assistant("b")
ITEM = {"type": "compaction", "encrypted_content": "x"}
OLDER, NEWER = {**ITEM, "type": "compaction_summary"}, {**ITEM, "type": "context_compaction"}
NESTED = {**output("c", ""), "output": [TRIGGER, ITEM]}


def classify(call_type: str = "aresponses", *, normalize: bool = False, **data: Any) -> Request | None:
    return classify_request(call_type, data, normalize_trigger=normalize)


def trigger(items: list[Any], *, stream: bool = False) -> CompactionRequest:
    return CompactionRequest("trigger", items, stream=stream)


ROWS: dict[str, tuple[dict[str, Any], Request | None]] = {
    "trigger-last": ({"input": [A, B, TRIGGER]}, trigger([A, B])),
    "trigger-streamed": ({"input": [A, TRIGGER], "stream": True}, trigger([A], stream=True)),
    "trigger-stream-null": ({"input": [A, TRIGGER], "stream": None}, trigger([A])),
    "trigger-with-id": ({"input": [A, {**TRIGGER, "id": "ct_1", "extra": 1}]}, trigger([A])),
    "trigger-after-an-item": ({"input": [ITEM, TRIGGER]}, trigger([ITEM])),
    "trigger-alone": ({"input": [TRIGGER]}, trigger([])),
    "trigger-bare-object": ({"input": TRIGGER}, trigger([])),
    "trigger-with-room": ({"input": [A, TRIGGER], "max_output_tokens": 20_000}, trigger([A])),
    "trigger-limit-null": ({"input": [A, TRIGGER], "max_output_tokens": None}, trigger([A])),
    "replay": ({"input": [A, ITEM, B], "max_output_tokens": 5}, ReplayRequest([A, ITEM, B])),
    "replay-bare-object": ({"input": ITEM}, ReplayRequest([ITEM])),
    "replay-summary": ({"input": [OLDER]}, ReplayRequest([OLDER])),
    "replay-context": ({"input": [NEWER]}, ReplayRequest([NEWER])),
    "ordinary": ({"input": [A, B]}, None),
    "ordinary-string": ({"input": "compaction_trigger"}, None),
    "ordinary-none": ({}, None),
    "ordinary-empty": ({"input": []}, None),
    "nested-objects-are-data": ({"input": [A, NESTED]}, None),
    "strange-types": ({"input": [{"type": ["compaction"]}, {"type": {"a": 1}}, "text", 7]}, None),
}


@pytest.mark.parametrize(("data", "request_"), ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("call_type", sorted(RESPONSES_CALLS))
def test_responses(call_type: str, data: dict[str, Any], request_: Request | None) -> None:
    """POST /v1/responses: a trigger, an item brought back, or nothing for the plugin."""
    assert classify(call_type, **data) == request_
    assert concerns_plugin(call_type, data) is (request_ is not None)


@pytest.mark.parametrize("call_type", ["acompletion", "aembedding", "", "aget_responses"])
def test_other_calls_are_none_of_the_plugins(call_type: str) -> None:
    """A trigger in the input of another call is not looked at."""
    assert classify(call_type, input=[A, TRIGGER]) is None
    assert not concerns_plugin(call_type, {"input": [A, TRIGGER]})


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ([A, B], [A, B]),
        ("hi", [{"type": "message", "role": "user", "content": "hi"}]),
        (A, [A]),
        ([ITEM], [ITEM]),
        ([NESTED], [NESTED]),
        (None, []),
        ("", []),
    ],
    ids=["list", "string", "object", "item", "nested", "null", "blank"],
)
@pytest.mark.parametrize("call_type", sorted(COMPACT_CALLS))
def test_compact(call_type: str, given: object, items: list[Any]) -> None:
    """POST /responses/compact is always a compaction, and never streamed."""
    assert classify(call_type, input=given, stream=True, max_output_tokens=5) == CompactionRequest(
        "compact", items, stream=False
    )


REFUSED: dict[str, tuple[str, dict[str, Any], type[CompactionError]]] = {
    "first": ("aresponses", {"input": [TRIGGER, A]}, TriggerNotLast),
    "middle": ("aresponses", {"input": [A, TRIGGER, B]}, TriggerNotLast),
    "double-at-the-end": ("aresponses", {"input": [A, TRIGGER, TRIGGER]}, TooManyTriggers),
    "double-apart": ("aresponses", {"input": [TRIGGER, A, TRIGGER]}, TooManyTriggers),
    "double-not-last": ("aresponses", {"input": [TRIGGER, TRIGGER, A]}, TooManyTriggers),
    "little-room": ("aresponses", {"input": [A, TRIGGER], "max_output_tokens": 19_999}, OutputLimitTooSmall),
    "zero-room": ("aresponses", {"input": [A, TRIGGER], "max_output_tokens": 0}, OutputLimitTooSmall),
    "place-before-room": ("aresponses", {"input": [TRIGGER, A], "max_output_tokens": 1}, TriggerNotLast),
    "number-before-place": ("aresponses", {"input": [TRIGGER, TRIGGER, A], "max_output_tokens": 1}, TooManyTriggers),
    "shape-before-place": ("aresponses", {"input": [TRIGGER, "text"]}, InvalidInput),
    "compact": ("acompact_responses", {"input": [A, TRIGGER]}, TriggerOnCompact),
    "compact-first": ("acompact_responses", {"input": [TRIGGER, A]}, TriggerOnCompact),
    "compact-bare": ("acompact_responses", {"input": TRIGGER}, TriggerOnCompact),
    "compact-number": ("acompact_responses", {"input": 7}, InvalidInput),
}


@pytest.mark.parametrize(("call_type", "data", "error"), REFUSED.values(), ids=REFUSED)
def test_refused(call_type: str, data: dict[str, Any], error: type[CompactionError]) -> None:
    """A trigger where none may be, in the order OpenAI checks."""
    with pytest.raises(error):
        classify(call_type, **data)


@pytest.mark.parametrize(
    "items",
    [[TRIGGER, A, B], [A, TRIGGER, B], [TRIGGER, A, TRIGGER, B, TRIGGER]],
    ids=["first", "middle", "several"],
)
def test_normalize_takes_one_trigger_at_the_end(items: list[Any]) -> None:
    """Where the operator wants it, misplaced triggers are one trigger at the end."""
    assert classify(normalize=True, input=items) == trigger([A, B])


def test_normalize_changes_no_other_check() -> None:
    """The room for the answer is checked all the same, and the compact route has no trigger."""
    with pytest.raises(OutputLimitTooSmall):
        classify(normalize=True, input=[TRIGGER, A], max_output_tokens=19_999)
    with pytest.raises(TriggerOnCompact):
        classify("acompact_responses", normalize=True, input=[A, TRIGGER])


def test_input_is_left_as_it_was() -> None:
    """The client's list is not changed, its items are handed on themselves."""
    items = [A, B, TRIGGER]
    request = classify(input=items)
    assert items == [A, B, TRIGGER]
    assert isinstance(request, CompactionRequest)
    assert all(left is right for left, right in zip(request.items, (A, B), strict=True))

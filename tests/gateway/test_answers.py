"""Answers on their way to the client: the item in front, indexes and numbers shifted, usage filled and summed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from litellm.exceptions import BadRequestError
from litellm.types.llms.openai import ResponseAPIUsage, ResponsesAPIResponse
from pydantic import BaseModel, ConfigDict

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.envelope.sealing import Caller
from litellm_compaction.gateway.answers import Answers
from litellm_compaction.gateway.budgets import Budgets
from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.errors import StreamRefused
from litellm_compaction.gateway.flights import Result
from litellm_compaction.gateway.operator import Operator
from litellm_compaction.gateway.overflows import Overflows
from litellm_compaction.gateway.turn import Turn

ITEM = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "three short words", "annotations": []}],
}


class Event(BaseModel):
    """An event of LiteLLM's, with whatever it has."""

    model_config = ConfigDict(extra="allow")
    type: str


def event(kind: str, **members: Any) -> Any:
    return Event.model_validate({"type": kind, **members})


def answers() -> Answers:
    return Answers(RequestCounter(), Overflows(Budgets(Operator({}, {})), RequestCounter()))


def turn(*, compacted: bool = False) -> Turn:
    made = Turn("group", "shown", Caller("k", None, None))
    made.sent, made.answering_group = {"input": "hello there"}, "group"
    if compacted:
        usage = Usage(900, 90, cached_tokens=10, reasoning_tokens=5)
        made.origin = "auto"
        made.result = Result(
            item_id="cmp_1",
            content="sealed",
            usage=usage,
            attempts=1,
            dropped=0,
            tokens_before=9,
            tokens_after=3,
            message_tokens=0,
        )
    return made


def response(usage: tuple[int, int] | None = (50, 7), status: str = "completed") -> ResponsesAPIResponse:
    told = (
        None
        if usage is None
        else ResponseAPIUsage(input_tokens=usage[0], output_tokens=usage[1], total_tokens=sum(usage))
    )
    body: dict[str, Any] = {"id": "resp_1", "created_at": 1, "output": [MESSAGE], "status": status, "model": "m"}
    return ResponsesAPIResponse(**body, usage=told)


def opening() -> list[Any]:
    kinds = ("response.created", "response.in_progress")
    return [event(kind, sequence_number=number) for number, kind in enumerate(kinds)]


async def streamed(made: Turn, events: Sequence[Any], error: Exception | None = None) -> list[Any]:
    """The events as the client gets them; an exception at the end is the last of the list."""

    async def source() -> AsyncIterator[Any]:
        for one in events:
            yield one
        if error is not None:
            raise error

    got: list[Any] = []
    try:
        async for one in answers().stream(made, source()):
            got.append(one)  # noqa: PERF401  # what came before an exception is wanted, too
    except Exception as raised:  # noqa: BLE001  # what was raised is looked at
        got.append(raised)
    return got


async def test_an_answer_with_nothing_to_add_is_the_very_object() -> None:
    """Nothing is copied, nothing changed."""
    body = response()
    assert await answers().finish(turn(), body) is body
    events = [*opening(), event("response.completed", response=body, sequence_number=2)]
    got = await streamed(turn(), events)
    assert all(one is other for one, other in zip(got, events, strict=True))


async def test_item_first_and_usage_of_both() -> None:
    """In a copy: LiteLLM books the object it has."""
    body = response()
    told = await answers().finish(turn(compacted=True), body)
    assert told.output == [ITEM, *body.output]
    usage = told.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (950, 97, 1_047)
    assert usage.input_tokens_details is not None
    assert usage.input_tokens_details.cached_tokens == 10
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.reasoning_tokens == 5
    assert body.usage is not None
    assert body.usage.total_tokens == 57
    assert len(body.output) == 1


MISSING = {"none": None, "zeros": (0, 0)}


@pytest.mark.parametrize("usage", MISSING.values(), ids=MISSING)
async def test_usage_is_counted_where_there_is_none(usage: tuple[int, int] | None) -> None:
    """Input and output counted, and their sum."""
    told = (await answers().finish(turn(), response(usage))).usage
    assert told is not None
    assert 2 <= told.input_tokens <= 10
    assert 3 <= told.output_tokens <= 15
    assert told.total_tokens == told.input_tokens + told.output_tokens


@pytest.mark.parametrize("status", ["queued", "in_progress", "failed", "cancelled"])
async def test_what_is_no_answer_has_no_usage(status: str) -> None:
    """A response that runs in the background, or has failed, stays as it is."""
    body = response(None, status)
    assert await answers().finish(turn(), body) is body


async def test_stream_behind_the_item() -> None:
    """After the opening events the item's two at index 0; the rest shifted, the numbers without gaps."""
    events = [
        *opening(),
        event("response.output_item.added", output_index=0, sequence_number=2, item=MESSAGE),
        event("response.output_text.delta", output_index=0, content_index=0, sequence_number=3, delta="x"),
        event("response.output_item.done", output_index=0, sequence_number=4, item=MESSAGE),
        event("response.completed", response=response(), sequence_number=5),
    ]
    got = await streamed(turn(compacted=True), events)
    assert [one.sequence_number for one in got] == list(range(8))
    assert [one.type for one in got[2:4]] == ["response.output_item.added", "response.output_item.done"]
    assert [one.item for one in got[2:4]] == [ITEM, ITEM]
    assert [one.output_index for one in got[2:7]] == [0, 0, 1, 1, 1]
    assert got[7].response.output[0] == ITEM
    assert got[5].content_index == 0
    assert events[3].model_dump()["output_index"] == 0


async def test_stream_without_opening_events() -> None:
    """A backend that begins with its first item: the plugin's item stands before it all the same."""
    added = event("response.output_item.added", output_index=0, sequence_number=0, item=MESSAGE)
    got = await streamed(turn(compacted=True), [added])
    assert [(one.sequence_number, one.output_index) for one in got] == [(0, 0), (1, 0), (2, 1)]


@pytest.mark.parametrize("compacted", [False, True])
async def test_overflow_in_the_middle_of_a_stream(*, compacted: bool) -> None:
    """`error` with the contract's code under the next number, then an exception LiteLLM writes the same code from."""
    refused = BadRequestError("prompt is too long: 9000 tokens > 3000 maximum", model="m", llm_provider="p")
    added = event("response.output_item.added", output_index=0, sequence_number=2, item=MESSAGE)
    got = await streamed(turn(compacted=compacted), [*opening(), added], refused)
    *_, told, raised = got
    assert told.error["code"] == "context_length_exceeded"
    assert told.sequence_number == (5 if compacted else 3)
    assert isinstance(raised, StreamRefused)
    assert raised.body["code"] == "context_length_exceeded"


async def test_other_errors_pass() -> None:
    """The very exception."""
    error = RuntimeError("boom")
    assert await streamed(turn(), opening(), error) == [*opening(), error]

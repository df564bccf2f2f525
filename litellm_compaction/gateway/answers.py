"""An ordinary answer on its way to the client: `usage` where the backend sent none, and the compaction item in front of
the answer where the request was compacted on the way. Without either it passes as the very object it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from litellm.types.llms.openai import InputTokensDetails, OutputTokensDetails, ResponseAPIUsage, ResponsesAPIResponse
from pydantic import BaseModel, ConfigDict

from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.errors import StreamRefused
from litellm_compaction.gateway.flights import Result
from litellm_compaction.gateway.overflows import Overflows
from litellm_compaction.gateway.responses import ErrorEvent, write_item
from litellm_compaction.gateway.turn import Turn
from litellm_compaction.gateway.usage import add_usage

_OPENING: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
_TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
# What announces the item, and moves the numbers of all events behind it.
_ITEM_EVENTS: Final = ("added", "done")
_ANSWERED: Final = frozenset({"completed", "incomplete"})


class ItemEvent(BaseModel):
    """`response.output_item.added` and `.done` of the compaction item."""

    # An older LiteLLM writes the model's name into every event.
    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int
    output_index: int
    item: dict[str, str]


class Answers:
    """Finishes answers; `counter` counts where a backend did not, and learns from those that did."""

    def __init__(self, counter: RequestCounter, overflows: Overflows) -> None:
        self._counter: Final = counter
        self._overflows: Final = overflows

    async def finish(self, turn: Turn, response: ResponsesAPIResponse) -> ResponsesAPIResponse:
        """The body as the client gets it."""
        changes: Final[dict[str, Any]] = {}
        if response.status in _ANSWERED:
            counted: Final = await self._missing_usage(turn, response)
            if counted is not None:
                changes["usage"] = counted
        if turn.result is not None:
            usage: Final = changes.get("usage", response.usage)
            changes["output"] = [write_item(turn.result.item_id, turn.result.content), *response.output]
            if usage is not None:
                changes["usage"] = add_usage(usage, turn.result.usage)
        # A copy: LiteLLM books the cost of the object it has, and the compaction's inferences are booked already.
        return response.model_copy(update=changes) if changes else response

    async def stream(self, turn: Turn, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The events as the client gets them, numbered without gaps."""
        sent, behind = 0, False
        try:
            async for event in events:
                kind = _kind(event)
                if turn.result is not None and not behind and kind not in _OPENING:
                    behind = True
                    for item_event in _item_events(turn.result, sent):
                        yield item_event
                        sent += 1
                finished = await self._finish_event(turn, event) if kind in _TERMINAL else event
                yield finished if turn.result is None else _placed(finished, sent, behind=behind)
                sent += 1
        except Exception as error:
            refused: Final = self._overflows.read(turn, error)
            if refused is None:
                raise
            yield ErrorEvent(type="error", sequence_number=sent, error=refused.body())
            raise StreamRefused(refused) from error

    async def _finish_event(self, turn: Turn, event: Any) -> Any:
        response: Final = getattr(event, "response", None)
        if not isinstance(response, ResponsesAPIResponse):
            return event
        finished: Final = await self.finish(turn, response)
        return event if finished is response else event.model_copy(update={"response": finished})

    async def _missing_usage(self, turn: Turn, response: ResponsesAPIResponse) -> ResponseAPIUsage | None:
        """A count where the backend sent none; None where it did, which says what the conversation takes there."""
        usage: Final = response.usage
        if usage is not None and usage.total_tokens and usage.input_tokens:
            if turn.measured is not None:
                self._counter.remember(turn.measured, turn.answering_group, usage.input_tokens)
            return None
        measured: Final = turn.measured or await self._counter.measure(turn.sent)
        given: Final = (await self._counter.count(measured, turn.answering_group, 0.0, None)).tokens
        items: Final = [_plain(item) for item in response.output]
        answer: Final = await self._counter.measure({"input": items})
        written: Final = (await self._counter.count(answer, "", 0.0, None)).tokens
        return ResponseAPIUsage(
            input_tokens=given,
            input_tokens_details=InputTokensDetails(cached_tokens=0),
            output_tokens=written,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
            total_tokens=given + written,
        )


def _kind(event: Any) -> str:
    """An event's type; LiteLLM's Enum neither writes nor hashes like the string it is."""
    kind: Final = getattr(event, "type", "")
    return str(kind.value if isinstance(kind, Enum) else kind)


def _plain(item: Any) -> Mapping[str, Any]:
    return item if isinstance(item, Mapping) else item.model_dump(exclude_none=True)


def _item_events(result: Result, number: int) -> Sequence[ItemEvent]:
    item: Final = write_item(result.item_id, result.content)
    return [
        ItemEvent(type=f"response.output_item.{what}", sequence_number=number + place, output_index=0, item=item)
        for place, what in enumerate(_ITEM_EVENTS)
    ]


def _placed(event: Any, number: int, *, behind: bool) -> Any:
    """An event of a compacted answer under its place in the stream, and behind the item one index further.

    Counted, not shifted: LiteLLM before 1.106 does not number the events of a bridged backend.
    """
    index: Final = getattr(event, "output_index", None)
    moved: Final = {"output_index": index + 1} if behind and index is not None else {}
    return event.model_copy(update={"sequence_number": number, **moved})

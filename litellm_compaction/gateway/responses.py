"""Bodies and events as OpenAI's Responses API writes them (contract, section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.conversation.items import RawItem
from litellm_compaction.errors import CompactionError

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """What is known of a response before its compaction has run: ids, model as the client named it, Unix seconds."""

    response_id: str
    item_id: str
    model: str
    created_at: int


def write_item(item_id: str, content: str) -> dict[str, str]:
    return {"id": item_id, "type": "compaction", "encrypted_content": content}


def write_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def write_response(
    frame: Frame,
    status: str,
    *,
    output: Sequence[Mapping[str, Any]] = (),
    usage: Usage | None = None,
    completed_at: int | None = None,
    error: CompactionError | None = None,
) -> dict[str, Any]:
    """A Response object with the members every client reads; `status` as OpenAI names it."""
    return {
        "id": frame.response_id,
        "object": "response",
        "created_at": frame.created_at,
        "completed_at": completed_at,
        "status": status,
        "error": None if error is None else {"code": error.code or error.type, "message": error.message},
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": frame.model,
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None if usage is None else write_usage(usage),
    }


def write_compact_body(
    frame: Frame, user_messages: Sequence[RawItem], content: str, usage: Usage, created_at: int
) -> dict[str, Any]:
    """The body of /responses/compact: the user's messages verbatim and in order, then the one item."""
    messages: Final = [_write_message(frame, place, raw) for place, raw in enumerate(user_messages)]
    return {
        "id": frame.response_id,
        "object": "response.compaction",
        "created_at": created_at,
        "output": [*messages, write_item(frame.item_id, content)],
        "usage": write_usage(usage),
    }


def _write_message(frame: Frame, place: int, raw: RawItem) -> dict[str, Any]:
    content: Final = raw.get("content")
    parts: Final = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    given_id: Final = raw.get("id")
    item_id: Final = (
        given_id if isinstance(given_id, str) else f"msg_{frame.item_id.removeprefix('cmp_')[:-4]}{place:04x}"
    )
    return {"id": item_id, "type": "message", "status": "completed", "role": "user", "content": parts}


class ErrorEvent(BaseModel):
    """The `error` event as OpenAI sends it, its parts nested."""

    # An older LiteLLM writes the model's name into every event.
    model_config = ConfigDict(extra="allow")

    # Set on each event, not by default: LiteLLM writes events without their unset members.
    type: str
    sequence_number: int
    error: dict[str, str | None]


class EventWriter:
    """Events of one stream, numbered from 0 without gaps."""

    def __init__(self, frame: Frame) -> None:
        self._frame: Final = frame
        self._next = 0

    def _event(self, event_type: str, **members: Any) -> Event:
        number: Final = self._next
        self._next += 1
        return {"type": event_type, "sequence_number": number, **members}

    def opening(self) -> Iterator[Event]:
        """What can be said before the summary exists. `added` must carry a string: clients type it so."""
        started: Final = write_response(self._frame, "in_progress")
        yield self._event("response.created", response=started)
        yield self._event("response.in_progress", response=started)

    def added(self, content: str) -> Event:
        return self._event("response.output_item.added", output_index=0, item=write_item(self._frame.item_id, content))

    def compacting(self) -> Event:
        return self._event("response.compaction.compacting", item_id=self._frame.item_id, output_index=0)

    def closing(self, content: str, usage: Usage, completed_at: int) -> Iterator[Event]:
        item: Final = write_item(self._frame.item_id, content)
        yield self._event("response.output_item.done", output_index=0, item=item)
        completed: Final = write_response(
            self._frame, "completed", output=[item], usage=usage, completed_at=completed_at
        )
        yield self._event("response.completed", response=completed)

    def failed(self, error: CompactionError) -> Event:
        return self._event("response.failed", response=write_response(self._frame, "failed", error=error))

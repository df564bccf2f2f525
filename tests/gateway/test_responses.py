"""Bodies and events, member by member, as OpenAI writes them."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.errors import CompactionFailed, NothingToCompact
from litellm_compaction.gateway.responses import (
    EventWriter,
    Frame,
    write_compact_body,
    write_item,
    write_response,
    write_usage,
)
from tests.support.bodies import png, user

FRAME = Frame("resp_1", "cmp_0123456789", "the-model", 1_700_000_000)
USAGE = Usage(100, 10, 40, 4)
ITEM = {"id": "cmp_0123456789", "type": "compaction", "encrypted_content": "sealed"}
USAGE_BODY = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 0},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 110,
}


def test_item() -> None:
    """The item has exactly its three members."""
    assert write_item(FRAME.item_id, "sealed") == ITEM


def test_usage() -> None:
    """All five members of usage, details included."""
    assert write_usage(USAGE) == USAGE_BODY


def test_response() -> None:
    """A Response object with every member that OpenAI's SDK types as there."""
    body = write_response(FRAME, "completed", output=[ITEM], usage=USAGE, completed_at=1_700_000_009)
    told = {"id", "object", "created_at", "completed_at", "status", "error", "model", "output", "usage"}
    assert {key: body[key] for key in told} == {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "completed_at": 1_700_000_009,
        "status": "completed",
        "error": None,
        "model": "the-model",
        "output": [ITEM],
        "usage": USAGE_BODY,
    }
    required = {name for name, field in Response.model_fields.items() if field.is_required()}
    assert required <= set(body)
    assert Response.model_validate(body).output[0].type == "compaction"


def test_response_in_progress_has_neither_output_nor_usage() -> None:
    """What is not known yet is empty or null."""
    body = write_response(FRAME, "in_progress")
    assert (body["status"], body["output"], body["usage"], body["completed_at"]) == ("in_progress", [], None, None)


@pytest.mark.parametrize(
    ("error", "code"),
    [(CompactionFailed("why.", 400), "compaction_failed"), (NothingToCompact(), "missing_required_parameter")],
    ids=["failed", "nothing"],
)
def test_failed_response_carries_the_error(error: Any, code: str) -> None:
    """`error` holds code and message."""
    assert write_response(FRAME, "failed", error=error)["error"] == {"code": code, "message": error.message}


def test_compact_body() -> None:
    """Exactly five members: the user's messages verbatim and in order, the one item last."""
    pictured = {"role": "user", "content": [{"type": "input_image", "image_url": png()}], "id": "msg_client"}
    body = write_compact_body(FRAME, [user("a"), {"role": "user", "content": "b"}, pictured], "sealed", USAGE, 7)
    assert body == {
        "id": "resp_1",
        "object": "response.compaction",
        "created_at": 7,
        "output": [
            {"id": "msg_0123450000", "type": "message", "status": "completed", "role": "user", **content}
            | ({"id": item_id} if item_id else {})
            for content, item_id in (
                ({"content": [{"type": "input_text", "text": "a"}]}, None),
                ({"content": [{"type": "input_text", "text": "b"}]}, "msg_0123450001"),
                ({"content": pictured["content"]}, "msg_client"),
            )
        ]
        + [ITEM],
        "usage": USAGE_BODY,
    }


def test_stream_of_a_compaction() -> None:
    """The events in their order, numbered from 0 without gaps, with id and content the same throughout."""
    writer = EventWriter(FRAME)
    events = [
        *writer.opening(),
        writer.added("sealed"),
        writer.compacting(),
        writer.compacting(),
        *writer.closing("sealed", USAGE, 1_700_000_009),
    ]
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.compaction.compacting",
        "response.compaction.compacting",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(7))
    started = write_response(FRAME, "in_progress")
    assert [set(event) - {"type", "sequence_number"} for event in events] == [
        {"response"},
        {"response"},
        {"output_index", "item"},
        {"item_id", "output_index"},
        {"item_id", "output_index"},
        {"output_index", "item"},
        {"response"},
    ]
    assert events[0]["response"] == events[1]["response"] == started
    assert events[2]["item"] == events[5]["item"] == ITEM
    assert {event["output_index"] for event in events if "output_index" in event} == {0}
    assert {event["item_id"] for event in events if "item_id" in event} == {ITEM["id"]}
    assert events[6]["response"] == write_response(
        FRAME, "completed", output=[ITEM], usage=USAGE, completed_at=1_700_000_009
    )


def test_stream_of_a_failure() -> None:
    """`response.failed` ends the stream, with code and message; `error` before it is the hook's."""
    error = CompactionFailed("why.", 500)
    writer = EventWriter(FRAME)
    events = [*writer.opening(), writer.failed(error)]
    assert events[2:] == [
        {"type": "response.failed", "sequence_number": 2, "response": write_response(FRAME, "failed", error=error)},
    ]
    assert events[2]["response"]["status"] == "failed"

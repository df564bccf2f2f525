"""The stream of a compaction that still runs: first events, ticks, the end, and a client that goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import httpx
import pytest

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.errors import CompactionFailed
from litellm_compaction.gateway import delivery
from litellm_compaction.gateway.delivery import EventTransport, JsonTransport, replay_events, stream_events
from litellm_compaction.gateway.errors import as_compaction_error
from litellm_compaction.gateway.responses import Event, EventWriter, Frame

FRAME = Frame("resp_1", "cmp_1", "m", 0)


def streamed(running: asyncio.Task[str], leave: Callable[[], None] = lambda: None) -> AsyncIterator[Event]:
    writer = EventWriter(FRAME)

    async def finished() -> Iterable[Event]:
        return writer.closing(await running, Usage(1, 1), 9)

    return stream_events(writer, running, finished, as_compaction_error, leave)


async def work(release: asyncio.Event, error: Exception | None = None) -> str:
    await release.wait()
    if error is not None:
        raise error
    return "sealed"


@pytest.fixture
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "TICK_SECONDS", 0.01)


async def test_first_events_come_before_the_end() -> None:
    """The opening and the added item are there while the summary is still being written, then the end follows."""
    release = asyncio.Event()
    events = streamed(asyncio.create_task(work(release)))
    first = [await anext(events) for _ in range(3)]
    assert [event["type"] for event in first] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert first[2]["item"]["encrypted_content"] == "pending"
    release.set()
    last = [event async for event in events]
    assert [event["type"] for event in last] == ["response.output_item.done", "response.completed"]
    assert last[0]["item"]["encrypted_content"] == "sealed"
    assert [event["sequence_number"] for event in (*first, *last)] == list(range(5))


@pytest.mark.usefixtures("quick_ticks")
async def test_ticks_while_it_runs() -> None:
    """A tick now and then keeps the connection awake, numbered along with the others."""
    release = asyncio.Event()
    events = streamed(asyncio.create_task(work(release)))
    seen = [await anext(events) for _ in range(5)]
    release.set()
    seen += [event async for event in events]
    kinds = [event["type"] for event in seen]
    assert kinds[3:5] == ["response.compaction.compacting"] * 2
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))


@pytest.mark.parametrize(
    ("error", "code"),
    [(CompactionFailed("why.", 500), "compaction_failed"), (ValueError("odd"), "server_error")],
    ids=["own", "foreign"],
)
async def test_failure_after_the_start_ends_the_stream(error: Exception, code: str) -> None:
    """An error after the first event is a `response.failed` with its code."""
    release = asyncio.Event()
    release.set()
    events = [event async for event in streamed(asyncio.create_task(work(release, error)))]
    assert [event["type"] for event in events][2:] == ["response.output_item.added", "response.failed"]
    assert events[-1]["response"]["error"]["code"] == code


async def test_client_that_goes_away_leaves_and_the_compaction_goes_on() -> None:
    """Closing the stream is told once; the work is left to whoever asks again."""
    release = asyncio.Event()
    running = asyncio.create_task(work(release))
    left: list[bool] = []
    events: Any = streamed(running, lambda: left.append(running.done()))
    await anext(events)
    await events.aclose()
    assert left == [False]
    release.set()
    assert await running == "sealed"


async def test_json_answer() -> None:
    """A body is one JSON response."""
    async with httpx.AsyncClient(transport=JsonTransport({"a": 1})) as client:
        response = await client.post("http://inside/v1/responses")
    assert (response.status_code, response.json()) == (200, {"a": 1})


async def test_event_answer() -> None:
    """Events are server-sent events, each named and numbered as written."""
    writer = EventWriter(FRAME)
    events = [*writer.opening(), *writer.closing("sealed\u2028", Usage(), 1)]
    async with httpx.AsyncClient(transport=EventTransport(replay_events(events))) as client:
        response = await client.post("http://inside/v1/responses")
    assert response.headers["content-type"] == "text/event-stream"
    blocks = response.text.strip().split("\n\n")
    assert [json.loads(block.split("data: ", 1)[1]) for block in blocks] == events
    assert [block.splitlines()[0] for block in blocks] == [f"event: {event['type']}" for event in events]

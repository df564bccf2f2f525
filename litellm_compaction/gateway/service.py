"""One compaction from a classified request to what the client is given."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import httpx
from litellm.types.llms.openai import ResponseAPIUsage

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.compaction.plan import select_user_messages
from litellm_compaction.compaction.threads import run_heavy
from litellm_compaction.conversation.bounds import check_bounds
from litellm_compaction.conversation.expansion import Expansion, Opened, expand_items
from litellm_compaction.conversation.items import RawItem, classify_items, is_control
from litellm_compaction.envelope.payload import MAX_WEIGHT, Payload
from litellm_compaction.envelope.sealing import Caller, KeyRing, content_digest, is_own, open_weighed, unwrap_content
from litellm_compaction.errors import CompactionError, InvalidInput, UnreadableItem
from litellm_compaction.gateway.budgets import Budgets
from litellm_compaction.gateway.delivery import (
    EARLY_SECONDS,
    EventTransport,
    JsonTransport,
    replay_events,
    stream_events,
)
from litellm_compaction.gateway.errors import as_compaction_error
from litellm_compaction.gateway.flights import Flight, Flights, Result
from litellm_compaction.gateway.operator import Mode
from litellm_compaction.gateway.pending import Pending
from litellm_compaction.gateway.profiles import load_counter
from litellm_compaction.gateway.responses import (
    ErrorEvent,
    Event,
    EventWriter,
    write_compact_body,
    write_item,
    write_response,
)
from litellm_compaction.gateway.runner import Runner, write_key
from litellm_compaction.gateway.sight import tell_refused_item, watch_flight
from litellm_compaction.gateway.usage import add_usage
from litellm_compaction.settings import Settings

_NOTE: Final = (
    "[Here stood the summary of an earlier part of this conversation, made by another server. It cannot be read here.]"
)


_TOO_MUCH: Final = "Invalid 'input': its compaction items hold more together than one conversation can."


def expand_input(
    items: list[RawItem],
    settings: Settings,
    ring: KeyRing,
    caller: Caller,
    mode: Mode,
    *,
    allow_unsealed: bool = False,
    chained: bool = False,
    keep_open: bool = False,
) -> Expansion:
    """The input with this plugin's items opened. Raises UnreadableItem for one that cannot be, unless it belongs to a
    native backend or the operator chose a note, and InvalidInput for what could not be written again."""

    # By content: one item may come a thousand times, and each time inflate to megabytes.
    opened: Final[dict[object, Opened]] = {}
    weight = 0

    def open_one(raw: RawItem) -> Opened | RawItem:
        nonlocal weight
        content: Final = raw.get("encrypted_content")
        if mode == "native" and not is_own(content):
            return raw
        if isinstance(content, str) and content in opened:
            return opened[content]
        try:
            payload, taken = open_weighed(raw, ring, caller, allow_unsealed=allow_unsealed)
            _check_flat(payload, raw)
        except UnreadableItem as error:
            tell_refused_item(error, content, settings.foreign_items, caller)
            if settings.foreign_items == "reject":
                raise
            return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _NOTE}]}
        weight += taken
        if weight > MAX_WEIGHT:
            raise InvalidInput(_TOO_MUCH)
        opened[content] = Opened(payload, content_digest(str(content)))
        return opened[content]

    expansion: Final = expand_items(items, open_one, settings.summary_role, chained=chained, keep_open=keep_open)
    if mode == "own":
        check_bounds(expansion.items)
    return expansion


def _check_flat(payload: Payload, raw: RawItem) -> None:
    """Items never nest; where they are not sealed, a client may have written one that does. Raises UnreadableItem."""
    if any(map(is_control, (*payload.kept, *payload.system))):
        raise UnreadableItem(raw.get("id"), raw.get("encrypted_content"))


async def finish_events(pending: Pending, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The events of a compaction: its item as it was written, its usage in the last one, an `error` event before the
    `response.failed` that LiteLLM writes.

    LiteLLM turns either event of a backend into an exception and only then writes its own `response.failed`.
    """
    number = -1
    try:
        async for event in events:
            number = max(number, getattr(event, "sequence_number", number))
            yield _finished(pending, event)
    except Exception:
        if pending.late_error is not None:
            yield ErrorEvent(type="error", sequence_number=number + 1, error=pending.late_error.body())
        raise


def strip_body(pending: Pending, response: Any) -> Any:
    """The answer without the null keys LiteLLM adds: items as they were written, /responses/compact with its five keys.

    A trigger's answer stays an object of LiteLLM's, which hooks listed later expect. LiteLLM writes its routing into
    the id of a compact answer; the plugin's own id takes its place, since nothing can be looked up under either.
    """
    output: Final = [_as_written(pending, _without_nulls(item)) for item in response.model_dump(mode="json")["output"]]
    spent: Final = _usage_of(pending, response) or response.usage
    if pending.origin == "trigger":
        return response.model_copy(update={"output": output, "usage": spent})
    usage: Final = _without_nulls(spent.model_dump(mode="json"))
    created_at: Final = int(response.created_at)
    frame_id: Final = pending.frame.response_id
    return {
        "id": frame_id,
        "object": "response.compaction",
        "created_at": created_at,
        "output": output,
        "usage": usage,
    }


def _finished(pending: Pending, event: Any) -> Any:
    """Copies, where something is changed: LiteLLM books the tokens of the object it has."""
    changes: Final[dict[str, Any]] = {}
    item: Final = getattr(event, "item", None)
    if item is not None and (written := _as_written(pending, item)) is not item:
        changes["item"] = written
    response: Final[Any] = getattr(event, "response", None)
    if response is not None:
        usage: Final = _usage_of(pending, response)
        output: Final = [_as_written(pending, item) for item in getattr(response, "output", None) or ()]
        members: Final = {**({} if usage is None else {"usage": usage}), **({"output": output} if output else {})}
        if members:
            changes["response"] = response.model_copy(update=members)
    return event.model_copy(update=changes) if changes else event


def _as_written(pending: Pending, item: Any) -> Any:
    """The compaction item with its own id and content; any other item as it is. Where an operator has switched on
    LiteLLM's affinity of encrypted content, LiteLLM writes the deployment into both: this item has none."""
    content: Final = _member(item, "encrypted_content")
    if _member(item, "type") != "compaction" or not isinstance(content, str):
        return item
    own: Final = {"id": pending.frame.item_id, "encrypted_content": unwrap_content(content)}
    if all(_member(item, name) == value for name, value in own.items()):
        return item
    return {**item, **own} if isinstance(item, Mapping) else item.model_copy(update=own)


def _member(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _usage_of(pending: Pending, response: Any) -> ResponseAPIUsage | None:
    """The usage to put into an answer, None where it is in there or there is none yet."""
    if not pending.adds_usage or pending.result is None or getattr(response, "usage", None) is None:
        return None
    return add_usage(response.usage, pending.result.usage)


def _without_nulls(value: Any) -> Any:
    """Nulls out of an object, at every depth but inside lists: what stands there is the client's own content."""
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}


async def take_off(
    pending: Pending, metadata: Mapping[str, Any], flights: Flights, budgets: Budgets
) -> tuple[str, Flight]:
    """The key of a compaction, and its flight: the one that is on its way, or a new one. The caller has to leave it."""
    key: Final = await run_heavy(write_key, pending)
    runner: Final = Runner(pending, metadata, budgets)
    flight: Final = await flights.join(key, runner.run, pending.settings.deadline_seconds)
    watch_flight(flight, pending, metadata, lambda: runner.has_run)
    return key, flight


class Service:
    """Answers one pending compaction: joins the one that runs for the same request, or runs it."""

    def __init__(self, pending: Pending, metadata: Mapping[str, Any], flights: Flights, budgets: Budgets) -> None:
        self._pending: Final = pending
        self._metadata: Final = metadata
        self._flights: Final = flights
        self._budgets: Final = budgets

    async def deliver(self) -> httpx.AsyncBaseTransport:
        """The transport that answers LiteLLM. Waits for the end, a stream only for a few seconds.

        Raises the compaction's errors, and LiteLLM's own unchanged, as long as no stream has begun.
        """
        pending: Final = self._pending
        key, flight = await take_off(pending, self._metadata, self._flights, self._budgets)
        pending.frame = replace(pending.frame, item_id=flight.item_id)
        handed_over = False
        try:
            await asyncio.wait({flight.task}, timeout=EARLY_SECONDS if pending.stream else None)
            if pending.stream and not flight.task.done():
                handed_over = True
                leave: Final = functools.partial(self._flights.leave, key, flight)
                return EventTransport(self._late_events(flight, leave))
            return await self._answer(await flight.task)
        finally:
            if not handed_over:
                self._flights.leave(key, flight)

    async def _answer(self, result: Result) -> httpx.AsyncBaseTransport:
        pending: Final = self._pending
        pending.result = result
        ended: Final = int(time.time())
        usage: Final = self._usage(result)
        if pending.stream:
            writer: Final = EventWriter(pending.frame)
            events: Final = [*writer.opening(), writer.added(result.content), *self._end(writer, result)]
            return EventTransport(replay_events(events))
        if pending.origin == "compact":
            messages: Final = await run_heavy(self._user_messages, result)
            return JsonTransport(write_compact_body(pending.frame, messages, result.content, usage, ended))
        item: Final = write_item(pending.frame.item_id, result.content)
        body: Final = write_response(pending.frame, "completed", output=[item], usage=usage, completed_at=ended)
        return JsonTransport(body)

    def _user_messages(self, result: Result) -> list[RawItem]:
        expansion: Final = self._pending.expansion
        items: Final = classify_items(expansion.items)
        return select_user_messages(items, expansion.summaries, result.message_tokens, load_counter())

    def _late_events(self, flight: Flight, leave: Callable[[], None]) -> AsyncIterator[Event]:
        writer: Final = EventWriter(self._pending.frame)

        async def closing() -> Iterable[Event]:
            self._pending.result = await flight.task
            return self._end(writer, self._pending.result)

        return stream_events(writer, flight.task, closing, self._late_error, leave)

    def _late_error(self, error: Exception) -> CompactionError:
        self._pending.late_error = as_compaction_error(error)
        return self._pending.late_error

    def _end(self, writer: EventWriter, result: Result) -> list[Event]:
        return list(writer.closing(result.content, self._usage(result), int(time.time())))

    def _usage(self, result: Result) -> Usage:
        return Usage() if self._pending.adds_usage else result.usage

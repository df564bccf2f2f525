"""One compaction from a classified request to what the client is given."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import httpx

from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.compaction.compact import Outcome, Task, compact, make_plan
from litellm_compaction.compaction.engine import Policy
from litellm_compaction.compaction.plan import Limits
from litellm_compaction.compaction.prompt import write_instructions
from litellm_compaction.conversation.expansion import Expansion, Opened, expand_items, is_summary
from litellm_compaction.conversation.items import RawItem
from litellm_compaction.envelope.payload import Payload, TooLarge
from litellm_compaction.envelope.sealing import (
    Caller,
    KeyRing,
    content_digest,
    is_own,
    open_item,
    seal_payload,
    write_unsealed,
)
from litellm_compaction.errors import CompactionError, CompactionFailed, UnreadableItem
from litellm_compaction.gateway.delivery import (
    EARLY_SECONDS,
    EventTransport,
    JsonTransport,
    replay_events,
    stream_events,
)
from litellm_compaction.gateway.errors import as_compaction_error
from litellm_compaction.gateway.operator import Mode
from litellm_compaction.gateway.responses import (
    ErrorEvent,
    Event,
    EventWriter,
    Frame,
    write_compact_body,
    write_item,
    write_response,
)
from litellm_compaction.gateway.router import RouterSummarizer, current_router, read_profile
from litellm_compaction.settings import Settings

_NOTE: Final = (
    "[Here stood the summary of an earlier part of this conversation, made by another server. It cannot be read here.]"
)
# A quarter of the transcript at most stays as it is where the window is unknown, so that the result is always smaller.
_RECENT_SHARE: Final = 4


@dataclass(slots=True)
class Pending:
    """A compaction on its way through LiteLLM, left in the request's data by the pre-call hook.

    `model` is the group as LiteLLM routes it, `extra` what of the client's own routing wishes goes along with the
    inner call, `application` the instructions that came with a /responses/compact call, `client_members` the names in
    the client's body.
    """

    origin: Literal["trigger", "compact"]
    stream: bool
    model: str
    settings: Settings
    ring: KeyRing
    caller: Caller
    expansion: Expansion
    frame: Frame
    application: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    client_members: frozenset[str] = frozenset()
    outcome: Outcome | None = None
    retry_after: str | None = None
    late_error: CompactionError | None = None

    @property
    def writer_model(self) -> str:
        """The group that writes the summary, aliases resolved."""
        return self.settings.summary_model or self.model

    @property
    def shown_writer(self) -> str:
        """The same as the client knows it."""
        return self.settings.summary_model or self.frame.model

    def failure_headers(self) -> dict[str, str]:
        """LiteLLM passes a provider's `Retry-After` on under a name that no client looks for."""
        return {} if self.retry_after is None else {"retry-after": self.retry_after}

    def take_final_input(self, items: list[RawItem]) -> None:
        """Use the transcript as later hooks left it. A hook that adds or removes items moves the earlier summaries:
        they are found again by what they begin with."""
        summaries = self.expansion.summaries
        if summaries and len(items) != len(self.expansion.items):
            summaries = frozenset(place for place, raw in enumerate(items) if is_summary(raw))
        self.expansion = replace(self.expansion, items=items, summaries=summaries)

    def headers(self) -> dict[str, str]:
        """Response headers; what is not known yet when a long stream starts is left out."""
        known: Final = {"x-litellm-compaction": self.origin, "x-litellm-compaction-model": self.shown_writer}
        if self.outcome is None:
            return known
        return {
            **known,
            "x-litellm-compaction-attempts": str(self.outcome.attempts),
            "x-litellm-compaction-dropped": str(self.outcome.dropped),
            "x-litellm-compaction-tokens-before": str(self.outcome.tokens_before),
            "x-litellm-compaction-tokens-after": str(self.outcome.tokens_after),
        }


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
    native backend or the operator chose a note."""

    def open_one(raw: RawItem) -> Opened | RawItem:
        content: Final = raw.get("encrypted_content")
        if mode == "native" and not is_own(content):
            return raw
        try:
            payload: Final = open_item(raw, ring, caller, allow_unsealed=allow_unsealed)
        except UnreadableItem:
            if settings.foreign_items == "reject":
                raise
            return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _NOTE}]}
        return Opened(payload, content_digest(str(content)))

    return expand_items(items, open_one, settings.summary_role, chained=chained, keep_open=keep_open)


async def with_error_event(pending: Pending, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The events of a compaction, an `error` event before the `response.failed` that LiteLLM writes.

    LiteLLM turns either event of a backend into an exception and only then writes its own `response.failed`.
    """
    number = -1
    try:
        async for event in events:
            number = max(number, getattr(event, "sequence_number", number))
            yield event
    except Exception:
        if pending.late_error is not None:
            yield ErrorEvent(type="error", sequence_number=number + 1, error=pending.late_error.body())
        raise


def strip_body(pending: Pending, response: Any) -> Any:
    """The answer without the null keys LiteLLM adds: items as they were written, /responses/compact with its five keys.

    A trigger's answer stays LiteLLM's object, which hooks listed later expect. LiteLLM writes its routing into the id
    of a compact answer; the plugin's own id takes its place, since nothing can be looked up under either.
    """
    output: Final = [_without_nulls(item) for item in response.model_dump(mode="json")["output"]]
    if pending.origin == "trigger":
        response.output = output
        return response
    usage: Final = _without_nulls(response.usage.model_dump(mode="json"))
    created_at: Final = int(response.created_at)
    frame_id: Final = pending.frame.response_id
    return {
        "id": frame_id,
        "object": "response.compaction",
        "created_at": created_at,
        "output": output,
        "usage": usage,
    }


def _without_nulls(value: Any) -> Any:
    """Nulls out of an object, at every depth but inside lists: what stands there is the client's own content."""
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}


def new_frame(shown_model: str) -> Frame:
    """A frame for an answer to a client that asked for `shown_model`; ids as long as OpenAI's."""
    response_id, item_id = f"resp_{secrets.token_hex(25)}", f"cmp_{secrets.token_hex(25)}"
    return Frame(response_id, item_id, shown_model, int(time.time()))


class Service:
    """Runs one pending compaction. `now` is Unix time in seconds."""

    def __init__(self, pending: Pending, metadata: Mapping[str, Any], now: Callable[[], float] = time.time) -> None:
        self._pending: Final = pending
        self._metadata: Final = metadata
        self._now: Final = now
        self._frame: Final = pending.frame
        self._sealed = ""

    async def deliver(self) -> httpx.AsyncBaseTransport:
        """The transport that answers LiteLLM. Waits for the end, a stream only for a few seconds.

        Raises the compaction's errors, and LiteLLM's own unchanged, as long as no stream has begun.
        """
        running: Final = asyncio.create_task(self._run())
        pending: Final = self._pending
        try:
            await asyncio.wait({running}, timeout=EARLY_SECONDS if pending.stream else None)
        except asyncio.CancelledError:
            running.cancel()
            raise
        if pending.stream:
            writer: Final = EventWriter(self._frame)
            if not running.done():
                return EventTransport(stream_events(writer, running, self._closing(writer, running), self._late_error))
            outcome: Final = await running
            events: Final = [*writer.opening(), writer.added(self._sealed), *self._end(writer, outcome)]
            return EventTransport(replay_events(events))
        return JsonTransport(self._body(await running))

    async def _run(self) -> Outcome:
        pending: Final = self._pending
        router: Final = current_router()
        if router is None:
            raise RuntimeError("LiteLLM has no router: a model_list is needed")
        task: Final = Task(
            expansion=pending.expansion,
            origin=pending.origin,
            model=pending.shown_writer,
            limits=lambda tokens: _limits(pending.settings, tokens),
            user_message_tokens=pending.settings.user_message_tokens,
            application=pending.application,
        )
        # Megabytes of transcript: rendering and sealing them would hold the event loop.
        plan: Final = await asyncio.to_thread(make_plan, task, estimate_tokens)
        profile: Final = read_profile(router, pending.writer_model, pending.caller.team)
        policy: Final = Policy(
            instructions=write_instructions(pending.settings.instructions),
            mark=lambda: secrets.token_hex(6),
            max_attempts=pending.settings.max_attempts,
            deadline_seconds=pending.settings.deadline_seconds,
            failure_status=pending.settings.failure_status,
            first_style=profile.first_style,
            images=profile.images,
        )
        summarizer: Final = RouterSummarizer(router, pending.writer_model, self._metadata, pending.extra)
        outcome: Final = await compact(task, plan, summarizer, policy, estimate_tokens, lambda: int(self._now()))
        try:
            self._sealed = await asyncio.to_thread(self._seal, outcome.payload)
        except TooLarge:
            reason: Final = "what has to be kept is too large for one compaction item."
            raise CompactionFailed(reason, pending.settings.failure_status) from None
        pending.outcome = outcome
        return outcome

    def _seal(self, payload: Payload) -> str:
        pending: Final = self._pending
        if not pending.settings.seal:
            return write_unsealed(payload)
        return seal_payload(payload, pending.ring, pending.caller, pending.settings.bind, os.urandom)

    def _body(self, outcome: Outcome) -> dict[str, Any]:
        ended: Final = int(self._now())
        if self._pending.origin == "compact":
            return write_compact_body(self._frame, outcome.user_messages, self._sealed, outcome.usage, ended)
        item: Final = write_item(self._frame, self._sealed)
        return write_response(self._frame, "completed", output=[item], usage=outcome.usage, completed_at=ended)

    def _late_error(self, error: Exception) -> CompactionError:
        self._pending.late_error = as_compaction_error(error)
        return self._pending.late_error

    def _end(self, writer: EventWriter, outcome: Outcome) -> list[Event]:
        return list(writer.closing(self._sealed, outcome.usage, int(self._now())))

    def _closing(self, writer: EventWriter, running: asyncio.Task[Outcome]) -> Callable[[], Awaitable[Iterable[Event]]]:
        async def closing() -> Iterable[Event]:
            return self._end(writer, await running)

        return closing


def _limits(settings: Settings, transcript_tokens: int) -> Limits:
    recent: Final = min(settings.keep_recent_tokens, transcript_tokens // _RECENT_SHARE)
    ceiling: Final = None if settings.context is None else int(settings.context * settings.retained_fraction)
    return Limits(recent=recent, kept=ceiling)

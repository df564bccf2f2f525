"""One bill: the same compaction asked for twice runs once.

While it runs, whoever asks for it joins (single-flight); for ten minutes after it ended, its result is given again, a
failure for one minute. Several workers share both through the store: one holds a claim and renews it while it works,
the others wait for the result, and take over when the claim runs out.

| flight       | event                                       | next                                                |
|--------------|---------------------------------------------|-----------------------------------------------------|
| new          | a result or failure is remembered           | ended with it                                       |
| new          | no other worker has a claim                 | running                                             |
| new          | another worker has one                      | waiting                                             |
| running      | done                                        | ended; remembered for ten minutes                   |
| running      | done without a model's summary (ledger)     | ended; remembered for a minute                      |
| running      | compaction_failed, compaction_timeout       | ended; remembered for a minute                      |
| running      | any other error (rate limit, access)        | ended; not remembered: it is the caller's to clear  |
| running      | nobody has been waiting for a minute        | cancelled                                           |
| running      | nobody here, but on another worker          | goes on                                             |
| waiting      | the other worker's result or failure        | ended with it                                       |
| waiting      | the other worker's claim is gone, or Redis  | running, within the deadline that has begun         |
| waiting      | nobody has been waiting for a minute        | cancelled                                           |
| waiting      | deadline                                    | CompactionTimeout                                   |
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.errors import CompactionError, CompactionFailed, CompactionTimeout
from litellm_compaction.gateway.store import Store

RESULT_SECONDS: Final = 600.0
FAILURE_SECONDS: Final = 60.0
# How long a compaction that nobody waits for goes on, for a client that lost its stream and comes back.
ABANDONED_SECONDS: Final = 60.0
_CLAIM_SECONDS, _RENEW_SECONDS, _POLL_SECONDS = 30.0, 10.0, 0.25


class Result(BaseModel):
    """A finished compaction as every client that asked for it gets it. Numbers as in the headers; `message_tokens` is
    what user messages beside the item may have, `degraded` says that no model's summary is in it, `writer` names the
    group that LiteLLM fell back to."""

    model_config = ConfigDict(frozen=True)

    item_id: str
    content: str
    usage: Usage
    attempts: int
    dropped: int
    tokens_before: int
    tokens_after: int
    message_tokens: int
    degraded: bool = False
    writer: str | None = None

    def headers(self, writer: str) -> dict[str, str]:
        """What a client is told of it; `writer`: the group that wrote the summary, as the client knows it."""
        return {
            "x-litellm-compaction-model": "ledger" if self.degraded else self.writer or writer,
            "x-litellm-compaction-attempts": str(self.attempts),
            "x-litellm-compaction-dropped": str(self.dropped),
            "x-litellm-compaction-tokens-before": str(self.tokens_before),
            "x-litellm-compaction-tokens-after": str(self.tokens_after),
        }


# Runs the compaction whose item has the given id; its deadline began at the given time of the event loop.
Work = Callable[[str, float], Awaitable[Result]]


class Flight:
    """One compaction and those who wait for it. `item_id` is known when it is handed out, `task` has the result.
    `remembered`: it had ended before it was asked for."""

    def __init__(self) -> None:
        self.item_id = ""
        self.known: Final = asyncio.Event()
        self.task: asyncio.Task[Result]
        self.given_up = False
        self.remembered = False
        self._waiters = 0
        self._left_at = 0.0
        self._reaper: asyncio.Task[None] | None = None

    @property
    def has_waiters(self) -> bool:
        return self._waiters > 0

    def enter(self) -> None:
        self._waiters += 1

    def leave(self, wanted: Callable[[], Awaitable[bool]]) -> None:
        """A client has its answer, or has gone. `wanted`: whether another worker waits."""
        self._waiters -= 1
        self._left_at = _clock()
        if self._waiters == 0 and not self.task.done() and self._reaper is None:
            self._reaper = asyncio.create_task(self._reap(wanted))

    async def _reap(self, wanted: Callable[[], Awaitable[bool]]) -> None:
        while not self.task.done() and not self._waiters:
            left = self._left_at + ABANDONED_SECONDS - _clock()
            if left > 0:
                await asyncio.wait({self.task}, timeout=left)
            elif await wanted():
                self._left_at = _clock()
            elif not self._waiters and self._left_at + ABANDONED_SECONDS <= _clock():  # while it asked, none came
                self.given_up = True
                self.task.cancel()
                break
        self._reaper = None


def _clock() -> float:
    return asyncio.get_running_loop().time()


class Flights:
    """All compactions of this process."""

    def __init__(self, store: Store) -> None:
        self._store: Final = store
        self._flights: Final[dict[str, Flight]] = {}

    async def join(self, key: str, work: Work, deadline_seconds: float) -> Flight:
        """The flight for a key: the one that is on its way, or a new one. The caller has to `leave` it."""
        flight = self._flights.get(key)
        if flight is None or flight.given_up:  # a cancelled one may take a while to end, and has nothing to give
            flight = self._flights[key] = Flight()
            flight.task = asyncio.create_task(self._fly(key, flight, work, deadline_seconds))
            flight.task.add_done_callback(functools.partial(self._landed, key, flight))
        flight.enter()
        try:
            known: Final = asyncio.create_task(flight.known.wait())
            try:
                await asyncio.wait({known, flight.task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                known.cancel()
        except asyncio.CancelledError:
            self.leave(key, flight)
            raise
        return flight

    def leave(self, key: str, flight: Flight) -> None:
        """One that has joined needs it no more."""
        flight.leave(lambda: self._is_wanted(key))

    def _landed(self, key: str, flight: Flight, task: asyncio.Task[Result]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not task.cancelled():
            task.exception()  # looked at: with all clients gone nobody else does

    async def _is_wanted(self, key: str) -> bool:
        return await self._store.read(f"wanted:{key}") is not None

    async def _fly(self, key: str, flight: Flight, work: Work, deadline_seconds: float) -> Result:
        started: Final = _clock()
        token: Final = secrets.token_hex(8)
        item_id = f"cmp_{secrets.token_hex(25)}"
        try:
            async with asyncio.timeout(deadline_seconds) as deadline:
                while True:
                    remembered = await self._remembered(key)
                    if remembered is not None:
                        return _recall(flight, remembered)
                    claim = _write_claim(item_id, token)
                    holder = await self._store.claim(f"claim:{key}", claim, _CLAIM_SECONDS)
                    if holder == claim and (remembered := await self._remembered(key)) is not None:
                        # Its worker ended between the look at the result and the claim.
                        await self._store.release(f"claim:{key}", claim)
                        return _recall(flight, remembered)
                    item_id = _announce(flight, holder)
                    if holder == claim:
                        break
                    if flight.has_waiters:
                        await self._store.share(f"wanted:{key}", b"1", ABANDONED_SECONDS)
                    await asyncio.sleep(_POLL_SECONDS)
                    # The Redis client loses a cancellation now and then, and a deadline rings only once.
                    if flight.given_up:
                        raise asyncio.CancelledError
                    if _clock() - started >= deadline_seconds:
                        raise CompactionTimeout(deadline_seconds)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise CompactionTimeout(deadline_seconds) from None
        return await self._run(key, claim, functools.partial(work, item_id, started))

    async def _remembered(self, key: str) -> Result | CompactionError | None:
        written: Final = await self._store.read(f"result:{key}")
        return None if written is None else _read(written)

    async def _run(self, key: str, claim: bytes, work: Callable[[], Awaitable[Result]]) -> Result:
        renewing: Final = asyncio.create_task(self._renew(key, claim))
        try:
            result: Final = await work()
            seconds: Final = FAILURE_SECONDS if result.degraded else RESULT_SECONDS
            await self._store.write(f"result:{key}", result.model_dump_json().encode(), seconds)
        except (CompactionFailed, CompactionTimeout) as failure:
            written: Final = json.dumps({"failure": write_failure(failure)}).encode()
            await self._store.write(f"result:{key}", written, FAILURE_SECONDS)
            raise
        else:
            return result
        finally:
            renewing.cancel()
            await self._store.release(f"claim:{key}", claim)

    async def _renew(self, key: str, claim: bytes) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            await self._store.renew(f"claim:{key}", claim, _CLAIM_SECONDS)


def _write_claim(item_id: str, token: str) -> bytes:
    return f"{item_id} {token}".encode()


def _announce(flight: Flight, claim: bytes) -> str:
    """The item's id is the one of the first claim seen, also when that worker dies and this one takes over: a client
    may have been told it already."""
    if not flight.known.is_set():
        flight.item_id = claim.decode().partition(" ")[0]
        flight.known.set()
    return flight.item_id


def _recall(flight: Flight, remembered: Result | CompactionError) -> Result:
    """What is remembered. Raises the failure if that is what it was."""
    flight.remembered = not flight.known.is_set()
    if isinstance(remembered, CompactionError):
        raise remembered
    if not flight.known.is_set():
        flight.item_id = remembered.item_id
        flight.known.set()
    return remembered


def _read(written: bytes) -> Result | CompactionError | None:
    """What was remembered; None if another version of the plugin wrote it in a way of its own."""
    try:
        value: Final[dict[str, Any]] = json.loads(written)
        return read_failure(value["failure"]) if "failure" in value else Result.model_validate(value)
    except (ValueError, KeyError, TypeError):
        return None


def write_failure(failure: CompactionError) -> dict[str, Any]:
    """A failure as it is remembered."""
    return {"code": failure.code, "status": failure.status, "message": failure.message}


def read_failure(told: dict[str, Any]) -> CompactionError:
    """The failure that was remembered. Raises KeyError and TypeError on what is none."""
    failure: Final = CompactionError(told["message"])
    failure.status, failure.code = told["status"], told["code"]
    return failure

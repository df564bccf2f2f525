"""One bill: each row of the table in flights.py, in one process and with two workers on one Redis."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.errors import CompactionError, CompactionFailed, CompactionTimeout
from litellm_compaction.gateway import flights as module
from litellm_compaction.gateway.flights import Flight, Flights, Result, Work
from litellm_compaction.gateway.store import LOCAL, Store
from tests.gateway.conftest import Clock
from tests.support.keys import ring
from tests.support.redis import LiveRedis, running_redis

OpenStore = Callable[..., Store]
KEY, OTHER_KEY = "the-same-request", "another-request"
DEADLINE = 30.0


class FakeWork:
    """A compaction that ends when a test says so, with a result or an error."""

    def __init__(self, error: Exception | None = None, *, degraded: bool = False, is_open: bool = False) -> None:
        self.error = error
        self.degraded = degraded
        self.item_ids: list[str] = []
        self.started: list[float] = []
        self.gate = asyncio.Event()
        self.cancelled = False
        if is_open:
            self.gate.set()

    async def __call__(self, item_id: str, started: float) -> Result:
        self.item_ids.append(item_id)
        self.started.append(started)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return Result(
            item_id=item_id,
            content=f"sealed for run {len(self.item_ids)}",
            usage=Usage(7, 5, 3, 1),
            attempts=2,
            dropped=1,
            tokens_before=1000,
            tokens_after=100,
            message_tokens=64_000,
            degraded=self.degraded,
        )

    @property
    def runs(self) -> int:
        return len(self.item_ids)


class AskedStore(Store):
    """A store that notes how often it is asked whether a flight is wanted, and answers when a test lets it."""

    def __init__(self, cache: str | None) -> None:
        super().__init__(cache, ring)
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def read(self, key: str) -> bytes | None:
        if key.startswith("wanted:"):
            self.asked += 1
            await self.answers.wait()
        return await super().read(key)


async def until(reached: Callable[[], Any]) -> None:
    """Wait for a state; ten seconds are for a machine that is busy."""
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110  # nothing tells when Redis or another task gets there
            await asyncio.sleep(0.002)


async def ask(flights: Flights, work: Work, key: str = KEY, deadline: float = DEADLINE) -> Result:
    """One client, from its request to its answer."""
    flight = await flights.join(key, work, deadline)
    try:
        return await flight.task
    finally:
        flights.leave(key, flight)


def aloft(flights: Flights) -> dict[str, Flight]:
    """The flights that are not over."""
    return flights._flights  # noqa: SLF001  # what is left behind shows nowhere else


def has_reaper(flight: Flight) -> bool:
    """Whether somebody reckons with a flight being abandoned."""
    return flight._reaper is not None  # noqa: SLF001  # that a minute was over and nothing came of it shows nowhere else


@pytest.fixture(autouse=True)
async def nothing_left_behind() -> AsyncIterator[None]:
    """After each test no task is left, and no error that nobody looked at."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    yield
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    gc.collect()
    assert complaints == []


@pytest.fixture
def flights(clock: Clock) -> Flights:
    """One worker alone."""
    return Flights(Store(LOCAL, ring, clock))


# One worker.


async def test_four_joins_run_the_work_once(flights: Flights) -> None:
    """Whoever asks for it while it runs gets the same result under the same id, known to all before the end."""
    works = [FakeWork() for _ in range(4)]
    joined = await asyncio.gather(*(flights.join(KEY, work, DEADLINE) for work in works))
    await until(lambda: works[0].runs)
    assert not joined[0].task.done()
    assert {flight.item_id for flight in joined} == set(works[0].item_ids)
    works[0].gate.set()
    results = [await flight.task for flight in joined]
    for flight in joined:
        flights.leave(KEY, flight)
    assert [work.runs for work in works] == [1, 0, 0, 0]
    assert results == [results[0]] * 4
    assert results[0].item_id == joined[0].item_id
    assert not aloft(flights)


async def test_item_ids_are_as_long_as_openais(flights: Flights) -> None:
    """Fifty hexadecimal digits, others for each compaction."""
    works = [FakeWork(is_open=True), FakeWork(is_open=True)]
    for number, work in enumerate(works):
        await ask(flights, work, str(number))
    ids = works[0].item_ids + works[1].item_ids
    assert len(set(ids)) == 2
    assert all(len(item_id) == 54 and item_id.startswith("cmp_") and int(item_id[4:], 16) for item_id in ids)


async def test_different_requests_fly_apart(flights: Flights) -> None:
    """Two keys are two compactions, at the same time."""
    one, other = FakeWork(), FakeWork(is_open=True)
    waiting = asyncio.create_task(ask(flights, one))
    await ask(flights, other, OTHER_KEY)
    assert not waiting.done()
    one.gate.set()
    assert (await waiting).item_id == one.item_ids[0] != other.item_ids[0]


async def test_result_is_remembered_for_ten_minutes(flights: Flights, clock: Clock) -> None:
    """The same request within ten minutes of the end runs nothing; after that it runs anew."""
    first, second, third = (FakeWork(is_open=True) for _ in range(3))
    clock.seconds += 1000
    result = await ask(flights, first)
    clock.seconds += 599.9
    flight = await flights.join(KEY, second, DEADLINE)
    assert (await flight.task, flight.item_id) == (result, result.item_id)
    flights.leave(KEY, flight)
    clock.seconds += 0.1
    again = await ask(flights, third)
    assert (first.runs, second.runs, third.runs) == (1, 0, 1)
    assert again.item_id != result.item_id


async def test_minutes_count_from_the_end(flights: Flights, clock: Clock) -> None:
    """A compaction that took long is remembered no shorter."""
    work = FakeWork()
    waiting = asyncio.create_task(ask(flights, work))
    await until(lambda: work.runs)
    clock.seconds += 900
    work.gate.set()
    result = await waiting
    clock.seconds += 599
    assert await ask(flights, FakeWork()) == result


async def test_degraded_result_is_remembered_for_a_minute(flights: Flights, clock: Clock) -> None:
    """What no model has written is not held against a model that works again."""
    first, second, third = (FakeWork(degraded=True, is_open=True) for _ in range(3))
    result = await ask(flights, first)
    clock.seconds += 59.9
    assert await ask(flights, second) == result
    clock.seconds += 0.1
    await ask(flights, third)
    assert (first.runs, second.runs, third.runs) == (1, 0, 1)


FAILURES = {
    "failed": CompactionFailed("no valid summary.", 400),
    "failed-with-500": CompactionFailed("no valid summary, „warum“?", 500),
    "timeout": CompactionTimeout(240),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_failure_is_remembered_for_a_minute(failure: CompactionError, flights: Flights, clock: Clock) -> None:
    """A client that repeats at once pays nothing and hears the same: code, status, message."""
    first, second, third = FakeWork(failure, is_open=True), FakeWork(is_open=True), FakeWork(is_open=True)
    with pytest.raises(type(failure)):
        await ask(flights, first)
    clock.seconds += 59.9
    with pytest.raises(CompactionError) as caught:
        await ask(flights, second)
    assert (caught.value.status, caught.value.body()) == (failure.status, failure.body())
    clock.seconds += 0.1
    await ask(flights, third)
    assert (first.runs, second.runs, third.runs) == (1, 0, 1)


async def test_all_who_wait_hear_of_the_failure(flights: Flights) -> None:
    """A failure is each waiting client's, in the same words."""
    work = FakeWork(CompactionFailed("why.", 400))
    waiting = [asyncio.create_task(ask(flights, work)) for _ in range(3)]
    await until(lambda: work.runs)
    work.gate.set()
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(error) for error in errors] == [str(work.error)] * 3
    assert work.runs == 1


ERRORS = {
    "rate-limit": RuntimeError("429"),
    "other-refusal": CompactionError("something else"),
    "timeout-of-the-host": TimeoutError("socket"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
async def test_other_errors_are_not_remembered(error: Exception, flights: Flights) -> None:
    """What was not paid for is tried again at once, and the error is the host's own, unchanged."""
    with pytest.raises(type(error)) as caught:
        await ask(flights, FakeWork(error, is_open=True))
    assert caught.value is error
    assert not aloft(flights)
    again = FakeWork(is_open=True)
    await ask(flights, again)
    assert again.runs == 1


async def test_flight_without_clients_ends_without_complaint(flights: Flights, clock: Clock) -> None:
    """A failure nobody hears is looked at all the same, and a result nobody waits for is remembered."""
    failing, working = FakeWork(RuntimeError("why")), FakeWork()
    flights.leave(KEY, await flights.join(KEY, failing, DEADLINE))
    flights.leave(OTHER_KEY, await flights.join(OTHER_KEY, working, DEADLINE))
    failing.gate.set()
    working.gate.set()
    await until(lambda: not aloft(flights))
    assert (await ask(flights, FakeWork(), OTHER_KEY)).item_id == working.item_ids[0]


# Abandoned.


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute that is over at once."""
    monkeypatch.setattr(module, "ABANDONED_SECONDS", 0.05)


@pytest.mark.usefixtures("soon")
async def test_abandoned_work_is_cancelled(flights: Flights) -> None:
    """With all clients gone for a minute the work ends, and the next request starts anew."""
    work, again = FakeWork(), FakeWork(is_open=True)
    joined = [await flights.join(KEY, work, DEADLINE) for _ in range(2)]
    await until(lambda: work.runs)
    for flight in joined:
        flights.leave(KEY, flight)
    await until(lambda: work.cancelled and not aloft(flights))
    assert joined[0].task.cancelled()
    await ask(flights, again)
    assert again.runs == 1


@pytest.mark.usefixtures("soon")
async def test_work_goes_on_for_the_client_that_stays(flights: Flights) -> None:
    """Of two clients one may go."""
    work = FakeWork()
    staying, going = [await flights.join(KEY, work, DEADLINE) for _ in range(2)]
    flights.leave(KEY, going)
    assert not has_reaper(staying)
    work.gate.set()
    await staying.task
    flights.leave(KEY, staying)


@pytest.mark.usefixtures("soon")
async def test_client_that_comes_back_saves_the_work(flights: Flights) -> None:
    """A client that lost its stream and asks again within the minute gets what it left running."""
    work, again = FakeWork(), FakeWork()
    flights.leave(KEY, await flights.join(KEY, work, DEADLINE))
    for _ in range(3):  # until the minute is being counted
        await asyncio.sleep(0)
    back = await flights.join(KEY, again, DEADLINE)
    assert has_reaper(back)
    await until(lambda: not has_reaper(back))
    work.gate.set()
    assert (await back.task).item_id == work.item_ids[0]
    flights.leave(KEY, back)
    assert (work.runs, again.runs) == (1, 0)


@pytest.mark.usefixtures("soon")
async def test_work_left_again_is_cancelled(flights: Flights) -> None:
    """Coming back saves it once: the next that leaves starts the minute anew."""
    work = FakeWork()
    flights.leave(KEY, await flights.join(KEY, work, DEADLINE))
    back = await flights.join(KEY, work, DEADLINE)
    await until(lambda: not has_reaper(back))
    flights.leave(KEY, back)
    await until(lambda: work.cancelled)


@pytest.mark.usefixtures("soon")
async def test_client_that_comes_back_at_the_last_moment_saves_the_work() -> None:
    """The minute is over and the other workers are being asked: a client that comes now still finds it running."""
    store = AskedStore(LOCAL)
    flights, work = Flights(store), FakeWork()
    store.answers.clear()
    flights.leave(KEY, await flights.join(KEY, work, DEADLINE))
    await until(lambda: store.asked)
    back = await flights.join(KEY, FakeWork(), DEADLINE)
    store.answers.set()
    await until(lambda: not has_reaper(back))
    assert not work.cancelled
    work.gate.set()
    assert (await back.task).item_id == work.item_ids[0]
    flights.leave(KEY, back)


async def test_short_visit_at_the_last_moment_gives_another_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that came and went while the other workers were asked has its own minute to come back."""
    monkeypatch.setattr(module, "ABANDONED_SECONDS", 0.05)
    store = AskedStore(LOCAL)
    flights, work = Flights(store), FakeWork()
    store.answers.clear()
    flights.leave(KEY, await flights.join(KEY, work, DEADLINE))
    await until(lambda: store.asked)
    flights.leave(KEY, await flights.join(KEY, FakeWork(), DEADLINE))
    monkeypatch.setattr(module, "ABANDONED_SECONDS", 60)
    store.answers.set()
    for _ in range(20):  # as many turns as a cancellation could need
        await asyncio.sleep(0)
    assert not work.cancelled
    assert has_reaper(aloft(flights)[KEY])
    work.gate.set()


@pytest.mark.usefixtures("soon")
async def test_request_during_the_end_of_an_abandoned_one_starts_anew(flights: Flights) -> None:
    """Work that takes a while to be cancelled gives nothing any more: who comes then has a flight of its own."""
    tidied, tidying = asyncio.Event(), asyncio.Event()

    async def slow_to_end(item_id: str, started: float) -> Result:
        try:
            await asyncio.Event().wait()
        finally:
            tidying.set()
            await tidied.wait()
        raise AssertionError

    old = await flights.join(KEY, slow_to_end, DEADLINE)
    flights.leave(KEY, old)
    await until(tidying.is_set)
    work = FakeWork()
    waiting = asyncio.create_task(ask(flights, work))
    await until(lambda: work.runs)
    tidied.set()
    await until(old.task.done)
    assert len(aloft(flights)) == 1
    work.gate.set()
    assert (await waiting).item_id == work.item_ids[0]
    assert not aloft(flights)


@pytest.mark.usefixtures("soon")
async def test_client_that_goes_while_it_joins_is_not_waited_for(clock: Clock) -> None:
    """A client may be gone before the flight has an id; its work is abandoned like any other."""
    asked = asyncio.Event()

    class Silent(Store):
        async def read(self, key: str) -> bytes | None:
            if key.startswith("result:"):
                asked.set()
                await asyncio.Event().wait()
            return None

    flights = Flights(Silent(LOCAL, ring))
    joining = asyncio.create_task(flights.join(KEY, FakeWork(), DEADLINE))
    await until(asked.is_set)
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    assert aloft(flights)
    await until(lambda: not aloft(flights))


async def test_store_that_never_answers_is_a_timeout() -> None:
    """The deadline of a compaction also bounds the time in which its flight finds out what to do."""

    class Silent(Store):
        async def read(self, key: str) -> bytes | None:
            await asyncio.Event().wait()
            return await super().read(key)

    with pytest.raises(CompactionTimeout):
        await ask(Flights(Silent(LOCAL, ring)), FakeWork(), deadline=0.05)


# Two workers.

Pair = tuple[Flights, Flights]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that look often."""
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)


@pytest.fixture
def pair(quick: None, live_redis: LiveRedis, open_store: OpenStore) -> Pair:
    """Two workers with one Redis."""
    return Flights(open_store(live_redis.url)), Flights(open_store(live_redis.url))


async def start(flights: Flights, work: FakeWork) -> asyncio.Task[Result]:
    """A client of a worker that has begun the work."""
    client = asyncio.create_task(ask(flights, work))
    await until(lambda: work.runs)
    return client


def claim_of(redis: LiveRedis) -> str:
    return f"litellm_compaction:claim:{KEY}"


async def test_other_worker_gets_the_result(pair: Pair) -> None:
    """One works, the other waits, knows the item's id at once, and gets the same result."""
    work, idle = FakeWork(), FakeWork()
    client = await start(pair[0], work)
    flight = await pair[1].join(KEY, idle, DEADLINE)
    assert flight.item_id == work.item_ids[0]
    assert not flight.task.done()
    work.gate.set()
    assert await flight.task == await client
    pair[1].leave(KEY, flight)
    assert (work.runs, idle.runs) == (1, 0)
    assert not aloft(pair[0])
    assert not aloft(pair[1])


async def test_other_worker_knows_a_finished_result(pair: Pair, live_redis: LiveRedis) -> None:
    """What one worker has finished the other gives for ten minutes; the claim is gone with the end."""
    result = await ask(pair[0], FakeWork(is_open=True))
    idle = FakeWork()
    flight = await pair[1].join(KEY, idle, DEADLINE)
    assert (await flight.task, flight.item_id, idle.runs) == (result, result.item_id, 0)
    pair[1].leave(KEY, flight)
    assert 590_000 < live_redis.milliseconds(f"litellm_compaction:result:{KEY}") <= 600_000
    assert live_redis.milliseconds(claim_of(live_redis)) == -2


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_failure_is_remembered_across_workers(
    failure: CompactionError, pair: Pair, live_redis: LiveRedis
) -> None:
    """Who waits at another worker, and who asks there later, hears the same failure and runs nothing."""
    work, idle = FakeWork(failure), FakeWork()
    client = await start(pair[0], work)
    flight = await pair[1].join(KEY, idle, DEADLINE)
    work.gate.set()
    heard = [*await asyncio.gather(client, flight.task, return_exceptions=True)]
    pair[1].leave(KEY, flight)
    heard += await asyncio.gather(ask(pair[1], idle), return_exceptions=True)
    told = [(error.status, error.body()) for error in heard if isinstance(error, CompactionError)]
    assert told == [(failure.status, failure.body())] * 3
    assert idle.runs == 0
    assert 50_000 < live_redis.milliseconds(f"litellm_compaction:result:{KEY}") <= 60_000
    assert live_redis.milliseconds(claim_of(live_redis)) == -2


async def test_degraded_result_is_shared_for_a_minute(pair: Pair, live_redis: LiveRedis) -> None:
    """Also other workers forget what no model has written after a minute."""
    await ask(pair[0], FakeWork(degraded=True, is_open=True))
    assert 50_000 < live_redis.milliseconds(f"litellm_compaction:result:{KEY}") <= 60_000


async def test_error_that_is_not_remembered_lets_the_other_worker_try(pair: Pair) -> None:
    """After a rate limit the claim is free: the waiting worker runs it, under the id its client knows."""
    work, takes_over = FakeWork(RuntimeError("429")), FakeWork(is_open=True)
    client = await start(pair[0], work)
    flight = await pair[1].join(KEY, takes_over, DEADLINE)
    work.gate.set()
    with pytest.raises(RuntimeError, match="429"):
        await client
    assert (await flight.task).item_id == flight.item_id == work.item_ids[0]
    assert takes_over.item_ids == work.item_ids
    pair[1].leave(KEY, flight)


async def test_cancelled_flight_is_taken_over(pair: Pair) -> None:
    """A worker that shuts down gives its claim up; the other goes on at once with the same item's id."""
    work, takes_over = FakeWork(), FakeWork(is_open=True)
    first = await pair[0].join(KEY, work, DEADLINE)
    await until(lambda: work.runs)
    second = await pair[1].join(KEY, takes_over, DEADLINE)
    first.task.cancel()
    assert (await second.task).item_id == first.item_id
    assert takes_over.item_ids == [first.item_id] == work.item_ids
    pair[0].leave(KEY, first)
    pair[1].leave(KEY, second)
    assert work.cancelled
    assert not aloft(pair[0])


async def test_claim_of_a_dead_worker_runs_out(pair: Pair, live_redis: LiveRedis, open_store: OpenStore) -> None:
    """A worker that was killed renews nothing: the other takes over under the id that was promised."""
    await open_store(live_redis.url).claim(f"claim:{KEY}", b"cmp_promised 0123", 0.3)
    work = FakeWork(is_open=True)
    flight = await pair[1].join(KEY, work, DEADLINE)
    assert (flight.item_id, work.runs) == ("cmp_promised", 0)
    assert (await flight.task).item_id == "cmp_promised"
    assert work.item_ids == ["cmp_promised"]
    pair[1].leave(KEY, flight)


async def test_claim_is_renewed_while_the_work_runs(
    pair: Pair, live_redis: LiveRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long compaction keeps its claim, and only as long as it runs."""
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.2)
    work = FakeWork()
    client = await start(pair[0], work)
    lowest = 30_000

    def has_gone_up() -> bool:
        nonlocal lowest
        left = live_redis.milliseconds(claim_of(live_redis))
        lowest = min(lowest, left)
        return left > lowest + 50

    await until(has_gone_up)
    work.gate.set()
    await client
    assert live_redis.milliseconds(claim_of(live_redis)) == -2


async def test_worker_that_ends_between_look_and_claim_is_heard(
    pair: Pair, live_redis: LiveRedis, open_store: OpenStore
) -> None:
    """Who has just seen no result, and then finds the claim free, looks once more before it pays again."""
    looked, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Store):
        async def read(self, key: str) -> bytes | None:
            value = await super().read(key)
            looked.set()
            await go_on.wait()
            return value

    work, idle = FakeWork(), FakeWork(is_open=True)
    client = await start(pair[0], work)
    slow = Flights(Slow(live_redis.url, ring))
    waiting = asyncio.create_task(slow.join(KEY, idle, DEADLINE))
    await until(looked.is_set)
    work.gate.set()
    result = await client
    go_on.set()
    flight = await waiting
    assert (await flight.task, flight.item_id, idle.runs) == (result, result.item_id, 0)
    slow.leave(KEY, flight)
    assert live_redis.milliseconds(claim_of(live_redis)) == -2


async def test_waiting_worker_has_a_deadline(pair: Pair) -> None:
    """A client waits no longer for another worker than for its own; the work goes on, nothing is remembered."""
    work, idle = FakeWork(), FakeWork()
    client = await start(pair[0], work)
    with pytest.raises(CompactionTimeout, match=r"within 0\.1 seconds"):
        await ask(pair[1], idle, deadline=0.1)
    assert not aloft(pair[1])
    work.gate.set()
    assert await ask(pair[1], idle) == await client
    assert idle.runs == 0


def asked_pair(redis: LiveRedis, open_store: OpenStore) -> tuple[AskedStore, Flights, Flights]:
    store = AskedStore(redis.url)
    return store, Flights(store), Flights(open_store(redis.url))


@pytest.mark.usefixtures("quick")
async def test_work_another_worker_waits_for_goes_on(
    live_redis: LiveRedis, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own clients gone a worker goes on as long as one waits elsewhere."""
    monkeypatch.setattr(module, "ABANDONED_SECONDS", 0.3)
    store, one, other = asked_pair(live_redis, open_store)
    work, idle = FakeWork(), FakeWork()
    flight = await one.join(KEY, work, DEADLINE)
    await until(lambda: work.runs)
    waiting = asyncio.create_task(ask(other, idle))
    await until(lambda: aloft(other) and aloft(other)[KEY].known.is_set())
    one.leave(KEY, flight)
    await until(lambda: store.asked == 3)
    assert not work.cancelled
    work.gate.set()
    assert (await waiting).item_id == work.item_ids[0]
    assert idle.runs == 0


@pytest.mark.usefixtures("quick")
async def test_work_nobody_waits_for_anywhere_is_cancelled(
    live_redis: LiveRedis, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers whose clients have gone do not keep each other going."""
    monkeypatch.setattr(module, "ABANDONED_SECONDS", 0.2)
    _, one, other = asked_pair(live_redis, open_store)
    work, idle = FakeWork(), FakeWork()
    first = await one.join(KEY, work, DEADLINE)
    await until(lambda: work.runs)
    second = await other.join(KEY, idle, DEADLINE)
    one.leave(KEY, first)
    other.leave(KEY, second)
    await until(lambda: not aloft(one) and not aloft(other))
    assert work.cancelled
    assert live_redis.milliseconds(claim_of(live_redis)) == -2


@pytest.mark.usefixtures("quick")
async def test_workers_go_on_alone_when_redis_is_gone(open_store: OpenStore, caplog: pytest.LogCaptureFixture) -> None:
    """With Redis gone in the middle the waiting worker runs the work itself, and each warns once."""
    with running_redis() as server, caplog.at_level(logging.WARNING):
        one, other = Flights(open_store(server.url)), Flights(open_store(server.url))
        work, own = FakeWork(), FakeWork(is_open=True)
        client = await start(one, work)
        flight = await other.join(KEY, own, DEADLINE)
        server.stop()
        assert (await flight.task).item_id == work.item_ids[0]
        other.leave(KEY, flight)
        work.gate.set()
        assert (await client).item_id == work.item_ids[0]
        assert await ask(one, FakeWork()) == await client
    assert own.runs == 1
    assert caplog.text.count("Redis cannot be used") == 2


async def test_takeover_runs_within_the_deadline_that_has_begun(pair: Pair) -> None:
    """A worker that waited and then takes over has what is left of its deadline, not a new one."""
    begun = asyncio.get_running_loop().time()
    dying, heir = FakeWork(ValueError("not remembered")), FakeWork(is_open=True)
    client = await start(pair[0], dying)
    waiting = asyncio.create_task(ask(pair[1], heir))
    await asyncio.sleep(0.3)  # the second worker has its flight, and waits for the first
    dying.gate.set()
    with pytest.raises(ValueError, match="not remembered"):
        await client
    await waiting
    assert heir.started[0] - begun < 0.3

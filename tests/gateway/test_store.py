"""What workers share: values and claims, in one process and through a real Redis, and without one that has gone."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import litellm
import pytest
import redis.asyncio
import redis.exceptions
from litellm.caching.in_memory_cache import InMemoryCache
from litellm.caching.redis_cache import RedisCache

from litellm_compaction.gateway.store import LOCAL, Store
from tests.gateway.conftest import Clock
from tests.support.keys import ring
from tests.support.redis import LiveRedis, running_redis

OpenStore = Callable[..., Store]
Workers = tuple[Store, Store]
# No text: what is stored need not be UTF-8.
VALUE, OTHER = b"\xff\x00 a value", b"another"


async def until_gone(store: Store, key: str) -> None:
    """Wait until a store has nothing under a key."""
    async with asyncio.timeout(10):
        while await store.read(key) is not None:  # noqa: ASYNC110  # nothing tells when Redis forgets
            await asyncio.sleep(0.005)


# The process alone.


async def test_local_value_is_read_until_it_expires(clock: Clock) -> None:
    """A value is there for its seconds and not one longer."""
    store = Store(LOCAL, ring, clock)
    await store.write("k", VALUE, 600)
    clock.seconds += 599.9
    assert await store.read("k") == VALUE
    clock.seconds += 0.1
    assert await store.read("k") is None


async def test_each_local_value_has_its_own_time(clock: Clock) -> None:
    """A result lives longer than a failure written after it."""
    store = Store(LOCAL, ring, clock)
    await store.write("long", VALUE, 600)
    await store.write("short", OTHER, 60)
    clock.seconds += 60
    assert (await store.read("long"), await store.read("short")) == (VALUE, None)


async def test_unknown_key_is_nothing() -> None:
    """What nobody wrote is not there."""
    assert await Store(LOCAL, ring).read("k") is None


async def test_last_local_value_counts(clock: Clock) -> None:
    """A second value takes the place and the time of the first."""
    store = Store(LOCAL, ring, clock)
    await store.write("k", VALUE, 600)
    await store.write("k", OTHER, 60)
    assert await store.read("k") == OTHER
    clock.seconds += 60
    assert await store.read("k") is None


async def test_one_worker_alone_always_gets_its_claim() -> None:
    """Without Redis nobody competes: within a process the flights are single already."""
    store = Store(LOCAL, ring)
    assert await store.claim("k", VALUE, 30) == VALUE
    assert await store.claim("k", OTHER, 30) == OTHER
    await store.renew("k", VALUE, 30)
    await store.release("k", VALUE)
    assert await store.read("k") is None


async def test_local_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest values go when the budget is spent, and a value of half the budget is not taken at all."""
    monkeypatch.setattr("litellm_compaction.gateway.store._LOCAL_BYTES", 10_000)
    store = Store(LOCAL, ring)
    for number in range(10):
        await store.write(str(number), b"x" * 2000, 600)
    kept = [number for number in range(10) if await store.read(str(number)) is not None]
    assert kept == [6, 7, 8, 9]
    await store.write("large", b"x" * 5000, 600)
    assert await store.read("large") is None


async def test_value_too_large_replaces_what_stood_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that cannot be held locally does not leave its predecessor to be read in its place."""
    monkeypatch.setattr("litellm_compaction.gateway.store._LOCAL_BYTES", 10_000)
    store = Store(LOCAL, ring)
    await store.write("k", VALUE, 600)
    await store.write("k", b"x" * 5000, 600)
    assert await store.read("k") is None


def set_proxy(monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
    """Put a proxy with these members into the process; importing the real one takes ten seconds."""
    proxy = ModuleType("litellm.proxy.proxy_server")
    vars(proxy).update(members)
    monkeypatch.setitem(sys.modules, proxy.__name__, proxy)


@pytest.mark.usefixtures("without_litellm_redis")
@pytest.mark.parametrize(
    ("cache", "members"),
    [
        (None, None),
        (None, {}),
        (None, {"redis_usage_cache": None, "llm_router": None}),
        (InMemoryCache(), {"llm_router": SimpleNamespace(cache=SimpleNamespace(redis_cache=None))}),
    ],
    ids=["no-proxy", "proxy-without", "proxy-with-nulls", "caches-of-other-kinds"],
)
async def test_litellm_without_redis_is_local(
    cache: object,
    members: dict[str, Any] | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A proxy that has no Redis, or another cache, is no reason to complain."""
    monkeypatch.setattr(litellm, "cache", None if cache is None else SimpleNamespace(cache=cache))
    if members is not None:
        set_proxy(monkeypatch, **members)
    store = Store(None, ring)
    with caplog.at_level(logging.WARNING):
        await store.write("k", VALUE, 600)
        assert await store.read("k") == VALUE
        assert await store.claim("c", VALUE, 30) == VALUE
    assert caplog.text == ""


# Workers with one Redis, which each of the four ways to it has to give them.

WAYS = ("url", "response-cache", "usage-cache", "router-cache")


# Used by fixtures without `async`: in an event loop LiteLLM starts a ping of its own that nobody waits for.
@contextmanager
def litellm_redis(server: LiveRedis, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> Iterator[RedisCache]:
    """LiteLLM's own Redis cache, without what a developer's shell may say of another."""
    for name in ("REDIS_URL", "REDIS_HOST", "REDIS_PORT", "REDIS_PASSWORD", "REDIS_USERNAME", "REDIS_SSL"):
        monkeypatch.delenv(name, raising=False)
    cache = RedisCache(host="127.0.0.1", port=server.port, **kwargs)
    try:
        yield cache
    finally:
        cache.redis_client.close()
        # Kept by the id of the event loop, which the next test's may have again.
        cast("Any", litellm.in_memory_llm_clients_cache).flush_cache()


async def disconnect(cache: RedisCache) -> None:
    """Close what LiteLLM opened in this event loop."""
    await cast("Any", cache).disconnect()


def install(way: str, cache: RedisCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give LiteLLM a Redis in one of the places where it may have one."""
    if way == "response-cache":
        monkeypatch.setattr(litellm, "cache", SimpleNamespace(cache=cache))
    elif way == "usage-cache":
        set_proxy(monkeypatch, redis_usage_cache=cache)
    else:
        set_proxy(monkeypatch, llm_router=SimpleNamespace(cache=SimpleNamespace(redis_cache=cache)))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    value = request.param
    assert isinstance(value, str)
    return value


@pytest.fixture
def installed(
    way: str, live_redis: LiveRedis, without_litellm_redis: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisCache | None]:
    if way == "url":
        yield None
        return
    with litellm_redis(live_redis, monkeypatch) as cache:
        install(way, cache, monkeypatch)
        yield cache


@pytest.fixture
async def workers(installed: RedisCache | None, live_redis: LiveRedis, open_store: OpenStore) -> AsyncIterator[Workers]:
    """Two workers of one proxy."""
    setting = live_redis.url if installed is None else None
    yield open_store(setting), open_store(setting)
    if installed is not None:
        await disconnect(installed)


async def test_value_of_another_worker_is_read(workers: Workers) -> None:
    """What one worker wrote the other reads, byte for byte."""
    one, other = workers
    assert await other.read("k") is None
    await one.write("k", VALUE, 600)
    assert (await one.read("k"), await other.read("k")) == (VALUE, VALUE)


async def test_shared_value_expires(workers: Workers, live_redis: LiveRedis) -> None:
    """Redis forgets a value after its seconds, fractions included."""
    one, other = workers
    await one.write("k", VALUE, 600)
    assert 590_000 < live_redis.milliseconds("litellm_compaction:k") <= 600_000
    await one.write("k", VALUE, 0.3)
    assert live_redis.milliseconds("litellm_compaction:k") <= 300
    await until_gone(other, "k")


async def test_first_claim_wins(workers: Workers) -> None:
    """The first gets its own claim back, the second the first's, whoever asks how often."""
    one, other = workers
    assert await one.claim("k", VALUE, 30) == VALUE
    assert await other.claim("k", OTHER, 30) == VALUE
    assert await one.claim("k", OTHER, 30) == VALUE


async def test_claims_under_two_keys_do_not_meet(workers: Workers) -> None:
    """A claim holds one key only."""
    one, other = workers
    assert await one.claim("k", VALUE, 30) == VALUE
    assert await other.claim("l", OTHER, 30) == OTHER


async def test_claim_is_released_by_its_owner_only(workers: Workers) -> None:
    """Who does not hold a claim cannot give it up."""
    one, other = workers
    await one.claim("k", VALUE, 30)
    await other.release("k", OTHER)
    assert await other.claim("k", OTHER, 30) == VALUE
    await one.release("k", VALUE)
    assert await other.claim("k", OTHER, 30) == OTHER
    await one.release("k", VALUE)
    assert await one.claim("k", VALUE, 30) == OTHER


async def test_claim_runs_out(workers: Workers) -> None:
    """The claim of a worker that died is free after its seconds."""
    one, other = workers
    await one.claim("k", VALUE, 0.2)
    async with asyncio.timeout(10):
        while await other.claim("k", OTHER, 30) != OTHER:  # noqa: ASYNC110  # nothing tells when Redis forgets
            await asyncio.sleep(0.005)
    assert await one.claim("k", VALUE, 30) == OTHER


async def test_renewed_claim_lasts_longer(workers: Workers, live_redis: LiveRedis) -> None:
    """Renewing sets the seconds anew and changes nothing else."""
    one, other = workers
    await one.claim("k", VALUE, 5)
    assert live_redis.milliseconds("litellm_compaction:k") <= 5000
    await one.renew("k", VALUE, 30)
    assert 20_000 < live_redis.milliseconds("litellm_compaction:k") <= 30_000
    assert await other.claim("k", OTHER, 30) == VALUE


async def test_large_value_is_shared_all_the_same(workers: Workers) -> None:
    """What is too large to be held in the process goes through Redis, also back to who wrote it."""
    one, other = workers
    large = b"x" * (33 * 1024 * 1024)
    await one.write("k", large, 600)
    assert await other.read("k") == large
    assert await one.read("k") == large


async def test_one_connection_serves_all_commands(workers: Workers, live_redis: LiveRedis) -> None:
    """A worker does not open a connection for every command."""
    one, _ = workers
    await one.write("first", VALUE, 600)
    before = live_redis.connections()
    for number in range(20):
        await one.write(str(number), VALUE, 600)
    assert live_redis.connections() == before


@pytest.mark.parametrize("way", ["response-cache"], indirect=True)
async def test_urls_redis_is_not_litellms(workers: Workers, open_store: OpenStore, live_redis: LiveRedis) -> None:
    """`local` shares nothing where LiteLLM has a Redis, and a URL of its own goes before LiteLLM's."""
    one, _ = workers
    await one.write("k", VALUE, 600)
    assert await open_store(LOCAL).read("k") is None
    assert await open_store(f"{live_redis.url}/1").read("k") is None
    assert await open_store(f"{live_redis.url}/0").read("k") == VALUE


@pytest.fixture
def named_cache(
    live_redis: LiveRedis, without_litellm_redis: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisCache]:
    with litellm_redis(live_redis, monkeypatch, namespace="staging") as cache:
        install("response-cache", cache, monkeypatch)
        yield cache


async def test_litellms_namespace_is_kept(named_cache: RedisCache, live_redis: LiveRedis) -> None:
    """Two proxies with one Redis and two namespaces do not see each other's."""
    await Store(None, ring).write("k", VALUE, 600)
    assert live_redis.command("KEYS", "*").split()[2:] == [b"staging:litellm_compaction:k"]
    await disconnect(named_cache)


# Redis gone.


async def use_all(store: Store) -> None:
    """Every method goes on with the value of the process itself."""
    assert await store.read("before") == VALUE
    await store.write("after", OTHER, 600)
    assert await store.read("after") == OTHER
    assert await store.read("never") is None
    assert await store.claim("c", OTHER, 30) == OTHER
    await store.renew("c", OTHER, 30)
    await store.release("c", OTHER)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and "litellm_compaction" in record.getMessage()
    ]


async def test_redis_that_stops_is_told_once(open_store: OpenStore, caplog: pytest.LogCaptureFixture) -> None:
    """With Redis gone in the middle every method goes on alone, and one warning names the kind of error only."""
    with running_redis() as server, caplog.at_level(logging.WARNING):
        store = open_store(server.url)
        await store.write("before", VALUE, 600)
        assert await store.claim("c", VALUE, 30) == VALUE
        assert complaints(caplog) == []
        server.stop()
        await use_all(store)
        await use_all(store)
    assert complaints(caplog) == [
        "litellm_compaction: Redis cannot be used (ConnectionError). Workers don't share compactions until it can."
    ]


@pytest.fixture
def mortal(without_litellm_redis: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LiveRedis, RedisCache]]:
    """LiteLLM's Redis, for a test that ends it."""
    with running_redis() as server, litellm_redis(server, monkeypatch) as cache:
        install("usage-cache", cache, monkeypatch)
        yield server, cache


async def test_litellms_redis_that_stops_is_told_once(
    mortal: tuple[LiveRedis, RedisCache], caplog: pytest.LogCaptureFixture
) -> None:
    """So it is with the Redis that is LiteLLM's."""
    server, cache = mortal
    store = Store(None, ring)
    with caplog.at_level(logging.WARNING):
        await store.write("before", VALUE, 600)
        server.stop()
        await use_all(store)
        await use_all(store)
    assert len(complaints(caplog)) == 1
    await disconnect(cache)


async def test_address_without_redis_is_told_once(
    open_store: OpenStore, live_redis: LiveRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong URL stops no compaction, and its password is in no log."""
    store = open_store("redis://user:hunter2@127.0.0.1:1/0")
    with caplog.at_level(logging.DEBUG):
        await store.write("before", VALUE, 600)
        await use_all(store)
    assert len(complaints(caplog)) == 1
    assert "hunter2" not in caplog.text


async def test_redis_that_comes_back_is_used_again(open_store: OpenStore) -> None:
    """An outage is over when it is over: no restart of the proxy is needed."""
    with running_redis() as server:
        one, other = open_store(server.url), open_store(server.url)
        await one.write("k", VALUE, 600)
        assert await other.read("k") == VALUE
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        async with asyncio.timeout(10):
            while await other.read("l") != VALUE:
                await one.write("l", VALUE, 600)


async def test_redis_holds_no_readable_value(live_redis: LiveRedis, open_store: OpenStore) -> None:
    """What is shared can be read by those with the proxy's keys, under its own name, and by nobody else."""
    store, other = open_store(live_redis.url), open_store(live_redis.url)
    await store.write("k", b"PLANTED words", 60)
    assert b"PLANTED" not in live_redis.command("GET", "litellm_compaction:k")
    assert await other.read("k") == b"PLANTED words"
    async with redis.asyncio.Redis.from_url(live_redis.url) as client:
        await client.copy("litellm_compaction:k", "litellm_compaction:moved")
        await client.set("litellm_compaction:garbage", b"whatever")
    assert await other.read("moved") is None
    assert await other.read("garbage") is None


async def test_renew_does_not_take_a_claim_away(live_redis: LiveRedis, open_store: OpenStore) -> None:
    """A worker that was stopped for so long that another has its claim now leaves it there."""
    one, two = open_store(live_redis.url), open_store(live_redis.url)
    await two.claim("k", b"two", 60)
    await one.renew("k", b"one", 60)
    assert await one.claim("k", b"one", 60) == b"two"


async def test_redis_that_does_not_answer_is_left_alone_for_a_while(clock: Clock) -> None:
    """Each command would wait for its timeout: after the first the store goes on alone for half a minute."""

    class Mute(Store):
        asked = 0

        def _client(self, name: str) -> tuple[Any, str]:  # noqa: ARG002  # the base class names it
            self.asked += 1
            raise redis.exceptions.TimeoutError

    store = Mute("redis://127.0.0.1:1", ring, clock)
    for _ in range(5):
        assert await store.claim("k", b"mine", 30) == b"mine"
    assert store.asked == 1
    clock.seconds += 31
    await store.read("k")
    assert store.asked == 2

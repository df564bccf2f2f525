"""Fixtures of what workers share."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import litellm
import pytest
import redis.asyncio

from litellm_compaction.gateway.store import Store
from tests.support.keys import ring
from tests.support.redis import LiveRedis, running_redis


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[LiveRedis]:
    with running_redis() as server:
        yield server


@pytest.fixture
def live_redis(shared_redis: LiveRedis) -> LiveRedis:
    """A Redis with nothing in it."""
    assert shared_redis.command("FLUSHALL") == b"+OK\r\n"
    return shared_redis


@pytest.fixture
def without_litellm_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which LiteLLM has no Redis, whatever ran before."""
    monkeypatch.delitem(sys.modules, "litellm.proxy.proxy_server", raising=False)
    monkeypatch.setattr(litellm, "cache", None)


@pytest.fixture
async def open_store(
    without_litellm_redis: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Store]]:
    """Makes stores, and closes their connections: a proxy keeps them as long as it lives."""
    clients: list[Any] = []
    from_url = redis.asyncio.Redis.from_url

    def remembered(*args: Any, **kwargs: Any) -> Any:
        clients.append(from_url(*args, **kwargs))
        return clients[-1]

    monkeypatch.setattr(redis.asyncio.Redis, "from_url", remembered)
    yield lambda cache, *more: Store(cache, ring, *more)
    for client in clients:
        await client.aclose()

"""What workers share: finished compactions for a while, and who is running one now.

In this process always; behind it Redis, where the proxy has one (`cache` of the settings). A Redis that cannot be
reached is no failure of a compaction: the worker goes on alone, and says so once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import litellm
from cachetools import TLRUCache
from litellm._logging import verbose_proxy_logger
from litellm.caching.redis_cache import RedisCache

from litellm_compaction.envelope.sealing import KeyRing

_PREFIX: Final = "litellm_compaction:"
# All that one process remembers; the largest items take a third of it.
_LOCAL_BYTES: Final = 64 * 1024 * 1024
_TIMEOUT_SECONDS: Final = 5
_PAUSE_SECONDS: Final = 30.0
LOCAL: Final = "local"


class Store:
    """Bytes under keys, each for a number of seconds. `cache` as in the settings: null for LiteLLM's own Redis, `local`
    for none, or the URL of another. `ring` gives the keys that what is shared is encrypted with; `now` is a monotonic
    clock in seconds."""

    def __init__(
        self, cache: str | None, ring: Callable[[], KeyRing], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache: Final = cache
        self._ring: Final = ring
        self._local: Final[TLRUCache[str, tuple[bytes, float]]] = TLRUCache(
            _LOCAL_BYTES, ttu=lambda _, value, at: at + value[1], timer=now, getsizeof=lambda value: len(value[0]) + 256
        )
        self._own_client: Any = None
        self._complained = False
        self._now: Final = now
        self._resumes_at = 0.0

    async def read(self, key: str) -> bytes | None:
        """What was written, by this worker or another."""
        known: Final = self._local.get(key)
        if known is not None:
            return known[0]
        shared: Final[bytes | None] = await self._shared(lambda client, name: client.get(name), key, None)
        return None if shared is None else self._ring().decrypt(shared, key.encode())

    async def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        """The first of many keys that something is written under, and what."""
        for key in keys:
            known = self._local.get(key)
            if known is not None:
                return key, known[0]

        async def read(client: Any, _: str) -> list[bytes | None]:
            named: Final = [self._client(_PREFIX + key)[1] for key in keys]
            found: Final[list[bytes | None]] = await client.mget(named)
            return found

        shared: Final[list[bytes | None]] = await self._shared(read, "", []) if keys else []
        for key, sealed in zip(keys, shared, strict=False):
            value = None if sealed is None else self._ring().decrypt(sealed, key.encode())
            if value is not None:
                return key, value
        return None

    async def write(self, key: str, value: bytes, seconds: float) -> None:
        """Remember a value, here and for the other workers."""
        # What stood there is stale, also where the new value is too large to take its place.
        self._local.pop(key, None)
        if len(value) < _LOCAL_BYTES // 2:
            self._local[key] = (value, seconds)
        await self.share(key, value, seconds)

    async def share(self, key: str, value: bytes, seconds: float) -> None:
        """Tell the other workers only."""
        # Whoever can read Redis must not read conversations, and a failure may quote one.
        sealed: Final = self._ring().encrypt(value, key.encode(), os.urandom)
        await self._shared(lambda client, name: client.set(name, sealed, px=_milliseconds(seconds)), key, None)

    async def claim(self, key: str, value: bytes, seconds: float) -> bytes:
        """Put `value` there unless something is: what is there then. One worker alone always gets its own back."""

        async def claim(client: Any, name: str) -> bytes:
            while not await client.set(name, value, px=_milliseconds(seconds), nx=True):
                held: bytes | None = await client.get(name)
                if held is not None:  # else it has run out just now
                    return held
            return value

        holder: Final[bytes] = await self._shared(claim, key, value)
        return holder

    async def renew(self, key: str, value: bytes, seconds: float) -> None:
        """Hold a claim for longer, if nobody else holds it by now."""

        async def renew(client: Any, name: str) -> None:
            if await client.get(name) in {None, value}:
                await client.set(name, value, px=_milliseconds(seconds))

        await self._shared(renew, key, None)

    async def release(self, key: str, value: bytes) -> None:
        """Give a claim up, if it is still one's own."""

        async def release(client: Any, name: str) -> None:
            if await client.get(name) == value:
                await client.delete(name)

        await self._shared(release, key, None)

    async def _shared(self, command: Callable[[Any, str], Awaitable[Any]], key: str, otherwise: Any) -> Any:
        if self._now() < self._resumes_at:
            return otherwise
        try:
            client, name = self._client(_PREFIX + key)
            return otherwise if client is None else await command(client, name)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with Redis, compactions go on without it
            if "Timeout" in type(error).__name__:
                # It takes connections and does not answer: every command would wait as long again.
                self._resumes_at = self._now() + _PAUSE_SECONDS
            if not self._complained:
                self._complained = True
                verbose_proxy_logger.warning(
                    "litellm_compaction: Redis cannot be used (%s). Workers don't share compactions until it can.",
                    type(error).__name__,
                )
            return otherwise

    def _client(self, name: str) -> tuple[Any, str]:
        """The Redis client, None where there is no Redis, and the full name of a key in it."""
        if self._cache == LOCAL:
            return None, name
        if self._cache is None:
            cache: Final = _litellm_redis()
            # The client itself: LiteLLM's own methods log values, and write nothing only if it is not there.
            return (None, name) if cache is None else (cache.init_async_client(), cache.check_and_fix_namespace(name))
        if self._own_client is None:
            from redis.asyncio import Redis

            self._own_client = Redis.from_url(self._cache, socket_timeout=_TIMEOUT_SECONDS)
        return self._own_client, name


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _litellm_redis() -> RedisCache | None:
    """The Redis of the proxy: for coordination, of its response cache, or of its router."""
    proxy: Final = sys.modules.get("litellm.proxy.proxy_server")
    router: Final = getattr(proxy, "llm_router", None)
    candidates: Final = (
        getattr(proxy, "redis_usage_cache", None),
        getattr(litellm.cache, "cache", None),
        getattr(getattr(router, "cache", None), "redis_cache", None),
    )
    return next((found for found in candidates if isinstance(found, RedisCache)), None)

"""A short soak of mixed traffic on two workers: nothing lost, nothing paid or booked twice, no slot held."""

from __future__ import annotations

import asyncio
from pathlib import Path

from redis import Redis

from tests.support.backend import ScriptedBackend
from tests.support.proxy import running_proxy
from tests.support.redis import running_redis
from tests.support.soak import FILES, SLOT_KEYS, Soak, soak_config, unexpected_errors

_REQUESTS, _CLIENTS = 150, 8


def test_mixed_traffic_on_two_workers(backend: ScriptedBackend, tmp_path: Path) -> None:
    """Ordinary turns, compactions, broken requests and clients that go away: every answer is the right one, every
    inference is booked once, and in the end every key's one slot is free."""
    rows = tmp_path / "rows.jsonl"
    with (
        running_redis() as redis,
        running_proxy(soak_config(backend, redis.port), FILES, env={"SOAK_ROWS": str(rows)}, workers=2) as proxy,
    ):
        soak = Soak(proxy, backend, _REQUESTS, _CLIENTS)
        account = asyncio.run(soak.run())
        soak.settle(rows)
        assert account.problems == []
        assert account.kinds.total() == _REQUESTS
        assert unexpected_errors(proxy.log()) == []
        with Redis(port=redis.port) as shared:
            assert shared.keys(SLOT_KEYS) == []

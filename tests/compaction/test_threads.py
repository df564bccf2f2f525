"""The threads for heavy steps: what they give back, and whose turn it is."""

from __future__ import annotations

import asyncio
import threading

import pytest

from litellm_compaction.compaction import threads
from litellm_compaction.compaction.threads import run_heavy


async def test_result_and_error_come_back() -> None:
    """What the work returns or raises is what the caller gets, from another thread."""
    assert await run_heavy(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await run_heavy(divmod, 1, 0)


async def test_oldest_compaction_goes_first() -> None:
    """While all threads are busy, the second step of the first compaction passes the first steps of later ones."""
    blocked = [_Blocked() for _ in range(threads._THREADS)]  # noqa: SLF001  # as many as there are
    order: list[str] = []
    begun = asyncio.Event()

    async def first() -> None:
        await run_heavy(order.append, "first, step 1")
        busy = [asyncio.create_task(later.run()) for later in blocked]
        await asyncio.gather(*[asyncio.to_thread(later.started.wait, 10) for later in blocked])
        begun.set()
        await asyncio.sleep(0)  # the others stand in line by now
        last = asyncio.create_task(run_heavy(order.append, "first, step 2"))
        await asyncio.sleep(0)
        for later in blocked:
            later.gate.set()
        await asyncio.gather(last, *busy)

    async def second() -> None:
        await begun.wait()
        await run_heavy(order.append, "second, step 1")

    await asyncio.gather(asyncio.create_task(first()), asyncio.create_task(second()))
    assert order == ["first, step 1", "first, step 2", "second, step 1"]


async def test_given_up_while_waiting_never_runs() -> None:
    """A step whose compaction was cancelled while it stood in line is not run, and the others are."""
    blocked = [_Blocked() for _ in range(threads._THREADS)]  # noqa: SLF001  # as many as there are
    ran: list[str] = []
    busy = [asyncio.create_task(later.run()) for later in blocked]
    await asyncio.gather(*[asyncio.to_thread(later.started.wait, 10) for later in blocked])
    given_up = asyncio.create_task(run_heavy(ran.append, "given up"))
    kept = asyncio.create_task(run_heavy(ran.append, "kept"))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    for later in blocked:
        later.gate.set()
    await asyncio.gather(kept, *busy)
    assert ran == ["kept"]


class _Blocked:
    """A step that holds a thread until its gate opens."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.gate = threading.Event()

    async def run(self) -> None:
        await run_heavy(self._hold)

    def _hold(self) -> None:
        self.started.set()
        assert self.gate.wait(10)

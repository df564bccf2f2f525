"""Where the heavy steps of compactions run: a few threads of their own, on which the oldest compaction goes first.

Planning a megabyte takes a tenth of a second. On asyncio's own threads fifty of them at once would get in each other's
way, since Python runs one thread at a time: together they take half as long again. First come, first served would take
the same step of all of them before the next step of any, and the backend would get its first request after the last
plan. And what an ordinary request needs a thread for would stand in line behind all of that.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Step = tuple[int, int, Callable[[], Any], "Future[Any]"]

# One core is the event loop's. Tokens are counted outside of Python's lock, so that a second thread can be of use.
_THREADS: Final = max(1, min(4, (os.cpu_count() or 1) - 1))
_POOL: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="litellm-compaction")
_NUMBERS: Final = itertools.count()
# The number of a compaction: that of its first step. Tasks hand it on to those they start.
_AGE: Final[contextvars.ContextVar[int]] = contextvars.ContextVar("litellm_compaction_age")
_LOCK: Final = threading.Lock()
_WAITING: Final[list[_Step]] = []


async def run_heavy(work: Callable[_P, _R], *args: _P.args, **named: _P.kwargs) -> _R:
    """What `work` gives, or raises: as `asyncio.to_thread`, on the threads for compactions."""
    number: Final = next(_NUMBERS)
    age: Final = _AGE.get(number)
    _AGE.set(age)
    called: Final = functools.partial(contextvars.copy_context().run, work, *args, **named)
    outcome: Final[Future[_R]] = Future()
    step: Final[_Step] = (age, number, called, outcome)
    with _LOCK:
        heapq.heappush(_WAITING, step)
    _POOL.submit(_run_oldest)
    return await asyncio.wrap_future(outcome)


def _run_oldest() -> None:
    with _LOCK:
        _, _, called, outcome = heapq.heappop(_WAITING)
    if not outcome.set_running_or_notify_cancel():  # its compaction was given up while it stood in line
        return
    try:
        result: Final = called()
    except BaseException as error:  # noqa: BLE001  # whatever it is, it belongs to who waits for it
        outcome.set_exception(error)
    else:
        outcome.set_result(result)

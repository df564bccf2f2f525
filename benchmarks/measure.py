"""Time and memory of one step."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

_ROUNDS = 15


def compare(step: Callable[[], object], base: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a step and of what it is measured against, in turns: the machine gets slower and faster by itself.

    The best of some rounds counts, since what else runs beside only ever adds.
    """
    best_step = best_base = float("inf")
    for _ in range(_ROUNDS):
        best_step = min(best_step, _once(step))
        best_base = min(best_base, _once(base))
    return best_step, best_base


def _once(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def peak(step: Callable[[], object]) -> int:
    """Bytes at most that Python held for the step beside what was there before."""
    tracemalloc.start()
    step()
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return highest

"""Memory and time of processes, as Linux tells them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> Iterator[int]:
    """The processes a process has started, and what those have started."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            yield child
            yield from children_of(child)


def find_workers() -> list[int]:
    """The processes of a proxy started by this one that answer requests: the one process, or the workers it started."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children_of(os.getpid())}
    spawned = [pid for pid, command in commands.items() if "multiprocessing.spawn" in command]
    return spawned or [pid for pid, command in commands.items() if "/litellm\0" in command]


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int, name: str = "VmRSS") -> int:
    """Bytes a process has in memory now, or at most so far (`VmHWM`)."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


@contextmanager
def every(seconds: float, look: Callable[[], None]) -> Iterator[None]:
    """Looks again and again while the block runs, on a thread of its own."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            look()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

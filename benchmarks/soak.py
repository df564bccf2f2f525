"""A soak: mixed requests on two workers with Redis; what was lost, what was held, and how memory went.

    scripts/bench soak [--requests 2000] [--clients 8] [--without-plugin]

A tenth are compactions through all doors, a twentieth broken, another of clients that go away. Memory of each worker is
compared between the end of the first quarter and the end. `--without-plugin` sends as many ordinary turns to a proxy
without the plugin: what LiteLLM's own memory does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from rich.console import Console
from rich.table import Table

from benchmarks.processes import every, find_workers, memory
from tests.support.backend import running_backend
from tests.support.proxy import running_proxy
from tests.support.redis import running_redis
from tests.support.soak import FILES, SLOT_KEYS, Soak, soak_config, unexpected_errors

_SAMPLE_SECONDS = 0.25
_MEGABYTE = 1e6

# How many requests were done, and the bytes of each worker then.
Samples = list[tuple[int, tuple[int, ...]]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--without-plugin", action="store_true")
    given = parser.parse_args()
    plugin = not given.without_plugin
    console = Console(width=140)
    with tempfile.TemporaryDirectory() as folder, running_backend() as backend, running_redis() as redis:
        rows = Path(folder) / "rows.jsonl"
        config = soak_config(backend, redis.port, plugin=plugin)
        with running_proxy(config, FILES, env={"SOAK_ROWS": str(rows)}, workers=2) as proxy:
            soak = Soak(proxy, backend, given.requests, given.clients, plugin=plugin)
            workers = find_workers()
            started = time.perf_counter()
            with _sampled(soak, workers) as samples:
                account = asyncio.run(soak.run())
            taken = time.perf_counter() - started
            soak.settle(rows)
            with Redis(port=redis.port) as shared:
                held = list(shared.scan_iter(SLOT_KEYS))
            problems = [*account.problems, *map(repr, held), *unexpected_errors(proxy.log())]
        backend.verify()
    console.print(f"{account.kinds.total()} requests in {taken:.0f} s: {dict(account.kinds)}")
    console.print(f"{len(account.inferences)} inferences, each booked once: {not account.problems}")
    console.print(f"slots held at the end: {len(held)}; freed after at most (s): {account.slots}")
    console.print(_memory_table(workers, samples, given.requests))
    console.print(f"problems: {len(problems)}", *problems[:20], sep="\n")
    raise SystemExit(1 if problems else 0)


def _memory_table(workers: Sequence[int], samples: Samples, requests: int) -> Table:
    table = Table(title="memory of a worker, MB")
    for column in ("worker", "start", *(f"{share} %" for share in (25, 50, 75, 100)), "100 % / 25 %"):
        table.add_column(column, justify="right")
    for place, worker in enumerate(workers):
        sizes = [_size_at(samples, requests * share // 100, place) for share in (0, 25, 50, 75, 100)]
        table.add_row(str(worker), *(f"{size / _MEGABYTE:.1f}" for size in sizes), f"{sizes[-1] / sizes[1]:.3f}")
    return table


def _size_at(samples: Samples, finished: int, place: int) -> float:
    """Bytes of a worker when so many requests were done: the median of the samples around it."""
    nearest = sorted(samples, key=lambda sample: abs(sample[0] - finished))[:9]
    return statistics.median(sizes[place] for _, sizes in nearest)


@contextmanager
def _sampled(soak: Soak, workers: Sequence[int]) -> Iterator[Samples]:
    samples: Samples = []
    with every(_SAMPLE_SECONDS, lambda: samples.append((soak.account.kinds.total(), tuple(map(memory, workers))))):
        yield samples


if __name__ == "__main__":
    main()

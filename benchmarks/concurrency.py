"""Fifty compactions of 1 MB at once on one worker, as a ratio to the backend's own time for the very same requests.

    scripts/bench concurrency [--number 50] [--seconds 15,30,60] [--door trigger]

The backend answers each request after a stated time, however many there are; a model reads 250,000 tokens in tens of
seconds. Its own time is measured in the same run: the requests the proxy made of the transcripts are sent straight to
it, all at once. Beside the ratio: the worker's processor time and memory, and how long `/health/liveliness` took at
most while all of it ran.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.processes import cpu_seconds, every, find_workers, memory
from benchmarks.provider import Provider, running_provider
from tests.support.proxy import MASTER_KEY, LiveProxy, running_proxy

_BYTES = 1_000_000
_WINDOW, _OUTPUT = 400_000, 32_000
_PROBE_SECONDS = 0.1
_MEGABYTE = 1e6

Body = dict[str, Any]


def make_transcript(seed: int, size: int = _BYTES) -> list[Body]:
    """A coding session of about so many bytes as JSON: an agent that reads source files, greps and edits."""
    chance = random.Random(seed)  # noqa: S311  # the same sessions in every run
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    items: list[Body] = [_message("user", f"Session {seed}: find out why the parser fails, and fix it.")]
    used = 0
    while used < size:
        file = chance.choice(files)
        lines = file.read_text(errors="replace").splitlines(keepends=True)
        first = chance.randrange(max(1, len(lines) - 20))
        output = "".join(lines[first : first + chance.randrange(20, 300)])
        call_id = f"call_{seed}_{len(items)}"
        arguments = json.dumps({"cmd": ["sed", "-n", f"{first},{first + 300}p", file.name]})
        items += [
            _message("assistant", f"Next I read {file.name} from line {first}, where the value may come from."),
            {"type": "function_call", "call_id": call_id, "name": "shell", "arguments": arguments},
            {"type": "function_call_output", "call_id": call_id, "output": output},
        ]
        used += len(json.dumps(items[-3:]))
    return items


def _message(role: str, text: str) -> Body:
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def make_config(provider: Provider, seconds: Sequence[float]) -> Body:
    """A proxy with a model for each time that the backend takes."""
    models = [
        {
            "model_name": f"model-{taken:g}",
            "litellm_params": {
                "model": "hosted_vllm/served-model",
                "use_chat_completions_api": True,
                "api_base": f"{provider.url}/{taken:g}/v1",
                "api_key": "x",
            },
            "model_info": {"compaction": {"context": _WINDOW, "output": _OUTPUT}},
        }
        for taken in seconds
    ]
    return {
        "model_list": models,
        "litellm_settings": {"callbacks": ["litellm_compaction.handler"]},
        "general_settings": {"master_key": MASTER_KEY},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=50)
    parser.add_argument("--seconds", default="15,30,60")
    parser.add_argument("--door", choices=["trigger", "compact"], default="trigger")
    given = parser.parse_args()
    seconds = [float(word) for word in given.seconds.split(",")]
    rows = Table(title=f"{given.number} compactions of {_BYTES / _MEGABYTE:.0f} MB at once, one worker")
    for column in (
        "a request takes",
        "all straight",
        "all through the proxy",
        "ratio",
        "CPU s each",
        "liveliness at most",
        "memory before",
        "peak",
    ):
        rows.add_column(column, justify="right")
    with running_provider() as provider, running_proxy(make_config(provider, seconds)) as proxy:
        (worker,) = find_workers()
        with _client(proxy) as client:  # what is loaded once: LiteLLM's modules, the encoding
            _ask(client, _body(make_transcript(0, 20_000), given.door, f"model-{seconds[0]:g}"), _path(given.door))
        provider.take_requests()
        for place, taken in enumerate(seconds):
            bodies = [
                _body(make_transcript(1_000 * place + number + 1), given.door, f"model-{taken:g}")
                for number in range(given.number)
            ]
            used, before = cpu_seconds(worker), memory(worker)
            with _probed(proxy) as latencies:
                through = asyncio.run(_at_once(proxy.url, _path(given.door), bodies))
            used = cpu_seconds(worker) - used
            sent = provider.take_requests()
            straight = asyncio.run(_at_once(f"{provider.url}/{taken:g}", "/v1/chat/completions", sent))
            provider.take_requests()
            rows.add_row(
                f"{taken:g} s",
                f"{straight:.2f} s",
                f"{through:.2f} s",
                f"{through / straight:.2f}",
                f"{used / given.number:.3f}",
                f"{max(latencies) * 1e3:.0f} ms",
                f"{before / _MEGABYTE:.0f} MB",
                f"{memory(worker, 'VmHWM') / _MEGABYTE:.0f} MB",
            )
    Console(width=140).print(rows)


def _path(door: str) -> str:
    return "/v1/responses" if door == "trigger" else "/v1/responses/compact"


def _body(items: list[Body], door: str, model: str) -> bytes:
    trigger = [{"type": "compaction_trigger"}] if door == "trigger" else []
    return json.dumps({"model": model, "input": [*items, *trigger]}).encode()


@contextmanager
def _client(proxy: LiveProxy) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {MASTER_KEY}"}
    with httpx.Client(base_url=proxy.url, headers=headers, timeout=600, trust_env=False) as client:
        yield client


def _ask(client: httpx.Client, body: bytes, path: str) -> None:
    client.post(path, content=body, headers={"content-type": "application/json"}).raise_for_status()


async def _at_once(url: str, path: str, bodies: Sequence[bytes]) -> float:
    """Seconds until the last of the requests, all sent at once, is answered; each has to succeed."""
    headers = {"authorization": f"Bearer {MASTER_KEY}", "content-type": "application/json"}
    limits = httpx.Limits(max_connections=len(bodies))
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600, trust_env=False, limits=limits) as client:
        started = time.perf_counter()
        answers = await asyncio.gather(*[client.post(path, content=body) for body in bodies])
        taken = time.perf_counter() - started
    for answer in answers:
        answer.raise_for_status()
    return taken


@contextmanager
def _probed(proxy: LiveProxy) -> Iterator[list[float]]:
    """Seconds that `/health/liveliness` took, asked ten times a second while the block runs."""
    latencies: list[float] = []
    with _client(proxy) as client:

        def probe() -> None:
            started = time.perf_counter()
            client.get("/health/liveliness").raise_for_status()
            latencies.append(time.perf_counter() - started)

        with every(_PROBE_SECONDS, probe):
            yield latencies


if __name__ == "__main__":
    main()

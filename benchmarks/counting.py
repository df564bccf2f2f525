"""What counting an ordinary request costs, as ratios to `json.loads` of the same body, and how long it holds the loop.

    scripts/bench counting

The body is the session of `policy` with instructions and 25 tools. `warm` is what every turn of a long session pays:
all of it parsed anew, its last 12 items never seen before. The limits are 1.0 x for that and 50 ms for any gap between
two turns of the event loop; an idle loop's own gap tells what the machine does by itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import compare
from benchmarks.policy import make_items
from litellm_compaction.conversation.measure import measure_request
from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.profiles import load_encoding

_GROUP, _ERROR, _ENOUGH = "m", 0.02, 372_000
_NEW_ITEMS = 12
_LARGE_COPIES = 6

Body = dict[str, Any]


def make_body(copies: int = 1) -> Body:
    """A request of 3.7 MB, or so many times that, no text of which is there twice."""
    words = "reads a file of the repository and gives the lines that were asked for, numbered; " * 3
    members = {name: {"type": "string", "description": words[:60]} for name in ("path", "first", "last", "pattern")}
    tools = [
        {
            "type": "function",
            "name": f"tool_{number}",
            "description": words,
            "parameters": {"type": "object", "properties": members, "required": ["path"]},
        }
        for number in range(25)
    ]
    items = [item for copy in range(copies) for item in map(_marked(f"{copy}: "), make_items())]
    return {"model": _GROUP, "instructions": "You are a coding agent. " * 500, "tools": tools, "input": items}


def _marked(mark: str) -> Callable[[Body], Body]:
    return lambda item: {**item, "output": mark + item["output"]} if "output" in item else item


def main() -> None:
    load_encoding()
    body = json.dumps(make_body())
    large = json.dumps(make_body(_LARGE_COPIES))

    async def parse(_: object) -> None:
        json.loads(large)

    with asyncio.Runner() as runner:
        exact = runner.run(_count(RequestCounter(), json.loads(body)))
        rows = Table(title=f"{len(body) / 1e6:.1f} MB, {len(json.loads(body)['input'])} items, {exact:,} tokens")
        for column in ("step", "milliseconds", "json.loads", "ratio"):
            rows.add_column(column, justify="left" if column == "step" else "right")
        for name, step in _steps(runner, body).items():
            taken, base = _against_parsing(step, body)
            rows.add_row(name, f"{taken * 1e3:.2f}", f"{base * 1e3:.2f}", f"{taken / base:.2f}")
        gaps = Table(title="longest time the event loop was held")
        for column in ("beside", "body", "took", "gap in ms"):
            gaps.add_column(column, justify="left" if column == "beside" else "right")
        for name, text, work in (
            ("nothing, idle for a second", "", _idle),
            ("json.loads, as the host does", large, parse),
            ("cold: measure and count", body, _cold),
            ("cold: measure and count", large, _cold),
            ("cold: the same in one item of nested junk", large, _junk),
        ):
            taken, gap = runner.run(_watched(work, text))
            gaps.add_row(name, f"{len(text) / 1e6:.1f} MB", f"{taken:.2f} s", f"{gap * 1e3:.1f}")
    console = Console()
    console.print(rows)
    console.print(gaps)


def _steps(runner: asyncio.Runner, body: str) -> dict[str, Callable[[Body], object]]:
    counter = RequestCounter()
    seen = json.loads(body)
    exact = runner.run(_count(counter, seen))
    earlier = measure_request({**seen, "input": seen["input"][:-_NEW_ITEMS]})
    counter.remember(earlier, _GROUP, exact)
    turns = iter(range(1_000_000))

    def renewed(data: Body) -> Body:
        number = next(turns)
        data["input"][-_NEW_ITEMS:] = map(_renewed(f"{number}: "), data["input"][-_NEW_ITEMS:])
        return data

    passing = _make_hooks(runner, seen)
    return {
        "warm: all hooks of the plugin, 12 items new": lambda data: passing(renewed(data)),
        "warm: measure and count, 12 items new": lambda data: runner.run(_count(counter, renewed(data))),
        "warm: nothing new": lambda data: runner.run(_count(counter, data)),
        "measure": measure_request,
        "byte bound alone": lambda data: measure_request(data).bound,
        "cold: measure and count": lambda data: runner.run(_count(RequestCounter(), data)),
    }


def _make_hooks(runner: asyncio.Runner, seen: Body) -> Callable[[Body], object]:
    """A request's way through the plugin, from the first hook to the answer's, with a window that is known and a
    threshold; what LiteLLM does between is not in it."""
    # The proxy's own module first: the router's types need it.
    from litellm.proxy import proxy_server
    from litellm.proxy._types import UserAPIKeyAuth
    from litellm.router import Router
    from litellm.types.llms.openai import ResponseAPIUsage, ResponsesAPIResponse
    from litellm.types.utils import CallTypes

    from litellm_compaction.gateway.hook import CompactionHandler

    own = {"compaction": {"context": 1_050_000, "output": 128_000, "auto_compact": True}}
    params = {"model": "hosted_vllm/m", "api_base": "http://127.0.0.1:9/v1"}
    proxy_server.llm_router = Router(model_list=[{"model_name": _GROUP, "litellm_params": params, "model_info": own}])
    handler = CompactionHandler()
    caller: Any = UserAPIKeyAuth(api_key="hash", team_id="red")
    usage = ResponseAPIUsage(input_tokens=700_000, output_tokens=10, total_tokens=700_010)

    async def request(data: Body) -> None:
        asked = await handler.async_pre_call_hook(caller, None, data, "aresponses") or data  # type: ignore[arg-type]
        await handler.async_filter_deployments(_GROUP, [], None, asked)
        sent = {**asked, "litellm_metadata": {"model_group": _GROUP}}
        await handler.async_pre_call_deployment_hook(sent, CallTypes.aresponses)
        answer = ResponsesAPIResponse(id="r", created_at=1, output=[], status="completed", usage=usage)
        await handler.async_post_call_success_hook(asked, caller, answer)

    runner.run(request(seen))
    return lambda data: runner.run(request(data))


def _renewed(mark: str) -> Callable[[Body], Body]:
    """As `_marked`, of whatever text an item has."""

    def renew(item: Body) -> Body:
        if "arguments" in item:
            return {**item, "arguments": mark + item["arguments"]}
        if "content" in item:
            return {**item, "content": [{**part, "text": mark + part["text"]} for part in item["content"]]}
        return _marked(mark)(item)

    return renew


def _against_parsing(step: Callable[[Body], object], body: str) -> tuple[float, float]:
    """Each turn gets a body that was just parsed: strings keep their hash, so one seen before would cost less."""
    parsed = {"last": json.loads(body)}
    return compare(lambda: step(parsed["last"]), lambda: parsed.update(last=json.loads(body)))


async def _count(counter: RequestCounter, data: Body) -> int:
    return (await counter.count(await counter.measure(data), _GROUP, _ERROR, _ENOUGH)).tokens


async def _idle(_: object) -> None:
    await asyncio.sleep(1)


async def _cold(data: Any) -> None:
    await _count(RequestCounter(), data)


async def _junk(data: Any) -> None:
    await _count(RequestCounter(), {"input": [{"type": "never_heard_of", "data": data}]})


async def _watched(work: Callable[[Any], Awaitable[None]], text: str) -> tuple[float, float]:
    """Seconds that work takes, and the longest between two turns of a task that wants to run every millisecond."""
    data = json.loads(text) if text else {}
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    started = time.perf_counter()
    await work(data)
    taken = time.perf_counter() - started
    await asyncio.sleep(0.01)
    ticker.cancel()
    return taken, longest


if __name__ == "__main__":
    main()

"""What the plugin's own work costs, as ratios to `json.loads` of the same body, measured in one run.

    scripts/bench plain

The body is a coding session of about 3.5 MB. `door` is what every ordinary request pays; the rest is paid only by a
compaction or by a request that brings an item back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import compare, peak
from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.compaction.compact import Task, make_plan
from litellm_compaction.compaction.plan import Limits, Plan
from litellm_compaction.conversation.expansion import Expansion, Opened, expand_items
from litellm_compaction.conversation.transcript import write_blocks
from litellm_compaction.envelope.payload import Payload
from litellm_compaction.envelope.sealing import Caller, KeyRing, content_digest, open_item, seal_payload
from litellm_compaction.gateway.door import concerns_plugin

_PAIRS = 850
_RING = KeyRing(["a benchmark's secret"])


def make_items() -> list[dict[str, Any]]:
    """A session of 1,700 items, about 3.5 MB."""
    items: list[dict[str, Any]] = []
    for number in range(_PAIRS):
        line = f"src/module_{number}.py:{number}: value = compute({number}) # step {number}\n"
        call = {"type": "function_call", "call_id": f"c{number}", "name": "shell", "arguments": f'{{"n": {number}}}'}
        items += [call, {"type": "function_call_output", "call_id": f"c{number}", "output": line * 75}]
    return items


def main() -> None:
    items = make_items()
    body = json.dumps({"model": "m", "input": items})
    data = json.loads(body)
    plan = _plan(items)
    blocks = [block for unit in plan.units for block in unit.blocks]
    payload = Payload(origin="trigger", summary="s" * 4000, kept=tuple(items[-200:]))
    sealed = seal_payload(payload, _RING, Caller(team="t"), "team", os.urandom)
    item = {"type": "compaction", "encrypted_content": sealed}
    table = Table(title=f"{len(body) / 1e6:.1f} MB, {len(items)} items")
    for column in ("step", "milliseconds", "json.loads", "ratio", "peak memory x body"):
        table.add_column(column, justify="left" if column == "step" else "right")
    steps: dict[str, Callable[[], object]] = {
        "door: an ordinary request": lambda: concerns_plugin("aresponses", data),
        "plan: classify, pair, count, render": lambda: _plan(items),
        "transcript: text for the summariser": lambda: write_blocks(blocks, "mark", images=True),
        "seal: 200 kept items": lambda: seal_payload(payload, _RING, Caller(team="t"), "team", os.urandom),
        "open and expand the same": lambda: expand_items([item, *items[:100]], _open),
    }
    for name, step in steps.items():
        taken, base = compare(step, lambda: json.loads(body))
        table.add_row(
            name, f"{taken * 1e3:.2f}", f"{base * 1e3:.2f}", f"{taken / base:.2f}", f"{peak(step) / len(body):.2f}"
        )
    Console().print(table)


def _plan(items: list[dict[str, Any]]) -> Plan:
    task = Task(Expansion(list(items), ()), "trigger", "m", lambda _: Limits(20_000, None), 64_000)
    return make_plan(task, estimate_tokens)


def _open(raw: Any) -> Opened:
    return Opened(open_item(raw, _RING, Caller(team="t")), content_digest(raw["encrypted_content"]))


if __name__ == "__main__":
    main()

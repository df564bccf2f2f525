"""What planning, trimming and folding cost, as ratios to `json.loads` of the same body, measured in one run.

    scripts/bench policy

The body is a session of 1,700 items, about 3.5 MB and 500,000 tokens. Counting tokens has a row of its own; the others
run with counts that are known already. `shorten` rewrites most of the transcript and is paid only where a transcript is
larger than all windows of a fold together.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import compare, peak
from litellm_compaction.compaction.compact import Task, make_plan
from litellm_compaction.compaction.plan import Limits, Plan
from litellm_compaction.compaction.trim import Cut, Unit, cut_by, cut_to, fold_window
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.conversation.transcript import write_blocks
from litellm_compaction.gateway.profiles import load_counter

_STEPS, _WORDS = 500, 5


def make_items() -> list[dict[str, Any]]:
    """A coding session: in each step sealed reasoning, a call, its output, sometimes words. 1.9 MB of the text is seen
    by the model; the rest is reasoning that only its provider can read."""
    sealed = base64.b64encode(hashlib.sha512(b"seed").digest() * 36).decode()
    items: list[dict[str, Any]] = []
    for number in range(_STEPS):
        line = (
            f'    assert parse("module {number}") == "value", "the parser has checked this line"  # nothing to report\n'
        )
        arguments = json.dumps({"cmd": f"grep -n compute src/package_{number % 40}"})
        items += [
            {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": sealed},
            {"type": "function_call", "call_id": f"c{number}", "name": "shell", "arguments": arguments},
            {"type": "function_call_output", "call_id": f"c{number}", "output": line * 37},
        ]
        if number % _WORDS in {0, 1}:
            role, kind = ("user", "input_text") if number % _WORDS else ("assistant", "output_text")
            text = f"step {number}: the next module, please"
            items.append({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
    return items


def main() -> None:
    items = make_items()
    body = json.dumps({"model": "m", "input": items})
    exact = load_counter()
    known = functools.lru_cache(maxsize=None)(exact)
    plan = _plan(items, known)
    tokens = sum(unit.tokens for unit in plan.units)

    def everything() -> tuple[Unit, ...]:
        """An overflow: planned, trimmed to half, planned in windows of a tenth, all written out."""
        units = _plan(items, known).units
        trimmed = cut_to(units, tokens // 2, known)
        write_blocks([block for unit in trimmed.units for block in unit.blocks], "mark", images=True)
        return fold_window(units, tokens // 7, tokens // 7, 8, known)[0].units

    steps: dict[str, Callable[[], object]] = {
        "count: every text once": lambda: _plan(items, exact),
        "plan: classify, pair, render, measure": lambda: _plan(items, known),
        "plan and trim to half": lambda: cut_to(_plan(items, known).units, tokens // 2, known),
        "trim: leave out a fifth": lambda: cut_by(plan.units, tokens // 5, known),
        "trim: to half": lambda: cut_to(plan.units, tokens // 2, known),
        "fold: the first of eight windows": lambda: fold_window(plan.units, tokens // 7, tokens // 7, 8, known),
        "plan, trim and fold, written out": everything,
        "shorten: ten windows into eight, all of them": lambda: _fold(plan, tokens // 10, exact),
    }
    title = f"{len(body) / 1e6:.1f} MB, {len(items)} items, {tokens:,} tokens"
    table = Table(title=title)
    for column in ("step", "milliseconds", "json.loads", "ratio", "peak memory x body"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for name, step in steps.items():
        taken, base = compare(step, lambda: json.loads(body))
        table.add_row(
            name, f"{taken * 1e3:.2f}", f"{base * 1e3:.2f}", f"{taken / base:.2f}", f"{peak(step) / len(body):.2f}"
        )
    Console().print(table)


def _plan(items: list[dict[str, Any]], count: Callable[[str], int]) -> Plan:
    task = Task(Expansion(list(items), ()), "trigger", "m", lambda _: Limits(20_000, None), 64_000)
    return make_plan(task, count)


def _fold(plan: Plan, capacity: int, count: Callable[[str], int]) -> list[Cut]:
    """Every window of a fold."""
    rest = plan.units
    windows: list[Cut] = []
    while rest:
        window, rest = fold_window(rest, capacity, capacity, 8 - len(windows), count)
        windows.append(window)
    return windows


if __name__ == "__main__":
    main()

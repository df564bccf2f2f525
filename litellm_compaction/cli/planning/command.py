"""The `plan` command: a saved request in, what a compaction would make of it out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

if TYPE_CHECKING:
    from litellm_compaction.cli.planning.outline import Outline

_FATES: Final = ("kept", "summarised", "shortened", "left out", "carried")
# A long session: its beginning and its end say enough.
_SHOWN_LINES: Final = 40


@click.command("plan")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--config", metavar="CONFIG.yaml", required=True, type=click.Path(path_type=Path), help="The proxy's.")
@click.option("--model", help="The model group, where FILE names none or another is meant.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for programs.")
def plan(file: TextIO, config: Path, model: str | None, as_json: bool) -> None:
    """Show what a compaction of the request in FILE would keep, summarise and leave out, in tokens.

    FILE (or - for standard input) is the JSON body of a request to /v1/responses or /responses/compact, or a list of
    items. No model is called: what a summary would say, and which items its writer would ask to keep, is not known.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    # Here, not above: `--help` of every command would wait for them.
    from litellm_compaction.cli.config import ConfigError, read_config
    from litellm_compaction.cli.inspection.keys import NoKeysError, find_secrets
    from litellm_compaction.cli.planning.outline import outline_request
    from litellm_compaction.envelope.sealing import KeyRing
    from litellm_compaction.errors import CompactionError

    body = _read_body(file)
    name = model or str(body.get("model") or "")
    if not name:
        raise click.ClickException(f"{file.name} names no model: give --model")
    try:
        known = read_config(config)
        if not known.deployments(name):
            raise click.ClickException(f"{config} serves no model {name!r}")
        outline = outline_request(body, name, known, KeyRing(find_secrets((), config)))
    except (ConfigError, NoKeysError) as error:
        raise click.ClickException(str(error)) from None
    except CompactionError as error:
        raise click.ClickException(error.message) from None
    if as_json:
        click.echo(json.dumps(_as_json(outline), indent=2))
    else:
        _print(outline)


def _read_body(file: TextIO) -> Mapping[str, Any]:
    try:
        body: Final = json.load(file)
    except (ValueError, RecursionError):
        raise click.ClickException(f"{file.name} is no JSON") from None
    if isinstance(body, list):
        return {"input": body}
    if isinstance(body, Mapping) and "input" in body:
        return body
    raise click.ClickException(f"{file.name} is neither a request with an 'input' nor a list of items")


def _as_json(outline: Outline) -> dict[str, Any]:
    budget: Final = outline.budget
    return {
        "model": outline.model,
        "summary_model": outline.writer,
        "budget": None if budget is None else asdict(budget),
        "counted": outline.counted,
        "counting_error": outline.error,
        "over_threshold": None if budget is None else outline.is_over,
        "windows": outline.windows,
        "totals": {fate: {"items": outline.items(fate), "tokens": outline.tokens(fate)} for fate in _FATES},
        "items": [asdict(line) for line in outline.lines],
    }


def _print(outline: Outline) -> None:
    from rich.table import Table

    from litellm_compaction.cli.console import make_console, printable

    console = make_console()
    budget: Final = outline.budget
    console.print(
        f"The request counts {outline.counted:,} tokens (and {outline.error:,} by another tokenizer at most)."
    )
    if budget is None:
        console.print(f"The window of {printable(outline.model)} is unknown.")
    else:
        side = "over" if outline.is_over else "not over"
        console.print(
            f"{printable(outline.model)}: window {budget.context:,}, output {budget.output:,}, input {budget.input:,}, "
            f"threshold {budget.threshold:,}: it is {side} the threshold."
        )
    windows: Final = "one window" if outline.windows == 1 else f"{outline.windows} windows"
    console.print(f"{printable(outline.writer)} would write the summary, in {windows}.")
    totals: Final = Table("what becomes of it", "items", "tokens")
    for fate in _FATES:
        totals.add_row(fate, f"{outline.items(fate)}", f"{outline.tokens(fate):,}")
    console.print(totals)
    table: Final = Table("item", "type", "role", "tokens", "what becomes of it")
    lines: Final = outline.lines
    half: Final = _SHOWN_LINES // 2
    for line in lines if len(lines) <= _SHOWN_LINES else lines[:half]:
        table.add_row(f"{line.index}", printable(line.type), printable(line.role), f"{line.tokens:,}", line.fate)
    if len(lines) > _SHOWN_LINES:
        table.add_row("…", f"{len(lines) - 2 * half} more", "", "", "")
        for line in lines[-half:]:
            table.add_row(f"{line.index}", printable(line.type), printable(line.role), f"{line.tokens:,}", line.fate)
    console.print(table)

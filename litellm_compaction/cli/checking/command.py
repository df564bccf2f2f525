"""The `check` command: a config in, the budget of every model out."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from litellm_compaction.cli.checking.check import Report

_COLUMNS: Final = ("model", "context C", "output O", "max input", "input I", "threshold T", "source")


@click.command("check")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for programs.")
def check(config: Path, as_json: bool) -> None:
    """Check a LiteLLM CONFIG.yaml: the plugin's settings, and the budget of every model in tokens.

    Nothing is contacted and no key is needed. Exit 1 if there is an error.
    """
    # LiteLLM would fetch its price map from the internet when it is imported; the gateway's own copy is as good.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    # Here, not above: `--help` of every command would wait for them.
    from litellm_compaction.cli.checking.check import check_config

    report = check_config(config)
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        _print(report)
    if report.errors:
        sys.exit(1)


def _print(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    from litellm_compaction.cli.console import make_console, printable

    console = make_console()
    if report.models:
        table = Table(*_COLUMNS)
        for column in table.columns:
            column.overflow = "fold"
        for column in table.columns[1:6]:
            column.justify = "right"
        for row in report.models:
            numbers = (row.context, row.output, row.max_input, row.input, row.threshold)
            shown = ["-" if number is None else f"{number:,}" for number in numbers]
            # Text: in a plain string rich takes brackets for markup.
            table.add_row(Text(printable(row.model)), *shown, row.source or "unknown")
        console.print(table)
    for row in report.models:
        for warning in row.warnings:
            console.print(Text.assemble(("warning", "yellow"), f" {printable(row.model)}: {printable(warning)}"))
    for error in report.errors:
        click.echo(f"Error: {printable(error)}", err=True)
    if not report.errors:
        count: Final = len(report.models)
        console.print(f"{count} {'model' if count == 1 else 'models'}, no errors")

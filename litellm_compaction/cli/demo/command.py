"""The `demo` command: options in, exit code out."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from litellm_compaction.cli.console import make_console


@click.command("demo")
@click.option("--model", metavar="MODEL", help="LiteLLM model string of a real model, e.g. ollama_chat/qwen3.")
@click.option("--api-base", metavar="URL", help="Where that model is served.")
@click.option("--api-key", metavar="KEY", help="Its key, where it needs one.")
@click.option(
    "--keep-files",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Leave config, log and answers there.",
)
def demo(model: str | None, api_base: str | None, api_key: str | None, keep_files: Path | None) -> None:
    """Compact a bundled coding session through a real proxy and print what happens.

    Starts a LiteLLM proxy with the plugin on loopback. Without --model an embedded model stands behind it, and nothing
    leaves this machine.
    """
    # Here, not above: `--help` of every command would wait for them.
    from litellm_compaction.cli.demo.account import Account
    from litellm_compaction.cli.demo.journey import run_demo
    from litellm_compaction.cli.demo.proxy import DemoError, Model

    if model is None and (api_base or api_key):
        raise click.UsageError("--api-base and --api-key go with --model")
    chosen = Model(model, api_base, api_key) if model else None
    # Else the proxy would outlive a demo that is told to end.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    console = make_console()
    try:
        problems = run_demo(Account(console), chosen, keep_files and keep_files.resolve())
    except DemoError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(1)
    sys.exit(1 if problems else 0)

"""`litellm-compaction`: the command line."""

from __future__ import annotations

import click

from litellm_compaction._version import __version__
from litellm_compaction.cli.checking.command import check
from litellm_compaction.cli.codex.command import codex_config
from litellm_compaction.cli.demo.command import demo
from litellm_compaction.cli.inspection.command import inspect_item
from litellm_compaction.cli.planning.command import plan


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="litellm-compaction")
def main() -> None:
    """Responses API compaction for every model behind a LiteLLM proxy."""


main.add_command(check)
main.add_command(codex_config)
main.add_command(demo)
main.add_command(inspect_item)
main.add_command(plan)

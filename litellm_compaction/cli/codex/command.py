"""The `codex-config` command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from litellm_compaction.cli.codex.lines import By


@click.command("codex-config")
@click.argument("config", metavar="CONFIG.yaml", type=click.Path(path_type=Path))
@click.argument("model")
@click.option("--base-url", metavar="URL", required=True, help="Where Codex reaches the proxy.")
@click.option(
    "--by",
    type=click.Choice(["capabilities", "name"]),
    default="capabilities",
    show_default=True,
    help="capabilities: Codex 0.162 and newer; name: 0.140 to 0.161.",
)
@click.option("--env-key", metavar="NAME", default="LITELLM_API_KEY", show_default=True, help="Holds the proxy's key.")
def codex_config(config: Path, model: str, base_url: str, by: By, env_key: str) -> None:
    """Print the lines for Codex' config.toml that make it compact through this proxy at the right threshold.

    MODEL is a model_name of CONFIG.yaml, an alias, or a name that one of its wildcards serves.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    # Here, not above: `--help` of every command would wait for them.
    from litellm_compaction.cli.codex.lines import write_lines
    from litellm_compaction.cli.config import ConfigError, read_config
    from litellm_compaction.errors import SettingsError

    try:
        known = read_config(config)
        known.require(model)
        budget = known.budget(model)
    except (ConfigError, SettingsError) as error:
        raise click.ClickException(str(error)) from None
    if budget is None:
        raise click.ClickException(
            f"the window of {model!r} is unknown: set 'context' under its model_info.compaction, or "
            "model_info.max_input_tokens"
        )
    click.echo(write_lines(model, budget, base_url, env_key, by), nl=False)

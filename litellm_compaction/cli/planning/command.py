"""The `plan` command: a saved request in, what a compaction would make of it out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click


@click.command("plan")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--config", metavar="CONFIG.yaml", required=True, type=click.Path(path_type=Path), help="The proxy's.")
@click.option("--model", help="The model group, where FILE names none or another is meant.")
@click.option("--json", "for_programs", is_flag=True, help="Print one JSON object for programs.")
def plan(file: str, config: Path, model: str | None, for_programs: bool) -> None:
    """Show what a compaction of the request in FILE would keep, summarise and leave out, in tokens.

    FILE (or - for standard input) is the JSON body of a request to /v1/responses or /responses/compact, or a list of
    items. No model is called: what a summary would say, and which items its writer would ask to keep, is not known.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    # Here, not above: `--help` of every command would wait for them.
    from litellm_compaction.cli.config import ConfigError, read_config
    from litellm_compaction.cli.console import make_console
    from litellm_compaction.cli.inspection.keys import NoKeysError, find_secrets
    from litellm_compaction.cli.planning.outline import outline_request
    from litellm_compaction.cli.planning.show import as_json, show_outline
    from litellm_compaction.envelope.sealing import KeyRing
    from litellm_compaction.errors import CompactionError

    try:
        body = _read_body(file)
        name = model or str(body.get("model") or "")
        if not name:
            raise click.ClickException(f"{file} names no model: give --model")
        known = read_config(config)
        known.require(name)
        outline = outline_request(body, name, known, lambda: KeyRing(find_secrets((), config)))
    except (ConfigError, NoKeysError) as error:
        raise click.ClickException(str(error)) from None
    except CompactionError as error:
        raise click.ClickException(error.message) from None
    except RecursionError:
        raise click.ClickException(f"{file} is nested too deeply") from None
    if for_programs:
        click.echo(json.dumps(as_json(outline), indent=2))
    else:
        show_outline(make_console(), outline)


def _read_body(file: str) -> Mapping[str, Any]:
    try:
        with click.open_file(file, encoding="utf-8") as opened:
            body: Final = json.load(opened)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read ({type(error).__name__})") from None
    except ValueError:
        raise click.ClickException(f"{file} is no JSON") from None
    if isinstance(body, list):
        return {"input": body}
    if isinstance(body, Mapping) and "input" in body:
        return body
    raise click.ClickException(f"{file} is neither a request with an 'input' nor a list of items")

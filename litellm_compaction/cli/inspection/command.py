"""The `inspect` command: a file in, what its items hold out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn, TextIO

import click


@click.command("inspect")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option(
    "--config",
    metavar="CONFIG.yaml",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The proxy's config: its keys are used.",
)
@click.option("--key", "keys", metavar="SECRET", multiple=True, help="A secret to try; may be given several times.")
@click.option("--json", "as_json", is_flag=True, help="Print the payloads as JSON, one a line.")
def inspect_item(file: TextIO, config: Path | None, keys: tuple[str, ...], as_json: bool) -> None:
    """Open the compaction items in FILE and show what they hold.

    FILE (or - for standard input) is an item, a request or response that contains some, the text of a stream, or an
    `encrypted_content` alone. Without --key and --config the keys come from LITELLM_SALT_KEY or LITELLM_MASTER_KEY.
    Whom an item is bound to does not matter here.
    """
    # Here, not above: `--help` of every command would wait for them.
    from litellm_compaction.cli.console import make_console
    from litellm_compaction.cli.inspection.find import find_items
    from litellm_compaction.cli.inspection.keys import NoKeysError, find_secrets
    from litellm_compaction.cli.inspection.show import show_payload
    from litellm_compaction.envelope.sealing import KeyRing, open_item
    from litellm_compaction.errors import UnreadableItem

    try:
        items = find_items(file.read())
        ring = KeyRing(find_secrets(keys, config))
    except NoKeysError as error:
        _fail(str(error))
    except UnicodeDecodeError:
        _fail(f"{file.name} is no text")
    if not items:
        _fail(f"{file.name} holds no compaction item")
    unreadable = False
    for item in items:
        try:
            payload = open_item(item, ring, None, allow_unsealed=True)
        except UnreadableItem:
            # The others are shown all the same: a request may carry items of several origins.
            unreadable = True
            name = item.get("id") or "(no id)"
            click.echo(
                f"Error: item {name} cannot be opened: another key, another origin, or damaged content", err=True
            )
            continue
        if as_json:
            click.echo(json.dumps(payload.model_dump()))
        else:
            show_payload(make_console(), item, payload)
    if unreadable:
        sys.exit(1)


def _fail(message: str) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(1)

"""The log's one line a compaction, for people and for machines: `litellm_compaction: name=value name=value …`.

Values of any other kind than numbers, ids and names are written as JSON strings, so that a line is always one line and
can be split again. What an operator should look at is a warning, everything else is told with LiteLLM's log at INFO.
"""

from __future__ import annotations

import json
import re
from typing import Final

from litellm._logging import verbose_proxy_logger

from litellm_compaction.errors import Unreadable
from litellm_compaction.gateway.record import Record

_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/@+*-]+")
_CHARACTERS: Final = 200
_CUT: Final = "the backend reports far fewer prompt tokens than it was sent: it may cut prompts silently"


def write_line(record: Record) -> None:
    """Log one compaction, or one answer made of it."""
    fields: Final = [*record.fields(), *([("note", _CUT)] if record.cut else [])]
    _log(fields, warn=record.is_notable)


def write_refused_item(reason: Unreadable, handling: str, digest: str, key: str | None, team: str | None) -> None:
    """Log an item that could not be opened. The client is told nothing but that; its operator can look here."""
    fields: Final = [("unreadable_item", digest), ("reason", reason), ("handling", handling)]
    _log([*fields, *((name, value) for name, value in (("key", key), ("team", team)) if value)], warn=False)


def _log(fields: list[tuple[str, str | int | float]], *, warn: bool) -> None:
    log: Final = verbose_proxy_logger.warning if warn else verbose_proxy_logger.info
    log("litellm_compaction: %s", " ".join(f"{name}={_value(value)}" for name, value in fields))


def _value(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text: Final = str(value)[:_CHARACTERS]
    return text if _PLAIN.fullmatch(text) else json.dumps(text)

"""What items may be as JSON: not nested without end, and only numbers that JSON knows.

LiteLLM's reader takes a thousand levels and `NaN`; its writers, and a backend's reader, stop far earlier, after the
compaction has been paid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from litellm_compaction.errors import InvalidInput

# A tool's output is nested some ten deep; pydantic, by which LiteLLM writes answers, stops at about 200.
MOST_LEVELS: Final = 100
TOO_DEEP: Final = "Invalid 'input': an item is nested too deeply."
_NO_NUMBER: Final = "Invalid 'input': an item holds NaN or an infinite number, which JSON has not."
_CONTAINERS: Final = (dict, list, tuple)


def check_bounds(items: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidInput on an item deeper than MOST_LEVELS, and on a number that is none of JSON's.

    Looks at every value once: for requests that the plugin reads anyway, in a thread.
    """
    level: list[Any] = list(items)
    for _ in range(MOST_LEVELS):
        values = [value for entry in level for value in (entry.values() if isinstance(entry, Mapping) else entry)]
        if any(isinstance(value, float) and not math.isfinite(value) for value in values):
            raise InvalidInput(_NO_NUMBER)
        level = [value for value in values if isinstance(value, _CONTAINERS)]
        if not level:
            return
    raise InvalidInput(TOO_DEEP)

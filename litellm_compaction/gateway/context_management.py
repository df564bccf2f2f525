"""`context_management` of a request, read and refused as OpenAI does (facts/openai.md 3.1 and 6.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from litellm_compaction.errors import InvalidContextManagement

FIELD: Final = "context_management"
_COMPACTION: Final = "compaction"
_THRESHOLD: Final = "compact_threshold"
_LEAST_THRESHOLD: Final = 1000


@dataclass(frozen=True, slots=True)
class CompactAt:
    """A client's wish to compact an input over so many tokens; None: over the model's own threshold."""

    tokens: int | None


def read_context_management(value: object) -> CompactAt | None:
    """The wish in a request's `context_management`, None for none. Of several entries the lowest threshold counts.

    Raises InvalidContextManagement.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise _invalid_type(FIELD, "an array of objects", value)
    if not value:
        raise InvalidContextManagement(
            f"Invalid '{FIELD}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            "empty_array",
            FIELD,
        )
    thresholds: Final = [_read_entry(entry, f"{FIELD}[{place}]") for place, entry in enumerate(value)]
    return CompactAt(min((tokens for tokens in thresholds if tokens is not None), default=None))


def _read_entry(entry: object, where: str) -> int | None:
    if not isinstance(entry, Mapping):
        raise _invalid_type(where, "an object", entry)
    if "type" not in entry:
        parameter: Final = f"{where}.type"
        message: Final = f"Missing required parameter: '{parameter}'."
        raise InvalidContextManagement(message, "missing_required_parameter", parameter)
    given: Final = entry["type"]
    if not isinstance(given, str):
        raise _invalid_type(f"{where}.type", "a string", given)
    if given != _COMPACTION:
        raise InvalidContextManagement(f"Unsupported {FIELD} type: '{given}'.", None, FIELD)
    unknown: Final = next((key for key in entry if key not in {"type", _THRESHOLD}), None)
    if unknown is not None:
        name: Final = f"{where}.{unknown}"
        raise InvalidContextManagement(f"Unknown parameter: '{name}'.", "unknown_parameter", name)
    return _read_threshold(entry.get(_THRESHOLD), f"{where}.{_THRESHOLD}")


def _read_threshold(value: object, where: str) -> int | None:
    if value is None:
        return None
    # 1000.0 is refused, too: JSON's integers only.
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid_type(where, "an integer", value)
    if value < _LEAST_THRESHOLD:
        raise InvalidContextManagement(
            f"Invalid '{where}': integer below minimum value. Expected a value >= {_LEAST_THRESHOLD}, "
            f"but got {value} instead.",
            "integer_below_min_value",
            where,
        )
    return value


def _invalid_type(where: str, expected: str, value: object) -> InvalidContextManagement:
    message: Final = f"Invalid type for '{where}': expected {expected}, but got {_name(value)} instead."
    return InvalidContextManagement(message, "invalid_type", where)


def _name(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    names: Final[Mapping[type, str]] = {int: "an integer", float: "a decimal number", str: "a string", list: "an array"}
    return names.get(type(value), "an object")

"""What is worth a line in the log, and not one with every request."""

from __future__ import annotations

from typing import Final

from cachetools import TTLCache

_SUBJECTS: Final = 4096


class Told:
    """Which subjects have been told of in the last `seconds`."""

    def __init__(self, seconds: float = 3600.0) -> None:
        self._told: Final[TTLCache[tuple[str, ...], bool]] = TTLCache(_SUBJECTS, seconds)

    def is_new(self, *subject: str) -> bool:
        """Whether a subject has not been told of lately; from now on it has."""
        if subject in self._told:
            return False
        self._told[subject] = True
        return True

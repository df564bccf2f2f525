"""Standard output of the commands, and text made safe for it."""

from __future__ import annotations

from typing import Final

from rich.console import Console

_LOG_COLUMNS: Final = 100


def make_console() -> Console:
    """Standard output; 100 columns where it is no terminal, so that a log reads like a screen."""
    console: Final = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_LOG_COLUMNS)


def printable(text: str) -> str:
    """`text` without what a terminal would obey or an encoder refuse: escape sequences, lone surrogates."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def one_line(text: str, length: int) -> str:
    """The first `length` characters of `text` on one line."""
    flat: Final = printable(" ".join(text.split()))
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"

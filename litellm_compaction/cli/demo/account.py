"""What the demo prints: a readable account of each step, for a terminal and for a log alike."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from litellm_compaction.cli.console import one_line, printable
from litellm_compaction.cli.demo.backend import Received
from litellm_compaction.cli.demo.client import HEADER, Event, Reply
from litellm_compaction.cli.demo.session import Session, kind_of, size_of

_PREVIEW: Final = 74
_ID_SHOWN: Final = 24
_CONTENT_SHOWN: Final = 56


class Account:
    """Writes to one console; every method is one paragraph of the account."""

    def __init__(self, console: Console) -> None:
        self._console: Final = console

    def heading(self, text: str) -> None:
        self._console.print()
        self._console.print(Rule(Text(text, style="bold"), align="left"))

    def command(self, text: str) -> None:
        """A command to copy: never broken into lines."""
        self._console.print(Text(text), soft_wrap=True)

    def line(self, text: str, *, style: str = "") -> None:
        self._console.print(Padding(Text(text, style=style), (0, 0, 0, 2), expand=False))

    def session(self, session: Session) -> None:
        """The conversation by kind: how many items, how many bytes."""
        self.line(session.about)
        table: Final = _table("kind", "items", "bytes", right=("items", "bytes"))
        for kind, count in session.kinds.items():
            _add_row(table, kind, str(count), f"{size_of([i for i in session.items if kind_of(i) == kind]):,}")
        _add_row(table, "all", str(len(session.items)), f"{size_of(session.items):,}")
        self._indented(table)

    def event(self, event: Event) -> None:
        """One server-sent event, as it arrives."""
        number: Final = str(event.data.get("sequence_number", ""))
        text: Final = Text.assemble((f"+{event.at:7.3f} s", "cyan"), f"  {number:>3}  {event.type}")
        item: Final = event.data.get("item")
        if isinstance(item, Mapping):
            text.append(f"  {item.get('type')} {one_line(str(item.get('id')), _ID_SHOWN)}", style="dim")
        delta: Final = event.data.get("delta")
        if isinstance(delta, str):
            text.append(f"  {one_line(delta, 50)}", style="dim")
        self._indented(text)

    def reply(self, reply: Reply) -> None:
        """Usage and the plugin's own headers."""
        table: Final = _table("header or field", "value")
        for name, value in sorted(reply.headers.items()):
            _add_row(table, name, value)
        usage: Final = reply.body.get("usage") or {}
        counts: Final = (f"{name.removesuffix('_tokens')} {usage.get(name, '?')}" for name in _USAGE)
        _add_row(table, "usage, in tokens", ", ".join(counts))
        _add_row(table, "time", f"{reply.seconds:.2f} s")
        self._indented(table)

    def item(self, item: Mapping[str, Any], leaks: Sequence[str]) -> None:
        """The compaction item: id, size, and whether anything can be read in it."""
        content: Final = str(item.get("encrypted_content", ""))
        table: Final = _table("the item", "")
        _add_row(table, "id", str(item.get("id")))
        _add_row(table, "content", one_line(content, _CONTENT_SHOWN))
        _add_row(table, "size", f"{len(content):,} characters")
        _add_row(table, "readable in it", ", ".join(leaks[:5]) if leaks else "nothing: no word of the conversation")
        self._indented(table)

    def saving(self, reply: Reply, before: object, after: object) -> None:
        """Bytes of the next request's history, and tokens as the plugin counts them, before and after."""
        table: Final = _table("", "before", "after", "left", right=("before", "after", "left"))
        self._add_saving(table, "history the client sends, bytes", size_of(before), size_of(after))
        counted: Final = [_number(reply.headers.get(f"{HEADER}-{name}")) for name in _TOKENS]
        self._add_saving(table, "tokens, as the plugin counts", *counted)
        self._indented(table)

    def received(self, received: Received) -> None:
        """What the model behind the proxy was sent: every message, the long ones by their beginning."""
        table: Final = _table("role", "chars", "begins with", right=("chars",))
        for role, text in received.messages:
            _add_row(table, role, f"{len(text):,}", one_line(text, _PREVIEW))
        self._indented(table)

    def summary(self, received: Iterable[Received]) -> None:
        """The restored summary in full, from the first message that holds one."""
        for request in received:
            for _, text in request.messages:
                if "## " in text and not request.is_summary:
                    self._indented(Text(printable(text), style="green"))
                    return

    def answer(self, question: str, text: str) -> None:
        """The next turn as a user sees it."""
        table: Final = _table("", "")
        table.show_header = False
        _add_row(table, "user", question)
        _add_row(table, "assistant", text or "(no text)")
        self._indented(table)

    def verdict(self, problems: Sequence[str], seconds: float) -> None:
        """The last lines: all right, or what was wrong."""
        self.heading("Result")
        for problem in problems:
            self.line(f"✗ {' '.join(printable(problem).split())}", style="red")
        if problems:
            self.line(f"{len(problems)} of the steps' expectations were not met ({seconds:.1f} s).", style="bold red")
        else:
            self.line(f"Every step gave what the contract says ({seconds:.1f} s).", style="bold green")

    @staticmethod
    def _add_saving(table: Table, name: str, old: int, new: int) -> None:
        # A long stream starts before the counts are known: its headers lack them.
        if old and new:
            _add_row(table, name, f"{old:,}", f"{new:,}", f"{100 * new / old:.0f} %")

    def _indented(self, renderable: Text | Table) -> None:
        self._console.print(Padding(renderable, (0, 0, 0, 2), expand=False))


_USAGE: Final = ("input_tokens", "output_tokens", "total_tokens")
_TOKENS: Final = ("tokens-before", "tokens-after")


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table: Final = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _add_row(table: Table, *cells: str) -> None:
    # As Text: rich would read brackets in a plain string as its own markup.
    table.add_row(*(Text(printable(cell)) for cell in cells))


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def as_json(value: object) -> str:
    """JSON for a file a person may open."""
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"

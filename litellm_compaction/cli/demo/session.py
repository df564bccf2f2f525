"""The bundled coding session and the requests the demo makes of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

JsonObject = dict[str, Any]

INSTRUCTIONS: Final = "You are a coding agent. Work in the user's repository with the tools you have. Answer briefly."
# An agent sends its tools with a compaction too; a compaction must not call them.
TOOLS: Final[Sequence[JsonObject]] = (
    {
        "type": "function",
        "name": "shell",
        "description": "Runs a command in the repository.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
            "required": ["command"],
        },
        "strict": False,
    },
)


@dataclass(frozen=True, slots=True)
class Session:
    """`items`: the conversation as Responses input items. `question`: the user's next turn, after the compaction.

    `facts`: what a right answer says, each as the spellings that will do. The last one's first spelling was said by the
    assistant and stands nowhere else.
    """

    about: str
    question: str
    facts: tuple[tuple[str, ...], ...]
    items: tuple[JsonObject, ...]

    @property
    def user_messages(self) -> list[JsonObject]:
        return [item for item in self.items if item.get("role") == "user"]

    @property
    def kinds(self) -> Mapping[str, int]:
        """How many items of each kind, most frequent first; messages by their role."""
        return dict(Counter(kind_of(item) for item in self.items).most_common())


def load_session() -> Session:
    """The session that ships with the package."""
    raw: Final = json.loads(files(__package__).joinpath("session.json").read_text(encoding="utf-8"))
    return Session(raw["about"], raw["question"], tuple(map(tuple, raw["facts"])), tuple(raw["items"]))


def kind_of(item: Mapping[str, Any]) -> str:
    """An item's type in a reader's words: `user message`, `function_call`."""
    return f"{item['role']} message" if "role" in item else str(item.get("type", "unknown"))


def size_of(value: object) -> int:
    """Bytes of a value as compact JSON: what it weighs on the wire."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def ask(text: str) -> JsonObject:
    """One user message."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def turn_request(model: str, items: Sequence[JsonObject], *, stream: bool) -> JsonObject:
    """An ordinary turn, as a coding agent sends it."""
    return {**compact_request(model, items), "tools": list(TOOLS), "store": False, "stream": stream}


def compact_request(model: str, items: Sequence[JsonObject]) -> JsonObject:
    """The body of `POST /v1/responses/compact`."""
    return {"model": model, "instructions": INSTRUCTIONS, "input": list(items)}

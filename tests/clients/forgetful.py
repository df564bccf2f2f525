"""The model behind the proxy in these tests: it knows nothing but what it is sent."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any, Final

from tests.support.backend import Json, Step, Summary, Text, ToolCall, is_summary_request, request_text

# Above the limit in Codex' config: it compacts before it asks again.
OVER_LIMIT: Final = (90_000, 10)
UNDER_LIMIT: Final = (100, 10)
SUMMARY_OPENS: Final = "<conversation_summary"
SUMMARY_CLOSES: Final = "</conversation_summary>"
_CODE_WORD: Final = re.compile(r"\bheron-[0-9a-f]{8}\b")


class ForgetfulModel:
    """Makes up a code word when asked to, says it once, and from then on has to read it.

    It does as the newest user message says: "choose a code word", "then compact" (its answer is over the limit),
    "take a look" (it calls a shell until it has been shown a summary). While `failing` it gives no valid summary.
    """

    def __init__(self) -> None:
        self.word = f"heron-{secrets.token_hex(4)}"
        self.failing = False

    def __call__(self, body: Json) -> Step:
        if self.failing:
            return Text("I would rather chat.")
        found = _CODE_WORD.search(request_text(body))
        known = "no code word is known" if found is None else f"the code word is {found.group()}"
        if is_summary_request(body):
            return Summary(f"From the transcript: {known}.")
        asked = _newest_words(body)
        usage = OVER_LIMIT if "then compact" in asked else UNDER_LIMIT
        if "choose a code word" in asked:
            return Text(f"I choose {self.word}.", usage=usage)
        if "take a look" in asked and SUMMARY_OPENS not in request_text(body):
            return _shell_call(body, "printf seen-%s it")
        return Text(f"As far as I was told, {known}.", usage=usage)


def kinds(requests: list[Json]) -> list[str]:
    """What the backend was asked for, in order: `turn`, or `summary` where the summary tool was forced."""
    return ["summary" if is_summary_request(body) else "turn" for body in requests]


def check_known_by_the_item_alone(body: Json, word: str, *, verbatim: bool = True) -> None:
    """Fails unless the word is in the restored summary, and nowhere before it; without `verbatim` nowhere else."""
    before, opening, rest = request_text(body).partition(SUMMARY_OPENS)
    summary, closing, after = rest.partition(SUMMARY_CLOSES)
    assert opening
    assert closing
    assert SUMMARY_OPENS not in after
    assert word in summary
    assert word not in before
    if not verbatim:
        assert word not in after
        assert "assistant" not in [message["role"] for message in body["messages"]]


def roles_after_summary(body: Json) -> list[str]:
    """The roles of the messages that follow the restored summary."""
    texts = [request_text({"messages": [message]}) for message in body["messages"]]
    place = next(place for place, text in enumerate(texts) if SUMMARY_OPENS in text)
    return [message["role"] for message in body["messages"][place + 1 :]]


def _newest_words(body: Json) -> str:
    """The newest user message that is the user's own, not the restored summary."""
    said = [request_text({"messages": [message]}) for message in body["messages"] if message["role"] == "user"]
    return next((text for text in reversed(said) if SUMMARY_OPENS not in text), "")


def _shell_call(body: Json, command: str) -> ToolCall:
    """A call of whatever shell tool this release offers, in an answer that is over the limit."""
    offered: dict[str, Any] = {"exec_command": {"cmd": command}, "shell_command": {"command": command}}
    offered["shell"] = {"command": ["bash", "-lc", command]}
    tools = {tool["function"]["name"] for tool in body["tools"] if "function" in tool}
    name = next((name for name in offered if name in tools), None)
    assert name is not None, sorted(tools)
    return ToolCall(((name, json.dumps(offered[name])),), usage=OVER_LIMIT)

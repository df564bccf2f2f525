"""Reading and checking what the model returned, before any of it is used."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from litellm_compaction.compaction.prompt import SUMMARY_TOOL


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more inferences."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Reply:
    """One inference's answer: `calls` are (name, arguments) of its tool calls, `text` its content, `refusal` what it
    said in place of one, `reasoned` whether it holds reasoning."""

    calls: tuple[tuple[str, str], ...] = ()
    text: str = ""
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    refusal: str = ""
    reasoned: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A checked summary and the refs of the items to keep, in the order given."""

    summary: str
    retain: tuple[str, ...] = ()


# Of a ref that a model made up: as long as a real one, no place for a text.
_SHOWN_CHARACTERS: Final = 16


class InvalidAnswer(ValueError):
    """The answer cannot be used; the text says why, in words for the model that gets to repair it."""


# Finish reasons whose answer is not used, whatever it holds: (what providers call it, what the model is told).
_UNFINISHED: Final[Mapping[str, str]] = {
    "length": "it was cut off at the output limit; write a shorter summary.",
    "max_tokens": "it was cut off at the output limit; write a shorter summary.",
    "model_context_window_exceeded": "it was cut off at the end of the context window; write a shorter summary.",
    "content_filter": "it was stopped by a content filter; describe what the filter may object to in neutral words.",
    "refusal": "it was a refusal; nothing but a factual record of the transcript is asked for.",
}


def read_answer(reply: Reply, refs: Collection[str]) -> Answer:
    """The one summary in a reply: of the tool call, else JSON in the text.

    | reply                                             | outcome                              |
    |---------------------------------------------------|--------------------------------------|
    | one summary, not blank, known refs without repeats| the answer                           |
    | more than one summary, in calls or in the text    | invalid                              |
    | none: prose, reasoning only, another tool's call  | invalid                              |
    | refusal, content filter, cut off at a limit       | invalid, whatever else it holds      |

    Raises InvalidAnswer, worded for the repair.
    """
    if reply.finish_reason in _UNFINISHED:
        raise InvalidAnswer(_UNFINISHED[reply.finish_reason])
    if reply.refusal:
        raise InvalidAnswer(_UNFINISHED["refusal"])
    return _check(_find(reply), refs)


def _find(reply: Reply) -> dict[str, Any]:
    given: Final = [arguments for name, arguments in reply.calls if name == SUMMARY_TOOL]
    if len(given) > 1:
        raise InvalidAnswer(f"`{SUMMARY_TOOL}` was called {len(given)} times, not once.")
    if given:
        parsed: Final = _parse_object(given[0])
        if parsed is None:
            raise InvalidAnswer(f"the arguments of `{SUMMARY_TOOL}` are not a JSON object.")
        return parsed
    # Some models write the same object twice, bare and in a fence; two different ones leave it open which counts.
    every: Final = list(_objects(reply.text))
    found: Final = [value for place, value in enumerate(every) if value not in every[:place]]
    if len(found) > 1:
        raise InvalidAnswer(f"it holds {len(found)} summaries, not one.")
    if found:
        return found[0]
    if reply.calls:
        raise InvalidAnswer(f"it called another tool instead of `{SUMMARY_TOOL}`.")
    if reply.reasoned and not reply.text.strip():
        raise InvalidAnswer("it holds reasoning and no answer; think less and answer.")
    raise InvalidAnswer("it holds no summary in the form asked for.")


def _parse_object(text: str) -> dict[str, Any] | None:
    try:
        # strict=False: models put raw newlines into JSON strings.
        value: Final = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects with a summary in a text: bare, in a code fence, or with words around them."""
    decoder: Final = json.JSONDecoder(strict=False)
    start = text.find("{")
    for _ in range(64):  # a bound on how often a text full of braces is tried
        if start < 0:
            return
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            value = _unwrap_call(value)
            if isinstance(value, dict) and "summary" in value:
                yield value
        start = text.find("{", end)


def _unwrap_call(value: object) -> object:
    """Small models write the tool call itself as text: `{"name": "create_summary", "arguments": {…}}`."""
    if isinstance(value, dict) and value.get("name") == SUMMARY_TOOL:
        inner: Final = value.get("arguments", value.get("parameters"))
        return _parse_object(inner) if isinstance(inner, str) else inner
    return value


def _check(value: dict[str, Any], refs: Collection[str]) -> Answer:
    summary: Final = value.get("summary")
    if not isinstance(summary, str) or not summary.strip():
        raise InvalidAnswer("the summary is missing or blank.")
    retain: Final = value.get("retain_item_ids")
    if retain is not None and not (isinstance(retain, list) and all(isinstance(ref, str) for ref in retain)):
        raise InvalidAnswer("`retain_item_ids` is not a list of refs.")
    chosen: Final = tuple(retain or ())
    unknown: Final = [ref for ref in chosen if ref not in refs]
    if unknown:
        raise InvalidAnswer(f"`retain_item_ids` names an unknown item {unknown[0][:_SHOWN_CHARACTERS]!r}.")
    if len(set(chosen)) != len(chosen):
        raise InvalidAnswer("`retain_item_ids` names an item twice.")
    # A lone surrogate, which some models write, is no text that could be sent on.
    return Answer(summary.strip().encode("utf-8", "replace").decode(), chosen)

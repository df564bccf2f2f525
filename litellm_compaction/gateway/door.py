"""The door: what a request is, decided once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from litellm_compaction.conversation.items import TRIGGER_TYPE, RawItem, is_control, normalize_input
from litellm_compaction.errors import OutputLimitTooSmall, TooManyTriggers, TriggerNotLast, TriggerOnCompact

# LiteLLM's names of the two routes; `responses` is what older versions say.
RESPONSES_CALLS: Final = frozenset({"aresponses", "responses"})
COMPACT_CALLS: Final = frozenset({"acompact_responses", "compact_responses"})
ALL_CALLS: Final = RESPONSES_CALLS | COMPACT_CALLS
# OpenAI refuses a trigger beside a smaller limit (facts/openai.md 2.1): the summary would be cut.
_MIN_OUTPUT_TOKENS: Final = 20_000


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """A trigger or a call of /responses/compact: `items` is the transcript, the trigger taken out."""

    origin: Literal["trigger", "compact"]
    items: list[RawItem]
    stream: bool


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """An ordinary request that brings compaction items back."""

    items: list[RawItem]


Request = CompactionRequest | ReplayRequest


def concerns_plugin(call_type: str, data: Mapping[str, Any]) -> bool:
    """Whether a request has anything in it for the plugin: one look at each item's type, no more."""
    if call_type in COMPACT_CALLS:
        return True
    given: Final = data.get("input")
    if call_type not in RESPONSES_CALLS or not isinstance(given, list | Mapping):
        return False
    items: Final = given if isinstance(given, list) else [given]
    return any(isinstance(item, Mapping) and is_control(item) for item in items)


def classify_request(call_type: str, data: Mapping[str, Any], *, normalize_trigger: bool) -> Request | None:
    """What the plugin has to do with a request, None for nothing.

    Raises TooManyTriggers, TriggerNotLast, OutputLimitTooSmall, TriggerOnCompact and InvalidInput.
    """
    if not concerns_plugin(call_type, data):
        return None
    items: Final = normalize_input(data.get("input"))
    triggers: Final = _triggers(items)
    if call_type in COMPACT_CALLS:
        if triggers:
            raise TriggerOnCompact
        return CompactionRequest("compact", items, stream=False)
    if not triggers:
        return ReplayRequest(items)
    if not normalize_trigger:
        _check_trigger(items, triggers)
    limit: Final = data.get("max_output_tokens")
    if isinstance(limit, int) and limit < _MIN_OUTPUT_TOKENS:
        raise OutputLimitTooSmall
    transcript: Final = [item for item in items if item.get("type") != TRIGGER_TYPE]
    # As LiteLLM reads it: what it takes for a stream has to be answered by one.
    return CompactionRequest("trigger", transcript, stream=bool(data.get("stream")))


def application_of(request: CompactionRequest, data: Mapping[str, Any]) -> str | None:
    """The instructions of a /responses/compact call, which OpenAI documents as input to the pass. With a trigger they
    are those of the agent's next turn, and only tempt a model to go on working."""
    instructions: Final = data.get("instructions")
    return instructions if request.origin == "compact" and isinstance(instructions, str) else None


def _triggers(items: Sequence[RawItem]) -> list[int]:
    """Places of triggers among the items themselves: a nested object of the type is somebody's data."""
    return [place for place, item in enumerate(items) if item.get("type") == TRIGGER_TYPE]


def _check_trigger(items: Sequence[RawItem], triggers: Sequence[int]) -> None:
    if len(triggers) > 1:
        raise TooManyTriggers
    if triggers[0] != len(items) - 1:
        raise TriggerNotLast

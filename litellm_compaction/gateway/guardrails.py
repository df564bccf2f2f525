"""LiteLLM's guardrails on the door of /responses/compact.

Most of LiteLLM's guardrails find the texts of a request by its call type. For the call type of this door LiteLLM knows
no reader, and passes the request on unread: what is blocked or masked on /responses would reach a backend here.
"""

from __future__ import annotations

from typing import Any, Final

from litellm.types.utils import CallTypes


def cover_compact_door() -> None:
    """Let guardrails read a compact request as they read /responses, whose members it has. A LiteLLM that knows a
    reader of its own keeps it."""
    from litellm.llms import load_guardrail_translation_mappings

    readers: Final[dict[CallTypes, Any]] = load_guardrail_translation_mappings()  # type: ignore[no-untyped-call]
    for name, twin in (("acompact_responses", CallTypes.aresponses), ("compact_responses", CallTypes.responses)):
        if name not in CallTypes.__members__:
            # An older LiteLLM has no such call type at all, and passes on what it cannot look up.
            CallTypes._value2member_map_.setdefault(name, twin)
        elif twin in readers:
            readers.setdefault(CallTypes(name), readers[twin])

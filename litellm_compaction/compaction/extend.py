"""An earlier item's state that goes on: what was said since stands in it word for word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from litellm_compaction.compaction.plan import portable
from litellm_compaction.conversation.items import Kind, RawItem, classify_items
from litellm_compaction.envelope.payload import Origin, Payload


def extend_payload(payload: Payload, appended: Sequence[RawItem], origin: Origin, created_at: int) -> Payload:
    """The state of the conversation with `appended` behind what `payload` covers. `created_at`: Unix seconds.

    Reasoning stays away: it is bound to the provider that wrote it.
    """
    history: Final = [item for item in classify_items(appended) if item.is_history]
    return payload.model_copy(
        update={
            "origin": origin,
            "kept": (
                *payload.kept,
                *(
                    dict(portable(item, item.raw))
                    for item in history
                    if not item.is_system and item.kind is not Kind.REASONING
                ),
            ),
            "system": (*payload.system, *(dict(item.raw) for item in history if item.is_system)),
            "created_at": created_at,
        }
    )

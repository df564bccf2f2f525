"""The stored chain behind a `previous_response_id`, where LiteLLM can resolve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from litellm_compaction.conversation.items import RawItem
from litellm_compaction.errors import PreviousResponseNotFound


async def load_chain(response_id: object) -> list[RawItem]:
    """Items of the conversation up to and with a stored response, oldest first.

    LiteLLM rebuilds it from its spend logs, which need a database. Raises PreviousResponseNotFound where it has none
    or does not know the id.
    """
    if not isinstance(response_id, str):
        raise PreviousResponseNotFound(str(response_id))
    from litellm.responses.litellm_completion_transformation.session_handler import ResponsesSessionHandler

    session: Final = await ResponsesSessionHandler.get_chat_completion_message_history_for_previous_response_id(
        response_id
    )
    messages: Final = [
        message if isinstance(message, Mapping) else message.model_dump() for message in session.get("messages") or ()
    ]
    items: Final = [item for message in messages for item in items_from_chat(message)]
    if not items:
        raise PreviousResponseNotFound(response_id)
    return items


def items_from_chat(message: Mapping[str, Any]) -> Sequence[RawItem]:
    """One chat message as Responses items."""
    role: Final = message.get("role")
    if role == "tool":
        return [
            {
                "type": "function_call_output",
                "call_id": message.get("tool_call_id"),
                "output": message.get("content") or "",
            }
        ]
    calls: Final = [
        {
            "type": "function_call",
            "call_id": call.get("id"),
            "name": call.get("function", {}).get("name"),
            "arguments": call.get("function", {}).get("arguments") or "",
        }
        for call in message.get("tool_calls") or ()
    ]
    content: Final = message.get("content")
    said: Final = [{"type": "message", "role": role, "content": _parts(content)}] if content else []
    return [*said, *calls]


def _parts(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [
        {"type": "input_image", "image_url": part.get("image_url")}
        if isinstance(part, Mapping) and part.get("type") == "image_url"
        else {"type": "input_text", "text": part.get("text", "")}
        if isinstance(part, Mapping) and part.get("type") == "text"
        else part
        for part in content
    ]

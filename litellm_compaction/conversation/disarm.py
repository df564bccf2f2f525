"""Text that pretends to be a part of the frame around it: tags of a fence, and the marks by which chat templates tell
who speaks.

A server that reads `<|im_start|>` in a user's message as its template's own gives whoever wrote it the rank of the
system. The sign that makes it one is replaced by another of the same length: what was there can still be read.
"""

from __future__ import annotations

import re
from typing import Final

_TAGS: Final = r"\s{0,4}/?\s{0,4}(?:conversation_summary\b|transcript>|(?:item|application)-[0-9a-f]{12})"
# ChatML, Llama 3, DeepSeek (its own bars), Gemma; Llama 2 and Mistral.
_TEMPLATES: Final = r"\|\w{1,40}\|>|\uff5c[\w\u2581 ]{1,40}\uff5c>|(?:start|end)_of_turn>|</?SYS>>"
_OPENING: Final = re.compile(rf"<(?={_TAGS}|{_TEMPLATES})|\[(?=/?INST\])", re.IGNORECASE)


def disarm(text: str) -> str:
    """The text with such signs made harmless, as long as it was."""
    return _OPENING.sub("(", text)

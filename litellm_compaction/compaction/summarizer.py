"""The one thing injected into the engine: an inference of the summarising model, and how it can go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from litellm_compaction.budget.limits import Room
from litellm_compaction.compaction.answer import Reply
from litellm_compaction.compaction.prompt import Style


class StyleRefused(Exception):
    """The backend does not take tools, or not this response format; `cause` is its own error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause: Final = cause


class Overflow(Exception):
    """The request does not fit the backend's window.

    In tokens, as far as the backend said: `limit` is its window, `requested` the size of the request, `read` how much
    of a prompt it has taken before it silently cut the rest off.
    """

    def __init__(
        self, words: str, *, limit: int | None = None, requested: int | None = None, read: int | None = None
    ) -> None:
        super().__init__(words)
        self.limit: Final = limit
        self.requested: Final = requested
        self.read: Final = read


class RateLimited(Exception):
    """The backend asks to come back in `seconds`; `cause` is its own error."""

    def __init__(self, seconds: float, cause: Exception) -> None:
        super().__init__(str(cause))
        self.seconds: Final = seconds
        self.cause: Final = cause


class SmallerWindow(Exception):
    """Nothing was sent to the model that would answer instead: its window is smaller than the one the request was
    planned for. `room` is what it has, `first_style` and `images` what it can do."""

    def __init__(self, room: Room, first_style: Style, *, images: bool) -> None:
        super().__init__(f"a prompt of at most {room.prompt} tokens")
        self.room: Final = room
        self.first_style: Final = first_style
        self.images: Final = images


class BackendFailed(Exception):
    """The backend could not answer at all, for a reason that is neither the caller's nor the request's."""


@dataclass(slots=True)
class Tries:
    """How many inferences one call of the summarizer may send, None for as many as it likes, and how many it sent."""

    most: int | None = None
    taken: int = 0


class Summarizer(Protocol):
    """One inference of the summarising model.

    Takes chat messages and the parameters that force the answer's form. Raises StyleRefused, Overflow, SmallerWindow,
    RateLimited, BackendFailed, or the host's own error unchanged (rate limits without a time, access, unknown models).
    """

    async def __call__(self, messages: list[dict[str, Any]], parameters: dict[str, Any]) -> Reply: ...

"""One inference of a summary on its way through LiteLLM's router.

LiteLLM repeats it and falls back to other groups by the operator's rules. Each time it is about to be sent, the
deployment hook asks here whether it may be: a group with a smaller window than the transcript was planned for would
refuse it or read half of it, and an operator may want every try counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from litellm.exceptions import UnprocessableEntityError

from litellm_compaction.budget.limits import Room

# Where it travels among the call's arguments. The hook takes it out; a client may send the key, never the type.
INFERENCE_KEY: Final = "litellm_compaction_inference"
_OUTPUT: Final = ("max_tokens", "max_completion_tokens")


class NotSent(UnprocessableEntityError):
    """A try that the plugin does not let go out; the next fallback is tried. Of LiteLLM's refusals the one class that
    no operator's retry policy repeats, and that cools no deployment down under any `allowed_fails_policy`."""

    def __init__(self, group: str, reason: str) -> None:
        response: Final = httpx.Response(422, request=httpx.Request("POST", "http://litellm-compaction.invalid"))
        super().__init__(message=reason, model=group, llm_provider="", response=response)


@dataclass(slots=True, repr=False)
class Inference:
    """What is known of it.

    `group`: the group it is asked of, whose window it was planned for; `most`: how many tries it may take, None for
    as many as LiteLLM likes; `room_of` gives the room of a group, `count` the tokens of the prompt, on demand.
    """

    group: str
    most: int | None
    room_of: Callable[[str], Room]
    count: Callable[[], Awaitable[int]]
    taken: int = 0
    answering: str = ""
    too_small: dict[str, Room] = field(default_factory=dict)

    def __deepcopy__(self, _: dict[int, Any]) -> Inference:
        """Itself: LiteLLM copies arguments, and this one counts."""
        return self

    async def admit(self, group: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they may be sent to a deployment of `group`. Raises NotSent."""
        if self.most is not None and self.taken >= self.most:
            raise NotSent(group, f"All {self.taken} inferences that 'max_attempts' allows have been sent.")
        changes: dict[str, Any] = {}
        if group != self.group:
            room: Final = self.room_of(group)
            if room.prompt is not None and await self.count() > room.prompt:
                self.too_small[group] = room
                raise NotSent(group, f"The transcript was not planned for the window of {group}.")
            if room.answer is not None:
                changes = {name: min(arguments[name], room.answer) for name in _OUTPUT if name in arguments}
        self.taken += 1
        self.answering = group
        return {**arguments, **changes}

    def largest_refused(self) -> str | None:
        """Of the groups that were too small the one that leaves the most room."""
        return max(self.too_small, key=lambda group: self.too_small[group].prompt or 0, default=None)


def real_error(error: Exception) -> Exception:
    """The backend's error behind the refusals of further tries, which LiteLLM raises last."""
    while isinstance(error, NotSent) and isinstance(error.__context__, Exception):
        error = error.__context__
    return error

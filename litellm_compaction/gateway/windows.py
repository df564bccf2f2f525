"""What other groups have room for, where LiteLLM falls back to them with a summary's request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from litellm_compaction.budget.counting import Counter
from litellm_compaction.budget.limits import ModelLimits, Room, summary_room
from litellm_compaction.compaction.summarizer import SmallerWindow
from litellm_compaction.conversation.transcript import IMAGE_TOKENS
from litellm_compaction.gateway.budgets import Budgets
from litellm_compaction.gateway.profiles import read_profile

if TYPE_CHECKING:
    from litellm.router import Router


class GroupWindows:
    """Of all groups of a router, for one caller's team; `reader` are the limits of the group that goes on from the
    summary."""

    def __init__(self, router: Router, budgets: Budgets, team: str | None, reader: ModelLimits, count: Counter) -> None:
        self._router: Final = router
        self._budgets: Final = budgets
        self._team: Final = team
        self._reader: Final = reader
        self._counter: Final = count

    def room(self, group: str) -> Room:
        """What a request to the group may take, in tokens of the counter."""
        limits: Final = self._budgets.limits(self._router, group, self._team)
        return summary_room(limits, self._reader, read_profile(self._router, group, self._team).count_error)

    def smaller(self, group: str) -> SmallerWindow:
        """The reason to plan again for the group."""
        profile: Final = read_profile(self._router, group, self._team)
        return SmallerWindow(self.room(group), profile.first_style, images=profile.images)

    def count(self, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> int:
        """Tokens of a request, pictures as all plans count them."""
        tokens = self._counter(json.dumps(parameters))
        for message in messages:
            content = message["content"]
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                tokens += self._counter(part["text"]) if part["type"] == "text" else IMAGE_TOKENS
        return tokens

"""An ordinary request between LiteLLM's hooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.conversation.items import RawItem
from litellm_compaction.conversation.measure import Measured
from litellm_compaction.envelope.sealing import Caller
from litellm_compaction.gateway.context_management import CompactAt
from litellm_compaction.gateway.flights import Result

# Where the pre-call hook leaves it. A client may send the key, never the type.
TURN_KEY: Final = "litellm_compaction_turn"


@dataclass(slots=True, repr=False)
class Turn:
    """What the hooks know of one ordinary request.

    `group` is the model group as LiteLLM routes it, `shown_model` the name the client sent, `expansion` the input with
    this plugin's items opened, None where there were none. `compact_at`: the client's own wish. `native`: the backend
    compacts by itself. `call_id`: LiteLLM's id of the request.
    """

    group: str
    shown_model: str
    caller: Caller
    expansion: Expansion | None = None
    compact_at: CompactAt | None = None
    native: bool = False
    call_id: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    # What became of it. `sent` is the request as it went to a backend, `measured` the same for counting where somebody
    # had to, `failure` why a wanted compaction is missing, `was_filtered` whether the threshold was looked at before a
    # deployment was picked, `replaced` the input then, and the compacted one in its place.
    origin: Literal["threshold", "auto"] | None = None
    result: Result | None = None
    writer: str = ""
    measured: Measured | None = None
    sent: Mapping[str, Any] = field(default_factory=dict)
    answering_group: str = ""
    failure: Exception | None = None
    was_filtered: bool = False
    replaced: tuple[Any, list[RawItem]] | None = None
    _measured_of: tuple[object, ...] = ()

    def __deepcopy__(self, _: dict[int, Any]) -> Turn:
        """Itself: LiteLLM and other callbacks copy requests, and this one is what the hooks know each other by."""
        return self

    def put_compacted(self, body: dict[str, Any]) -> None:
        """The compacted input into `body`, where LiteLLM (from 1.110 on) showed a copy of the request when a deployment
        was picked. Whatever else stands there, another hook has made of the compacted one."""
        if self.replaced is not None and body.get("input") == self.replaced[0]:
            body["input"] = self.replaced[1]

    def measured_of(self, body: Mapping[str, Any]) -> Measured | None:
        """What was measured, if it was of this very request: by identity, since comparing megabytes costs."""
        same: Final = all(one is other for one, other in zip(self._measured_of, _counted(body), strict=False))
        return self.measured if self._measured_of and same else None

    def was_measured(self, measured: Measured, body: Mapping[str, Any]) -> None:
        self.measured, self._measured_of = measured, _counted(body)

    def headers(self) -> dict[str, str]:
        """Response headers of an answer before which the input was compacted; none otherwise."""
        if self.result is None or self.origin is None:
            return {}
        return {"x-litellm-compaction": self.origin, **self.result.headers(self.writer)}


def _counted(body: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(body.get(name) for name in ("input", "instructions", "tools", "text"))

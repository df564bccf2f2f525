"""A compaction between LiteLLM's hooks."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

from litellm_compaction.conversation.expansion import Expansion, find_summaries
from litellm_compaction.conversation.items import RawItem
from litellm_compaction.envelope.payload import Origin
from litellm_compaction.envelope.sealing import Caller, KeyRing
from litellm_compaction.errors import CompactionError
from litellm_compaction.gateway.flights import Result
from litellm_compaction.gateway.responses import Frame
from litellm_compaction.settings import Settings

# Settings that change nothing about an answer.
_NOT_ANSWERS: Final = {"keys", "cache"}


@dataclass(slots=True)
class Pending:
    """A compaction on its way through LiteLLM, left in the request's data by the pre-call hook.

    `model` is the group as LiteLLM routes it, `extra` what of the client's own routing wishes goes along with the
    inner call, `application` the instructions that came with a /responses/compact call, `client_members` the names in
    the client's body. `writer_model`: the group that writes the summary, aliases resolved, `writer_settings` its
    settings. `target`: tokens that the result has to stay under, where a threshold asked for it. `adds_usage`: whether
    a hook puts the usage into the answer, so that LiteLLM, which has booked the inferences, does not see it again.
    `was_moved`: another hook has chosen a model that is not the one the client named. `call_id`: LiteLLM's id of the
    request.
    """

    origin: Origin
    stream: bool
    model: str
    settings: Settings
    writer_model: str
    writer_settings: Settings
    ring: KeyRing
    caller: Caller
    expansion: Expansion
    frame: Frame
    application: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    client_members: frozenset[str] = frozenset()
    target: int | None = None
    adds_usage: bool = False
    was_moved: bool = False
    call_id: str = ""
    result: Result | None = None
    retry_after: str | None = None
    late_error: CompactionError | None = None

    @property
    def shown_writer(self) -> str:
        """The group that writes the summary as the client knows it."""
        named: Final = self.writer_model == self.model and not self.was_moved
        return self.frame.model if named else self.writer_model

    @property
    def identity(self) -> tuple[object, ...]:
        """What two compactions have to share to be the same but for their transcript: who asks, with which keys, for
        which model, under which settings."""
        return (
            # Whoever has other keys could not open the item.
            (self.caller.key, self.caller.team, self.caller.user, self.ring.sealing_id.hex()),
            (self.model, self.writer_model),
            self.settings.model_dump(mode="json", exclude=_NOT_ANSWERS),
            self.writer_settings.model_dump(mode="json", exclude=_NOT_ANSWERS),
        )

    def failure_headers(self) -> dict[str, str]:
        """LiteLLM passes a provider's `Retry-After` on under a name that no client looks for."""
        return {} if self.retry_after is None else {"retry-after": self.retry_after}

    def take_final_input(self, items: list[RawItem]) -> None:
        """Use the transcript as later hooks left it. A hook that adds or removes items moves the earlier summaries:
        they are found again."""
        summaries = self.expansion.summaries
        if summaries and len(items) != len(self.expansion.items):
            summaries = find_summaries(items, self.expansion)
        self.expansion = replace(self.expansion, items=items, summaries=summaries)

    def headers(self) -> dict[str, str]:
        """Response headers; what is not known yet when a long stream starts is left out."""
        known: Final = {"x-litellm-compaction": self.origin}
        if self.result is None:
            return {**known, "x-litellm-compaction-model": self.shown_writer}
        return {**known, **self.result.headers(self.shown_writer)}


def new_frame(shown_model: str) -> Frame:
    """A frame for an answer to a client that asked for `shown_model`; ids as long as OpenAI's."""
    response_id, item_id = f"resp_{secrets.token_hex(25)}", f"cmp_{secrets.token_hex(25)}"
    return Frame(response_id, item_id, shown_model, int(time.time()))

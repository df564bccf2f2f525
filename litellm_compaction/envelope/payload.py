"""What a compaction item holds: one flat, versioned payload. Items never nest."""

from __future__ import annotations

import json
import zlib
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from litellm_compaction.errors import Unreadable

Origin = Literal["trigger", "compact", "threshold", "auto"]
Bind = Literal["team", "user", "key", "none"]
VERSION: Final = 1
# An item may inflate to this many bytes and no further: a small item must not become a memory bomb.
MAX_PLAIN_BYTES: Final = 64 * 1024 * 1024
# And hold no more items than this: `{}` takes three bytes here and thirty times as much as an object. What is kept of a
# window of a million tokens is ten times less.
MAX_ITEMS: Final = 250_000
# Nor more brackets, each of which may be an object: counted before any is made. 20 MB of JSON that is made of small
# objects has half of that.
MAX_BRACKETS: Final = 2_000_000
_BRACKET_BYTES: Final = 64
# All items of one input together: a client sends one, and by mistake some earlier ones, a tenth of this.
MAX_WEIGHT: Final = 4 * MAX_PLAIN_BYTES


class Payload(BaseModel):
    """The state a conversation goes on from.

    `kept`: items verbatim, in order. `system`: system and developer messages that stood before the item. `dropped`:
    items left out of the summary. `folded`: digests of the earlier items this one replaces. `created_at`: Unix seconds.
    `bind` and `bound_to`: the kind and name of the tenant that may open it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = VERSION
    origin: Origin
    summary: Annotated[str, Field(min_length=1)]
    kept: tuple[dict[str, Any], ...] = ()
    system: tuple[dict[str, Any], ...] = ()
    dropped: Annotated[int, Field(ge=0)] = 0
    folded: tuple[str, ...] = ()
    model: str = ""
    created_at: int = 0
    bind: Bind = "none"
    bound_to: str = ""

    @property
    def is_inline(self) -> bool:
        """Born while a request was answered: everything before the item is superseded by it."""
        return self.origin in {"threshold", "auto"}


class BrokenPayload(ValueError):
    """No payload of a version this plugin knows, or none for this caller; `reason` says what is wrong with it."""

    def __init__(self, reason: Unreadable = "malformed") -> None:
        super().__init__(reason)
        self.reason: Final = reason


class TooLarge(ValueError):
    """A payload that would make an item which nobody can open."""


def dump_payload(payload: Payload) -> bytes:
    """The payload as JSON bytes. Lone surrogates (seen in tool output) pass, so any text survives.

    Raises TooLarge over MAX_PLAIN_BYTES, MAX_ITEMS and MAX_BRACKETS: such an item could not be opened again.
    """
    check_items(payload)
    plain: Final = json.dumps(payload.model_dump(), ensure_ascii=False, separators=(",", ":"))
    encoded: Final = plain.encode("utf-8", "surrogatepass")
    if len(encoded) > MAX_PLAIN_BYTES or _brackets(encoded) > MAX_BRACKETS:
        raise TooLarge
    return encoded


def check_items(payload: Payload) -> None:
    """Raises TooLarge on more than MAX_ITEMS."""
    if len(payload.kept) + len(payload.system) + len(payload.folded) > MAX_ITEMS:
        raise TooLarge


def load_payload(plain: bytes) -> Payload:
    """Raises BrokenPayload."""
    if _brackets(plain) > MAX_BRACKETS:
        raise BrokenPayload("too_large")
    version: object = VERSION
    try:
        # json, not pydantic's parser: the latter refuses the lone surrogates that dump_payload keeps.
        value: Final = json.loads(plain.decode("utf-8", "surrogatepass"))
        version = value.get("version", VERSION) if isinstance(value, dict) else VERSION
        too_many: Final = sum(len(value.get(name) or ()) for name in ("kept", "system", "folded")) > MAX_ITEMS
        payload: Final = None if too_many else Payload.model_validate(value)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # pydantic's are ValueErrors
        raise BrokenPayload("malformed" if version == VERSION else "unknown_version") from error
    if payload is None:
        raise BrokenPayload("too_large")
    return payload


def weigh(plain: bytes) -> int:
    """About the bytes of memory that a payload takes when it is opened."""
    return len(plain) + _BRACKET_BYTES * _brackets(plain)


def _brackets(plain: bytes) -> int:
    return plain.count(b"{") + plain.count(b"[")


def compress(plain: bytes) -> bytes:
    return zlib.compress(plain, 6)


def decompress(packed: bytes) -> bytes:
    """Raises BrokenPayload on damaged data and on more than MAX_PLAIN_BYTES."""
    engine: Final = zlib.decompressobj()
    try:
        plain: Final = engine.decompress(packed, MAX_PLAIN_BYTES)
    except zlib.error as error:
        raise BrokenPayload from error
    if engine.unconsumed_tail:
        raise BrokenPayload("too_large")
    if not engine.eof or engine.unused_data:
        raise BrokenPayload
    return plain

"""The payload of an item: every text survives, nothing but a payload is read."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from litellm_compaction.envelope import payload as module
from litellm_compaction.envelope.payload import BrokenPayload, Origin, Payload, compress, decompress, dump_payload
from litellm_compaction.envelope.payload import load_payload as load
from tests.item_strategies import conversations

anything = st.text(st.characters(exclude_categories=()), min_size=1)
GOOD: dict[str, Any] = {"version": 1, "origin": "trigger", "summary": "done"}


@given(st.text(min_size=1), conversations(), st.lists(anything, max_size=2))
def test_payload_comes_back_as_it_was(summary: str, items: list[dict[str, Any]], folded: list[str]) -> None:
    """Any text comes back unchanged, lone surrogates in kept items included."""
    payload = Payload(
        origin="compact", summary=summary, kept=tuple(items), system=tuple(items[:1]), folded=tuple(folded)
    )
    assert load(dump_payload(payload)) == payload


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": "1"},
        {"origin": "else"},
        {"origin": None},
        {"summary": ""},
        {"summary": 5},
        {"kept": ["text"]},
        {"kept": {}},
        {"dropped": -1},
        {"bind": "world"},
    ],
    ids=repr,
)
def test_what_is_no_payload_is_refused(change: dict[str, Any]) -> None:
    """A member of the wrong kind, and a version not known here, break the payload."""
    assert load(json.dumps(GOOD).encode()).summary == "done"
    with pytest.raises(BrokenPayload):
        load(json.dumps({**GOOD, **change}).encode())


@pytest.mark.parametrize(
    "plain",
    [b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"[" * 100_000, b'{"origin":"trigger"}'],
    ids=["empty", "cut", "list", "null", "number", "bytes", "deep", "no-summary"],
)
def test_bytes_that_are_no_json_object_are_refused(plain: bytes) -> None:
    """Whatever stands there, the error is one and the same kind."""
    with pytest.raises(BrokenPayload):
        load(plain)


def test_unknown_members_of_a_newer_minor_version_are_ignored() -> None:
    """A member this version does not know does not break an item."""
    assert load(json.dumps({**GOOD, "later": [1]}).encode()) == Payload(origin="trigger", summary="done")


@pytest.mark.parametrize(
    ("origin", "inline"), [("trigger", False), ("compact", False), ("threshold", True), ("auto", True)]
)
def test_only_items_born_while_a_request_was_answered_are_inline(origin: Origin, inline: bool) -> None:
    """Threshold and auto supersede what stands before them, the other two do not."""
    assert Payload(origin=origin, summary="s").is_inline is inline


def test_payload_cannot_be_changed() -> None:
    """A payload is fixed once made."""
    with pytest.raises(ValidationError):
        Payload(origin="auto", summary="s").summary = "t"


@given(st.binary())
def test_compression_comes_back(plain: bytes) -> None:
    """What was packed is unpacked."""
    assert decompress(compress(plain)) == plain


def test_decompression_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small item that would inflate without end is refused, one just below the limit is not."""
    monkeypatch.setattr(module, "MAX_PLAIN_BYTES", 1000)
    assert decompress(compress(b"0" * 999)) == b"0" * 999
    with pytest.raises(BrokenPayload):
        decompress(compress(b"0" * 1001))


def test_the_limit_holds_for_a_real_bomb() -> None:
    """A hundred megabytes of zeros in a hundred kilobytes are never held in memory."""
    engine = zlib.compressobj(9)
    megabyte = b"0" * 1024 * 1024
    bomb = b"".join([*(engine.compress(megabyte) for _ in range(65)), engine.flush()])
    assert len(bomb) < 100_000
    with pytest.raises(BrokenPayload):
        decompress(bomb)


@pytest.mark.parametrize("damage", ["cut", "tail", "none", "text"])
def test_damaged_compression_is_refused(damage: str) -> None:
    """Cut data, data with something behind it, and data that never was compressed."""
    packed = compress(b"a payload of some length")
    broken = {"cut": packed[:-3], "tail": packed + b"x", "none": b"", "text": b"plain text"}[damage]
    with pytest.raises(BrokenPayload):
        decompress(broken)

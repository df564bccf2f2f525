"""The bundled session: a whole, valid conversation that shows every kind of item an agent sends."""

import base64
import json
import struct
import zlib

import pytest

from litellm_compaction.cli.demo.session import Session, kind_of, load_session, size_of
from litellm_compaction.conversation.items import Kind, classify_items
from litellm_compaction.conversation.pairs import group_items


@pytest.fixture(scope="module")
def session() -> Session:
    return load_session()


def test_session_is_as_long_as_real_work(session: Session) -> None:
    """Sixty items and more, 40 to 80 kB: something worth compacting, quick to send."""
    assert len(session.items) >= 60
    assert 40_000 <= size_of(session.items) <= 80_000


@pytest.mark.parametrize(
    "kind",
    [
        "developer message",
        "user message",
        "assistant message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "web_search_call",
    ],
)
def test_session_covers_the_kinds_an_agent_sends(session: Session, kind: str) -> None:
    """Each kind a coding agent sends is there at least once."""
    assert kind in session.kinds


def test_every_call_has_its_output(session: Session) -> None:
    """Calls and outputs pair without a rest, so that nothing has to be repaired before it is sent."""
    items = classify_items(session.items)
    calls = [item.call_id for item in items if item.kind is Kind.CALL]
    outputs = [item.call_id for item in items if item.kind is Kind.OUTPUT]
    assert sorted(map(str, calls)) == sorted(map(str, outputs))
    assert not any(group.open for group in group_items(items))


def test_session_has_parallel_calls(session: Session) -> None:
    """At least one batch of calls was made in one step."""
    groups = group_items(classify_items(session.items))
    assert max(sum(item.kind is Kind.CALL for item in group.items) for group in groups) >= 3


def test_reasoning_items_look_as_codex_sends_them(session: Session) -> None:
    """Reasoning has a readable summary and null content."""
    reasoning = [item for item in session.items if item.get("type") == "reasoning"]
    assert all(item["content"] is None and item["summary"][0]["text"] for item in reasoning)


def test_image_is_a_valid_png(session: Session) -> None:
    """The chart decodes: signature, every chunk's checksum, and as many pixels as the header says."""
    parts = [part for item in session.user_messages for part in item["content"]]
    (image,) = [part for part in parts if part["type"] == "input_image"]
    raw = base64.b64decode(image["image_url"].removeprefix("data:image/png;base64,"), validate=True)
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(raw):
        (length,) = struct.unpack(">I", raw[at : at + 4])
        kind, data = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]
        assert struct.unpack(">I", raw[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        at += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (width, height, depth, colour) == (64, 48, 8, 2)
    assert len(zlib.decompress(chunks[b"IDAT"])) == height * (1 + 3 * width)
    assert b"IEND" in chunks


def test_one_fact_was_said_by_the_assistant_alone(session: Session) -> None:
    """The reason asked for in the next turn stands in one assistant message and nowhere else."""
    reason = session.facts[-1][0]
    said_by = [kind_of(item) for item in session.items if reason in json.dumps(item)]
    assert said_by == ["assistant message"]


def test_tests_fail_and_pass_in_the_course_of_the_session(session: Session) -> None:
    """There is red and green in it, and the last run still has the one failure the user wants left alone."""
    runs = [str(item["output"]) for item in session.items if " passed in " in str(item.get("output"))]
    assert any("failed" in run for run in runs)
    assert any("failed" not in run for run in runs)
    assert "1 failed" in runs[-1]
    assert session.facts[0][0] in runs[-1]


def test_user_forbids_something(session: Session) -> None:
    """A prohibition is part of what a summary must carry."""
    assert any("do not touch migrations/" in json.dumps(item) for item in session.user_messages)

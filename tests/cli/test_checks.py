"""The demo's own judgement: right answers pass, and each way of being wrong is named."""

import json
from typing import Any

from litellm_compaction.cli.demo.checks import check_answer, check_compact, check_item, check_stream, readable_words
from litellm_compaction.cli.demo.client import Event, Reply
from litellm_compaction.cli.demo.session import load_session

ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "lcmp1.AAAA"}
USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
SESSION = load_session()


def streamed(*, order: tuple[str, ...] = ("added", "done"), item: dict[str, Any] = ITEM, number: int = 0) -> Reply:
    body = {"status": "completed", "output": [ITEM], "usage": USAGE}
    types = [
        "created",
        "in_progress",
        *(f"output_item.{name}" for name in order[:1]),
        "compaction.compacting",
        *(f"output_item.{name}" for name in order[1:]),
        "completed",
    ]
    events = [
        Event(
            0.1,
            {"type": f"response.{name}", "sequence_number": at + number, **({"item": item} if "item" in name else {})},
        )
        for at, name in enumerate(types)
    ]
    return Reply(body, {"x-litellm-compaction": "trigger"}, 1.0, tuple(events))


def compacted(**changes: Any) -> Reply:
    body = {
        "id": "resp_1",
        "object": "response.compaction",
        "created_at": 1,
        "output": [*SESSION.user_messages, ITEM],
        "usage": USAGE,
    }
    return Reply({**body, **changes}, {"x-litellm-compaction": "compact"}, 1.0)


def test_right_stream_passes() -> None:
    """Created, in progress, added, a tick, done, completed: nothing to complain of."""
    assert list(check_stream(streamed())) == []


def test_wrong_order_is_named() -> None:
    """An item that is done before it was added is not what the contract says."""
    assert "expected" in next(check_stream(streamed(order=("done", "added"))))


def test_gap_in_the_numbers_is_named() -> None:
    """Sequence numbers that do not start from 0 are reported."""
    assert "sequence_number" in next(check_stream(streamed(number=1)))


def test_differing_items_are_named() -> None:
    """The item in the events and the one in the final body must be one and the same."""
    assert "one and the same" in next(check_stream(streamed(item={**ITEM, "id": "cmp_2"})))


def test_failed_stream_says_why() -> None:
    """The error of `response.failed` is what a user has to read, not a list of missing events."""
    body = {"status": "failed", "error": {"message": "No connection.", "code": "compaction_failed"}}
    reply = Reply(body, {}, 1.0, (Event(0.1, {"type": "response.failed", "response": body}),))
    assert list(check_stream(reply)) == [
        "the stream ended with response.failed: No connection. (code compaction_failed)"
    ]


def test_right_compact_body_passes() -> None:
    """The session's user messages, then the item, and the five members."""
    assert list(check_compact(compacted(), SESSION)) == []


def test_wrong_compact_bodies_are_named() -> None:
    """Extra members, a lost user message, missing usage and a missing header each give a sentence."""
    assert "members" in next(check_compact(compacted(model="x"), SESSION))
    assert "word for word" in next(check_compact(compacted(output=[*SESSION.user_messages[1:], ITEM]), SESSION))
    assert "usage" in next(check_compact(compacted(usage={"input_tokens": 0}), SESSION))
    bare = Reply(compacted().body, {}, 1.0)
    assert "header" in next(check_compact(bare, SESSION))


def test_readable_content_is_found_in_plain_text_and_base64() -> None:
    """An item that only looks opaque does not pass."""
    plain = json.dumps({"summary": "the simulate_restart script"})
    assert "simulate_restart" in readable_words(plain, SESSION)
    assert next(check_item({**ITEM, "encrypted_content": plain}, SESSION)).startswith("words of the conversation")
    assert list(check_item(ITEM, SESSION)) == []


def test_answer_needs_every_fact() -> None:
    """One of a fact's spellings is enough; a fact without any is named."""
    facts = (("test_a",), ("127", "118"))
    assert list(check_answer("test_a, since 118 s pass", facts)) == []
    assert list(check_answer("test_a", facts)) == ["the answer of the next turn does not say '127' or '118'"]

"""Summaries of prefixes and marks on conversations that cannot be made smaller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.envelope.sealing import Caller, KeyRing
from litellm_compaction.errors import CompactionFailed
from litellm_compaction.gateway.flights import Result
from litellm_compaction.gateway.pending import Pending, new_frame
from litellm_compaction.gateway.prefixes import Mark, Prefixes, digest_prefixes
from litellm_compaction.gateway.store import LOCAL, Store
from litellm_compaction.settings import Settings
from tests.support.bodies import assistant, user

RING = KeyRing(["a secret"])
ITEMS: list[Any] = [user("one"), assistant("two"), user("three")]


def pending(**changes: Any) -> Pending:
    settings = Settings.model_validate({})
    base = Pending(
        origin="auto",
        stream=False,
        model="m",
        settings=settings,
        writer_model="m",
        writer_settings=settings,
        ring=RING,
        caller=Caller("k", "t", "u"),
        expansion=Expansion(ITEMS, ()),
        frame=new_frame("m"),
    )
    return replace(base, **changes)


def result(content: str) -> Result:
    numbers = {"attempts": 1, "dropped": 0, "tokens_before": 9, "tokens_after": 3, "message_tokens": 0}
    return Result.model_validate({"item_id": "cmp_1", "content": content, "usage": Usage(1, 2), **numbers})


def prefixes(now: list[float]) -> Prefixes:
    return Prefixes(Store(LOCAL, lambda: RING, lambda: now[0]))


def test_a_prefix_has_one_digest_whatever_follows() -> None:
    """Digests of the first items are those of a longer conversation's first items."""
    longer = digest_prefixes(pending(), [*ITEMS, user("four")])
    assert longer[:3] == digest_prefixes(pending(), ITEMS)
    assert len(set(longer)) == 4


OTHERS: dict[str, dict[str, Any]] = {
    "caller": {"caller": Caller("other", "t", "u")},
    "team": {"caller": Caller("k", "other", "u")},
    "model": {"model": "other"},
    "settings": {"settings": Settings.model_validate({"summary_role": "developer"})},
    "writer": {"writer_settings": Settings.model_validate({"oversize": "trim"})},
    "keys": {"ring": KeyRing(["another secret"])},
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
def test_anothers_prefix_is_another(changes: dict[str, Any]) -> None:
    """Who asks, the model, the settings and the keys are part of what is remembered."""
    assert not set(digest_prefixes(pending(), ITEMS)) & set(digest_prefixes(pending(**changes), ITEMS))


def test_origin_makes_no_difference() -> None:
    """What `auto` summarised serves a client that asks by itself."""
    assert digest_prefixes(pending(), ITEMS) == digest_prefixes(pending(origin="threshold"), ITEMS)


async def test_the_longest_known_prefix_is_found() -> None:
    """Of several the one that covers most, with how many items it covers."""
    known = prefixes([0.0])
    digests = digest_prefixes(pending(), [*ITEMS, user("four")])
    assert await known.find(digests) is None
    await known.remember(digests[0], result("first"))
    await known.remember(digests[2], result("third"))
    assert await known.find(digests) == (3, result("third"))
    assert await known.find(digests[:2]) == (1, result("first"))
    assert await known.find([]) is None


async def test_summaries_last_a_day_and_marks_ten_minutes() -> None:
    """After that the conversation is like any other."""
    now = [0.0]
    known = prefixes(now)
    digests = digest_prefixes(pending(), ITEMS)
    await known.remember(digests[2], result("content"))
    await known.mark(digests[2], 1_000)
    now[0] = 599.0
    assert await known.find_mark(digests, 1_000) == Mark(None)
    now[0] = 601.0
    assert await known.find_mark(digests, 1_000) is None
    now[0] = 86_399.0
    assert await known.find(digests) is not None
    now[0] = 86_401.0
    assert await known.find(digests) is None


async def test_a_conversation_that_has_grown_is_tried_again() -> None:
    """A mark holds until there is a quarter more than when it was made."""
    known = prefixes([0.0])
    digests = digest_prefixes(pending(), [*ITEMS, user("four")])
    await known.mark(digests[2], 1_000)
    assert await known.find_mark(digests, 1_249) is not None
    assert await known.find_mark(digests, 1_250) is None
    assert await known.find_mark(digests[:2], 1_000) is None


async def test_what_another_version_wrote_is_no_prefix() -> None:
    """It is summarised again."""
    store = Store(LOCAL, lambda: RING)
    digests = digest_prefixes(pending(), ITEMS)
    await store.write(f"prefix:{digests[2]}", b'{"content": 1}', 60)
    assert await Prefixes(store).find(digests) is None


async def test_a_failure_is_remembered_for_a_minute_with_its_words() -> None:
    """Whoever comes again meanwhile, with a longer conversation too, is told the same."""
    now = [0.0]
    known = prefixes(now)
    digests = digest_prefixes(pending(), [*ITEMS, user("four")])
    await known.mark(digests[2], 1_000, CompactionFailed("why.", 500))
    mark = await known.find_mark(digests, 1_000)
    assert mark is not None
    assert mark.failure is not None
    assert (mark.failure.status, mark.failure.code) == (500, "compaction_failed")
    assert "why." in mark.failure.message
    now[0] = 61.0
    assert await known.find_mark(digests, 1_000) is None

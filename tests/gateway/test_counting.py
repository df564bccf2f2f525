"""An ordinary request is counted with as little work as the question needs."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from litellm_compaction.budget.counting import Anchors, Count, TokenCache
from litellm_compaction.conversation.measure import Measured, measure_request
from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.profiles import load_encoding

GROUP = "group"


class Encoder:
    """Three characters are a token. Knows what it was given and in which threads."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, text: str) -> Sequence[int]:
        self.texts.append(text)
        self.threads.add(threading.current_thread())
        return range(-(-len(text) // 3))

    def load(self) -> Callable[[str], Sequence[int]]:
        return self


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def request(*texts: str, instructions: str = "be brief") -> Measured:
    return measure_request({"instructions": instructions, "input": [message(text) for text in texts]})


def own_count(measured: Measured) -> int:
    return sum(piece.count(lambda text: -(-len(text) // 3)) for piece in measured.pieces)


def refuse() -> None:
    raise AssertionError("nothing was to be encoded")


async def test_nothing_is_encoded_where_the_bytes_decide() -> None:
    """Not even the encoding is loaded; the bound says itself what it is."""
    measured = request("ä" * 100, "漢字")
    counter = RequestCounter(refuse)
    assert await counter.count(measured, GROUP, 0.1, measured.bound) == Count(measured.bound, 0, "bound")
    with pytest.raises(AssertionError):
        await counter.count(measured, GROUP, 0.1, measured.bound - 1)
    with pytest.raises(AssertionError):
        await counter.count(measured, GROUP, 0.1, None)


async def test_exact_count_with_its_error() -> None:
    """The error is rounded up."""
    measured = request("a" * 100, "b" * 50)
    tokens = own_count(measured)
    counter = RequestCounter(Encoder().load)
    assert await counter.count(measured, GROUP, 0.1, 10) == Count(tokens, math.ceil(tokens * 0.1), "exact")
    assert await counter.count(measured, GROUP, 0.0, None) == Count(tokens, 0, "exact")


async def test_a_turn_encodes_only_what_is_new() -> None:
    """The second turn's count is a cold one's, though only its last item was encoded."""
    encoder = Encoder()
    counter = RequestCounter(encoder.load)
    await counter.count(request("one", "two"), GROUP, 0, None)
    encoder.texts.clear()
    longer = request("one", "two", "three")
    assert (await counter.count(longer, GROUP, 0, None)).tokens == own_count(longer)
    assert encoder.texts == ["three"]


async def test_counts_are_right_with_hardly_any_cache() -> None:
    """A request of more pieces than are remembered, with one of them twice."""
    counter = RequestCounter(Encoder().load, TokenCache(1))
    measured = request("one", "two", "three", "one")
    for _ in range(3):
        assert (await counter.count(measured, GROUP, 0, None)).tokens == own_count(measured)


async def test_reported_usage_and_the_items_after_it() -> None:
    """The backend's number for the beginning with one percent of error, the own count of the rest with its own."""
    counter = RequestCounter(Encoder().load)
    earlier, later = request("a" * 300), request("a" * 300, "b" * 3_000)
    appended = own_count(later) - own_count(earlier)
    counter.remember(earlier, GROUP, 150)
    assert await counter.count(later, GROUP, 0.25, 10) == Count(150 + appended, 2 + math.ceil(appended * 0.25), "usage")
    assert await counter.count(earlier, GROUP, 0.25, 10) == Count(150, 2, "usage")


@pytest.mark.parametrize(
    ("reported", "believed"), [(499, False), (500, True), (1_000, True), (2_000, True), (2_001, False)]
)
async def test_a_report_far_from_the_own_count_is_not_believed(reported: int, believed: bool) -> None:
    """Less than half of the beginning was cut, more than twice was invented; what comes after it has no say."""
    counter = RequestCounter(Encoder().load)
    earlier, later = request("a" * 2_979), request("a" * 2_979, "b" * 30_000)
    assert own_count(earlier) == 1_000
    counter.remember(earlier, GROUP, reported)
    assert (await counter.count(later, GROUP, 0, None)).method == ("usage" if believed else "exact")


@pytest.mark.parametrize(
    ("group", "later"),
    [
        ("other", request("a" * 300, "b")),
        (GROUP, request("a" * 300, "b", instructions="be long")),
        (GROUP, request("x" * 300, "b")),
    ],
    ids=["group", "instructions", "item"],
)
async def test_a_report_for_another_request_is_not_used(group: str, later: Measured) -> None:
    """Another group has another tokenizer; other words have other tokens."""
    counter = RequestCounter(Encoder().load, anchors=Anchors())
    counter.remember(request("a" * 300), GROUP, 150)
    assert await counter.count(later, group, 0, None) == Count(own_count(later), 0, "exact")


@pytest.mark.parametrize(("size", "inline"), [(100, True), (40_000, False)], ids=["small", "large"])
async def test_much_that_is_new_is_encoded_in_a_thread(size: int, inline: bool) -> None:
    """A little at once, in the event loop's own thread."""
    encoder = Encoder()
    await RequestCounter(encoder.load).count(request("a" * size), GROUP, 0, None)
    assert (encoder.threads == {threading.current_thread()}) is inline
    assert len(encoder.threads) == 1


async def test_the_encoding_is_loaded_in_a_thread() -> None:
    """It takes a quarter of a second, and once is enough."""
    threads: list[threading.Thread] = []

    def load() -> None:
        threads.append(threading.current_thread())

    counter = RequestCounter(load)
    for text in ("abcde", "abcd"):
        assert (await counter.count(request(text), GROUP, 0, None)).method == "exact"
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


async def test_counts_at_the_same_time_are_both_right() -> None:
    """Of the same body and of a longer one, all of it encoded in threads."""
    counter = RequestCounter(Encoder().load, TokenCache(2))
    short = request(*(str(number) * 20_000 for number in range(5)))
    long = request(*(str(number) * 20_000 for number in range(7)))
    counts = await asyncio.gather(*(counter.count(measured, GROUP, 0, None) for measured in (short, long, short)))
    assert [count.tokens for count in counts] == [own_count(short), own_count(long), own_count(short)]


@pytest.mark.parametrize(
    "body",
    [
        {"input": "words", "instructions": "be brief"},
        {"input": [message("a"), {"type": "never_heard_of", "values": [0] * 20_000}]},
        {"input": [message(str(number)) for number in range(10_001)]},
    ],
    ids=["small", "many-values", "many-items"],
)
async def test_measured_as_without_a_loop(body: dict[str, Any]) -> None:
    """In a thread or not, the pieces are the same."""
    assert await RequestCounter(refuse).measure(body) == measure_request(body)


async def test_many_values_are_measured_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get their turn; a body of few goes at once."""
    asked: list[str] = []
    in_thread = asyncio.to_thread

    async def to_thread(function: Callable[..., Any], *args: Any) -> Any:
        asked.append(function.__name__)
        return await in_thread(function, *args)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    counter = RequestCounter(refuse)
    await counter.measure({"input": [message("a"), {"type": "odd", "values": [0] * 100}]})
    assert asked == []
    await counter.measure({"input": [{"type": "odd", "values": [0] * 20_000}]})
    await counter.measure({"input": "a", "tools": [{}] * 20_000})
    assert asked == ["finish", "finish"]
    await counter.measure({"input": [message("a")] * 10_001})
    assert asked == ["finish", "finish", "draft_request"]


async def test_a_million_blanks() -> None:
    """The real tokenizer dies of such a run in one piece."""
    counter = RequestCounter()
    measured = request(" " * 1_200_000)
    assert load_encoding() is not None
    count = await counter.count(measured, GROUP, 0, None)
    assert 1_200_000 // 200 < count.tokens < measured.bound

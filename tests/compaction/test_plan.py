"""What stays word for word: what must, what the model chose, the newest; under the ceilings."""

from __future__ import annotations

from typing import Any

import pytest

from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.compaction.plan import (
    Limits,
    Plan,
    Selection,
    plan_compaction,
    select_kept,
    select_user_messages,
)
from litellm_compaction.conversation.items import classify_items
from litellm_compaction.conversation.transcript import ImagePart, TextPart, count_content, item_ref, render_blocks
from litellm_compaction.errors import InvalidToolPairing, NothingToCompact, UnsupportedImage
from tests.support.bodies import assistant, call, output, png, system, user

REASONING = {"type": "reasoning", "summary": []}
TOOLS = {"type": "additional_tools", "role": "developer", "tools": []}
FILE = {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "f"}]}
REFERENCE = {"type": "item_reference", "id": "msg_1"}


def make(items: list[Any], recent: int = 0, summaries: frozenset[int] = frozenset()) -> Plan:
    return plan_compaction(classify_items(items), summaries, estimate_tokens, lambda _: Limits(recent, None))


def select(
    plan: Plan, retain: list[int], ceiling: int | None = None, summaries: frozenset[int] = frozenset()
) -> Selection:
    """What of a plan is kept; `retain` are the places the model chose."""
    return select_kept(plan, [item_ref(place) for place in retain], summaries, ceiling, estimate_tokens)


def places(
    items: list[Any], retain: list[int], recent: int = 0, ceiling: int | None = None, summaries: list[int] | None = None
) -> list[int]:
    """Places in `items` of what is kept; `retain` are the places the model chose."""
    known = frozenset(summaries or ())
    kept = select(make(items, recent, known), retain, ceiling, known).kept
    return [next(place for place, item in enumerate(items) if {**item, "id": 0} == {**raw, "id": 0}) for raw in kept]


A, B = user("first words"), assistant("an answer")

ROWS: dict[str, tuple[list[Any], list[int], list[int]]] = {  # items, chosen by the model, kept
    "nothing-must": ([A, B], [], []),
    "unanswered-request": ([A, B, user("and now")], [], [2]),
    "request-in-the-middle-of-a-turn": ([A, B, user("and now"), call("c"), output("c", "1"), REASONING], [], [2]),
    "only-the-last-of-two-requests": ([user("one"), user("two")], [], [1]),
    "open-call": ([A, call("c"), B], [], [1]),
    "unreacted-output": ([A, B, call("c"), output("c", "1")], [], [2, 3]),
    "half-a-batch": ([A, call("a"), call("b"), output("a", "1"), B], [], [1, 2, 3]),
    "file": ([FILE, B], [], [0]),
    "chosen": ([A, B, user("x"), assistant("y")], [1], [1]),
    "chosen-call-brings-its-output": ([A, call("c"), output("c", "1"), B], [1], [1, 2]),
    "chosen-output-brings-its-call": ([A, call("c"), output("c", "1"), B], [2], [1, 2]),
    "chosen-of-a-batch-brings-all": (
        [call("a"), call("b"), output("a", "1"), output("b", "2"), B],
        [3],
        [0, 1, 2, 3],
    ),
    "chosen-reasoning-is-not-kept": ([A, REASONING, B], [1], []),
    "chosen-system-travels-apart": ([system("rules"), A, B], [0], []),
    "reasoning-inside-a-batch-is-left-out": ([call("a"), REASONING, call("b"), A, B], [0], [0, 2]),
}


@pytest.mark.parametrize(("items", "retain", "kept"), ROWS.values(), ids=ROWS)
def test_kept(items: list[Any], retain: list[int], kept: list[int]) -> None:
    """What stays with nothing recent asked for and no ceiling."""
    assert places(items, retain) == kept


STEPS = [user("u" * 400), assistant("v" * 400), user("w" * 400), assistant("x" * 400)]  # 116 tokens each


@pytest.mark.parametrize(
    ("recent", "kept"), [(0, []), (115, []), (116, [3]), (231, [3]), (232, [2, 3]), (10_000, [0, 1, 2, 3])]
)
def test_newest_items_fill_the_recent_budget(recent: int, kept: list[int]) -> None:
    """The newest whole groups that fit, without a hole."""
    assert places(STEPS, [], recent) == kept


def test_recent_stops_at_the_first_group_that_does_not_fit() -> None:
    """A small old item does not jump over a large newer one."""
    assert places([user("small"), assistant("v" * 4000), user("w"), assistant("x")], [], 200) == [2, 3]


@pytest.mark.parametrize(
    ("ceiling", "kept", "left_out"),
    [
        (None, [0, 2, 3, 4], 0),
        (1000, [0, 2, 3, 4], 0),
        (350, [0, 3, 4], 0),
        (236, [0, 4], 0),
        (120, [4], 1),
        (0, [], 2),
    ],
)
def test_under_a_ceiling_what_must_stay_comes_first(ceiling: int | None, kept: list[int], left_out: int) -> None:
    """Must before chosen before recent; what should have stayed and did not fit is counted."""
    items = [*STEPS, user("y" * 400)]
    selection = select(make(items, 400), [0], ceiling)
    assert places(items, [0], 400, ceiling) == kept
    assert selection.refs == {item_ref(place) for place in kept}
    assert len(selection.left_out) == left_out


def test_kept_items_lose_their_stored_id_and_nothing_else() -> None:
    """A server's id would make another provider look for a stored item; ids that pair or name stay."""
    items = [
        {**user("a"), "id": "msg_1", "phase": "x"},
        {"type": "mcp_approval_request", "id": "r", "name": "n"},
        {**REFERENCE},
        {"type": "never_heard_of", "id": "n"},
        {"type": "web_search_call", "id": "ws"},
        {"type": "local_shell_call", "id": "l"},
        {**call("c"), "id": "fc"},
    ]
    kept = select(make(items), list(range(7))).kept
    assert [raw.get("id") for raw in kept] == [None, "r", "msg_1", "n", "ws", "l", None]
    assert kept[0] == {**user("a"), "phase": "x"}
    assert items[0]["id"] == "msg_1"


def test_earlier_summary_is_never_kept() -> None:
    """A restored summary is folded in: neither chosen nor recent nor unanswered, it is not kept."""
    items = [A, B, user("<conversation_summary ...")]
    assert 2 not in places(items, [2], 10_000, summaries=[2])
    assert 2 in places(items, [2], 10_000)


def test_system_text_is_carried_apart() -> None:
    """System and developer messages stand in the plan word for word, summaries of that rank do not."""
    developer = {"role": "developer", "content": "d"}
    plan = make([system("s"), A, developer, {"role": "developer", "content": "sum"}, B], summaries=frozenset({3}))
    assert plan.system == (system("s"), developer)


def test_what_is_no_history_is_not_shown() -> None:
    """Tools and configuration are parts of the request: no block, no size, not to be chosen."""
    plan = make([TOOLS, A, {"type": "configuration_update"}, B])
    assert plan.refs == {"item_000002", "item_000004"}
    blocks = [block for unit in plan.units for block in unit.blocks]
    assert plan.tokens == sum(plan.sizes) == sum(count_content(block, estimate_tokens) for block in blocks)


def test_unseen_items_are_counted() -> None:
    """A reference shows the summariser nothing: it counts as left out."""
    assert make([A, REFERENCE, B]).unseen == 1
    assert make([A, B]).unseen == 0


@pytest.mark.parametrize(
    "items", [[], [system("rules")], [TOOLS], [{"role": "developer", "content": "d"}, TOOLS]],
    ids=["empty", "system", "tools", "both"],
)  # fmt: skip
def test_nothing_to_compact(items: list[Any]) -> None:
    """A transcript of nothing but system text and tools is refused."""
    with pytest.raises(NothingToCompact):
        make(items)


@pytest.mark.parametrize(
    ("items", "error", "place"),
    [
        ([A, output("x", "1")], InvalidToolPairing, "input[1]"),
        ([TOOLS, {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}], UnsupportedImage, "input[1]"),
    ],
    ids=["pairing", "image"],
)
def test_refusals_name_the_clients_own_places(items: list[Any], error: type[Exception], place: str) -> None:
    """The number in the message is the place in the client's input."""
    with pytest.raises(error) as caught:
        make(items)
    assert str(caught.value).startswith(place)


def test_limits_are_derived_from_the_transcript() -> None:
    """The ceilings are asked for with the tokens of the whole transcript."""
    asked: list[int] = []

    def limits(tokens: int) -> Limits:
        asked.append(tokens)
        return Limits(1, 2)

    plan = plan_compaction(classify_items(STEPS), (), estimate_tokens, limits)
    assert asked == [plan.tokens] == [4 * 116]


def test_an_image_counts_a_thousand() -> None:
    """Base64 is never counted as text."""
    item = {"role": "user", "content": [{"type": "input_image", "image_url": png() + "A" * 100_000}]}
    (block,) = render_blocks(classify_items([item]))
    assert isinstance(block.parts[0], ImagePart)
    assert count_content(block, estimate_tokens) == 1016
    assert count_content(render_blocks(classify_items([A]))[0], estimate_tokens) == 16 + estimate_tokens("first words")
    assert isinstance(render_blocks(classify_items([A]))[0].parts[0], TextPart)


@pytest.mark.parametrize(("budget", "chosen"), [(0, []), (115, []), (116, [2]), (232, [0, 2]), (64_000, [0, 2])])
def test_user_messages_are_the_newest_that_fit(budget: int, chosen: list[int]) -> None:
    """The user's messages for /responses/compact, verbatim and in order, newest first."""
    assert select_user_messages(classify_items(STEPS), (), budget, estimate_tokens) == [STEPS[n] for n in chosen]


def test_user_messages_are_only_the_users_words() -> None:
    """No other role, no agent's message, no earlier summary."""
    agent = {"type": "agent_message", "author": "a", "content": "x"}
    items = [system("s"), {"role": "user", "content": "untyped"}, B, agent, user("summary"), A]
    found = select_user_messages(classify_items(items), {4}, 64_000, estimate_tokens)
    assert found == [items[1], A]


# items, then for each unit: places of its items, whether it may be left out, whether somebody's words are in it
UNITS: dict[str, tuple[list[Any], list[tuple[list[int], bool, bool]]]] = {
    "words": (
        [system("s"), A, B, user("x")],
        [([0], False, True), ([1], False, True), ([2], True, False), ([3], False, True)],
    ),
    "finished-pair": (
        [A, call("c"), output("c", "1"), B, A],
        [([0], False, True), ([1, 2], True, False), ([3], True, False), ([4], False, True)],
    ),
    "open-call": ([A, call("c")], [([0], False, True), ([1], False, False)]),
    "unreacted-output": ([call("c"), output("c", "1"), A], [([0, 1], False, False), ([2], False, True)]),
    "reasoning": ([REASONING, B, A], [([0], True, False), ([1], True, False), ([2], False, True)]),
    "last-item-stays": ([A, B], [([0], False, True), ([1], False, False)]),
    "hosted-search": ([{"type": "web_search_call", "id": "w"}, A], [([0], True, False), ([1], False, True)]),
    "output-without-id": (
        [{"type": "function_call_output", "name": "n", "output": "o"}, B, A],
        [([0], False, False), ([1], True, False), ([2], False, True)],
    ),
    "unknown-kind": ([{"type": "never_heard_of"}, A], [([0], False, False), ([1], False, True)]),
    "agent-message": (
        [{"type": "agent_message", "content": "x"}, B, A],
        [([0], False, True), ([1], True, False), ([2], False, True)],
    ),
}


@pytest.mark.parametrize(("items", "units"), UNITS.values(), ids=UNITS)
def test_what_may_be_left_out(items: list[Any], units: list[tuple[list[int], bool, bool]]) -> None:
    """Assistant messages, reasoning and finished calls may go; words, open calls, the last item and the unknown not."""
    plan = make(items)
    shown = [([block.ref for block in unit.blocks], unit.removable, unit.spoken) for unit in plan.units]
    assert shown == [([item_ref(place) for place in members], gone, said) for members, gone, said in units]


def test_earlier_summary_may_not_be_left_out() -> None:
    """An earlier summary stays in the transcript, as a message and as a made-up call with its output."""
    pair = [call("s"), output("s", "summary"), B, A]
    assert [unit.removable for unit in make(pair, summaries=frozenset({0, 1})).units] == [False, True, False]
    assert make([B, A], summaries=frozenset({0})).units[0].removable is False


def test_open_output_over_the_ceiling_is_kept_shortened() -> None:
    """The result the model has not reacted to stays, head and tail, when it alone is over the ceiling."""
    items = [A, B, call("c"), output("c", "first " + "noise " * 5000 + "last")]
    selection = select(make(items), [], 500)
    assert [raw["type"] for raw in selection.kept] == ["function_call", "function_call_output"]
    written = selection.kept[1]["output"]
    assert written.startswith("first ")
    assert written.endswith("last")
    assert "characters cut" in written
    assert estimate_tokens(written) < 500
    assert selection.left_out == frozenset()


def test_chosen_item_over_the_ceiling_is_left_out_and_counted() -> None:
    """What the model chose is kept whole or not at all."""
    selection = select(make([A, assistant("v" * 40_000), B, user("x")]), [1], 500)
    assert [raw["content"] for raw in selection.kept] == [user("x")["content"]]
    assert selection.left_out == {item_ref(1)}


def kept_of(items: list[Any], ceiling: int) -> list[Any]:
    return [dict(raw) for raw in select(make(items), [], ceiling).kept]


def test_long_output_does_not_push_the_request_out() -> None:
    """In the middle of a turn the unanswered request stays word for word; the long result is what is shortened."""
    items = [user("first"), B, user("CURRENT REQUEST: rename foo"), call("c"), output("c", "noise " * 20_000)]
    kept = kept_of(items, 2_000)
    assert kept[0] == items[2]
    assert [raw["type"] for raw in kept] == ["message", "function_call", "function_call_output"]
    assert "characters cut" in kept[2]["output"]


def test_long_things_share_what_is_left() -> None:
    """Four parallel results of one size are shortened alike, and none is left out."""
    calls = [call(f"c{number}") for number in range(4)]
    outputs = [output(f"c{number}", f"result {number} " + "noise " * 9_000) for number in range(4)]
    kept = kept_of([user("do it"), *calls, *outputs], 4_000)
    assert kept[0] == user("do it")
    lengths = [len(raw["output"]) for raw in kept if raw["type"] == "function_call_output"]
    assert len(lengths) == 4
    assert max(lengths) - min(lengths) < 100


def test_request_keeps_its_words_when_its_images_have_no_room() -> None:
    """Of a last request with too many images the words stay, and a note stands for each image."""
    images = [{"type": "input_image", "image_url": png()} for _ in range(5)]
    request = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "LAST WORDS"}, *images]}
    (kept,) = kept_of([user("a"), B, request], 3_000)
    texts = [part["text"] for part in kept["content"]]
    assert texts[0] == "LAST WORDS"
    assert texts[1:] == ["[image, left out: there was no room for it]"] * 5
    assert request["content"][1:] == images


def test_small_open_call_stays_beside_one_that_cannot() -> None:
    """An open call whose arguments no ceiling has room for is left out and counted; all else that must stay stays."""
    large = call("big", arguments="x" * 40_000)
    selection = select(make([user("go"), large, B, user("and now"), call("small")]), [], 1_000)
    assert [raw.get("call_id") or "words" for raw in selection.kept] == ["words", "small"]
    assert selection.left_out == {item_ref(1)}

"""A request as pieces: what is text for a tokenizer, and tokens of what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.budget.counting import Piece
from litellm_compaction.conversation.measure import draft_request, measure_request
from tests.item_strategies import conversations
from tests.support.images import encoded, gif, jpeg, png, webp

MESSAGE, CALL = 4, 10
UNREADABLE = 1_000


def data_url(data: bytes, media: str = "image/png") -> str:
    return f"data:{media};base64,{encoded(data)}"


def one(item: object) -> Piece:
    measured = measure_request({"input": [item]})
    assert measured.fixed == Piece((), 0)
    assert len(measured.items) == 1
    return measured.items[0]


def said(part: object) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [part]}


def text(words: str) -> dict[str, Any]:
    return {"type": "input_text", "text": words}


def image(url: object, **members: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, **members}


ITEMS: dict[str, tuple[object, tuple[str, ...], int]] = {
    "message": ({"type": "message", "id": "m", "role": "user", "content": "a"}, ("a",), MESSAGE),
    "message-untyped": ({"role": "user", "content": "a"}, ("a",), MESSAGE),
    "message-part": (said(text("a")), ("a",), MESSAGE),
    "message-parts": ({"type": "message", "content": [text("a"), "b", text("c")]}, ("a", "b", "c"), MESSAGE),
    "message-untyped-parts": ({"role": "user", "content": [text("a"), text("b")]}, ("a", "b"), MESSAGE),
    "message-untyped-part": (said({"text": "a"}), ("a",), MESSAGE),
    "message-refusal": (said({"type": "refusal", "refusal": "no"}), ("no",), MESSAGE),
    "message-empty": ({"type": "message", "content": None}, (), MESSAGE),
    "message-annotations": (said({"type": "output_text", "text": "a", "annotations": ["x"]}), ("a",), MESSAGE),
    "agents": ({"type": "agent_message", "author": "x", "content": [text("a")]}, ("a",), MESSAGE),
    "call": ({"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}, ("n", "{}"), CALL),
    "call-namespace": (
        {"type": "function_call", "namespace": "s", "name": "n", "arguments": "{}"},
        ("s", "n", "{}"),
        CALL,
    ),
    "call-object": ({"type": "function_call", "name": "n", "arguments": {"a": 1}}, ("n", '{"a": 1}'), CALL),
    "custom-call": ({"type": "custom_tool_call", "id": "i", "name": "n", "input": "a"}, ("n", "a"), CALL),
    "output": ({"type": "function_call_output", "call_id": "c", "output": "a"}, ("a",), CALL),
    "output-parts": ({"type": "function_call_output", "output": [text("a"), text("b")]}, ("a", "b"), CALL),
    "custom-output": ({"type": "custom_tool_call_output", "output": "a"}, ("a",), CALL),
    "output-object": ({"type": "shell_call_output", "output": [{"stdout": "ä"}]}, ('{"stdout": "ä"}',), CALL),
    "output-image": (
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": data_url(png(75, 75))}},
        (),
        CALL + 85,
    ),
    "reasoning": (
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "content": [text("b")]},
        ("a", "b"),
        MESSAGE,
    ),
    "reasoning-sealed": ({"type": "reasoning", "summary": [], "encrypted_content": "x" * 3_072}, (), MESSAGE + 414),
    "reasoning-sealed-and-read": (
        {"type": "reasoning", "summary": [text("a")], "encrypted_content": "x" * 3_072},
        ("a",),
        MESSAGE + 414,
    ),
    "reasoning-sealed-short": ({"type": "reasoning", "encrypted_content": "x" * 800}, (), MESSAGE),
    "sealed": (
        {"type": "compaction", "id": "i", "encrypted_content": "x" * 160},
        ('{"encrypted_content": ""}',),
        CALL + 30,
    ),
    "hosted": (
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"query": "q"}},
        ('{"action": {"query": "q"}}',),
        CALL,
    ),
    "drawn": ({"type": "image_generation_call", "id": "i", "result": encoded(png(750, 1000))}, (), CALL + 1_000),
    "reference": ({"type": "item_reference", "id": "m"}, (), CALL),
    "control": ({"type": "configuration_update", "reasoning": {}}, (), 0),
    "trigger": ({"type": "compaction_trigger"}, (), 0),
    "unknown": ({"type": "never_heard_of", "x": ["y"]}, ('{"x": ["y"]}',), CALL),
    "unknown-deep": (
        {"type": "never", "x": {"u": data_url(png(750, 200)), "encrypted_content": "x" * 16, "i": image("http://x")}},
        ('{"x": {"u": "", "encrypted_content": "", "i": null}}',),
        CALL + 200 + 3 + UNREADABLE,
    ),
    "strange-type": ({"type": ["x"], "content": "a"}, ('{"content": "a"}',), CALL),
    "string": ("a", ("a",), MESSAGE),
    "number": (7, ("7",), MESSAGE),
    "null": (None, (), MESSAGE),
}


@pytest.mark.parametrize(("item", "texts", "extra"), ITEMS.values(), ids=ITEMS)
def test_item(item: object, texts: tuple[str, ...], extra: int) -> None:
    """What of it is text, and the tokens of the rest with its framing; ids and states are not counted."""
    assert one(item) == Piece(texts, extra)


IMAGES: dict[str, tuple[dict[str, Any], int]] = {
    "png": (image(data_url(png(1000, 750))), 1_000),
    "rounded-up": (image(data_url(png(1000, 751))), 1_002),
    "small": (image(data_url(png(10, 10))), 85),
    "huge": (image(data_url(png(9_000, 9_000))), 1_600),
    "gif": (image(data_url(gif(300, 300))), 120),
    "webp": (image(data_url(webp(b"VP8X", b"\0\0\0\0\x2b\1\0\x2b\1\0"))), 120),
    "jpeg": (image(data_url(jpeg(300, 300))), 120),
    "wrong-media-type": (image(data_url(jpeg(300, 300), "image/png")), 120),
    "low": (image(data_url(png(1000, 750)), detail="low"), 85),
    "high": (image(data_url(png(1000, 750)), detail="high"), 1_000),
    "nested": ({"type": "image_url", "image_url": {"url": data_url(gif(300, 300))}}, 120),
    "nested-low": ({"type": "image_url", "image_url": {"url": "http://x", "detail": "low"}}, 85),
    "address": (image("https://example.org/a.png"), UNREADABLE),
    "file-id": ({"type": "input_image", "file_id": "f"}, UNREADABLE),
    "unreadable": (image(data_url(b"no image" * 900)), UNREADABLE),
    "null": (image(None), UNREADABLE),
    "number": (image(7), UNREADABLE),
}


@pytest.mark.parametrize(("part", "tokens"), IMAGES.values(), ids=IMAGES)
def test_image_by_its_pixels(part: dict[str, Any], tokens: int) -> None:
    """Never by its base64; the same in a message, an output and an unknown item."""
    assert one(said(part)) == Piece((), MESSAGE + tokens)
    assert one({"type": "function_call_output", "output": [part]}) == Piece((), CALL + tokens)
    assert one({"type": "never_heard_of", "x": part}) == Piece(('{"x": null}',), CALL + tokens)


def file(data: str | None, **members: str) -> dict[str, Any]:
    return {"type": "input_file", **({} if data is None else {"file_data": data}), **members}


FILES: dict[str, tuple[dict[str, Any], tuple[str, ...], int]] = {
    "text": (file(data_url(b"a" * 300_000, "text/plain"), filename="a.txt"), ("a.txt",), 75_000),
    "json": (file(data_url(b"a" * 300_000, "application/json")), (), 75_000),
    "small-pdf": (file(data_url(b"a" * 3_000, "application/pdf")), (), 750),
    "large-pdf": (file(data_url(b"a" * 300_000, "application/pdf")), (), 32_000),
    "bare": (file(encoded(b"a" * 3_000)), (), 750),
    "image": (file(data_url(png(1000, 750))), (), 1_000),
    "by-id": (file(None, file_id="f"), (), UNREADABLE),
    "audio": ({"type": "input_audio", "input_audio": {"data": "A" * 64_000, "format": "mp3"}}, (), 30),
}


@pytest.mark.parametrize(("part", "texts", "tokens"), FILES.values(), ids=FILES)
def test_file_by_its_size(part: dict[str, Any], texts: tuple[str, ...], tokens: int) -> None:
    """Four bytes are a token; of a PDF no more than of twenty pages."""
    assert one(said(part)) == Piece(texts, MESSAGE + tokens)


INPUTS: dict[str, tuple[object, list[Piece]]] = {
    "missing": (None, []),
    "empty": ("", []),
    "string": ("a", [Piece(("a",), MESSAGE)]),
    "object": ({"role": "user", "content": "a"}, [Piece(("a",), MESSAGE)]),
    "list": ([{"role": "user", "content": "a"}, "b"], [Piece(("a",), MESSAGE), Piece(("b",), MESSAGE)]),
    "number": (7, [Piece(("7",), MESSAGE)]),
}


@pytest.mark.parametrize(("given_input", "pieces"), INPUTS.values(), ids=INPUTS)
def test_input(given_input: object, pieces: list[Piece]) -> None:
    """A string, an object or a list, in order."""
    assert measure_request({"input": given_input}).items == pieces


def test_fixed_part() -> None:
    """Instructions, tools wherever they stand and the output's schema; the place of tools in the input is none."""
    tool, more = {"type": "function", "name": "ä"}, {"type": "custom", "name": "b"}
    schema = {"type": "object"}
    body = {
        "instructions": "be brief",
        "tools": [tool],
        "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "x", "schema": schema}},
        "input": [text("a"), {"type": "additional_tools", "tools": [more]}, "c"],
    }
    measured = measure_request(body)
    shown = (json.dumps([tool], ensure_ascii=False), json.dumps([more]), json.dumps(schema))
    assert measured.fixed == Piece(("be brief", *shown), 0)
    assert [piece.texts for piece in measured.items] == [('{"text": "a"}',), ("c",)]
    assert measured.pieces == [measured.fixed, *measured.items]
    assert (
        measured.bound == sum(len(part.encode()) for piece in measured.pieces for part in piece.texts) + CALL + MESSAGE
    )


@pytest.mark.parametrize(
    "body",
    [{}, {"instructions": None, "tools": [], "text": None}, {"tools": None, "text": {"format": {"type": "text"}}}],
    ids=["empty", "nulls", "plain-text"],
)
def test_nothing_fixed(body: dict[str, Any]) -> None:
    """What is not there costs nothing."""
    assert measure_request(body).fixed == Piece((), 0)


def test_plain_items_are_not_left_for_later() -> None:
    """The common shapes are measured at once, the odd ones keep their place."""
    odd = {"type": "never_heard_of", "x": 1}
    plain = [
        "message",
        "message-untyped",
        "message-part",
        "call",
        "custom-call",
        "output",
        "custom-output",
        "reasoning-sealed",
    ]
    draft = draft_request({"input": [*(ITEMS[name][0] for name in plain), odd, ITEMS["message"][0]]})
    assert draft.odd == [(len(plain), odd)]
    assert draft.finish().items[len(plain)] == one(odd)
    assert draft.finish().items[-1] == one(ITEMS["message"][0])
    assert not draft.is_heavy


MANY: list[object] = [0] * 10_001


@pytest.mark.parametrize(
    ("body", "heavy"),
    [
        ({"input": [{"type": "x", "y": MANY}]}, True),
        ({"input": [{"type": "x", "y": MANY[:9_000]}]}, False),
        ({"input": "a", "tools": MANY}, True),
        ({"input": [{"type": "additional_tools", "tools": MANY}]}, True),
        ({"input": [{"type": "message", "content": "a"}] * 10_001}, False),
    ],
    ids=["item", "few", "tools", "additional-tools", "plain"],
)
def test_heavy_is_what_has_many_values(body: dict[str, Any], heavy: bool) -> None:
    """Of the odd items and the tools; it is written as the same JSON."""
    assert draft_request(body).is_heavy is heavy
    written = [part for piece in measure_request(body).pieces for part in piece.texts]
    assert not heavy or any(json.dumps(MANY) in part for part in written)


NAMES = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "text",
        "output",
        "input",
        "arguments",
        "name",
        "namespace",
        "summary",
        "url",
        "encrypted_content",
        "image_url",
        "detail",
        "file_data",
        "filename",
        "input_audio",
        "data",
        "result",
        "refusal",
        "tools",
        "instructions",
        "format",
        "schema",
    ]
)
KINDS = st.sampled_from(
    [
        "message",
        "agent_message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "reasoning",
        "x",
        "additional_tools",
        "compaction",
        "image_generation_call",
        "json_schema",
        "input_text",
        "input_image",
        "input_file",
        "input_audio",
        "refusal",
    ]
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
ODD_ITEMS = st.builds(lambda junk, kind: {**junk, "type": kind}, st.dictionaries(NAMES, JUNK, max_size=5), KINDS)


@given(st.dictionaries(NAMES, JUNK | st.lists(ODD_ITEMS, max_size=4) | ODD_ITEMS, max_size=6))
def test_any_junk_is_measured(body: dict[str, Any]) -> None:
    """Nothing raises, and the bound is that of texts and tokens that are there."""
    before = repr(body)
    measured = measure_request(body)
    assert repr(body) == before
    assert all(isinstance(part, str) for piece in measured.pieces for part in piece.texts)
    assert all(piece.extra >= 0 for piece in measured.pieces)
    assert measure_request(body) == measured


@given(conversations())
def test_every_item_but_tools_has_a_piece(items: list[dict[str, Any]]) -> None:
    """In order, the same alone as among others."""
    counted = [item for item in items if item["type"] != "additional_tools"]
    assert measure_request({"input": items}).items == [one(item) for item in counted]


@given(st.text(st.characters(exclude_categories=()), min_size=1))
def test_no_text_is_lost(words: str) -> None:
    """Wherever a text stands, it is counted as it is, or within JSON."""
    for item in (said(text(words)), {"type": "function_call_output", "output": words}, words):
        assert one(item).texts == (words,)
    assert json.loads(one({"type": "x", "y": [words]}).texts[0]) == {"y": [words]} or words.startswith("data:")


def test_deeper_than_python_goes() -> None:
    """Its words are counted all the same."""
    deep: Any = "the bottom"
    for _ in range(100_000):
        deep = [deep]
    assert "the bottom" in one({"type": "x", "y": deep}).texts
    assert "the bottom" in measure_request({"tools": deep}).fixed.texts


def test_a_value_that_holds_itself() -> None:
    """No JSON does; it ends."""
    loop: list[Any] = ["a"]
    loop.append(loop)
    assert one({"type": "x", "y": loop}).texts.count("a") == 1
    assert measure_request({"tools": loop}).fixed.texts.count("a") == 1

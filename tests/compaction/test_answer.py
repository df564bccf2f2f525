"""An answer is used only when it is one whole summary; every other one is refused in words for the model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from litellm_compaction.compaction.answer import Answer, InvalidAnswer, Reply, Usage, read_answer

REFS = {"item_000001", "item_000002"}
GOOD: dict[str, Any] = {"summary": "the facts", "retain_item_ids": ["item_000002", "item_000001"]}
TEXT = json.dumps(GOOD)
EXPECTED = Answer("the facts", ("item_000002", "item_000001"))


def tool(value: object, name: str = "create_summary") -> tuple[tuple[str, str]]:
    return ((name, value if isinstance(value, str) else json.dumps(value)),)


VALID: dict[str, tuple[Reply, Answer]] = {
    "tool-call": (Reply(calls=tool(GOOD), finish_reason="tool_calls"), EXPECTED),
    "tool-call-wins-over-text": (Reply(calls=tool(GOOD), text='{"summary": "other"}'), EXPECTED),
    "another-tool-beside-it": (Reply(calls=(*tool({}, "shell"), *tool(GOOD))), EXPECTED),
    "raw-newline-in-arguments": (Reply(calls=tool('{"summary": "a\nb", "retain_item_ids": []}')), Answer("a\nb")),
    "nothing-to-keep": (Reply(calls=tool({"summary": "s", "retain_item_ids": []})), Answer("s")),
    "keep-left-out": (Reply(calls=tool({"summary": "s"})), Answer("s")),
    "keep-null": (Reply(calls=tool({"summary": "s", "retain_item_ids": None})), Answer("s")),
    "more-members": (Reply(calls=tool({"summary": "s", "mood": "good"})), Answer("s")),
    "blanks-around": (Reply(calls=tool({"summary": " \n s \n"})), Answer("s")),
    "surrogate": (Reply(calls=tool('{"summary": "a\\ud800"}')), Answer("a?")),
    "surrogate-pair": (Reply(calls=tool('{"summary": "\\ud83d\\ude00"}')), Answer("😀")),
    "json": (Reply(text=TEXT), EXPECTED),
    "json-in-a-fence": (Reply(text=f"```json\n{TEXT}\n```"), EXPECTED),
    "json-between-words": (Reply(text=f"Here it is: {TEXT}\nDone {{x}}."), EXPECTED),
    "json-after-other-json": (Reply(text=f'{{"thought": 1}} {{not json {TEXT}'), EXPECTED),
    "raw-newline-in-json": (Reply(text='{"summary": "a\n\tb"}'), Answer("a\n\tb")),
    "json-beside-another-tool": (Reply(calls=tool({}, "shell"), text=TEXT), EXPECTED),
    "call-as-text": (Reply(text=json.dumps({"name": "create_summary", "arguments": GOOD})), EXPECTED),
    "call-as-text-parameters": (Reply(text=json.dumps({"name": "create_summary", "parameters": GOOD})), EXPECTED),
    "call-as-text-string": (Reply(text=json.dumps({"name": "create_summary", "arguments": TEXT})), EXPECTED),
    "the-same-object-twice": (Reply(text=f"{TEXT}\n```json\n{TEXT}\n```"), EXPECTED),
    "braces-in-the-summary": (Reply(text='{"summary": "a {b} {"}'), Answer("a {b} {")),
}

INVALID: dict[str, tuple[Reply, str]] = {
    "length": (Reply(calls=tool(GOOD), finish_reason="length"), "cut off at the output limit"),
    "content-filter": (Reply(text=TEXT, finish_reason="content_filter"), "content filter"),
    "max-tokens": (Reply(calls=tool(GOOD), finish_reason="max_tokens"), "cut off at the output limit"),
    "window-full": (Reply(calls=tool(GOOD), finish_reason="model_context_window_exceeded"), "cut off at the end"),
    "stop-reason-refusal": (Reply(text=TEXT, finish_reason="refusal"), "it was a refusal"),
    "refusal-member": (Reply(refusal="I can't help with that."), "it was a refusal"),
    "reasoning-only": (Reply(reasoned=True), "it holds reasoning and no answer"),
    "reasoning-and-blanks": (Reply(text=" \n", reasoned=True), "it holds reasoning and no answer"),
    "reasoning-and-prose": (Reply(text="Now I know.", reasoned=True), "no summary in the form asked for"),
    "two-summaries": (Reply(text=f'{TEXT} {{"summary": "second"}}'), "it holds 2 summaries, not one"),
    "nothing": (Reply(), "no summary in the form asked for"),
    "prose": (Reply(text="The user wanted the parser fixed."), "no summary in the form asked for"),
    "refusal-in-words": (Reply(text="I'm sorry, I can't help with that."), "no summary in the form asked for"),
    "other-json": (Reply(text='{"result": "the facts"}'), "no summary in the form asked for"),
    "json-list": (Reply(text='["the facts"]'), "no summary in the form asked for"),
    "cut-json": (Reply(text=TEXT[:-2]), "no summary in the form asked for"),
    "braces": (Reply(text="{" * 10_000), "no summary in the form asked for"),
    "too-deep": (Reply(text='{"summary":' * 100_000), "no summary in the form asked for"),
    "call-of-another-as-text": (Reply(text='{"name": "shell", "arguments": {"summary": "s"}}'), "no summary"),
    "other-tool": (Reply(calls=tool(GOOD, "shell")), "another tool instead of `create_summary`"),
    "twice": (Reply(calls=tool(GOOD) * 2), "called 2 times, not once"),
    "broken-arguments": (Reply(calls=tool(TEXT[:-2])), "not a JSON object"),
    "list-arguments": (Reply(calls=tool([])), "not a JSON object"),
    "blank-arguments": (Reply(calls=tool("")), "not a JSON object"),
    "broken-arguments-with-text": (Reply(calls=tool("x"), text=TEXT), "not a JSON object"),
    "no-summary": (Reply(calls=tool({})), "missing or blank"),
    "blank": (Reply(calls=tool({"summary": " \n\t"})), "missing or blank"),
    "null": (Reply(calls=tool({"summary": None})), "missing or blank"),
    "number": (Reply(text='{"summary": 7}'), "missing or blank"),
    "summary-object": (Reply(calls=tool({"summary": {"a": 1}})), "missing or blank"),
    "unknown-ref": (Reply(calls=tool({"summary": "s", "retain_item_ids": ["item_7"]})), "unknown item 'item_7'"),
    "ref-twice": (
        Reply(calls=tool({"summary": "s", "retain_item_ids": ["item_000001", "item_000001"]})),
        "names an item twice",
    ),
    "refs-string": (Reply(calls=tool({"summary": "s", "retain_item_ids": "item_000001"})), "not a list of refs"),
    "refs-numbers": (Reply(calls=tool({"summary": "s", "retain_item_ids": [1]})), "not a list of refs"),
}


@pytest.mark.parametrize(("reply", "answer"), VALID.values(), ids=VALID)
def test_usable_answer(reply: Reply, answer: Answer) -> None:
    """One summary is found in the form asked for and in the forms small models fall into."""
    assert read_answer(reply, REFS) == answer


@pytest.mark.parametrize(("reply", "words"), INVALID.values(), ids=INVALID)
def test_unusable_answer(reply: Reply, words: str) -> None:
    """The refusal says what was wrong."""
    with pytest.raises(InvalidAnswer) as caught:
        read_answer(reply, REFS)
    assert words in str(caught.value)


def test_usage_is_summed() -> None:
    """Every number of two inferences is added; the total is input and output."""
    total = Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40)
    assert total == Usage(11, 22, 33, 44)
    assert total.total_tokens == 33

"""What the summarising model is asked, in each style."""

from __future__ import annotations

from typing import Any

import pytest

from litellm_compaction.compaction.prompt import (
    DEFAULT_INSTRUCTIONS,
    PARAMETERS,
    Briefing,
    Style,
    next_style,
    write_instructions,
    write_messages,
    write_parameters,
)
from litellm_compaction.conversation.transcript import ImagePart, Part, TextPart


@pytest.mark.parametrize(
    ("custom", "instructions"),
    [
        (None, DEFAULT_INSTRUCTIONS),
        ("mine", "mine"),
        ("a {default} b", f"a {DEFAULT_INSTRUCTIONS} b"),
        ("{other} {0}", "{other} {0}"),
    ],
    ids=["default", "own", "around", "braces"],
)
def test_instructions(custom: str | None, instructions: str) -> None:
    """The operator's text replaces the built-in one, or stands around it; other braces are text."""
    assert write_instructions(custom) == instructions


def test_tool_style_forces_one_call() -> None:
    """The tool style names the one function that has to be called."""
    parameters = write_parameters(Style.TOOL, None)
    (tool,) = parameters["tools"]
    assert tool["function"]["name"] == parameters["tool_choice"]["function"]["name"] == "create_summary"
    assert tool["function"]["parameters"] == PARAMETERS
    tool["function"]["parameters"].clear()
    assert write_parameters(Style.TOOL, None)["tools"][0]["function"]["parameters"] == PARAMETERS


def test_schema_style_is_strict() -> None:
    """The schema style sends the same schema, strictly; text sends nothing."""
    schema = write_parameters(Style.SCHEMA, None)["response_format"]["json_schema"]
    assert (schema["strict"], schema["schema"]) == (True, PARAMETERS)
    assert PARAMETERS["required"] == list(PARAMETERS["properties"])
    assert write_parameters(Style.TEXT, None) == {}


def test_styles_follow_each_other() -> None:
    """Tool, schema, text, then nothing."""
    assert [next_style(style) for style in Style] == [Style.SCHEMA, Style.TEXT, None]


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("problem", [None, "it was blank."])
def test_order_stands_last(style: Style, problem: str | None) -> None:
    """The last words say what to do, after what was wrong; what the model reads is one user message."""
    system, user = write_messages([TextPart("TRANSCRIPT")], Briefing("I", "m", style, problem))
    assert system == {"role": "system", "content": "I"}
    content = user["content"]
    assert user["role"] == "user"
    assert content.index("TRANSCRIPT") < content.index("End of the transcript.") < content.index("Now ")
    assert ("call `create_summary` exactly once" in content) is (style is Style.TOOL)
    assert ("exactly one JSON object" in content) is (style is not Style.TOOL)
    assert ("Your last answer could not be used: it was blank. Now" in content) is (problem is not None)


def test_images_make_parts() -> None:
    """With an image the message is a list of parts, in order."""
    transcript: list[Part] = [TextPart("a"), ImagePart("http://i"), TextPart("b")]
    content = write_messages(transcript, Briefing("I", "m", Style.TOOL))[1]["content"]
    assert content[1:4] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "http://i"}},
        {"type": "text", "text": "b"},
    ]


@pytest.mark.parametrize("style", Style)
def test_answer_is_bounded_where_the_room_is_known(style: Style) -> None:
    """A known room bounds the answer in every style."""
    assert write_parameters(style, 512)["max_tokens"] == 512
    assert "max_tokens" not in write_parameters(style, None)


def said(**values: Any) -> str:
    """What stands after the transcript."""
    content = write_messages([TextPart("T")], Briefing("I", "m", Style.TOOL, **values))[1]["content"]
    assert isinstance(content, str)
    return content.partition("End of the transcript.")[2]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"left_out": 1}, "1 older transcript item was left out"),
        ({"left_out": 12}, "12 older transcript items were left out"),
        ({"shortened": 1}, "1 transcript item was shortened"),
        ({"shortened": 2}, "2 transcript items were shortened"),
        ({"part": 1, "last": False}, "part 1 of a long transcript. More parts follow"),
        ({"part": 2, "last": False}, "`earlier_summary`"),
        ({"part": 3, "last": True}, "part 3 of a long transcript, the last one"),
        ({"limit": 300}, "200 words at most"),
    ],
)
def test_notes_tell_what_the_transcript_is_not(values: dict[str, Any], words: str) -> None:
    """The model is told how many items went, which part it sees, and how long the summary may be, before the order."""
    text = said(**values)
    assert words in text
    assert text.index(words) < text.index("Now call")


def test_whole_transcripts_need_no_notes() -> None:
    """Nothing is said of parts, limits and losses where there are none."""
    assert said().startswith("\nNow call")


def test_first_part_has_no_summary_to_carry_over() -> None:
    """Only later parts begin with a summary."""
    assert "earlier_summary" not in said(part=1, last=False)

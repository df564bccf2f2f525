"""What the summarising model is asked, in each style."""

from __future__ import annotations

import pytest

from litellm_compaction.compaction.prompt import (
    DEFAULT_INSTRUCTIONS,
    PARAMETERS,
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
    parameters = write_parameters(Style.TOOL)
    (tool,) = parameters["tools"]
    assert tool["function"]["name"] == parameters["tool_choice"]["function"]["name"] == "create_summary"
    assert tool["function"]["parameters"] == PARAMETERS
    tool["function"]["parameters"].clear()
    assert write_parameters(Style.TOOL)["tools"][0]["function"]["parameters"] == PARAMETERS


def test_schema_style_is_strict() -> None:
    """The schema style sends the same schema, strictly; text sends nothing."""
    schema = write_parameters(Style.SCHEMA)["response_format"]["json_schema"]
    assert (schema["strict"], schema["schema"]) == (True, PARAMETERS)
    assert PARAMETERS["required"] == list(PARAMETERS["properties"])
    assert write_parameters(Style.TEXT) == {}


def test_styles_follow_each_other() -> None:
    """Tool, schema, text, then nothing."""
    assert [next_style(style) for style in Style] == [Style.SCHEMA, Style.TEXT, None]


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("problem", [None, "it was blank."])
def test_order_stands_last(style: Style, problem: str | None) -> None:
    """The last words say what to do, after what was wrong; what the model reads is one user message."""
    system, user = write_messages("I", [TextPart("TRANSCRIPT")], "m", style, problem, None)
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
    content = write_messages("I", transcript, "m", Style.TOOL, None, None)[1]["content"]
    assert content[1:4] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "http://i"}},
        {"type": "text", "text": "b"},
    ]

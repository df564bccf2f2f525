"""Content is read as text, images and files, wherever it stands; images are checked before they are passed on."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from litellm_compaction.conversation.content import ImagePart, Part, TextPart, has_file, read_parts
from litellm_compaction.errors import UnsupportedImage
from tests.support.bodies import png

HEADS = {
    "image/jpeg": b"\xff\xd8\xff\xe0rest of it",
    "image/png": b"\x89PNG\r\n\x1a\nrest of it",
    "image/gif": b"GIF89arest of it",
    "image/webp": b"RIFF\x00\x00\x00\x00WEBPrest of it",
}


def data_url(head: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(head).decode()}"


def image(url: object) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url}


TEXTS: dict[str, tuple[object, list[Part]]] = {
    "null": (None, []),
    "string": ("a", [TextPart("a")]),
    "blank": ("", [TextPart("")]),
    "surrogate": ("a\ud800", [TextPart("a\ud800")]),
    "input": ([{"type": "input_text", "text": "a"}], [TextPart("a")]),
    "output": ([{"type": "output_text", "text": "a", "annotations": []}], [TextPart("a")]),
    "refusal": ([{"type": "refusal", "refusal": "no"}], [TextPart("no")]),
    "summary": ([{"type": "summary_text", "text": "a"}], [TextPart("a")]),
    "untyped": ([{"text": "a"}], [TextPart("a")]),
    "strange-type": ([{"type": ["x"], "text": "a"}], [TextPart("a")]),
    "order": ([{"type": "input_text", "text": "a"}, "b", {"type": "text", "text": "c"}], list(map(TextPart, "abc"))),
    "bare-object": ({"type": "input_text", "text": "a"}, [TextPart("a")]),
    "null-text": ([{"type": "input_text", "text": None}], [TextPart("null")]),
    "unknown": ([{"type": "other", "x": 1}], [TextPart('{"type": "other", "x": 1}')]),
    "number": (7, [TextPart("7")]),
    "file": (
        [{"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}],
        [TextPart("[file a.pdf; kept with the conversation, not shown here]")],
    ),
    "file-id": (
        [{"type": "input_file", "file_id": "f_1"}],
        [TextPart("[file f_1; kept with the conversation, not shown here]")],
    ),
    "audio": (
        [{"type": "input_audio", "input_audio": {"data": "QUJD"}}],
        [TextPart("[audio; kept with the conversation, not shown here]")],
    ),
}


@pytest.mark.parametrize(("content", "parts"), TEXTS.values(), ids=TEXTS)
def test_text(content: object, parts: list[Part]) -> None:
    """Every shape of content gives its parts in order."""
    assert list(read_parts(content, 0)) == parts


@pytest.mark.parametrize("right", HEADS)
@pytest.mark.parametrize("claimed", ["", "image/png", "application/octet-stream", "IMAGE/WEBP"])
def test_image_gets_the_type_its_bytes_have(right: str, claimed: str) -> None:
    """A blank or wrong media type is corrected: some backends send none, and providers compare."""
    assert list(read_parts([image(data_url(HEADS[right], claimed))], 0)) == [
        ImagePart(data_url(HEADS[right], right)),
    ]


@pytest.mark.parametrize(
    "content",
    [
        [image("https://host/a.png")],
        [image({"url": "https://host/a.png", "detail": "low"})],
        {"type": "computer_screenshot", "image_url": "https://host/a.png", "file_id": "f"},
        [{"type": "image_url", "image_url": {"url": "https://host/a.png"}}],
    ],
    ids=["string", "object", "screenshot", "chat"],
)
def test_image_address_is_passed_on(content: object) -> None:
    """An http(s) address is read by the provider, in whatever member it stands."""
    assert list(read_parts(content, 0)) == [ImagePart("https://host/a.png")]


def test_gif_of_1987_is_a_gif() -> None:
    """Both versions of GIF are known."""
    assert list(read_parts([image(data_url(b"GIF87a", ""))], 0)) == [ImagePart(data_url(b"GIF87a", "image/gif"))]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "input_image", "file_id": "f_1"}, "only by 'file_id'"),
        ({"type": "computer_screenshot", "file_id": "f_1"}, "only by 'file_id'"),
        (image(None), "only by 'file_id'"),
        (image(""), "only by 'file_id'"),
        (image({}), "only by 'file_id'"),
        (image("ftp://host/a.png"), "neither an http(s) address nor a base64 data URL"),
        (image("data:image/png,raw"), "neither an http(s) address nor a base64 data URL"),
        (image("file:///etc/passwd"), "neither an http(s) address nor a base64 data URL"),
        (image("data:image/png;base64,!!!!"), "not valid base64"),
        (image("data:image/png;base64,A"), "not valid base64"),
        (image("data:image/png;base64,"), "in a format that models do not read"),
        (image(data_url(b"<svg></svg>", "image/svg+xml")), "in a format that models do not read"),
        (image(data_url(b"BM not a png", "image/png")), "in a format that models do not read"),
        (image(data_url(b"RIFF\0\0\0\0WAVEfmt", "image/webp")), "in a format that models do not read"),
    ],
    ids=[
        "file-id",
        "screenshot",
        "null",
        "blank",
        "empty",
        "ftp",
        "no-base64",
        "local-file",
        "broken",
        "cut",
        "no-bytes",
        "svg",
        "bmp",
        "wav",
    ],
)
def test_image_no_model_can_read_is_refused(part: dict[str, Any], words: str) -> None:
    """The error names the item and what is wrong with its image."""
    with pytest.raises(UnsupportedImage) as caught:
        list(read_parts([{"type": "input_text", "text": "look"}, part], 4))
    assert caught.value.message.startswith("input[4]: ")
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        (None, False),
        ("input_file", False),
        ([{"type": "input_text", "text": "input_file"}], False),
        ([image(png())], False),
        ([{"type": "input_text", "text": "a"}, {"type": "input_file", "file_id": "f"}], True),
        ([{"type": "input_audio", "input_audio": {}}], True),
        ([{"type": ["input_file"]}, "text"], False),
    ],
    ids=["null", "string", "text", "image", "file", "audio", "strange"],
)
def test_files_are_found(content: object, holds: bool) -> None:
    """A file or audio among the parts, which has to stay with the conversation."""
    assert has_file(content) is holds

"""Message content and tool output as parts: text, images, files. One reader for every place content stands in."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from litellm_compaction.errors import UnsupportedImage

_TEXT_TYPES: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"})
IMAGE_TYPES: Final = frozenset({"input_image", "computer_screenshot", "image_url"})
_DATA_URL: Final = re.compile(r"^data:([^;,]*);base64,(.*)$", re.DOTALL | re.IGNORECASE)
_SIGNATURES: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


# Not frozen, though nothing changes it: see `Item`.
@dataclass(slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """`url`: a checked data URL, or an http(s) address."""

    url: str


Part = TextPart | ImagePart


def read_parts(content: object, index: int) -> tuple[Part, ...]:
    """Parts of a message's content or a tool's output, in order; `index` names the item in errors.

    Raises UnsupportedImage for an image that is given only by `file_id` or is none of JPEG, PNG, WebP and GIF.
    """
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    if isinstance(content, list | tuple):
        return tuple(
            [_read_part(part, index) if isinstance(part, Mapping) else TextPart(_as_text(part)) for part in content]
        )
    return (_read_part(content, index) if isinstance(content, Mapping) else TextPart(_as_text(content)),)


def has_file(content: object) -> bool:
    """Whether content holds a file or audio, which no summary can stand for."""
    return isinstance(content, list | tuple) and any(
        isinstance(part, Mapping) and part.get("type") in ("input_file", "input_audio") for part in content
    )


def _read_part(part: Mapping[str, Any], index: int) -> Part:
    given: Final = part.get("type")
    text: Final = part.get("text")
    kind: Final = given if isinstance(given, str) else None
    if kind in _TEXT_TYPES and isinstance(text, str):
        return TextPart(text)
    if kind in _TEXT_TYPES or (kind is None and isinstance(part.get("text"), str)):
        return TextPart(_as_text(part.get("text", part.get("refusal", ""))))
    if kind in IMAGE_TYPES:
        return ImagePart(_image_url(part, index))
    if kind == "input_file":
        name: Final = part.get("filename") or part.get("file_id") or part.get("file_url") or "unnamed"
        return TextPart(f"[file {name}; kept with the conversation, not shown here]")
    if kind == "input_audio":
        return TextPart("[audio; kept with the conversation, not shown here]")
    return TextPart(_as_text(part))


def _image_url(part: Mapping[str, Any], index: int) -> str:
    given: Final = part.get("image_url")
    url: Final = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str) or not url:
        raise UnsupportedImage(index, "An image given only by 'file_id' cannot be read for a summary.")
    if url.startswith(("https://", "http://")):
        return url
    return _checked_data_url(url, index)


def _checked_data_url(url: str, index: int) -> str:
    match: Final = _DATA_URL.match(url)
    if match is None:
        raise UnsupportedImage(index, "The image is neither an http(s) address nor a base64 data URL.")
    body: Final = match.group(2)
    try:
        # 16 bytes tell the format; decoding megabytes to look at them would be work for nothing.
        head: Final = base64.b64decode(body[:24] + "=" * (-len(body[:24]) % 4), validate=True)
    except binascii.Error:
        raise UnsupportedImage(index, "The image is not valid base64.") from None
    media_type: Final = _sniff(head)
    if media_type is None:
        raise UnsupportedImage(index, "The image is in a format that models do not read.")
    return f"data:{media_type};base64,{body}"


def _sniff(head: bytes) -> str | None:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for signature, media_type in _SIGNATURES if head.startswith(signature)), None)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

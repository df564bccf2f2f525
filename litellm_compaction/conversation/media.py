"""What images, files and audio cost, by their size: their base64 is never counted as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from litellm_compaction.conversation.image_size import read_size

# Anthropic's rule for images, between the bounds that providers scale them to.
_PIXELS_PER_TOKEN: Final = 750
_LEAST_IMAGE, _MOST_IMAGE, _UNREADABLE_IMAGE = 85, 1_600, 1_000
# Four bytes a token; of a PDF and the like, whose bytes are mostly pictures and fonts, no more than twenty pages.
_BYTES_PER_TOKEN: Final = 4
_MOST_BINARY_FILE, UNREADABLE_FILE = 32_000, 1_000
# Ten tokens a second, 16 kB a second.
_AUDIO_BYTES_PER_TOKEN: Final = 1_600

_DATA_URL: Final = re.compile(r"data:([^,]{0,200});base64,", re.IGNORECASE)
_TEXT_MEDIA: Final = re.compile(r"text/|application/(json|xml|x?-?yaml|toml|javascript)|.*\+(json|xml)", re.IGNORECASE)


def count_image(part: Mapping[str, Any]) -> int:
    """Tokens of a content part that is an image."""
    given: Final = part.get("image_url")
    image: Final = given if isinstance(given, Mapping) else {"url": given, "detail": part.get("detail")}
    if image.get("detail") == "low":
        return _LEAST_IMAGE
    url: Final = image.get("url")
    found: Final = _DATA_URL.match(url) if isinstance(url, str) else None
    return _UNREADABLE_IMAGE if found is None else count_pixels(read_size(found.string, found.end()))


def count_pixels(size: tuple[int, int] | None) -> int:
    """Tokens of an image so wide and high; None: nobody knows."""
    if size is None:
        return _UNREADABLE_IMAGE
    return min(_MOST_IMAGE, max(_LEAST_IMAGE, -(-size[0] * size[1] // _PIXELS_PER_TOKEN)))


def count_data(data: str) -> int:
    """Tokens of a file or an image as a data URL; bare base64 is a file of an unknown kind."""
    found: Final = _DATA_URL.match(data)
    start: Final = found.end() if found else 0
    media: Final = found.group(1) if found else ""
    if media[:6].lower() == "image/":
        return count_pixels(read_size(data, start))
    tokens: Final = -(-(len(data) - start) * 3 // 4 // _BYTES_PER_TOKEN)
    return tokens if _TEXT_MEDIA.match(media) else min(tokens, _MOST_BINARY_FILE)


def count_audio(data: str) -> int:
    """Tokens of sound in base64."""
    return -(-len(data) * 3 // 4 // _AUDIO_BYTES_PER_TOKEN)


def is_data_url(text: str) -> bool:
    return text[:5].lower() == "data:" and _DATA_URL.match(text) is not None

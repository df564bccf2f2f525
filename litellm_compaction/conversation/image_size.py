"""The pixel size of an image, from the first bytes of its base64: PNG, GIF, WebP and JPEG."""

from __future__ import annotations

import base64
from typing import Final

# Characters of base64, multiples of four. JPEG's size comes after its metadata: rarely, after a large preview.
_HEADS: Final = (1_024, 32_768, 524_288)
# Frame headers: C0 to CF but for the tables DHT (C4), JPG (C8) and DAC (CC).
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers without a length: TEM, RST0 to RST7, SOI, EOI.
_JPEG_BARE: Final = frozenset({0x01, *range(0xD0, 0xDA)})


def read_size(encoded: str, start: int = 0) -> tuple[int, int] | None:
    """Width and height in pixels of the image whose base64 begins at `start`; None where they cannot be read."""
    for characters in _HEADS:
        piece = encoded[start : start + characters]
        try:
            head = base64.b64decode(piece[: len(piece) // 4 * 4])
        except ValueError:  # not base64, or not ASCII
            return None
        size = _read_head(head)
        if size is not None or head[:3] != b"\xff\xd8\xff" or len(piece) < characters:
            return size
    return None


def _read_head(head: bytes) -> tuple[int, int] | None:
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:  # noqa: PLR2004  # IHDR is always first
        return _big(head, 16, 4), _big(head, 20, 4)
    if head[:6] in {b"GIF87a", b"GIF89a"} and len(head) >= 10:  # noqa: PLR2004
        return _little(head, 6, 2), _little(head, 8, 2)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:  # noqa: PLR2004
        return _webp(head)
    return _jpeg(head) if head[:3] == b"\xff\xd8\xff" else None


def _webp(head: bytes) -> tuple[int, int] | None:
    """RFC 9649: lossy, lossless and extended files say it in three ways."""
    kind: Final = head[12:16]
    if kind == b"VP8 ":
        return _little(head, 26, 2) & 0x3FFF, _little(head, 28, 2) & 0x3FFF
    if kind == b"VP8L":
        bits: Final = _little(head, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return (_little(head, 24, 3) + 1, _little(head, 27, 3) + 1) if kind == b"VP8X" else None


def _jpeg(head: bytes) -> tuple[int, int] | None:
    """ITU T.81: segments, each a marker and a length, until the one of a frame."""
    place = 2
    while place + 9 <= len(head) and head[place] == 0xFF:  # noqa: PLR2004
        marker = head[place + 1]
        if marker in _JPEG_FRAMES:
            return _big(head, place + 7, 2), _big(head, place + 5, 2)
        if marker == 0xFF:  # noqa: PLR2004  # fill
            place += 1
        else:
            place += 2 if marker in _JPEG_BARE else 2 + _big(head, place + 2, 2)
    return None


def _big(data: bytes, start: int, length: int) -> int:
    return int.from_bytes(data[start : start + length], "big")


def _little(data: bytes, start: int, length: int) -> int:
    return int.from_bytes(data[start : start + length], "little")

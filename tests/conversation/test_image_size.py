"""The size of an image from the first bytes of its base64."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.conversation.image_size import read_size
from tests.support.images import encoded, gif, jpeg, png, segment, webp

SIZES = {
    "png": png(640, 481),
    "gif": gif(640, 481),
    "gif87": b"GIF87a" + gif(640, 481)[6:],
    "webp-lossy": webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 640 | 0x4000, 481 | 0x8000)),
    "webp-lossless": webp(b"VP8L", b"\x2f" + struct.pack("<I", 639 | 480 << 14 | 1 << 28)),
    "webp-extended": webp(b"VP8X", b"\0\0\0\0" + (639).to_bytes(3, "little") + (480).to_bytes(3, "little")),
    "jpeg": jpeg(640, 481),
    "jpeg-progressive": jpeg(640, 481, frame=0xC2),
    "jpeg-after-tables": jpeg(640, 481, segment(20, 0xC4) + segment(64, 0xDB)),
    "jpeg-after-fill": jpeg(640, 481, b"\xff\xff" + segment(3)[1:] + b"\xff\x01"),
    "jpeg-after-a-preview": jpeg(640, 481, segment(60_000)),
    "jpeg-after-profiles": jpeg(640, 481, segment(65_000) * 5),
}
NO_SIZES = {
    "empty": b"",
    "text": b"hello, this is no image at all, only words",
    "cut-png": png(640, 481)[:20],
    "cut-gif": gif(640, 481)[:8],
    "cut-webp": SIZES["webp-lossy"][:26],
    "webp-unknown": webp(b"VP9 ", b""),
    "cut-jpeg": jpeg(640, 481)[:8],
    "jpeg-without-frame": b"\xff\xd8" + segment(20) + b"\0" * 40,
    "jpeg-of-metadata": b"\xff\xd8" + segment(65_000) * 9,
}


@pytest.mark.parametrize("data", SIZES.values(), ids=SIZES)
def test_size_of_an_image(data: bytes) -> None:
    """From the header of each format that models read, whatever comes after it or, in a JPEG, before it."""
    assert read_size(encoded(data)) == (640, 481)
    assert read_size("data:," + encoded(data + b"\0" * 50_000), 6) == (640, 481)


@pytest.mark.parametrize("data", NO_SIZES.values(), ids=NO_SIZES)
def test_no_size(data: bytes) -> None:
    """What is cut off or of another format has none."""
    assert read_size(encoded(data)) is None


def test_size_of_no_base64() -> None:
    """Neither letters that are not ASCII nor any others make it fail."""
    assert read_size("漢字漢字") is None
    assert read_size("a====" * 20) is None


@given(st.sampled_from([b"\xff\xd8\xff", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBPVP8L"]), st.binary())
def test_any_bytes_after_a_signature(signature: bytes, rest: bytes) -> None:
    """They give a size or none."""
    size = read_size(encoded(signature + rest))
    assert size is None or min(size) >= 0

"""Images that are nothing but a header."""

from __future__ import annotations

import base64
import struct


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", width, height) + b"\x08\x06\0\0\0"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0"


def webp(kind: bytes, head: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0" + head + b"\0" * 20


def jpeg(width: int, height: int, before: bytes = b"", frame: int = 0xC0) -> bytes:
    return b"\xff\xd8" + before + bytes([0xFF, frame, 0, 17, 8]) + struct.pack(">HH", height, width) + b"\x03" * 9


def segment(length: int, marker: int = 0xE1) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", length + 2) + b"\xc0" * length


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()

"""Reads a display rotation from an MP4 or MOV header, without decoding a frame.

PyAV gives the display matrix of decoded frames only; a scan decodes nothing. The matrix of the
video track is nine 32-bit numbers at the end of its `tkhd` box (ISO/IEC 14496-12, 8.3.2).
"""

import math
import struct
from collections.abc import Iterator
from typing import BinaryIO

MAX_MOOV_BYTES = 256 << 20
"""Most bytes of an index that is read for its rotation; decoding finds it later."""


def header_rotation_deg(reader: BinaryIO, n_bytes: int) -> int | None:
    """Clockwise degrees (0, 90, 180, 270) that turn the first video upright; None if unknown."""
    moov = _find_moov(reader, n_bytes)
    if moov is None:
        return None
    for kind, track in _boxes(moov):
        if kind == b"trak" and _is_video(track):
            header = _child(track, b"tkhd")
            return _rotation(header) if header is not None else None
    return None


def _find_moov(reader: BinaryIO, n_bytes: int) -> bytes | None:
    position = 0
    for _ in range(10_000):
        if position + 8 > n_bytes:
            return None
        reader.seek(position)
        head = reader.read(16)
        if len(head) < 8:
            return None
        size, kind = struct.unpack(">I4s", head[:8])
        skip = 8
        if size == 1 and len(head) == 16:
            size, skip = struct.unpack(">Q", head[8:])[0], 16
        elif size == 0:
            size = n_bytes - position
        if size < skip:
            return None
        if kind == b"moov":
            if size > MAX_MOOV_BYTES:
                return None
            reader.seek(position + skip)
            return reader.read(size - skip)
        position += size
    return None


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        if size < 8 or position + size > len(data):
            return
        yield kind, data[position + 8 : position + size]
        position += size


def _child(data: bytes, kind: bytes) -> bytes | None:
    return next((body for name, body in _boxes(data) if name == kind), None)


def _is_video(track: bytes) -> bool:
    media = _child(track, b"mdia")
    handler = _child(media, b"hdlr") if media is not None else None
    return handler is not None and handler[8:12] == b"vide"


def _rotation(header: bytes) -> int | None:
    offset = 52 if header[:1] == b"\x01" else 40
    if len(header) < offset + 36:
        return None
    a, b = struct.unpack_from(">2i", header, offset)
    if a == 0 and b == 0:
        return None
    return round(math.degrees(math.atan2(b, a)) / 90) * 90 % 360

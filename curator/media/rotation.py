"""Reads a display rotation from an MP4 or MOV header, without decoding a frame.

PyAV gives the display matrix of decoded frames only; a scan decodes nothing. The matrix of the
video track is nine 32-bit numbers at the end of its `tkhd` box (ISO/IEC 14496-12, 8.3.2).
"""

import io
import math
import struct
from collections.abc import Iterator
from typing import BinaryIO

MAX_MOOV_BYTES = 256 << 20
"""Most bytes of an index that is read for its rotation; decoding finds it later."""
_MOST_BOXES = 10_000


def header_rotation_deg(reader: BinaryIO, n_bytes: int) -> int | None:
    """Clockwise degrees (0, 90, 180, 270) that turn the first video upright; None if unknown."""
    start, end = next(_boxes(reader, b"moov", 0, n_bytes), (0, 0))
    if not 0 < end - start <= MAX_MOOV_BYTES:
        return None
    reader.seek(start)
    moov = io.BytesIO(reader.read(end - start))
    for track in _boxes(moov, b"trak", 0, end - start):
        media = next(_boxes(moov, b"mdia", *track), (0, 0))
        if next(_contents(moov, b"hdlr", *media), b"")[8:12] == b"vide":
            return _rotation(next(_contents(moov, b"tkhd", *track), b""))
    return None


def _boxes(data: BinaryIO, kind: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the contents of boxes of a kind begin and end, of those between two places."""
    for _ in range(_MOST_BOXES):
        data.seek(start)
        head = data.read(min(16, max(end - start, 0)))
        if len(head) < 8:
            return
        size, name = struct.unpack_from(">I4s", head)
        skip = 8
        if size == 1 and len(head) == 16:
            size, skip = struct.unpack_from(">Q", head, 8)[0], 16
        elif size == 0:
            size = end - start
        if size < skip:
            return
        if name == kind:
            yield start + skip, start + size
        start += size


def _contents(data: BinaryIO, kind: bytes, start: int, end: int) -> Iterator[bytes]:
    for begin, stop in _boxes(data, kind, start, end):
        data.seek(begin)
        yield data.read(stop - begin)


def _rotation(header: bytes) -> int | None:
    offset = 52 if header[:1] == b"\x01" else 40
    if len(header) < offset + 36:
        return None
    a, b = struct.unpack_from(">2i", header, offset)
    if a == 0 and b == 0:
        return None
    return round(math.degrees(math.atan2(b, a)) / 90) * 90 % 360

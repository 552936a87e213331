"""Headers that lie about the sizes of their boxes."""

import io
import struct
import time

from curator.media.container import HeaderTrack, header_track


def box(kind: bytes, body: bytes, size: int | None = None) -> bytes:
    return struct.pack(">I4s", len(body) + 8 if size is None else size, kind) + body


def test_boxes_that_reach_beyond_the_one_that_they_are_in_cost_nothing() -> None:
    """Each of 9,000 tracks claims all that follow; 64-bit sizes lead beyond what can be sought."""
    far = struct.pack(">I4sQ", 1, b"free", 2**64 - 1) + bytes(50)
    claims = box(b"trak", box(b"mdia", b"", size=0x7FFFFFFF)) * 9000
    begun_s = time.process_time()
    for data in (far, box(b"moov", far), box(b"moov", claims)):
        assert header_track(io.BytesIO(data), len(data), 1) == HeaderTrack()
    assert time.process_time() - begun_s < 2

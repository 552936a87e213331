"""Finds in packets what an engine's surfaces depend on: the headers of coded sequences.

They hold the coded size, the crop, the depth of a pixel and the number of reference pictures. A
video engine that meets others within a stream, or in the next stream that one decoder gets, goes on
with surfaces of the old size: PyNvVideoCodec then gives frames that look right by their shape, and
whose pixels were scaled to it.
"""

import re
from collections.abc import Iterator
from typing import Any

from av.packet import Packet

HEAD_BYTES = 4096
"""Headers come before the slices of their picture; no header has nearly as many bytes."""

_HEADERS = {
    # Sequence parameter sets, up to the next start code.
    "h264": re.compile(rb"\x00\x00\x01([\x07\x27\x47\x67].+?)(?=\x00\x00[\x00\x01]|\Z)", re.S),
    "hevc": re.compile(rb"\x00\x00\x01(\x42\x01.+?)(?=\x00\x00[\x00\x01]|\Z)", re.S),
    # Size, aspect and rate.
    "mpeg2video": re.compile(rb"\x00\x00\x01\xb3(.{4})", re.S),
    # Behind a temporal delimiter, with the size in one byte.
    "av1": re.compile(rb"\A(?:\x12\x00)?\x0a([\x00-\x7f].+)", re.S),
}


def sequence_header(codec: str, packet: "Packet[Any] | bytes") -> bytes | None:
    """Returns the headers of coded sequences in a packet in the engine's form; None without any.

    `codec` is FFmpeg's name. Headers of VP9 are those of frames: their depth and size, where a
    frame has a size of its own.
    """
    data = memoryview(packet)
    if codec == "vp9":
        return (
            b"".join(sorted({_vp9_size(bytes(frame[:20])) for frame in _vp9_frames(data)})) or None
        )
    headers = _HEADERS[codec].findall(data[:HEAD_BYTES])
    if codec == "av1":
        headers = [header[: 1 + header[0]] for header in headers]
    return b"".join(dict.fromkeys(headers)) or None


def _vp9_frames(data: memoryview) -> Iterator[memoryview]:
    """The frames of a packet: all but the last of several are not shown (annex B of VP9)."""
    marker = data[-1]
    n_frames, n_bytes = (marker & 7) + 1, (marker >> 3 & 3) + 1
    index = data[-(2 + n_frames * n_bytes) :]
    if marker >> 5 != 0b110 or index[0] != marker:
        yield data
        return
    at = 0
    for number in range(n_frames):
        yield data[at:]
        at += int.from_bytes(index[1 + number * n_bytes :][:n_bytes], "little")


def _vp9_size(frame: bytes) -> bytes:
    """Depth and size in the uncompressed header of a frame (6.2 of VP9), or nothing."""
    bits = "".join(f"{byte:08b}" for byte in frame.ljust(20, b"\0"))
    profile, shows_other = bits[3] + bits[2], bits[4] == "1"
    is_inter, is_shown, is_resilient = (bit == "1" for bit in bits[5:8])
    depth, at = "", 8
    if shows_other:
        return b""
    if is_inter:
        is_intra_only = not is_shown and bits[at] == "1"
        at += (not is_shown) + 2 * (not is_resilient)
    if not is_inter or is_intra_only:
        at += 24
        if not is_inter or profile != "00":
            deep = profile[0] == "1"
            depth, at = bits[at : at + deep], at + deep + 4
        at += 8 * is_inter
    else:
        at += 8 + 12
        if "1" in bits[at : at + 3]:
            return b""  # The size of a frame that it refers to.
        at += 3
    return f"{profile}{depth}:{bits[at : at + 32]};".encode()

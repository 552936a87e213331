"""Finds headers in packets: NAL units of H.264, and sequence headers of the codecs of NVDEC.

Packets of H.264 consist of NAL units (ITU-T H.264, 7.4.1). In MP4 and Matroska, a length precedes
each unit, and the stream's extradata is an `avcC` record. In MPEG-TS (Annex B), a start code
precedes each unit, and extradata holds parameter sets in the same form.

A sequence header holds the coded size, the crop, the bit depth and the number of reference
pictures. If it changes within a stream, or in the next stream of the same decoder, NVDEC keeps
surfaces of the old size. PyNvVideoCodec then returns frames of the right shape, but with scaled
pixels.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

from av.packet import Packet

_IDR, _SLICES = 5, range(1, 6)
"""`nal_unit_type` of a slice of an IDR picture, and of any slice."""
_SETS = (7, 8, 13, 15)
"""`nal_unit_type` of sequence and picture parameter sets, and of extensions of the former."""
HEAD_BYTES = 4096
"""Bytes of a packet that are searched for headers. Headers are smaller, and precede slices."""

_HEADERS = {
    # Sequence parameter sets, up to the next start code.
    "h264": re.compile(rb"\x00\x00\x01([\x07\x27\x47\x67].+?)(?=\x00\x00[\x00\x01]|\Z)", re.S),
    "hevc": re.compile(rb"\x00\x00\x01(\x42\x01.+?)(?=\x00\x00[\x00\x01]|\Z)", re.S),
    # Size, aspect and rate.
    "mpeg2video": re.compile(rb"\x00\x00\x01\xb3(.{4})", re.S),
    # After an optional temporal delimiter; the size is one byte.
    "av1": re.compile(rb"\A(?:\x12\x00)?\x0a([\x00-\x7f].+)", re.S),
}


def nal_units(packet: bytes, extradata: bytes | None) -> list[bytes]:
    """Returns the NAL units of a packet in order; `extradata` is that of the packet's stream."""
    if _is_avcc(extradata):
        assert extradata is not None
        # A zero after a unit is left over from a start code of another container.
        units = (unit.rstrip(b"\0") for unit in _by_length(packet, 0, 1 + (extradata[4] & 3)))
        return [unit for unit in units if unit]
    return list(_by_start_code(packet))


def is_idr(packet: bytes, extradata: bytes | None) -> bool:
    """Returns whether an access unit holds an IDR picture and no slice of another picture."""
    kinds = (unit[0] & 31 for unit in nal_units(packet, extradata))
    slices = [kind for kind in kinds if kind in _SLICES]
    return bool(slices) and all(kind == _IDR for kind in slices)


def parameter_sets(packet: bytes, extradata: bytes | None) -> frozenset[bytes]:
    """Returns the parameter sets in a packet."""
    return frozenset(unit for unit in nal_units(packet, extradata) if unit[0] & 31 in _SETS)


def header_sets(extradata: bytes | None) -> frozenset[bytes]:
    """Returns the parameter sets in extradata."""
    if not _is_avcc(extradata):
        return parameter_sets(extradata or b"", None)
    assert extradata is not None
    at = 5
    sets: set[bytes] = set()
    for mask in (31, 255):
        n_sets = extradata[at] & mask if at < len(extradata) else 0
        units = list(_by_length(extradata, at + 1, 2, n_units=n_sets))
        at += 1 + sum(2 + len(unit) for unit in units)
        # FFmpeg keeps zeros after sets of Annex B when it writes an `avcC` record.
        sets.update(unit.rstrip(b"\0") for unit in units)
    return frozenset(sets)


def is_unambiguous(sets: Collection[bytes]) -> bool:
    """Returns whether all sets differ in kind; else a set could replace one of the same id."""
    return len({unit[0] & 31 for unit in sets}) == len(sets)


def _is_avcc(extradata: bytes | None) -> bool:
    return extradata is not None and len(extradata) > 4 and extradata[0] == 1


def _by_length(
    data: bytes, position: int, n_length_bytes: int, n_units: int | None = None
) -> Iterator[bytes]:
    while position + n_length_bytes < len(data) and n_units != 0:
        length = int.from_bytes(data[position : position + n_length_bytes], "big")
        position += n_length_bytes
        if length:
            yield data[position : position + length]
        position += length
        n_units = n_units - 1 if n_units is not None else None


def _by_start_code(data: bytes) -> Iterator[bytes]:
    begin = data.find(b"\0\0\1")
    while begin >= 0:
        end = data.find(b"\0\0\1", begin + 3)
        # Further zeros may precede a start code, and no unit ends with a zero.
        unit = data[begin + 3 : end if end >= 0 else None].rstrip(b"\0")
        if unit:
            yield unit
        begin = end


def sequence_header(codec: str, packet: "Packet[Any] | bytes") -> bytes | None:
    """Returns the sequence headers in a packet in the engine's form; None if there are none.

    `codec` is FFmpeg's name. VP9 has no sequence headers, so the result holds the depths and
    sizes in the headers of its frames.
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
    """Yields the frames of a packet; of several, only the last is shown (annex B of VP9)."""
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
    """Returns depth and size in a frame's uncompressed header (6.2 of VP9); empty without them."""
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
            return b""  # The frame has the size of a reference frame.
        at += 3
    return f"{profile}{depth}:{bits[at : at + 32]};".encode()

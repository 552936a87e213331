"""Finds headers in packets: NAL units of H.264, and sequence headers of the codecs of NVDEC.

Packets of H.264 consist of NAL units (ITU-T H.264, 7.4.1). In MP4 and Matroska, a length precedes
each unit, and the stream's extradata is an `avcC` record. In MPEG-TS (Annex B), a start code
precedes each unit, and extradata holds parameter sets in the same form.

A sequence header holds the coded size, the crop, the bit depth and the number of reference
pictures. If it changes within a stream, or in the next stream of the same decoder, NVDEC keeps
surfaces of the old size. PyNvVideoCodec then returns frames of the right shape, but with scaled
pixels.
"""

import functools
import operator
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

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


def unused_id(sets: Collection[bytes]) -> int | None:
    """Returns the smallest number above 0 that no sequence or picture parameter set has."""
    used = {_Bits(unit[4 if unit[0] & 31 == _SETS[0] else 1 :]).variable() for unit in sets}
    return next((number for number in range(1, 32) if number not in used), None)


def most_references(sets: Iterable[bytes]) -> int:
    """Returns the largest `max_num_ref_frames` of the sequence parameter sets."""
    found = (_numbering(unit).n_references for unit in sets if unit[0] & 31 == _SETS[0])
    return min(16, max(found, default=0))


def joined_header(*headers: bytes) -> bytes:
    """Returns one `avcC` record with the parameter sets of several, for units with 4-byte lengths.

    Profile and level are the highest (ISO/IEC 14496-15, 5.3.3.1).
    """
    sets = [unit for header in headers for unit in sorted(header_sets(header))]
    by_kind = [[unit for unit in sets if unit[0] & 31 == kind] for kind in _SETS[:2]]
    profile, level = (max(header[at] for header in headers) for at in (1, 3))
    compatible = functools.reduce(operator.and_, (header[2] for header in headers))
    record = bytes((1, profile, compatible, level, 0xFF))
    for mask, units in zip((0xE0, 0), by_kind, strict=True):
        record += bytes((mask | len(units),))
        record += b"".join(len(unit).to_bytes(2, "big") + unit for unit in units)
    # 4:2:0 of 8 bits, and no extensions of sequence parameter sets.
    return record + (bytes((0xFD, 0xF8, 0xF8, 0)) if profile in _PROFILES_WITH_CHROMA else b"")


def with_lengths(units: Iterable[bytes]) -> bytes:
    """Returns NAL units as a packet of MP4, each after its length in 4 bytes."""
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)


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


class _Numbering(NamedTuple):
    """How a sequence parameter set of H.264 numbers reference frames."""

    n_bits: int
    n_references: int
    may_skip: bool
    has_planes: bool  # whether slices name a colour plane


class FrameNumbers:
    """Finds gaps in the numbers of H.264's reference frames (ITU-T H.264, 7.4.3).

    A gap means that frames were lost. FFmpeg then shows pictures that refer to others than meant.

    Args:
        extradata: Extradata of the stream.
    """

    def __init__(self, extradata: bytes | None) -> None:
        self._extradata = extradata
        units = header_sets(extradata)
        self._numberings = {_numbering(unit) for unit in units if unit[0] & 31 == _SETS[0]}
        self._reference: int | None = None
        """Number of the latest reference frame; None if it is unknown."""

    def skips(self, packet: "Packet[Any]") -> bool:
        """Returns whether frames are missing before this packet, the next in decoding order."""
        before, self._reference = self._reference, None
        for unit in self._units(bytes(memoryview(packet)[:HEAD_BYTES])):
            kind = unit[0] & 31
            if kind == _SETS[0]:
                self._numberings.add(_numbering(unit))
            if kind not in _SLICES:
                continue
            numbering = next(iter(self._numberings), None)
            if numbering is None or len(self._numberings) > 1:
                return False
            number = _frame_number(unit[1:16], numbering)
            self._reference = number if unit[0] & 0x60 else before
            if kind == _IDR or before is None or numbering.may_skip:
                return False
            return number not in (before, (before + 1) % (1 << numbering.n_bits))
        return False

    def _units(self, head: bytes) -> Iterator[bytes]:
        if _is_avcc(self._extradata):
            assert self._extradata is not None
            return _by_length(head, 0, 1 + (self._extradata[4] & 3))
        return _by_start_code(head)


class _Bits:
    """Reads the bits of a unit without its first byte (ITU-T H.264, 7.2 and 9.1)."""

    def __init__(self, data: bytes) -> None:
        data = data.replace(b"\0\0\3", b"\0\0") + bytes(8)
        self._bits, self._at = f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}", 0

    def fixed(self, n_bits: int) -> int:
        """Reads `u(n)`."""
        self._at += n_bits
        return int(self._bits[self._at - n_bits : self._at] or "0", 2)

    def variable(self) -> int:
        """Reads `ue(v)`, which has as many bits as `se(v)`."""
        n_zeros = self._bits.find("1", self._at) - self._at
        self._at += max(0, n_zeros)
        return self.fixed(n_zeros + 1) - 1 if n_zeros >= 0 else 0


_PROFILES_WITH_CHROMA = frozenset({44, 83, 86, 100, 110, 118, 122, 128, 134, 138, 139, 244})


def _numbering(unit: bytes) -> _Numbering:
    bits, has_planes = _Bits(unit[4:]), False
    bits.variable()
    if unit[1:2] and unit[1] in _PROFILES_WITH_CHROMA:
        chroma = bits.variable()
        has_planes = chroma == 3 and bool(bits.fixed(1))
        bits.variable()
        bits.variable()
        bits.fixed(1)
        if bits.fixed(1):
            for number in range(12 if chroma == 3 else 8):
                if bits.fixed(1):
                    _skip_scaling_list(bits, 16 if number < 6 else 64)
    n_bits = 4 + bits.variable()
    order = bits.variable()
    if order == 0:
        bits.variable()
    elif order == 1:
        bits.fixed(1)
        bits.variable()
        bits.variable()
        for _ in range(min(255, bits.variable())):
            bits.variable()
    return _Numbering(
        n_bits=min(n_bits, 16),
        n_references=bits.variable(),
        may_skip=bool(bits.fixed(1)),
        has_planes=has_planes,
    )


def _skip_scaling_list(bits: _Bits, n: int) -> None:
    last = 8
    for _ in range(n):
        coded = bits.variable()
        change = (coded + 1) // 2 if coded % 2 else -(coded // 2)
        last = (last + change) % 256
        if last == 0:
            return


def _frame_number(header: bytes, numbering: _Numbering) -> int:
    """Returns `frame_num` of a slice header (ITU-T H.264, 7.3.3)."""
    bits = _Bits(header)
    for _ in range(3):
        bits.variable()
    if numbering.has_planes:
        bits.fixed(2)
    return bits.fixed(numbering.n_bits)


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


def has_several_headers(packet: "Packet[Any]") -> bool:
    """Returns whether a packet of H.264 in Annex B has sequence parameter sets that differ."""
    return len(set(_HEADERS["h264"].findall(memoryview(packet)[:HEAD_BYTES]))) > 1


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

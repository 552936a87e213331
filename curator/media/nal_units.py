"""Finds the NAL units of H.264 packets: those of pictures, and parameter sets (ITU-T H.264, 7.4.1).

A packet has them behind their lengths (MP4, Matroska) or behind start codes (Annex B, MPEG-TS).
The stream's extradata is an `avcC` record in the first form, and parameter sets in Annex B in the
second.
"""

from collections.abc import Collection, Iterator

_IDR, _SLICES = 5, range(1, 6)
"""`nal_unit_type` of a slice of an IDR picture, and of any slice."""
_SETS = (7, 8, 13, 15)
"""Of sequence and picture parameter sets, and of extensions of sequence parameter sets."""


def nal_units(packet: bytes, extradata: bytes | None) -> list[bytes]:
    """Returns the NAL units of a packet of a stream that has `extradata`, in order."""
    if _is_avcc(extradata):
        assert extradata is not None
        # A zero behind a unit belongs to a start code that another container had.
        units = (unit.rstrip(b"\0") for unit in _by_length(packet, 0, 1 + (extradata[4] & 3)))
        return [unit for unit in units if unit]
    return list(_by_start_code(packet))


def is_idr(packet: bytes, extradata: bytes | None) -> bool:
    """Whether an access unit holds an IDR picture and no slice of any other."""
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
        # FFmpeg keeps zeros behind the sets of Annex B when it writes an `avcC` record.
        sets.update(unit.rstrip(b"\0") for unit in units)
    return frozenset(sets)


def is_unambiguous(sets: Collection[bytes]) -> bool:
    """Whether no two sets are of one kind: only then none can replace another of its number."""
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
        # A start code may have further zeros before it, and no unit ends with one.
        unit = data[begin + 3 : end if end >= 0 else None].rstrip(b"\0")
        if unit:
            yield unit
        begin = end

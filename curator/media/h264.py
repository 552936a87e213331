"""Finds in H.264 packets where decoding can really begin, which containers say wrongly.

Containers mark more key frames than are safe to begin at: open groups of pictures, streams that
are refreshed piece by piece, MPEG-TS without marks. An IDR picture (ITU-T H.264, 7.4.1.2.4) empties
the decoder: nothing after it refers to anything before it.
"""

from collections.abc import Iterator

_IDR, _SLICES = 5, range(1, 6)
"""`nal_unit_type` of a slice of an IDR picture, and of any slice."""


def is_idr(packet: bytes, extradata: bytes | None) -> bool:
    """Whether an access unit holds an IDR picture and no slice of any other.

    `extradata` is the stream's `avcC` record, or its parameter sets in Annex B form.
    """
    if extradata is not None and len(extradata) > 4 and extradata[0] == 1:
        kinds = list(_kinds_by_length(packet, 1 + (extradata[4] & 3)))
    else:
        kinds = list(_kinds_by_start_code(packet))
    slices = [kind for kind in kinds if kind in _SLICES]
    return bool(slices) and all(kind == _IDR for kind in slices)


def _kinds_by_length(packet: bytes, n_length_bytes: int) -> Iterator[int]:
    position = 0
    while position + n_length_bytes < len(packet):
        length = int.from_bytes(packet[position : position + n_length_bytes], "big")
        position += n_length_bytes
        yield packet[position] & 31
        position += length


def _kinds_by_start_code(packet: bytes) -> Iterator[int]:
    position = packet.find(b"\0\0\1")
    while 0 <= position < len(packet) - 3:
        yield packet[position + 3] & 31
        position = packet.find(b"\0\0\1", position + 3)

"""Parameter sets of H.264 in both forms."""

from curator.media.nal_units import header_sets, is_unambiguous, nal_units, parameter_sets

SPS, PPS = b"\x67\x42\x00\x1e\x8c", b"\x68\xce\x3c\x80"
OTHER_PPS = b"\x68\xce\x38\x80"
SLICE = b"\x65\x88\x84"


def record(*pps: bytes) -> bytes:
    """An `avcC` record of one SPS and some PPS."""
    sized = b"".join(len(one).to_bytes(2, "big") + one for one in pps)
    return b"\x01\x42\x00\x1e\xff\xe1\x00\x05" + SPS + bytes([len(pps)]) + sized


def test_a_zero_of_a_start_code_belongs_to_no_unit() -> None:
    annex_b = b"\0\0\0\1" + SPS + b"\0\0\0\1" + PPS + b"\0\0\0\1" + SLICE
    by_length = b"".join(len(u).to_bytes(4, "big") + u for u in (SPS, PPS + b"\0", SLICE))
    assert header_sets(record(PPS + b"\0")) == header_sets(annex_b[:-7]) == {SPS, PPS}
    assert nal_units(by_length, record(PPS)) == nal_units(annex_b, None) == [SPS, PPS, SLICE]
    assert parameter_sets(by_length, record(PPS)) == {SPS, PPS}


def test_two_sets_of_a_kind_may_replace_each_other() -> None:
    assert is_unambiguous(header_sets(record(PPS)))
    assert header_sets(record(PPS, OTHER_PPS)) == {SPS, PPS, OTHER_PPS}
    assert not is_unambiguous(header_sets(record(PPS, OTHER_PPS)))

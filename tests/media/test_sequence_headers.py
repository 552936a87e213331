"""Headers in packets of each codec, which differ where an engine's surfaces would; NAL units."""

from collections.abc import Iterator
from pathlib import Path

import av
import pytest
from film_makers import write_video
from film_shots import moving_texture

from curator.media.nvdec import bitstream_filter
from curator.media.stream_headers import (
    header_sets,
    is_unambiguous,
    nal_units,
    parameter_sets,
    sequence_header,
)

OPTIONS = {
    "libvpx-vp9": {"deadline": "good", "cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "16"},
    "libsvtav1": {"preset": "12"},
}


def headers(path: Path) -> Iterator[tuple[bool, bytes | None]]:
    """Of each packet in the engine's form: whether it is a key frame's, and its header."""
    with av.open(str(path)) as opened:
        stream = opened.streams.video[0]
        filtered = bitstream_filter(stream)
        for packet in opened.demux(stream):
            if packet.size:
                is_key = packet.is_keyframe  # The filter takes the packet.
                for part in filtered.filter(packet) if filtered is not None else [packet]:
                    codec = stream.codec_context.codec.canonical_name
                    yield is_key, sequence_header(codec, part)


def film(folder: Path, name: str, codec: str, *, n: int = 40, **how: object) -> Path:
    path = folder / name
    width, height = how.pop("size", (320, 192))  # type: ignore[misc]
    shown = moving_texture(n, width_px=width, height_px=height)
    write_video(path, shown, codec=codec, gop=16, options=OPTIONS.get(codec), **how)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [
        ("libx264", "mp4"), ("libx264", "ts"), ("libx265", "mp4"), ("libx265", "ts"),
        ("libvpx-vp9", "webm"), ("libsvtav1", "mp4"), ("libsvtav1", "mkv"), ("mpeg2video", "ts"),
    ],
)  # fmt: skip
def test_each_key_frame_has_the_streams_one_header(codec: str, suffix: str, tmp_path: Path) -> None:
    """Pins too that nothing else in a stream looks like a header, such as hidden frames of VP9."""
    found = list(headers(film(tmp_path, f"film.{suffix}", codec)))
    assert found[0][0]
    assert found[0][1] is not None
    assert {header for is_key, header in found if is_key} == {found[0][1]}
    assert {header for is_key, header in found if not is_key} <= {None, found[0][1]}
    other = film(tmp_path, f"other.{suffix}", codec, size=(320, 208))
    assert next(headers(other))[1] != found[0][1]


def test_reference_pictures_and_depth_are_in_the_header(tmp_path: Path) -> None:
    """Pins what a key of displayed size leaves out."""
    options = [{"x264-params": f"ref={ref}:bframes=0"} for ref in (1, 6)]
    found = set()
    for number, each in enumerate(options):
        path = tmp_path / f"{number}.mp4"
        write_video(path, moving_texture(12, width_px=320, height_px=192), options=each)
        found.add(next(headers(path))[1])
    path = tmp_path / "deep.mp4"
    write_video(path, moving_texture(12, width_px=320, height_px=192), pix_fmt="yuv420p10le")
    assert len(found | {next(headers(path))[1]}) == 3


def vp9_frame(*fields: tuple[int, int]) -> bytes:
    """A header of values and their widths in bits."""
    bits = "".join(f"{value:0{width}b}" for value, width in fields)
    return int(bits.ljust(160, "0"), 2).to_bytes(20, "big")


INTER = [(2, 2), (0, 2), (0, 1), (1, 1), (1, 1), (0, 1), (0, 2), (0, 8), (0, 12)]
SIZE = [(319, 16), (191, 16)]
KEY = [(2, 2), (0, 2), (0, 1), (0, 1), (1, 1), (0, 1), (0x498342, 24), (1, 4), *SIZE]


def test_a_size_between_key_frames_of_vp9_is_seen() -> None:
    """Pins calls with many people, whose pictures become smaller without a key frame."""
    key = sequence_header("vp9", vp9_frame(*KEY))
    assert key is not None
    assert sequence_header("vp9", vp9_frame(*INTER, (0, 3), *SIZE)) == key
    assert sequence_header("vp9", vp9_frame(*INTER, (0, 3), (159, 16), (95, 16))) not in (None, key)
    assert sequence_header("vp9", vp9_frame(*INTER, (2, 3), (159, 16), (95, 16))) is None
    hidden = vp9_frame(*INTER, (4, 3))
    small = vp9_frame(*INTER, (0, 3), (159, 16), (95, 16))
    index = bytes([0b11000001, len(hidden), len(small), 0b11000001])
    assert sequence_header("vp9", hidden + small + index) not in (None, key)


SPS, PPS = b"\x67\x42\x00\x1e\x8c", b"\x68\xce\x3c\x80"
OTHER_PPS = b"\x68\xce\x38\x80"
SLICE = b"\x65\x88\x84"


def record(*pps: bytes) -> bytes:
    """An `avcC` record of one SPS and some PPS."""
    sized = b"".join(len(one).to_bytes(2, "big") + one for one in pps)
    return b"\x01\x42\x00\x1e\xff\xe1\x00\x05" + SPS + bytes([len(pps)]) + sized


def test_zeros_of_start_codes_and_sets_that_replace_each_other() -> None:
    annex_b = b"\0\0\0\1" + SPS + b"\0\0\0\1" + PPS + b"\0\0\0\1" + SLICE
    by_length = b"".join(len(u).to_bytes(4, "big") + u for u in (SPS, PPS + b"\0", SLICE))
    assert header_sets(record(PPS + b"\0")) == header_sets(annex_b[:-7]) == {SPS, PPS}
    assert nal_units(by_length, record(PPS)) == nal_units(annex_b, None) == [SPS, PPS, SLICE]
    assert parameter_sets(by_length, record(PPS)) == {SPS, PPS}
    # Two sets of a kind may replace each other.
    assert is_unambiguous(header_sets(record(PPS)))
    assert header_sets(record(PPS, OTHER_PPS)) == {SPS, PPS, OTHER_PPS}
    assert not is_unambiguous(header_sets(record(PPS, OTHER_PPS)))

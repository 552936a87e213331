"""Colours that only the container declares, and colours that nothing declares."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.packet import Packet
from made_cuts import cutter_of, pictures, request_of
from samples import analyzed

from curator.media.clip_frames import FrameSampler, Wanted
from curator.media.encode import Upright
from curator.media.scale import matrix_of, rgb_of
from curator.records.cuts import Crop
from curator.stages.cut.config import CutConfig
from curator.stages.scan.probe import header_facts

BT601, BT709, BT2020, PQ, HLG = 5, 1, 9, 16, 18
COLOUR = (200, 60, 30)
"""Saturated, so that a wrong matrix shows."""


def declared(
    path: Path, codec: str, pixels: str, colours: tuple[int, int, int], *, coded: int = BT709
) -> Path:
    """A film of one colour: only the container names primaries, transfer and matrix."""
    options = {"x265-params": "log-level=0"} if codec == "libx265" else {}
    shown = np.full((64, 96, 3), COLOUR, np.uint8)
    with av.open(str(path), "w") as made:
        stream = made.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, pixels
        context = stream.codec_context
        context.options, context.thread_count = options, 1
        packets: list[Packet[Any]] = []
        for number in range(8):
            rgb = av.VideoFrame.from_ndarray(shown, format="rgb24")
            frame = rgb.reformat(format=pixels, dst_colorspace=coded)
            frame.colorspace = frame.color_primaries = frame.color_trc = 2
            frame.pts, frame.time_base = number, Fraction(1, 25)
            packets += stream.encode(frame)
        packets += stream.encode(None)
        # After the encoder, and before the header of the container.
        context.color_primaries, context.color_trc, context.colorspace = colours
        made.mux(packets)
    return path


FORMS = [
    ("libx265", "yuv420p10le", ".mp4"), ("libx265", "yuv420p", ".mkv"),
    ("prores_ks", "yuv422p10le", ".mov"), ("libx264", "yuv420p", ".mp4"),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "pixels", "suffix"), FORMS)
def test_hdr_that_the_container_declares_is_hdr(
    codec: str, pixels: str, suffix: str, tmp_path: Path
) -> None:
    for transfer in (PQ, HLG):
        path = declared(tmp_path / f"a{suffix}", codec, pixels, (BT2020, transfer, BT2020))
        with path.open("rb") as file:
            assert header_facts(file, "a", path.stat().st_size)["is_hdr"]
        assert analyzed(path).is_hdr
    path = declared(tmp_path / f"a{suffix}", codec, pixels, (BT709, BT709, BT709))
    assert not analyzed(path).is_hdr


@pytest.mark.parametrize(("codec", "pixels", "suffix"), FORMS)
@pytest.mark.parametrize("matrix", [BT709, BT601])
def test_the_matrix_that_the_container_declares_counts_in_each_clip(
    codec: str, pixels: str, suffix: str, matrix: int, tmp_path: Path
) -> None:
    """Pins two clips of one cutter: the first decode replaces the declared colours."""
    path = declared(tmp_path / f"a{suffix}", codec, pixels, (BT709, BT709, matrix), coded=matrix)
    track = analyzed(path)
    config = CutConfig(mode="encode", crf=4, max_size_factor=None)
    with cutter_of(path, config) as cutter:
        for _ in range(2):
            clip = cutter.cut(request_of(track, 1, 7))
            shown = pictures(clip.mp4)[0].reshape(-1, 3).mean(axis=0)
            assert np.abs(shown - COLOUR).max() < 4


def untagged(width: int, height: int, coded: int) -> av.VideoFrame:
    shown = np.full((height, width, 3), COLOUR, np.uint8)
    rgb = av.VideoFrame.from_ndarray(shown, format="rgb24")
    frame = rgb.reformat(format="yuv420p", dst_colorspace=coded)
    frame.colorspace = frame.color_primaries = frame.color_trc = 2
    frame.pts, frame.time_base = 0, Fraction(1, 25)
    return frame


@pytest.mark.parametrize(("width", "height", "matrix"), [
    (1280, 720, BT709), (1280, 512, BT709), (720, 1280, BT709), (1440, 1080, BT709),
    (1024, 578, BT709), (1024, 576, BT601), (720, 576, BT601), (1278, 576, BT601),
])  # fmt: skip
def test_untagged_colours_follow_the_size_of_the_source(
    width: int, height: int, matrix: int
) -> None:
    """Pins writer, sampler, loader and exports, also with borders cut away and another size."""
    crops = [None, Crop(x=0, y=height // 4 & ~1, width=width, height=height // 2 & ~1)]
    for crop in crops:
        size = (width, height) if crop is None else (crop.width, crop.height)
        for cover in (None, (96, 64)):
            upright = Upright(*size, rotation_deg=0, crop=crop, deinterlace=False, cover=cover)
            (shown, *_) = [*upright.push(untagged(width, height, matrix)), *upright.flush()]
            rgb = shown.reformat(format="rgb24", src_colorspace=BT709).to_ndarray()
            assert np.abs(rgb.reshape(-1, 3).mean(axis=0) - COLOUR).max() < 5
    frame = untagged(width, height, matrix)
    assert matrix_of(frame) == matrix
    assert np.abs(rgb_of(frame).reshape(-1, 3).mean(axis=0) - COLOUR).max() < 5
    sampler = FrameSampler([Wanted(numbers=(0,), size=(64, 64))])
    sampler.see(frame)
    sampled = sampler.sampled().pixels[0].reshape(-1, 3).mean(axis=0)
    assert np.abs(sampled - COLOUR).max() < 6

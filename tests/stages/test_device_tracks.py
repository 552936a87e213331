"""A source that a GPU decodes gives the track that the CPU gives, but for the last digits.

The engine is FFmpeg behind PyNvVideoCodec's calls, and the device torch's CPU: scaling, views and
measurements are those of the GPU path.
"""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from fake_nvdec import fake_module
from samples import analyzed

from curator.footage import write
from curator.footage.write import MAKERS
from curator.media.nvdec import Nvdec
from curator.records import Note, Track
from curator.stages.analyze_config import AnalyzeConfig

CONFIG = AnalyzeConfig(text=False)
EXACT = (
    "end_pts", "width", "height", "rotation_deg", "pixel_aspect", "is_interlaced", "is_hdr",
    "notes", "n_decode_errors", "frame_pts", "frame_bytes", "frame_flags", "sample_frame",
    "sample_pair_frame", "look_frame", "thumbnail_frame", "sha256", "time_base",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("device_tracks")

    def make(name: str) -> Path:
        path = folder / name
        if not path.exists():
            (MAKERS.get(name) or getattr(write, path.stem))(path)
        return path

    return make


def both(path: Path) -> tuple[Track, Track]:
    nvdec = Nvdec(module=fake_module(), device="cpu")
    return analyzed(path, config=CONFIG), analyzed(path, config=CONFIG, nvdec=nvdec)


@pytest.mark.parametrize(
    "name", ["b_frames.mp4", "variable_rate.mp4", "rotated.mp4", "ten_bit.mp4", "open_gop.ts"]
)
def test_a_track_is_the_same_on_both_paths(name: str, made: Callable[[str], Path]) -> None:
    host, device = both(made(name))
    for field in EXACT:
        assert np.array_equal(getattr(host, field), getattr(device, field)), field
    assert {f.name for f in fields(Track)} >= set(EXACT)
    assert host.luma_mean == pytest.approx(device.luma_mean, abs=0.008)
    assert host.luma_spread == pytest.approx(device.luma_spread, abs=0.008)
    # Full-size luma is the decoder's own, so that what is measured on it is equal.
    for signal in ("noise", "blocking", "banding", "combing", "resolution", "flattening",
                   "border_left", "border_top"):  # fmt: skip
        assert np.array_equal(host.signals[signal], device.signals[signal], equal_nan=True), signal
    for signal, most in (("motion", 0.02), ("sharpness", 0.05), ("dark_fraction", 0.01)):
        assert host.signals[signal] == pytest.approx(device.signals[signal], abs=most), signal
    assert np.isnan(device.signals["quantizer"]).all()
    likeness = (host.descriptor * device.descriptor).sum(axis=1)
    likeness /= np.linalg.norm(host.descriptor, axis=1) * np.linalg.norm(device.descriptor, axis=1)
    assert likeness.min() > 0.98


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("interlaced.mp4", Note.NOT_ON_GPU_INTERLACED),
        ("constant_rate.avi", Note.NOT_ON_GPU_CODEC),
        ("truncated.mp4", Note.NOT_ON_GPU_DAMAGED),
    ],
)
def test_what_the_engine_refuses_is_the_cpus_track_with_a_note(
    name: str, note: Note, made: Callable[[str], Path]
) -> None:
    host, device = both(made(name))
    assert device.notes == (*host.notes, note)
    for field in ("frame_pts", "luma_mean", "descriptor", "sha256"):
        assert np.array_equal(getattr(host, field), getattr(device, field)), field

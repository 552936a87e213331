"""Tracks for tests: of real files without the shot network, and synthetic ones without a file."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from still_network import StillNetwork as StillNetwork

from curator.measures.drawn_boxes import ALL_VALUES
from curator.measures.drawn_marks import EDGE_BYTES
from curator.measures.look_maps import LINE_BYTES, MOVED_BYTES
from curator.measures.measure_contract import Measure
from curator.measures.noise import FULL_FRAME_NOISE, NATIVE_NOISE
from curator.measures.overlay_text import TEXT_COLUMNS
from curator.measures.sample_signals import SIGNALS
from curator.media.nvdec import Nvdec
from curator.models.text_detector import TextDetector
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import AnalysisModels


def analyzed(
    path: Path,
    *,
    threads: int = 1,
    config: AnalyzeConfig | None = None,
    detector: TextDetector | None = None,
    nvdec: Nvdec | None = None,
    measures: Mapping[str, Measure] | None = None,
) -> Track:
    """The track of a file, by the stage itself; without text unless there is a detector."""
    with path.open("rb") as reader:
        return analyze_source(
            reader,
            str(path),
            source_id=path.name,
            n_bytes=path.stat().st_size,
            analysis_models=AnalysisModels(
                network=StillNetwork(),  # type: ignore[arg-type]
                detector=detector,
                nvdec=nvdec,
                measures=measures or {},
            ),
            config=config or AnalyzeConfig(),
            decoder_threads=threads,
        )


FEW_SAMPLES = AnalyzeConfig(samples_per_s=0.5)
"""Where frames, borders and audio matter, and signals do not."""


def framed(path: Path) -> Track:
    """The track of a file, with few samples."""
    return analyzed(path, config=FEW_SAMPLES)


SIGNAL_VALUES = {
    "motion": 0.1, "camera_motion": 0.09, "pan_rate": 0.08, "tilt_rate": -0.04, "zoom_rate": 0.01,
    "roll_rate": 0.5, "object_motion": 0.03, "camera_share": 0.9, "sharpness": 0.4,
    "dark_fraction": 0.02, "bright_fraction": 0.01, "change": 20.0, "resolution": 0.9,
}  # fmt: skip


def made_signals(n_samples: int, **changes: object) -> dict[str, NDArray[np.float32]]:
    """All signals, constant but for what is changed to a value or to an array of them."""
    names = (*SIGNALS, NATIVE_NOISE, FULL_FRAME_NOISE)
    values = dict.fromkeys(names, 0.0) | SIGNAL_VALUES | changes
    return {
        name: np.broadcast_to(np.float32(value), n_samples).astype(np.float32)  # type: ignore[arg-type]
        for name, value in values.items()
    }


def made_track(n_frames: int = 300, **changes: object) -> Track:
    """A track of 30 frames/s in 1/15360 s with two samples a second, and what is changed."""
    pts = np.arange(n_frames, dtype=np.int64) * 512
    samples = np.arange(0, max(1, n_frames - 3), 15, dtype=np.int32)
    values: dict[str, object] = {
        "source_id": "5" * 32, "sha256": "a" * 64, "time_base": Fraction(1, 15360),
        "end_pts": n_frames * 512, "width": 1280, "height": 720, "rotation_deg": 0,
        "pixel_aspect": Fraction(1), "is_interlaced": False, "is_hdr": False, "notes": (),
        "n_decode_errors": 0, "frame_pts": pts, "frame_bytes": np.full(n_frames, 4000, np.int32),
        "frame_flags": np.zeros(n_frames, np.uint8),
        "shot_probability": np.zeros(n_frames, np.float32),
        "transition_probability": np.zeros(n_frames, np.float32),
        "luma_mean": np.full(n_frames, 0.5, np.float32),
        "luma_spread": np.full(n_frames, 0.2, np.float32),
        "boundary_probability": np.zeros(n_frames, np.float32),
        "inside_probability": np.zeros(n_frames, np.float32), "sample_frame": samples,
        "sample_pair_frame": samples + 3, "signals": made_signals(len(samples)),
        "descriptor": np.eye(1, 8, dtype=np.float32).repeat(len(samples), 0),
        "look_frame": samples[::2],
        "look_next_frame": np.append(samples[1::2], np.int32(-1))[: len(samples[::2])],
        "look_edges": np.zeros((len(samples[::2]), EDGE_BYTES), np.uint8),
        "look_boxes": np.zeros((len(samples[::2]), ALL_VALUES), np.uint16),
        "look_standing": np.zeros((len(samples[::2]), LINE_BYTES), np.uint8),
        "look_moved": np.zeros((len(samples[::2]), MOVED_BYTES), np.uint8), "has_text": False,
        "text_frame": np.zeros(0, np.int32),
        "text_line": np.zeros((0, len(TEXT_COLUMNS)), np.float32), "thumbnails": (b"jpeg",),
        "thumbnail_frame": np.zeros(1, np.int32),
    }  # fmt: skip
    return Track(**(values | changes))  # type: ignore[arg-type]

"""Films in segments: their plans, the tracks of each segment, and a stand-in for a CLIP model."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from samples import StillNetwork

from curator.media import source_segments
from curator.media.source_segments import Segment, plan_segments
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.measurer import AnalysisModels
from curator.stages.analyze.segment_join import OVERLAP, analyze_segment

STILL = AnalysisModels(network=StillNetwork())  # type: ignore[arg-type]


def short_segments(least_frames: int) -> Iterator[None]:
    """Lets short films have segments, for a fixture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_segments, "LEAST_FRAMES", least_frames)
        yield


def planned(
    path: Path, *, limit_s: float = 10, max_pixels: int = 10**6, max_frames: int | None = None
) -> list[Segment]:
    with path.open("rb") as reader:
        return plan_segments(
            reader, str(path), n_bytes=path.stat().st_size, limit_s=limit_s,
            shared_frames=OVERLAP, max_pixels=max_pixels, max_frames=max_frames,
        )  # fmt: skip


def segment_tracks(
    path: Path,
    *,
    limit_s: float = 10,
    models: AnalysisModels = STILL,
    config: AnalyzeConfig | None = None,
) -> list[Track]:
    """The tracks of all segments."""
    tracks = []
    for segment in planned(path, limit_s=limit_s):
        with path.open("rb") as reader:
            track = analyze_segment(
                reader, path.name, segment, source_id=path.name, n_bytes=path.stat().st_size,
                analysis_models=models, config=config or AnalyzeConfig(), decoder_threads=1,
            )  # fmt: skip
        tracks.append(track)
    assert len(tracks) >= 3
    return tracks


class FirstPixels:
    """Stands for a CLIP model: an embedding is made of a picture's corner."""

    cpu_s = own_s = 0.0
    n_halved = 0

    def stream(self, *, in_background: bool) -> "FirstPixels":
        looks = FirstPixels()
        looks.frames, looks.rows = [], []
        return looks

    def push(self, index: int, rgb_HWC: NDArray[np.uint8]) -> None:  # noqa: N803 - shape letters
        self.frames.append(index)
        self.rows.append(rgb_HWC[0, :2].ravel() / 255)

    def finish(self) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
        rows = np.array(self.rows, np.float16).reshape(-1, 6)
        return np.array(self.frames, np.int32), rows

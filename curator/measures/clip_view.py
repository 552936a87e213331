"""The part of a track that is one clip, and how its samples become one number."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from curator.media.decode import upright_size
from curator.models.embedding_heads import Heads
from curator.records.clips import Span
from curator.records.tracks import Track

Aggregate = Literal[
    "mean", "median", "min", "max", "p5", "p10", "p25", "p75", "p90", "p95", "spread"
]

AGGREGATES: Mapping[Aggregate, Callable[[NDArray[np.float64]], float]] = {
    "mean": lambda values: float(np.mean(values)),
    "median": lambda values: float(np.median(values)),
    "min": lambda values: float(np.min(values)),
    "max": lambda values: float(np.max(values)),
    "p5": lambda values: float(np.quantile(values, 0.05)),
    "p10": lambda values: float(np.quantile(values, 0.10)),
    "p25": lambda values: float(np.quantile(values, 0.25)),
    "p75": lambda values: float(np.quantile(values, 0.75)),
    "p90": lambda values: float(np.quantile(values, 0.90)),
    "p95": lambda values: float(np.quantile(values, 0.95)),
    "spread": lambda values: float(np.std(values)),
}
"""How the samples of a clip become one score; `spread` is their standard deviation."""

How = Aggregate | float
"""How measured values become a score: an aggregate, or a bound for the share below it."""


@dataclass(frozen=True)
class ClipView:
    """The part of a track that is one clip."""

    track: Track
    span: Span
    heads: Heads | None = None
    """Reads the track's CLIP embeddings; None for nothing."""

    @cached_property
    def frames(self) -> slice:
        """The clip's frames."""
        return slice(self.span.start_frame, self.span.end_frame)

    @cached_property
    def samples(self) -> NDArray[np.bool_]:
        """Samples within the clip with both of their frames, bool [S]."""
        return samples_of(self.track, self.span)

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height, upright with square pixels."""
        return upright_size(self.track.width, self.track.height, 0, self.track.pixel_aspect)

    @cached_property
    def seconds(self) -> float:
        """Length of the clip."""
        return duration_s(self.track, self.span.start_frame, self.span.end_frame)

    @cached_property
    def embeddings_ND(self) -> NDArray[np.float16]:  # noqa: N802 - shape letters
        """CLIP embeddings of the clip, of unit length; [0, D] without a CLIP model."""
        return self.track.clip_embedding[self.holds(self.track.clip_frame)]

    def holds(self, frames: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which frames of the source are in the clip, by their index."""
        inside: NDArray[np.bool_] = (frames >= self.span.start_frame) & (
            frames < self.span.end_frame
        )
        return inside

    def signal(self, name: str) -> NDArray[np.float64]:
        """Values of a signal in the clip, without those that could not be measured."""
        values = self.track.signals[name][self.samples].astype(np.float64)
        measured: NDArray[np.float64] = values[np.isfinite(values)]
        return measured


def aggregate(values: NDArray[np.float64], how: How) -> float | None:
    """One number for the values of a clip; None where nothing was measured."""
    if not len(values):
        return None
    return AGGREGATES[how](values) if isinstance(how, str) else float(np.mean(values < how))


def samples_of(track: Track, span: Span) -> NDArray[np.bool_]:
    """Which samples lie within a span with both of their frames, bool [S]."""
    mask: NDArray[np.bool_] = (track.sample_frame >= span.start_frame) & (
        track.sample_pair_frame < span.end_frame
    )
    return mask


def duration_s(track: Track, start_frame: int, end_frame: int) -> float:
    """Presentation time of a span, in seconds."""
    ticks = track.pts_of_end(end_frame) - int(track.frame_pts[start_frame])
    return float(ticks * track.time_base)

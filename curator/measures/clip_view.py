"""The part of a track that is one clip, and the functions that aggregate its samples."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from curator.frame_size import upright_size
from curator.models.embedding_heads import Heads
from curator.records.clips import Span
from curator.records.tracks import Track

Aggregate = Literal[
    "mean", "median", "min", "max", "p5", "p10", "p25", "p75", "p90", "p95", "spread"
]

AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)
"""Functions that turn the samples of a clip into one score; `spread` is standard deviation."""
_MADE_BY: dict[str, Callable[[NDArray[np.float64]], np.floating]] = {
    "mean": np.mean, "median": np.median, "min": np.min, "max": np.max, "spread": np.std,
}  # fmt: skip

How = Aggregate | float  # a name of an aggregate; or a bound, for the share of values below it


@dataclass(frozen=True)
class ClipView:
    """The part of a track that is one clip; `heads` computes scores from its CLIP embeddings."""

    track: Track
    span: Span
    heads: Heads | None = None

    @cached_property
    def frames(self) -> slice:
        """The clip's frames, as a slice of the source's frames."""
        return slice(self.span.start_frame, self.span.end_frame)

    @cached_property
    def samples(self) -> NDArray[np.bool_]:
        """Whether both frames of each sample are in the clip, bool [S]."""
        pair_is_inside = self.track.sample_pair_frame < self.span.end_frame
        return (self.track.sample_frame >= self.span.start_frame) & pair_is_inside

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height in px, upright with square pixels."""
        own = self.track.size_at(self.span.start_frame)
        return upright_size(*own, 0, self.track.aspect_at(self.span.start_frame))

    @cached_property
    def seconds(self) -> float:
        """Length of the clip."""
        return duration_s(self.track, self.span.start_frame, self.span.end_frame)

    @cached_property
    def embeddings_ND(self) -> NDArray[np.float16]:  # noqa: N802 - shape letters
        """CLIP embeddings of the clip, of unit length; [0, D] without a CLIP model."""
        return self.track.clip_embedding[self.holds(self.track.clip_frame)]

    def holds(self, frames: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Returns whether each frame, given by its index in the source, is in the clip."""
        return (frames >= self.span.start_frame) & (frames < self.span.end_frame)

    def paired_looks(self, most: int) -> NDArray[np.intp]:
        """Returns numbers of overlay samples with both frames in the clip: up to `most`, spread."""
        follows = self.track.look_next_frame
        first = (self.track.look_frame >= self.span.start_frame) & (follows >= 0)
        looks = np.flatnonzero(first & (follows < self.span.end_frame))
        if len(looks) > most:
            looks = looks[np.linspace(0, len(looks) - 1, most).astype(int)]
        return looks

    def signal(self, name: str) -> NDArray[np.float64]:
        """Returns the values of a signal in the clip, without missing values."""
        values = self.track.signals[name][self.samples].astype(np.float64)
        return values[np.isfinite(values)]


def aggregate(values: NDArray[np.float64], how: How) -> float | None:
    """Returns the aggregate of the values of a clip; None without values."""
    if not len(values):
        return None
    if not isinstance(how, str):
        return float(np.mean(values < how))
    if how in _MADE_BY:
        return float(_MADE_BY[how](values))
    return float(np.quantile(values, int(how.removeprefix("p")) / 100))


def duration_s(track: Track, start_frame: int, end_frame: int) -> float:
    """Returns the presentation time of a span of frames, in seconds."""
    ticks = track.pts_of_end(end_frame) - int(track.frame_pts[start_frame])
    return float(ticks * track.time_base)

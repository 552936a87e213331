"""What a score is, and how samples become one."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from curator.media.audio_level import CELLS_PER_S, MAX_CELLS
from curator.media.decode import upright_size
from curator.models.embedding_heads import Heads
from curator.records import Reason, Span, Track
from curator.stages.propose.clip_spans import duration_s

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

READ_FROM_CLIP = ("aesthetic", "nsfw")
"""Values that are read from each CLIP embedding of a clip, and stand beside its signals."""


@dataclass(frozen=True)
class ClipView:
    """The part of a track that is one clip."""

    track: Track
    span: Span
    heads: Heads | None = None
    """What reads the track's CLIP embeddings; None for nothing."""

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
        frames = self.track.clip_frame
        inside = (frames >= self.span.start_frame) & (frames < self.span.end_frame)
        return self.track.clip_embedding[inside]

    @cached_property
    def audio_rms_db(self) -> NDArray[np.float64]:
        """Levels of the cells of time whose middle lies in the clip; NaN where there is no audio.

        Float64, one for each tenth of a second of the clip; none for a clip of days.
        """
        track = self.track
        begin_s, end_s = (
            float(pts * track.time_base)
            for pts in (
                int(track.frame_pts[self.span.start_frame]),
                track.pts_of_end(self.span.end_frame),
            )
        )
        first, end = (math.ceil(time_s * CELLS_PER_S - 0.5) for time_s in (begin_s, end_s))
        if end - first > MAX_CELLS:
            # Timestamps jump there: no clip is as long.
            return np.zeros(0)
        places = np.arange(first, end) - track.audio_rms_first
        known = (places >= 0) & (places < len(track.audio_rms_db))
        levels = np.full(len(places), np.nan)
        levels[known] = track.audio_rms_db[places[known]]
        return levels

    def signal(self, name: str) -> NDArray[np.float64]:
        """Values of a signal in the clip, without those that could not be measured."""
        if name in READ_FROM_CLIP:
            return self._read(name)
        if name == "audio_rms_db":
            return self.audio_rms_db[np.isfinite(self.audio_rms_db)]
        values = self.track.signals[name][self.samples].astype(np.float64)
        measured: NDArray[np.float64] = values[np.isfinite(values)]
        return measured

    def _read(self, name: str) -> NDArray[np.float64]:
        """Values that heads read from the clip's embeddings; none without them."""
        heads, embeddings_ND = self.heads, self.embeddings_ND  # noqa: N806 - shape letters
        if heads is None or not len(embeddings_ND):
            return np.zeros(0)
        if name == "aesthetic" and heads.aesthetic is not None:
            return heads.aesthetic.scores_N(embeddings_ND)
        if name == "nsfw" and heads.safety is not None:
            return heads.unsafe_N(embeddings_ND)
        return np.zeros(0)

    def aggregate(self, name: str, how: How) -> float | None:
        """One number for a signal in the clip; None where nothing was measured."""
        values = self.signal(name)
        if not len(values):
            return None
        return AGGREGATES[how](values) if isinstance(how, str) else float(np.mean(values < how))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSpec:
    """What a score is, and the reasons of a clip outside its bounds.

    Attributes:
        unit: Its unit.
        range: Values it can take, and what the ends mean.
        meaning: What it says of a clip.
        low: Reason of a clip below a lower bound.
        high: Reason of a clip above an upper bound.
        of: Gives it; or the name of the signal that `aggregate` or `below` makes it of.
        aggregate: How, if the recipe does not say otherwise; None where it is not made so.
        below: The bound of a score that is the share of a signal's values below it, in the signal's
            unit, if the recipe does not say otherwise; None where it is not made so.
        needs: Key of the recipe that must be on for it to be measured; None if it always is.
    """

    unit: str
    range: str
    meaning: str
    low: Reason
    high: Reason
    of: Callable[[ClipView], float | None] | str
    aggregate: Aggregate | None = None
    below: float | None = None
    needs: str | None = None

    @property
    def how(self) -> How | None:
        """How a signal becomes the score, if the recipe does not say otherwise."""
        return self.aggregate if self.below is None else self.below


def samples_of(track: Track, span: Span) -> NDArray[np.bool_]:
    """Which samples lie within a span with both of their frames, bool [S]."""
    mask: NDArray[np.bool_] = (track.sample_frame >= span.start_frame) & (
        track.sample_pair_frame < span.end_frame
    )
    return mask

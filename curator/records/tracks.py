"""What decoding a source measured: its frames' times, and signals of frames and of samples.

Shape letters: F frames of a source, S samples of a source, D dimensions of a descriptor, C pictures
that have a CLIP embedding, V pictures that have a scene vector, T looks at a source (samples at
which overlays are looked for), B lines of text found in them, A cells of time of its audio.
"""
# ruff: noqa: RUF009 - a call makes each field

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.records.sources import Note

UNIFORM = 4
"""Of `SourceFrames.frame_flags`: the frame is uniform, as `FrameReader` says."""


def _empty(kind: type[np.generic], n_axes: int = 1) -> Any:  # noqa: ANN401 - a field of any array
    """Returns a field of an array that is without entries where it was not measured."""
    return field(default_factory=lambda: np.zeros((0,) * n_axes, kind), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFrames:
    """The frames of a source, and when each is shown.

    Arrays are in presentation order. `frame_pts` increases strictly, in `time_base`; the last frame
    ends at `end_pts`.
    """

    source_id: str
    sha256: str
    time_base: Fraction
    end_pts: int
    width: int
    height: int
    rotation_deg: int
    pixel_aspect: Fraction
    is_interlaced: bool
    is_hdr: bool
    notes: tuple[Note, ...]
    n_decode_errors: int
    frame_pts: NDArray[np.int64]
    """[F], in `time_base`."""
    frame_bytes: NDArray[np.int32]
    """[F], compressed bytes of the packet that carried the frame; 0 when unknown."""
    frame_flags: NDArray[np.uint8]
    """[F], bit 0: key frame, bit 1: the decoder concealed damage, bit 2 (`UNIFORM`): the frame is
    uniform, as `FrameReader` says; unset where that is not known."""
    block_hashes: bytes = field(default=b"", repr=False)
    """Hashes of the source's blocks, as `storage.ContentHashes` has them."""
    luma_mean: NDArray[np.float32] = _empty(np.float32)
    """[F], mean luma, 0 (black) to 1 (white)."""
    luma_spread: NDArray[np.float32] = _empty(np.float32)
    """[F], standard deviation of luma, 0 to 0.5."""

    def __post_init__(self) -> None:
        """Checks that arrays agree in length and time increases."""
        n_frames = len(self.frame_pts)
        if n_frames == 0 or bool(np.any(np.diff(self.frame_pts) <= 0)):
            raise ValueError(f"track {self.source_id}: timestamps must increase, with one frame up")
        self.check_lengths(n_frames, "frame_bytes", "frame_flags")
        self.check_lengths(n_frames, "luma_mean", "luma_spread", may_lack=True)

    def check_lengths(self, n: int, *names: str, may_lack: bool = False) -> None:
        """Raises `ValueError` for arrays whose length is not `n`, nor 0 if they `may_lack`."""
        for name in names:
            length = len(getattr(self, name))
            if length != n and not (may_lack and length == 0):
                raise ValueError(f"track {self.source_id}: {name} has not {n} entries")

    @property
    def n_frames(self) -> int:
        """Number of frames that decoded."""
        return len(self.frame_pts)

    def seconds(self, pts: int) -> float:
        """Time of a timestamp from the first frame, in seconds."""
        return float((pts - int(self.frame_pts[0])) * self.time_base)

    def pts_of_end(self, end_frame: int) -> int:
        """Timestamp at which the half-open span that ends before `end_frame` ends."""
        return int(self.frame_pts[end_frame]) if end_frame < self.n_frames else self.end_pts

    @property
    def duration_s(self) -> float:
        """From the first frame to the end of the last one, in seconds."""
        return self.seconds(self.end_pts)

    @property
    def fps(self) -> Fraction:
        """Nominal frame rate: a standard rate where the typical interval is one within 0.04%."""
        return nominal_fps(self.frame_pts, self.end_pts, self.time_base)

    @property
    def is_vfr(self) -> bool:
        """Whether intervals differ by more than a container's rounding of timestamps explains."""
        return varies(self.frame_pts, self.time_base)


_ROWS_OF_FRAMES = {
    "sample_frame": ("sample_pair_frame",),
    "clip_frame": ("clip_embedding",),
    "scene_frame": ("scene_vector",),
    "look_frame": ("look_next_frame", "look_edges", "look_lines", "look_standing", "look_moved"),
    "text_frame": ("text_line",),
}
"""Of a track: columns with as many entries as another one names frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track(SourceFrames):
    """What one decode of a source measured. Knows no threshold.

    Sample arrays belong to the frames `sample_frame`; a sample's motion is measured to the frame
    `sample_pair_frame`, which follows it by about 0.1 s. What was not measured is empty.
    """

    shot_probability: NDArray[np.float32] = _empty(np.float32)
    """[F], TransNetV2's first head: 1 on the last frame before a transition's middle."""
    transition_probability: NDArray[np.float32] = _empty(np.float32)
    """[F], TransNetV2's second head (`many_hot`): 1 on every frame of a transition."""
    boundary_probability: NDArray[np.float32] = _empty(np.float32)
    """[F], of `shot_head`: that the middle of a boundary is at the frame, a cut's the last frame
    before it; calibrated where it has a peak."""
    inside_probability: NDArray[np.float32] = _empty(np.float32)
    """[F], of `shot_head`: that the frame is inside of a transition."""
    sample_frame: NDArray[np.int32] = _empty(np.int32)
    """[S], index of the sampled frame."""
    sample_pair_frame: NDArray[np.int32] = _empty(np.int32)
    """[S], index of the frame its motion was measured to."""
    signals: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """[S] each, by name; NaN where one could not be measured."""
    descriptor: NDArray[np.float32] = _empty(np.float32, 2)
    """[S, D], perceptual descriptor, unit length, or zero where the picture holds no structure."""
    look_frame: NDArray[np.int32] = _empty(np.int32)
    """[T], index of the frame looked at."""
    look_next_frame: NDArray[np.int32] = _empty(np.int32)
    """[T], index of the next sample's frame, which it was compared with; -1 at the source's end."""
    look_edges: NDArray[np.uint8] = _empty(np.uint8, 2)
    """[T, `EDGE_BYTES`], packed map of strong edges."""
    look_lines: NDArray[np.float32] = _empty(np.float32, 2)
    """[T, 4], the columns `LINE_COLUMNS`."""
    look_standing: NDArray[np.uint8] = _empty(np.uint8, 2)
    """[T, `LINE_BYTES`], packed map of straight lines that stand until the next sample; none
    without one."""
    look_moved: NDArray[np.uint8] = _empty(np.uint8, 2)
    """[T, `MOVED_BYTES`], packed map of what moves until the next sample."""
    has_text: bool = False
    """Whether text was looked for."""
    text_frame: NDArray[np.int32] = _empty(np.int32)
    """[B], index of the frame in which a line of text was found; increases."""
    text_line: NDArray[np.float32] = _empty(np.float32, 2)
    """[B, 9], the columns `TEXT_COLUMNS`."""
    clip_frame: NDArray[np.int32] = _empty(np.int32)
    """[C], index of the frames that have a CLIP embedding; none where the recipe asks for none."""
    clip_embedding: NDArray[np.float16] = _empty(np.float16, 2)
    """[C, D], CLIP embeddings of unit length."""
    scene_frame: NDArray[np.int32] = _empty(np.int32)
    """[V], index of the frames that have a scene vector; increases."""
    scene_vector: NDArray[np.float16] = _empty(np.float16, 2)
    """[V, 1280], `scene_network`'s vectors of unit length; zero where the picture has no
    structure."""
    has_audio_levels: bool = False
    """Whether audio was looked for."""
    audio_rms_first: int = 0
    """The first cell of `audio_rms_db`, as `media.audio_level` counts them; 0 without any."""
    audio_rms_db: NDArray[np.float32] = _empty(np.float32)
    """[A], RMS level of each tenth of a second in dBFS, from the first that has audio to the last;
    NaN where there is none in between."""
    thumbnails: tuple[bytes, ...] = field(default=(), repr=False)
    """JPEGs of 320 px on the longer side, one for each of `thumbnail_frame`."""
    thumbnail_frame: NDArray[np.int32] = _empty(np.int32)
    """Indices of the frames that have a thumbnail."""

    def __post_init__(self) -> None:
        """Checks that arrays agree in length and time increases."""
        # `super()` does not find a class whose slots made it anew.
        SourceFrames.__post_init__(self)
        heads = ("shot_probability", "transition_probability")
        learned = ("boundary_probability", "inside_probability")
        self.check_lengths(self.n_frames, *heads, *learned, may_lack=True)
        if len(self.boundary_probability) != len(self.inside_probability):
            raise ValueError(f"track {self.source_id}: it has one of the head's probabilities only")
        self.check_lengths(len(self.sample_frame), "descriptor", may_lack=True)
        for frames, names in _ROWS_OF_FRAMES.items():
            self.check_lengths(len(getattr(self, frames)), *names)
        for name, column in self.signals.items():
            if len(column) != len(self.sample_frame):
                raise ValueError(
                    f"track {self.source_id}: {name} has not {len(self.sample_frame)} entries"
                )


STANDARD_FPS = (
    *(Fraction(n) for n in (10, 12, 15, 20, 24, 25, 30, 48, 50, 60, 100, 120)),
    *(Fraction(n, 1001) for n in (24_000, 30_000, 60_000)),
)


def varies(frame_pts: NDArray[np.int64], time_base: Fraction) -> bool:
    """Whether intervals differ by more than a container's rounding of timestamps explains."""
    if len(frame_pts) < 3:
        return False
    intervals = np.diff(frame_pts)
    tick_s = float(time_base)
    tolerance = max(0.002, 2 * tick_s) / tick_s
    return bool(np.max(np.abs(intervals - np.median(intervals))) > tolerance)


def nominal_fps(frame_pts: NDArray[np.int64], end_pts: int, time_base: Fraction) -> Fraction:
    """Frame rate that a constant-rate copy of frames at [F] increasing timestamps should have.

    Returns:
        The standard rate within 0.04% of the typical interval's, or within what rounding to ticks
        can do to it; else that rate itself with a denominator up to 1001.
    """
    if len(frame_pts) < 2:
        ticks = max(1, end_pts - int(frame_pts[0]))
        return _simple(1 / (ticks * time_base))
    intervals = np.diff(frame_pts)
    median = float(np.median(intervals))
    typical = intervals[np.abs(intervals - median) <= max(2.0, 0.1 * median)]
    if not len(typical):
        # Of two unlike intervals, the median is neither.
        typical = np.array([median])
    rate = 1 / (float(np.mean(typical)) * float(time_base))
    nearest = min(STANDARD_FPS, key=lambda fps: (abs(float(fps) - rate), fps.denominator))
    # Intervals of a variable rate in Matroska's milliseconds are off by up to half a tick each.
    rounding = 0.5 / (median * len(typical) ** 0.5)
    if abs(float(nearest) - rate) <= max(0.0004, rounding) * rate:
        return nearest
    return _simple(Fraction(rate))


def _simple(rate: Fraction) -> Fraction:
    """A rate near this one, with a denominator up to 1001 unless a frame lasts longer than that."""
    return rate.limit_denominator(1001) or Fraction(1, round(1 / rate))

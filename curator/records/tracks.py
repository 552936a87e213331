"""Records of the one decode of a source: times of frames, and signals of frames and samples.

Shape letters: F frames, S samples, D dimensions of a descriptor, C frames with a CLIP embedding, V
frames with a scene vector, T overlay samples (in which overlays are detected), B lines of text in
overlay samples, A cells of audio.
"""
# ruff: noqa: RUF009 - a call makes each field

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.records.sources import Note

KEY = 1
"""Bit of `frame_flags`: decoding can begin with the frame."""
DAMAGED = 2
"""Bit of `SourceFrames.frame_flags` for frames that are damaged, or depend on damaged ones."""
UNIFORM = 4
"""Bit of `SourceFrames.frame_flags` for uniform frames, as `FrameReader` defines them."""

CELLS_PER_S = 10
"""Cells of audio levels per second."""
MAX_CELLS = 4_000_000
"""Most cells from the first to the last level: 4.6 days. Later cells are dropped."""
FLOOR_DB = -120.0
"""Level of digital silence, and the lowest level: between the floors of 16 and 24 bits."""


def _empty(kind: type[np.generic], n_axes: int = 1) -> Any:  # noqa: ANN401 - a field of any array
    """Returns a field for an array, by default empty: not measured."""
    return field(default_factory=lambda: np.zeros((0,) * n_axes, kind), repr=False)


_PER_FRAME = "per_frame"
"""Key in the metadata of a field whose array has an entry per frame."""


def _per_frame() -> Any:  # noqa: ANN401 - a field of an array
    """Returns a field for a signal of frames, float32 [F], by default empty: not measured."""
    return field(
        default_factory=lambda: np.zeros(0, np.float32), repr=False, metadata={_PER_FRAME: True}
    )


def _per_frame_of(record: Any) -> tuple[str, ...]:  # noqa: ANN401 - a `SourceFrames` or its class
    return tuple(own.name for own in fields(record) if _PER_FRAME in own.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFrames:
    """The frames of a source and their times, in presentation order.

    The last frame ends at `end_pts`.
    """

    source_id: str
    sha256: str
    time_base: Fraction
    end_pts: int
    width: int
    height: int
    rotation_deg: int
    """Clockwise rotation that turns frames upright; see `is_mirrored`."""
    pixel_aspect: Fraction
    """Width / height of a pixel after rotation, of the first frame; see `aspect_at`."""
    is_interlaced: bool
    is_hdr: bool
    notes: tuple[Note, ...]
    n_decode_errors: int
    frame_pts: NDArray[np.int64]
    """[F], start of each frame in `time_base`; strictly increasing."""
    frame_bytes: NDArray[np.int32]
    """[F], size of the frame's packet; 0 if unknown."""
    frame_flags: NDArray[np.uint8]
    """[F], bit 0: key frame; bit 1 (`DAMAGED`): the frame is damaged, or depends on a damaged or
    lost one; bit 2 (`UNIFORM`): the frame is known to be uniform."""
    frame_size: NDArray[np.uint16] = _empty(np.uint16, 2)
    """[F, 2], width and height of each frame; empty if all are `width` x `height`."""
    block_hashes: bytes = field(default=b"", repr=False)
    """Hashes of the blocks of the source's bytes, as in `storage.ContentHashes`."""
    aspect_changes: tuple[str, ...] = ()
    """Frames from which on `pixel_aspect` is another, in order, such as "250 64/45"."""
    luma_mean: NDArray[np.float32] = _per_frame()
    """[F], mean luma, 0 (black) to 1 (white)."""
    luma_spread: NDArray[np.float32] = _per_frame()
    """[F], standard deviation of luma, 0 to 0.5."""

    def __post_init__(self) -> None:
        """Raises `ValueError` if lengths of arrays disagree or timestamps do not increase."""
        n_frames = len(self.frame_pts)
        if n_frames == 0 or bool(np.any(np.diff(self.frame_pts) <= 0)):
            raise ValueError(f"track {self.source_id}: expected frames with increasing timestamps")
        self.check_lengths(n_frames, "frame_bytes", "frame_flags")
        self.check_lengths(n_frames, "frame_size", *_per_frame_of(self), may_lack=True)

    def check_lengths(self, n: int, *names: str, may_lack: bool = False) -> None:
        """Raises `ValueError` for arrays without `n` entries; with `may_lack`, 0 are valid too."""
        for name in names:
            length = len(getattr(self, name))
            if length != n and not (may_lack and length == 0):
                raise ValueError(f"track {self.source_id}: {name} has {length} entries, not {n}")

    @property
    def is_mirrored(self) -> bool:
        """Whether frames are to be mirrored left to right, after rotation."""
        return Note.MIRRORED in self.notes

    def aspect_at(self, frame: int) -> Fraction:
        """Returns width / height of a pixel of a frame, after rotation."""
        aspect = self.pixel_aspect
        for begin, changed in self._changes():
            aspect = changed if begin <= frame else aspect
        return aspect

    def breaks(self) -> NDArray[np.intp]:
        """Returns the frames, in order, with which a take must begin.

        These come after a hole in time, have another size or pixels of another shape than the frame
        before, or are the first with damage or the first without.
        """
        size = self.frame_size
        ends = (
            holes(self.frame_pts, self.time_base),
            np.flatnonzero(np.any(size[1:] != size[:-1], axis=1)),
            np.flatnonzero(np.diff(self.frame_flags & DAMAGED)),
            np.array([begin - 1 for begin, _ in self._changes()], np.intp),
        )
        return np.unique(np.concatenate(ends)) + 1

    def _changes(self) -> Iterator[tuple[int, Fraction]]:
        for change in self.aspect_changes:
            frame, _, aspect = change.partition(" ")
            yield int(frame), Fraction(aspect)

    @property
    def n_frames(self) -> int:
        """Number of frames that decoded."""
        return len(self.frame_pts)

    def seconds(self, pts: int) -> float:
        """Returns seconds from the first frame to a timestamp."""
        return float((pts - int(self.frame_pts[0])) * self.time_base)

    def size_at(self, frame: int) -> tuple[int, int]:
        """Returns the width and height of a frame, after rotation."""
        if not len(self.frame_size):
            return self.width, self.height
        width, height = self.frame_size[frame].tolist()
        return width, height

    def pts_of_end(self, end_frame: int) -> int:
        """Returns the timestamp at which a half-open span of frames up to `end_frame` ends.

        A frame before a hole in time, or before lost frames, is shown as long as those before it.
        """
        if end_frame >= self.n_frames:
            return self.end_pts
        last, end = self.frame_pts[end_frame - 1 : end_frame + 1].tolist() if end_frame else (0, 0)
        is_long = float((end - last) * self.time_base) > LEAST_HOLE_S
        flags = self.frame_flags[max(0, end_frame - 1) : end_frame + 1] & DAMAGED
        if not is_long and flags[0] == flags[-1]:
            return int(self.frame_pts[end_frame])
        near = np.diff(self.frame_pts[max(0, end_frame - 1 - _NEAR) : end_frame])
        usual = np.median(near if len(near) else np.diff(self.frame_pts))
        if is_long and len(holes(self.frame_pts, self.time_base, after=end_frame - 1)):
            return int(last + usual)
        return int(last + usual) if flags[0] != flags[-1] and end - last > _LOST * usual else end

    @property
    def duration_s(self) -> float:
        """Seconds from the first frame to the end of the last frame."""
        return self.seconds(self.end_pts)

    @property
    def fps(self) -> Fraction:
        """Nominal frame rate, see `nominal_fps`."""
        return nominal_fps(self.frame_pts, self.end_pts, self.time_base)

    @property
    def is_vfr(self) -> bool:
        """Whether the frame rate is variable, see `varies`."""
        return varies(self.frame_pts, self.time_base)


_ROWS_OF_FRAMES = {
    "sample_frame": ("sample_pair_frame",),
    "clip_frame": ("clip_embedding",),
    "scene_frame": ("scene_vector",),
    "look_frame": ("look_next_frame", "look_edges", "look_boxes", "look_standing", "look_moved"),
    "text_frame": ("text_line",),
}
"""Array of frame numbers -> arrays of `Track` with a row for each of these frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track(SourceFrames):
    """Measurements of the one decode of a source, before any threshold.

    Arrays [S] have an entry for each frame of `sample_frame`. The motion of a sample is measured
    to its frame in `sample_pair_frame`, about 0.1 s later. Arrays that were not measured are empty.
    """

    shot_probability: NDArray[np.float32] = _per_frame()
    """[F], TransNetV2's first head: 1 on the last frame before a transition's middle."""
    transition_probability: NDArray[np.float32] = _per_frame()
    """[F], TransNetV2's second head (`many_hot`): 1 on every frame of a transition."""
    boundary_probability: NDArray[np.float32] = _per_frame()
    """[F], `shot_head`'s probability that the middle of a boundary is at the frame, or that a cut
    follows the frame; calibrated at peaks."""
    inside_probability: NDArray[np.float32] = _per_frame()
    """[F], `shot_head`'s probability that the frame is inside of a transition."""
    local_change: NDArray[np.float32] = _per_frame()
    """[F], change of luma from the frame before that neither a motion of the whole picture nor a
    change of light explains, 0 to 1; see `measures.local_change`."""
    sample_frame: NDArray[np.int32] = _empty(np.int32)
    """[S], index of the sampled frame."""
    sample_pair_frame: NDArray[np.int32] = _empty(np.int32)
    """[S], index of the second frame of the motion."""
    signals: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Name -> values [S]; NaN for samples without a value."""
    descriptor: NDArray[np.float32] = _empty(np.float32, 2)
    """[S, D], perceptual descriptors of unit length; zero for pictures without structure."""
    look_frame: NDArray[np.int32] = _empty(np.int32)
    """[T], index of the frame of an overlay sample."""
    look_next_frame: NDArray[np.int32] = _empty(np.int32)
    """[T], index of the next sample's frame, for comparison; -1 without a next sample."""
    look_edges: NDArray[np.uint8] = _empty(np.uint8, 2)
    """[T, `EDGE_BYTES`], packed map of strong edges."""
    look_boxes: NDArray[np.uint16] = _empty(np.uint16, 2)
    """[T, `ALL_VALUES`], boxes of saturated lines; zero after the last box."""
    look_standing: NDArray[np.uint8] = _empty(np.uint8, 2)
    """[T, `LINE_BYTES`], packed map of straight lines that keep their place until the next sample;
    zero without a next sample."""
    look_moved: NDArray[np.uint8] = _empty(np.uint8, 2)
    """[T, `MOVED_BYTES`], packed map of motion until the next sample; zero without one."""
    has_text: bool = False
    """Whether text detection ran."""
    text_frame: NDArray[np.int32] = _empty(np.int32)
    """[B], index of the frame with a line of text, in order; a frame may have several lines."""
    text_line: NDArray[np.float32] = _empty(np.float32, 2)
    """[B, 9], the columns `TEXT_COLUMNS`."""
    clip_frame: NDArray[np.int32] = _empty(np.int32)
    """[C], indices of frames with a CLIP embedding."""
    clip_embedding: NDArray[np.float16] = _empty(np.float16, 2)
    """[C, D], CLIP embeddings of unit length."""
    scene_frame: NDArray[np.int32] = _empty(np.int32)
    """[V], indices of frames with a scene vector; increasing."""
    scene_vector: NDArray[np.float16] = _empty(np.float16, 2)
    """[V, 1280], vectors of `SceneNetwork` of unit length; zero for pictures without structure."""
    has_audio_levels: bool = False
    """Whether audio levels were measured, even if the source has no audio."""
    audio_rms_first: int = 0
    """Number of the first cell of `audio_rms_db`, see `media.audio_level`; 0 without levels."""
    audio_rms_db: NDArray[np.float32] = _empty(np.float32)
    """[A], RMS level in dBFS of each cell of 0.1 s, from the first to the last cell with audio; NaN
    for cells without audio between them."""
    thumbnails: tuple[bytes, ...] = field(default=(), repr=False)
    """JPEGs of the frames in `thumbnail_frame`; the longer side has 320 px."""
    thumbnail_frame: NDArray[np.int32] = _empty(np.int32)
    """Indices of frames with a thumbnail."""

    def __post_init__(self) -> None:
        """Raises `ValueError` if lengths of arrays disagree or timestamps do not increase."""
        # `super()` fails, because `slots=True` replaces the class.
        SourceFrames.__post_init__(self)
        if len(self.boundary_probability) != len(self.inside_probability):
            raise ValueError(f"track {self.source_id}: only one of the head's probabilities")
        self.check_lengths(len(self.sample_frame), "descriptor", may_lack=True)
        for frames, names in _ROWS_OF_FRAMES.items():
            self.check_lengths(len(getattr(self, frames)), *names)
        for name, column in self.signals.items():
            if len(column) != len(self.sample_frame):
                raise ValueError(
                    f"track {self.source_id}: {name} has {len(column)} entries, not "
                    f"{len(self.sample_frame)}"
                )


FRAME_SIGNALS = _per_frame_of(Track)
"""Signals of frames: fields of a track whose arrays are float32 [F], or empty."""
TIME_SIGNALS = ("source_s", "source_interval_s", "sample_s", "sample_pair_s")
"""Times that are read like signals, in seconds from the first frame of the clip's span: of the
source's frame that a written frame shows, and of the two frames of its sample. `source_interval_s`
is the time between the source's frame and the nearest other one."""
_FIELDS = frozenset(own.name for own in fields(Track))


def is_signal(column: str) -> bool:
    """Returns whether a column of tracks has a float32 value per frame or per sample."""
    return column in FRAME_SIGNALS or column not in _FIELDS | {"audio_notes"}


STANDARD_FPS = (
    *(Fraction(n) for n in (10, 12, 15, 20, 24, 25, 30, 48, 50, 60, 100, 120)),
    *(Fraction(n, 1001) for n in (24_000, 30_000, 60_000)),
)


LEAST_HOLE_S, VARIABLE_HOLE_S = 0.5, 2.0
"""Intervals of at most so many seconds are no holes in time; the second applies to a variable rate,
as of screen recordings, which store no frame while the picture stands still."""
_HOLE_INTERVALS = 5.0
"""Least length of a hole, in usual intervals before and after it."""
_REGULAR, _REGULAR_SHARE = 2.0, 0.9
"""A rate is regular if at least this share of the intervals are at most so many usual ones."""
_LOST = 1.75
"""Least interval next to damage that says that a frame is lost, in usual ones: of telecined film,
the usual one is 2.5 fields and the longest 3."""
_NEAR = 4
"""Number of intervals on each side that say what is usual."""


def holes(
    frame_pts: NDArray[np.int64], time_base: Fraction, *, after: int | None = None
) -> NDArray[np.intp]:
    """Returns the frames after which frames are missing, by their intervals; or only frame `after`.

    A camera or a network that fails leaves a hole: the next frame comes much later than usual.
    """
    intervals = np.diff(frame_pts) * float(time_base)
    if len(intervals) < 2 or float(intervals.max()) <= LEAST_HOLE_S:
        return np.zeros(0, np.intp)
    is_regular = np.mean(intervals <= _REGULAR * np.median(intervals)) >= _REGULAR_SHARE
    least_s = LEAST_HOLE_S if is_regular else VARIABLE_HOLE_S
    found = np.flatnonzero(intervals > least_s) if after is None else np.array([after])
    padding = np.full(_NEAR, np.nan)
    padded = np.concatenate([padding, intervals, padding])
    near = np.lib.stride_tricks.sliding_window_view(padded, _NEAR)
    # In a slow part, the intervals on one side at least are as long. One side may be empty.
    sides = np.stack([near[found], near[found + _NEAR + 1]])
    sides[np.isnan(sides).all(axis=2)] = 0.0
    usual = np.nanmedian(sides, axis=2).max(axis=0)
    is_hole = intervals[found] > np.maximum(least_s, _HOLE_INTERVALS * usual)
    return np.asarray(found[is_hole], np.intp)


_TELECINE = (
    (Fraction(1001, 60_000), Fraction(24_000, 1001)),
    (Fraction(1, 60), Fraction(24)),
    (Fraction(1, 50), Fraction(24)),
)
"""Length of a field, and rate of film that is shown for two or three fields a frame."""
_MOST_OFF_FIELDS = 2.5
"""Largest difference between the times of telecined frames and a constant rate: one frame."""
_LEAST_LONGER = 3
"""Fewest frames of three fields by which telecined film is recognized."""


def _tolerance_s(time_base: Fraction, usual_s: float) -> float:
    """Returns how much the rounding of a container may change an interval of usually `usual_s`.

    AVI may count frames. There, another number of ticks is a lost frame and no rounding: without
    it, all pictures after it would be shown early, and sound would be late.
    """
    return max(0.002, min(2 * float(time_base), usual_s / 2))


def varies(frame_pts: NDArray[np.int64], time_base: Fraction) -> bool:
    """Whether intervals differ by more than rounding of timestamps, or telecine, explains."""
    if len(frame_pts) < 3:
        return False
    intervals = np.diff(frame_pts) * float(time_base)
    usual_s = float(np.median(intervals))
    if np.max(np.abs(intervals - usual_s)) <= _tolerance_s(time_base, usual_s):
        return False
    return telecined_fps(frame_pts, time_base) is None


def telecined_fps(frame_pts: NDArray[np.int64], time_base: Fraction) -> Fraction | None:
    """Returns the rate of film whose frames are shown for two or three fields; None for others.

    Such film is stored once a frame, and a flag (`repeat_first_field` of MPEG-2, `pic_struct` of
    H.264) says which frames are shown longer: on NTSC DVDs, every second one.
    """
    shown_s = (frame_pts - frame_pts[0]) * float(time_base)
    intervals = np.diff(shown_s)
    found: list[tuple[float, Fraction]] = []
    for field_length, fps in _TELECINE:
        field_s = float(field_length)
        n_fields = np.rint(intervals / field_s)
        if not np.isin(n_fields, (2, 3)).all() or np.sum(n_fields == 3) < _LEAST_LONGER:
            continue
        off_s = shown_s - np.arange(len(shown_s)) / float(fps)
        is_near = np.max(np.abs(intervals - n_fields * field_s)) <= _tolerance_s(time_base, field_s)
        if is_near and np.ptp(off_s) <= _MOST_OFF_FIELDS * field_s:
            found.append((abs(float(shown_s[-1] - n_fields.sum() * field_s)), fps))
    return min(found)[1] if found else None


def nominal_fps(frame_pts: NDArray[np.int64], end_pts: int, time_base: Fraction) -> Fraction:
    """Returns the frame rate for a copy with constant rate of frames at increasing times [F].

    The rate is that of telecined film, or of the mean typical interval. If a standard rate differs
    by at most 0.04%, or by a possible rounding to ticks, it is the standard rate; else the
    denominator is limited to 1001.
    """
    if len(frame_pts) < 2:
        ticks = max(1, end_pts - int(frame_pts[0]))
        return _simple(1 / (ticks * time_base))
    if (film := telecined_fps(frame_pts, time_base)) is not None:
        return film
    intervals = np.diff(frame_pts)
    median = float(np.median(intervals))
    typical = intervals[np.abs(intervals - median) <= max(2.0, 0.1 * median)]
    if not len(typical):
        # The median of two different intervals is far from both.
        typical = np.array([median])
    rate = 1 / (float(np.mean(typical)) * float(time_base))
    nearest = min(STANDARD_FPS, key=lambda fps: (abs(float(fps) - rate), fps.denominator))
    # Timestamps are rounded to ticks, such as Matroska's milliseconds: up to half a tick each.
    rounding = 0.5 / (median * len(typical) ** 0.5)
    if abs(float(nearest) - rate) <= max(0.0004, rounding) * rate:
        return nearest
    return _simple(Fraction(rate))


def _simple(rate: Fraction) -> Fraction:
    """Returns a near rate with a denominator up to 1001, larger only for a rate that becomes 0."""
    return rate.limit_denominator(1001) or Fraction(1, round(1 / rate))

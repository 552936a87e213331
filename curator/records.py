"""What passes between stages: one frozen record per step of the way.

Shape letters: F frames of a source, S samples of a source, D dimensions of a descriptor, C pictures
that have a CLIP embedding, T looks at a source (samples at which overlays are looked for), B lines
of text found in them, A cells of time of its audio.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Literal, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from curator.errors import ErrorCode

Transition = Literal["cut", "gradual", "none"]
CutMode = Literal["copy", "encode"]
AudioMode = Literal["dropped", "none", "copy", "aac"]
"""What became of a clip's audio: dropped by recipe, none in the source at that time, or written."""
Int16 = Annotated[int, "int16"]
Int32 = Annotated[int, "int32"]
"""Types of columns that are narrower than Python's; the others follow from the annotation."""


class Reason(StrEnum):
    """Why a clip is rejected, where no score says it. Public: `clips.reason` and `clips.reasons`.

    Reasons of a score are named where the score is, and are as public.
    """

    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    HIGH_DYNAMIC_RANGE = "high_dynamic_range"
    CONTENT_TYPE_UNWANTED = "content_type_unwanted"
    NOT_MEASURED = "not_measured"
    """A rule asks for a score that this clip has not: too few samples, or a tiny picture."""
    DUPLICATE = "duplicate"
    NO_BUCKET = "no_bucket"
    NO_ASPECT_CLASS = "no_aspect_class"
    """A crop to the nearest class of shapes would lose more than `shard.aspects_tolerance`."""
    NOT_SELECTED = "not_selected"
    """The recipe takes only a part of its group, and others came first."""
    ANSWER_UNWANTED = "answer_unwanted"
    """What a captioner answered is something that `caption.reject` names."""
    NOT_ANNOTATED = "not_annotated"
    """A window has no annotation, and `caption.failed` rejects such clips."""
    JUDGED_TOO_LOW = "judged_too_low"
    """The best answer for a window scores less than `caption.judge.min_score`."""
    CUT_FAILED = "cut_failed"


class Note(StrEnum):
    """What was found odd about a source that is used all the same. Public: `sources.notes`."""

    TRUNCATED = "truncated"
    """The container promises more than there is; what decodes is used."""
    DECODE_ERRORS = "decode_errors"
    """Some packets do not decode; the frames around them are used."""
    CORRUPT_FRAMES = "corrupt_frames"
    """The decoder concealed damage in some frames."""
    DURATION_DIFFERS = "duration_differs"
    """The header's duration is not that of the frames."""
    FRAME_COUNT_DIFFERS = "frame_count_differs"
    """The header's frame count is not what decodes."""
    TIMESTAMPS_REPAIRED = "timestamps_repaired"
    """Missing, repeated or backward timestamps were replaced."""
    SIZE_CHANGES = "size_changes"
    """The picture size changes within the stream."""
    AUDIO_ERRORS = "audio_errors"
    """Some audio does not decode; that time counts as without audio."""
    AUDIO_NOT_DECODED = "audio_not_decoded"
    """There is no decoder for the audio; all of the source counts as without audio."""
    AUDIO_TIMESTAMPS = "audio_timestamps"
    """Audio has no timestamp, or two stretches of it claim the same time, which counts as without
    audio."""
    AUDIO_UNPROVEN = "audio_unproven"
    """The audio of two segments could not be shown to fit together; what is in doubt counts as
    without audio."""
    # Decoded on the CPU beside a GPU, by reason: see `media.nvdec.Refusal`.
    NOT_ON_GPU_CODEC = "not_on_gpu_codec"
    NOT_ON_GPU_PIXEL_FORMAT = "not_on_gpu_pixel_format"
    NOT_ON_GPU_SIZE = "not_on_gpu_size"
    NOT_ON_GPU_INTERLACED = "not_on_gpu_interlaced"
    NOT_ON_GPU_TIMESTAMPS = "not_on_gpu_timestamps"
    NOT_ON_GPU_SIZE_CHANGES = "not_on_gpu_size_changes"
    NOT_ON_GPU_FRAMES_DIFFER = "not_on_gpu_frames_differ"
    NOT_ON_GPU_DAMAGED = "not_on_gpu_damaged"
    NOT_ON_GPU_DECODER_ERROR = "not_on_gpu_decoder_error"
    SAME_BYTES = "same_bytes"
    """Another source has the same bytes; analyzed once, clips stand under that source."""


class NotCopied(StrEnum):
    """Why a clip was encoded, and not copied. Public: `cut.not_copied` of `summary.json`."""

    CODEC = "codec"
    """Not a codec, profile or stream form of `cut.copy_codecs` that all decoders take."""
    CHROMA = "chroma"
    """Not 8-bit 4:2:0 of limited range."""
    SHAPE = "shape"
    """Rotated, mirrored, of odd size, of changing size, or with pixels that are not square."""
    BORDERS = "borders"
    """Black borders are cut away, which takes new pictures."""
    INTERLACED = "interlaced"
    HIGH_DYNAMIC_RANGE = "high_dynamic_range"
    VARIABLE_RATE = "variable_rate"
    PIXELS_CHANGED = "pixels_changed"
    """A stage of the recipe changes the pictures."""
    FIXED_SIZE = "fixed_size"
    """The recipe names a size, and the source has another."""
    FIXED_RATE = "fixed_rate"
    """The recipe names a frame rate, and the source has another."""
    KEY_FRAME_TOO_FAR = "key_frame_too_far"
    """More than the recipe allows lies before the first frame at which decoding can begin."""
    END_TOO_FAR = "end_too_far"
    """Frames before the end refer beyond it, so that too much would be given up."""
    TOO_FEW_FRAMES = "too_few_frames"
    """The copy would be too short, or leave its bucket."""
    TIMESTAMPS = "timestamps"
    """The packets' times are not those of the frames that were analyzed."""
    DAMAGED = "damaged"
    """A packet is marked as damaged, or the packets end early."""
    CHECK_FAILED = "check_failed"
    """What was copied did not decode to the frames that were meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a container says of its first video stream, without decoding.

    `width` and `height` are after rotation; `pixel_aspect` belongs to that orientation.
    `header_duration_s` and `header_n_frames` are claims; `Track` has what was measured.
    """

    source_id: str
    uri: str
    bytes: int
    version: str
    container: str
    codec: str
    pixel_format: str | None
    width: int
    height: int
    rotation_deg: int
    pixel_aspect: Fraction
    time_base: Fraction
    fps: Fraction | None
    is_vfr: bool | None
    header_duration_s: float | None
    header_n_frames: int | None
    has_audio: bool
    is_hdr: bool

    def __post_init__(self) -> None:
        """Refuses what no stage could use."""
        if self.width < 1 or self.height < 1:
            raise ValueError(f"{self.uri}: size {self.width}x{self.height}, expected at least 1x1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A source that could not be used, at one stage."""

    uri: str
    stage: str
    code: ErrorCode
    message: str


def _no_floats() -> NDArray[np.float32]:
    return np.zeros(0, np.float32)


def _no_indices() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _no_rows() -> NDArray[np.float32]:
    return np.zeros((0, 0), np.float32)


def _no_half_rows() -> NDArray[np.float16]:
    return np.zeros((0, 0), np.float16)


def _no_maps() -> NDArray[np.uint8]:
    return np.zeros((0, 0), np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
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
    """[F], bit 0: key frame, bit 1: the decoder concealed damage."""
    luma_mean: NDArray[np.float32] = field(default_factory=_no_floats, repr=False)
    """[F], mean luma, 0 (black) to 1 (white)."""
    luma_spread: NDArray[np.float32] = field(default_factory=_no_floats, repr=False)
    """[F], standard deviation of luma, 0 to 0.5."""

    def __post_init__(self) -> None:
        """Checks that arrays agree in length and time increases."""
        n_frames = len(self.frame_pts)
        if n_frames == 0 or bool(np.any(np.diff(self.frame_pts) <= 0)):
            raise ValueError(f"track {self.source_id}: timestamps must increase, with one frame up")
        self.check_lengths(n_frames, "frame_bytes", "frame_flags")
        self.check_lengths(n_frames, "luma_mean", "luma_spread", may_lack=True)

    def check_lengths(self, n: int, *names: str, may_lack: bool = False) -> None:
        """Refuses arrays of another length.

        Args:
            n: Entries that there must be.
            names: Fields.
            may_lack: Whether they may be empty, because they were not measured.

        Raises:
            ValueError: One has another length.
        """
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
        if self.n_frames < 3:
            return False
        intervals = np.diff(self.frame_pts)
        tick_s = float(self.time_base)
        tolerance = max(0.002, 2 * tick_s) / tick_s
        return bool(np.max(np.abs(intervals - np.median(intervals))) > tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track(Timeline):
    """What one decode of a source measured. Knows no threshold.

    Sample arrays belong to the frames `sample_frame`; a sample's motion is measured to the frame
    `sample_pair_frame`, which follows it by about 0.1 s. What was not measured is empty.
    """

    shot_probability: NDArray[np.float32] = field(default_factory=_no_floats, repr=False)
    """[F], TransNetV2's first head: 1 on the last frame before a transition's middle."""
    transition_probability: NDArray[np.float32] = field(default_factory=_no_floats, repr=False)
    """[F], TransNetV2's second head (`many_hot`): 1 on every frame of a transition."""
    changes: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """[F] each, by the names of `CHANGES`."""
    sample_frame: NDArray[np.int32] = field(default_factory=_no_indices, repr=False)
    """[S], index of the sampled frame."""
    sample_pair_frame: NDArray[np.int32] = field(default_factory=_no_indices, repr=False)
    """[S], index of the frame its motion was measured to."""
    signals: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """[S] each, by name; NaN where one could not be measured."""
    descriptor: NDArray[np.float32] = field(default_factory=_no_rows, repr=False)
    """[S, D], perceptual descriptor, unit length, or zero where the picture holds no structure."""
    look_frame: NDArray[np.int32] = field(default_factory=_no_indices, repr=False)
    """[T], index of the frame looked at."""
    look_next_frame: NDArray[np.int32] = field(default_factory=_no_indices, repr=False)
    """[T], index of the next sample's frame, which it was compared with; -1 at the source's end."""
    look_edges: NDArray[np.uint8] = field(default_factory=_no_maps, repr=False)
    """[T, `EDGE_BYTES`], packed map of strong edges."""
    look_lines: NDArray[np.float32] = field(default_factory=_no_rows, repr=False)
    """[T, 4], the columns `LINE_COLUMNS`."""
    look_standing: NDArray[np.uint8] = field(default_factory=_no_maps, repr=False)
    """[T, `LINE_BYTES`], packed map of straight lines that stand until the next sample; none
    without one."""
    look_moved: NDArray[np.uint8] = field(default_factory=_no_maps, repr=False)
    """[T, `MOVED_BYTES`], packed map of what moves until the next sample."""
    has_text: bool = False
    """Whether text was looked for."""
    text_frame: NDArray[np.int32] = field(default_factory=_no_indices, repr=False)
    """[B], index of the frame in which a line of text was found; increases."""
    text_line: NDArray[np.float32] = field(default_factory=_no_rows, repr=False)
    """[B, 9], the columns `TEXT_COLUMNS`."""
    clip_frame: NDArray[np.int32] = field(default_factory=_no_indices, repr=False)
    """[C], index of the frames that have a CLIP embedding; none where the recipe asks for none."""
    clip_embedding: NDArray[np.float16] = field(default_factory=_no_half_rows, repr=False)
    """[C, D], CLIP embeddings of unit length."""
    has_audio_levels: bool = False
    """Whether audio was looked for."""
    audio_rms_first: int = 0
    """The first cell of `audio_rms_db`, as `media.audio_level` counts them; 0 without any."""
    audio_rms_db: NDArray[np.float32] = field(default_factory=_no_floats, repr=False)
    """[A], RMS level of each tenth of a second in dBFS, from the first that has audio to the last;
    NaN where there is none in between."""
    thumbnails: tuple[bytes, ...] = field(default=(), repr=False)
    """JPEGs of about 160 px, one for each of `thumbnail_frame`."""
    thumbnail_frame: NDArray[np.int32] = field(default_factory=_no_indices, repr=False)
    """Indices of the frames that have a thumbnail."""

    def __post_init__(self) -> None:
        """Checks that arrays agree in length and time increases."""
        # `super()` does not find a class whose slots made it anew.
        Timeline.__post_init__(self)
        n_samples = len(self.sample_frame)
        heads = ("shot_probability", "transition_probability")
        self.check_lengths(self.n_frames, *heads, may_lack=True)
        self.check_lengths(n_samples, "sample_pair_frame")
        self.check_lengths(n_samples, "descriptor", may_lack=True)
        self.check_lengths(len(self.clip_frame), "clip_embedding")
        looks = ("look_next_frame", "look_edges", "look_lines", "look_standing", "look_moved")
        self.check_lengths(len(self.look_frame), *looks)
        self.check_lengths(len(self.text_frame), "text_line")
        lengths = ((self.changes, self.n_frames), (self.signals, n_samples))
        for columns, n in lengths:
            for name, column in columns.items():
                if len(column) != n:
                    raise ValueError(f"track {self.source_id}: {name} has not {n} entries")


STANDARD_FPS = (
    *(Fraction(n) for n in (10, 12, 15, 20, 24, 25, 30, 48, 50, 60, 100, 120)),
    *(Fraction(n, 1001) for n in (24_000, 30_000, 60_000)),
)


def nominal_fps(frame_pts: NDArray[np.int64], end_pts: int, time_base: Fraction) -> Fraction:
    """Frame rate that a constant-rate copy of these frames should have.

    Args:
        frame_pts: [F] increasing timestamps.
        end_pts: End of the last frame.
        time_base: Seconds per tick.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One continuous take: frames `[start_frame, end_frame)` of a source."""

    start_frame: int
    end_frame: int
    transition_in: Transition
    transition_out: Transition

    def __post_init__(self) -> None:
        """Refuses empty shots."""
        if not 0 <= self.start_frame < self.end_frame:
            raise ValueError(f"shot [{self.start_frame}, {self.end_frame}) is empty or negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A candidate clip: frames `[start_frame, end_frame)` within one shot."""

    start_frame: int
    end_frame: int
    shot: int

    @property
    def n_frames(self) -> int:
        """Number of source frames."""
        return self.end_frame - self.start_frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop:
    """A part of the upright picture, in the source's own pixels, before they are made square.

    All values are even, so that 4:2:0 chroma is cut between its pixels, and lie inwards of where
    the borders end.
    """

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipForm:
    """What a recipe asks of clips beyond being cut; None leaves that to the source."""

    size: tuple[int, int] | None = None
    """Width and height: the picture is scaled to cover them, and its middle kept."""
    fps: Fraction | None = None
    n_frames: int | None = None
    """Frames of each clip, from its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest:
    """A clip that survived, with what is needed to write it."""

    clip_id: str
    start_pts: int
    end_pts: int
    frame_pts: NDArray[np.int64]
    """[n] timestamps of the source's frames that the clip must hold."""
    frame_luma: NDArray[np.float32]
    """[n] mean luma of those frames as analyzed, 0 (black) to 1 (white)."""
    time_base: Fraction
    fps: Fraction
    """Rate that is written."""
    is_vfr: bool
    rotation_deg: int
    crop: Crop | None
    """The picture inside its borders; None to keep all of it."""
    is_interlaced: bool
    is_hdr: bool
    min_frames: int
    """A copy with fewer frames is of no use: it is encoded instead, with all its frames."""
    is_resampled: bool = False
    """Whether `fps` is another rate than the source's, so that frames are repeated or left out."""
    size: tuple[int, int] | None = None
    """Width and height to write, even; None for the picture's own."""
    source_bits_per_pixel: float | None = None
    """Of the span as the source codes it; None when not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was taken of a clip."""

    n_frames: int
    """Frames that passed."""
    jpegs: Mapping[int, bytes] = field(repr=False)
    """Pictures by the number of their frame, ascending."""
    text: Mapping[int, tuple[object, ...]]
    """Lines of text by the number of their frame; empty where nothing reads."""


_Part = TypeVar("_Part")
_NO_SLOTS: tuple[str, ...] = ()
"""Not a literal: mypy would take it that nothing can be assigned to."""


@dataclass_transform(kw_only_default=True)
def _part(cls: type[_Part]) -> type[_Part]:
    """Some columns that several tables share: declared here, held by the records made of them."""
    return dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)


@_part
class Named:
    """Which clip it is."""

    __slots__ = _NO_SLOTS
    clip_id: str
    source_id: str
    source_uri: str
    shot: Int32


@_part
class Extent:
    """Where a clip is in its source: half-open, frames in decode order.

    Seconds are from the source's first frame, timestamps the container's own.
    """

    __slots__ = _NO_SLOTS
    start_frame: int
    end_frame: int
    start_s: float
    end_s: float
    start_pts: int
    end_pts: int


@_part
class Rate:
    """Frames of a clip as written, and their rate."""

    __slots__ = _NO_SLOTS
    time_base: str
    """Seconds per unit of `start_pts` and `end_pts`."""
    n_frames: int
    fps: float
    fps_fraction: str
    measured_fps: float | None
    """The score `fps`; differs from `fps` where the rate varies."""
    is_vfr: bool


@_part
class Size:
    """Pixels of a clip as written."""

    __slots__ = _NO_SLOTS
    width: Int32
    height: Int32


@_part
class Borders:
    """The picture inside black borders, in upright pixels of the source; None for no borders."""

    __slots__ = _NO_SLOTS
    crop_x: Int32 | None
    crop_y: Int32 | None
    crop_width: Int32 | None
    crop_height: Int32 | None


@_part
class Scored:
    """What was measured of a clip."""

    __slots__ = _NO_SLOTS
    scores: Mapping[str, float | None]
    """By name; `fps` is `Rate.measured_fps`. A column each."""
    content_type: str | None
    """None where no CLIP model tells it."""


@_part
class Decided:
    """What became of a clip."""

    __slots__ = _NO_SLOTS
    decision: Literal["kept", "rejected"]
    reason: str | None
    """The first of `reasons`."""
    reason_score: float | None
    reason_threshold: float | None
    reasons: list[str]
    reason_detail: str | None


@_part
class Tagged:
    """What was found about a clip, and what rules of severity `flag` say."""

    __slots__ = _NO_SLOTS
    tags: list[str]


@_part
class Later:
    """What stages after the filters find of a clip."""

    __slots__ = _NO_SLOTS
    duplicate_of: str | None
    duplicate_similarity: float | None
    caption: str | None
    caption_model: str | None
    caption_failure: str | None
    """Why a clip that was asked about has no caption."""
    caption_alignment: float | None
    """Cosine of the caption's CLIP embedding to that of the clip."""
    bucket: str | None
    shard: str | None
    key: str | None
    mp4_offset: int | None
    """First byte of the MP4 in `shard`."""


@_part
class File:
    """The MP4 of a written clip."""

    __slots__ = _NO_SLOTS
    mp4_bytes: int
    mp4_sha256: str


@_part
class Stamped:
    """What wrote a clip."""

    __slots__ = _NO_SLOTS
    cut_fingerprint: str | None


@_part
class Coding:
    """How a clip was written."""

    __slots__ = _NO_SLOTS
    cut_mode: CutMode
    copy_frames: Int32 | None
    """Frames that a copy would have had, where the clip was encoded because those were too few."""
    crf: Int32 | None
    """Quality of an encoded clip, coarser than the recipe's where that made it too large."""
    audio: AudioMode


@dataclass(slots=True, kw_only=True)
class Candidate(Named, Extent, Rate, Size, Borders, Scored, Tagged):
    """A clip before any decision: a row of `candidates/clips`.

    `n_frames`, `fps`, `width` and `height` are those that it would be written with.
    """

    seconds: float
    """The length that rules judge."""


class Clip(
    Named,
    Extent,
    Rate,
    Size,
    Borders,
    Scored,
    Decided,
    Tagged,
    Later,
    File,
    Stamped,
    Coding,
):
    """A row of `clips`, as `tables.clip_rows` holds it.

    What is written of a clip (`File`, `Coding`) is null until it is, and in clips that are
    rejected. A copy begins at a key frame and may be shorter than what was proposed: its `Extent`
    is the one written, while `clip_id` and the scores stay those of the span proposed.
    """

    __slots__ = _NO_SLOTS


@_part
class Length:
    """Frames of a written clip."""

    __slots__ = _NO_SLOTS
    n_frames: Int32


@dataclass(slots=True, kw_only=True)
class Written(Coding, Extent, Length, Size, Borders, File):
    """Facts of a clip that was written: columns of `cuts`, and of `clips` by the same names."""


@dataclass(slots=True, kw_only=True)
class CutClip(Coding, Length, Size, File):
    """A written clip: an MP4 in memory and what a reader will find in it.

    Of the request's frames it holds `[first, end)`: all of them when encoded.
    """

    clip_id: str
    mp4: bytes = field(repr=False)
    first: int
    end: int
    fps: Fraction
    not_copied: NotCopied | None
    """Why it was encoded; None for a copy, and where the recipe asks for no copies."""
    looked: Looked | None = field(default=None, repr=False)
    """Frames that were taken on the way; None where none were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A row of `sources`: one per input, whatever became of it.

    `width` and `height` are after rotation; `duration_s`, `n_frames`, `fps` and `is_vfr` are
    measured from decoded frames, `header_*` what the container claims. Two URIs with the same bytes
    have two rows; the clips are those of the first URI.
    """

    source_id: str | None
    uri: str
    bytes: int | None
    version: str | None
    sha256: str | None
    container: str | None
    codec: str | None
    pixel_format: str | None
    width: Int32 | None
    height: Int32 | None
    rotation_deg: Int16 | None
    pixel_aspect: str | None
    duration_s: float | None
    n_frames: int | None
    fps: float | None
    is_vfr: bool | None
    is_hdr: bool | None
    is_interlaced: bool | None
    has_audio: bool | None
    header_duration_s: float | None
    header_n_frames: int | None
    n_decode_errors: Int32 | None
    n_shots: Int32 | None
    n_clips: Int32 | None
    n_kept: Int32 | None
    notes: list[str] | None
    outcome: Literal["done", "failed"] | None
    error_stage: str | None
    error_code: str | None
    error_message: str | None


FULL_HD = 1920 * 1080


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRef:
    """A source as it was listed."""

    uri: str
    n_bytes: int
    version: str
    source_id: str | None = None
    header_duration_s: float | None = None
    header_n_frames: int | None = None
    n_pixels: int | None = None

    @property
    def key(self) -> str:
        """Name under which attempts are counted."""
        return self.uri

    @property
    def weight(self) -> float:
        """About how many frames it has."""
        return float(self.header_n_frames or 30.0 * (self.header_duration_s or 0.0))

    @property
    def work(self) -> float:
        """About how much work it is, in frames of 1080p; without a length, more than is small."""
        if not self.weight:
            return math.inf
        return self.weight * max(0.5, (self.n_pixels or FULL_HD) / FULL_HD)


def field_names(record: type) -> tuple[str, ...]:
    """Names of a record's fields, in order."""
    return tuple(f.name for f in fields(record))

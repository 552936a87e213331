"""Clips from the shot to the row of `clips`, and why they are rejected.

Columns that several tables share are declared once, in parts that records are made of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeVar, cast, dataclass_transform, get_args

from curator.records.columns import Int32, WordedEnum, columns_of, field_names
from curator.records.sources import Medium

Transition = Literal["cut", "gradual", "none"]
CutMode = Literal["copy", "encode_head", "encode"]
AudioMode = Literal["dropped", "none", "copy", "aac"]
"""Audio of a clip: dropped by the recipe, absent from this span of the source, or written."""
ClipFormat = Literal["mp4", "jpg", "png", "webp"]
CLIP_FORMATS: tuple[ClipFormat, ...] = get_args(ClipFormat)
"""Formats of written clips, each the suffix of the member of its sample: of a video, and of a still
image."""


def format_of(stored: ClipFormat | None) -> ClipFormat:
    """Returns the format of a written clip; outputs from before still images have only MP4s."""
    return stored or "mp4"


WITH_SOUND: tuple[AudioMode, ...] = ("copy", "aac")
"""Modes of clips whose MP4 has sound."""


class Reason(WordedEnum):
    """Why a clip is rejected, apart from scores. Public: `clips.reason` and `clips.reasons`.

    Each score defines its own reasons, which are public, too.
    """

    MARKED_DROP = "marked_drop", "rejected by a manual mark"
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    SHORTER_THAN_WINDOW = (
        "shorter_than_window",
        "the end of a take, with fewer frames than a window",
    )
    HIGH_DYNAMIC_RANGE = "high_dynamic_range"
    CONTENT_TYPE_UNWANTED = "content_type_unwanted"
    NOT_MEASURED = "not_measured", "a filter rule uses a score that was not measured for this clip"
    DUPLICATE = "duplicate"
    DIVIDED = "divided", "partly duplicated; its unique footage became separate clips"
    SEMANTIC_DUPLICATE = (
        "semantic_duplicate",
        "a better clip of its cluster shows the same kind of thing",
    )
    DUPLICATE_ELSEWHERE = (
        "duplicate_elsewhere",
        "another output, which dedup.against names, has its footage",
    )
    REMOVED_BEFORE = "removed_before", "a copy of footage that `curate remove` took out"
    SMALLER_THAN_SIZE = "smaller_than_size", "smaller than its size, and cut.enlarge is never"
    CROPPED_TOO_MUCH = "cropped_too_much", "cut.size crops more of it than cut.most_cropped"
    SLOWER_THAN_FPS = "slower_than_fps", "its rate repeats more frames than cut.most_repeated"
    NO_BUCKET = "no_bucket", "fits no bucket: resolution or duration below the smallest"
    NO_ASPECT_CLASS = "no_aspect_class", "near no aspect class"
    NOT_SELECTED = "not_selected"
    """The recipe takes only a part of its group, and others came first."""
    ANSWER_UNWANTED = "answer_unwanted", "an answer of the captioner that caption.reject names"
    NOT_ANNOTATED = "not_annotated", "a window has no annotation, and caption.failed is reject"
    JUDGED_TOO_LOW = "judged_too_low", "the judge scores a window's best answer too low"
    NOT_ALIGNED = "not_aligned", "of a group of cameras for which no common clock was found"
    INCOMPLETE_MOMENT = "incomplete_moment", "another camera's clip of the same moment is rejected"
    CUT_FAILED = "cut_failed", "could not be written"
    ACROSS_SPLITS = (
        "across_splits",
        "belongs together with clips of earlier generations in train and in val",
    )
    SOURCE_CHANGED = "source_changed", "in a source that changed after its analysis"
    REMOVED = "removed", "footage that `curate remove` took out"


COMPARED = (
    Reason.REMOVED_BEFORE, Reason.DUPLICATE_ELSEWHERE, Reason.DUPLICATE, Reason.DIVIDED,
    Reason.SEMANTIC_DUPLICATE,
)  # fmt: skip
"""Reasons of the search for duplicates."""
OF_FORM = {
    Reason.SMALLER_THAN_SIZE: ("cut.enlarge", "scale_factor"),
    Reason.CROPPED_TOO_MUCH: ("cut.most_cropped", "cropped_share"),
    Reason.SLOWER_THAN_FPS: ("cut.most_repeated", "repeated_share"),
}
"""Reasons against clips that `cut.size`, `cut.fps` or a window's rate would change too much, each
with the key of the recipe that allows it, and a column of `FITTED`."""
OVERRIDDEN = frozenset({
    Reason.DUPLICATE, Reason.DIVIDED, Reason.SEMANTIC_DUPLICATE, Reason.NOT_SELECTED,
})  # fmt: skip
"""Reasons behind the rules that do not reject a clip that is marked `keep` by hand."""
BY_HAND = "by hand"
"""`caption_model` of a caption that a person wrote in a mark."""
MEASURED_MODEL = "curate/measured-1"
"""`caption_model` of a caption that is composed from measurements."""
CLAIMS_COLUMN = "caption_claims"
"""Column of the annotator `caption_claims` with the claims of a caption as JSON."""
REMAINDER = "remainder"
"""Tag of a clip cut from a rejected clip: the part that no other clip shows."""


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
class Window(Span):
    """A span that is written as a window of `propose.windows`, or as the end of a take.

    `size` is the window of the recipe: frames, and frames per second or None for the source's own
    rate. The clip has `n_written` frames at the rate `fps`: fewer than the window at the end of a
    take. `output_px` is the width and height of the window, if the recipe sets them.
    """

    size: tuple[int, Fraction | None]
    n_written: int
    fps: Fraction
    output_px: tuple[int, int] | None = None


_Part = TypeVar("_Part")


@dataclass_transform(kw_only_default=True)
def _part(cls: type[_Part]) -> type[_Part]:
    """Declares columns that several tables share. Records inherit the columns from the part."""
    own = {n: value for n, value in vars(cls).items() if n not in ("__dict__", "__weakref__")}
    # Without `__slots__` here, records made of parts would have a dictionary.
    slotless = type(cls.__name__, cls.__bases__, own | {"__slots__": ()})
    return cast(type[_Part], dataclass(init=False, repr=False, eq=False, kw_only=True)(slotless))


@_part
class Named:
    """Identity of a clip."""

    clip_id: str
    source_id: str
    source_uri: str
    medium: Medium
    shot: Int32


@_part
class Extent:
    """Where a clip is in its source: half-open, frames in decode order.

    Seconds are from the source's first frame, timestamps the container's own.
    """

    start_frame: int
    end_frame: int
    start_s: float
    end_s: float
    start_pts: int
    end_pts: int


@_part
class Rate:
    """Frames of a clip as written, and their rate."""

    time_base: str
    """Seconds per unit of `start_pts` and `end_pts`."""
    n_frames: int
    written_fps: float
    """Frame rate of the MP4; the score `fps` is that of the source, mean if variable."""
    fps_fraction: str
    """`written_fps`, exactly."""
    is_vfr: bool


@_part
class Size:
    """Pixels of a clip as written."""

    width: Int32
    height: Int32


@_part
class Resized:
    """How `cut.size` changes a clip; None if the recipe does not set it."""

    scale_factor: float | None
    """Factor by which the picture is scaled; above 1, it is enlarged."""
    cropped_share: float | None
    """Share of the picture that scaling to a size crops away."""


@_part
class Retimed:
    """How `cut.fps`, or the rate of a window, changes a clip; None if the recipe sets no rate."""

    rate_factor: float | None
    """Written frame rate, divided by the source's."""
    repeated_share: float | None
    """Share of the frames, at least, that repeat the frame before."""


FITTED = (*field_names(Resized), *field_names(Retimed))


@_part
class Windowed:
    """The window of `propose.windows` of which a clip is made; None for other clips."""

    window_frames: Int32 | None
    """Frames of the window. The clip has as many, or fewer at the end of a take (`n_frames`)."""
    window_fps: float | None
    """Frame rate of the window; None for the source's own rate."""


WINDOWED = field_names(Windowed)


@_part
class Sized:
    """The size of a clip that the recipe makes once for each of several sizes.

    Also of a window with a size of its own; None for other clips.
    """

    output_size: str | None
    """Width and height, such as `1280x720`."""


SIZED = field_names(Sized)


@_part
class Spanned:
    """The span of the manifest in which a clip lies; None for clips of whole sources."""

    span_start_s: float | None
    span_end_s: float | None
    """None also for a span to the source's end."""


SPANNED = field_names(Spanned)


@_part
class InMoment:
    """The moment of a group of cameras that a clip shows; None for clips of no such group."""

    moment: str | None
    """Name of the moment, the same for the clips of all its cameras; None if not aligned."""
    moment_cameras: Int32 | None
    """Number of cameras that show the moment; 0 if this camera could not be aligned."""
    moment_offset_s: float | None
    """How much later than the moment's instant the first frame begins; at most half a frame."""
    moment_residual_s: float | None
    """Bound of the error of the common clock (95%); None for clocks that the manifest gives."""


IN_MOMENT = field_names(InMoment)


@_part
class Licensed:
    """Rights of the source of a clip: see the columns of the same names in `sources`."""

    license: str | None
    origin: str | None
    c2pa: str | None
    c2pa_generated: bool | None


LICENSED = field_names(Licensed)
RIGHTS = LICENSED[:2]
"""Columns with the licence and the origin."""


@_part
class Borders:
    """The picture inside black borders, in upright pixels of the source; None for no borders."""

    crop_x: Int32 | None
    crop_y: Int32 | None
    crop_width: Int32 | None
    crop_height: Int32 | None


@_part
class Scored:
    """Measurements of a clip."""

    scores: Mapping[str, float | None]
    """By name. A column each."""
    content_type: str | None
    """None without a CLIP model."""


@_part
class Decided:
    """Decision about a clip."""

    decision: Literal["kept", "rejected"]
    reason: str | None
    """The first of `reasons`."""
    reason_score: float | None
    reason_threshold: float | None
    reasons: list[str]
    reason_detail: str | None


@_part
class Tagged:
    """Findings about a clip, including those of rules of severity `flag`."""

    tags: list[str]


@_part
class Later:
    """Results of the stages after the filters."""

    duplicate_of: str | None
    duplicate_similarity: float | None
    duplicate_offset_s: float | None
    """Second of `duplicate_of` at which this clip begins; negative where it begins before."""
    duplicate_overlap_s: float | None
    """Seconds of this clip that `duplicate_of` shows."""
    cluster: Int32 | None
    """Number of its cluster of meaning; None where the recipe makes none."""
    caption: str | None
    caption_model: str | None
    caption_failure: str | None
    """Why the captioner gave the clip no caption."""
    caption_clip_score: float | None
    """Cosine of the caption's CLIP embedding to that of the clip."""
    bucket: str | None
    shard: str | None
    key: str | None
    mp4_offset: int | None
    """First byte of the MP4 in `shard`."""


@_part
class File:
    """The file of a written clip: an MP4, or a picture as `Coding.format` says."""

    mp4_bytes: int
    mp4_sha256: str


@_part
class Stamped:
    """Fingerprint of the settings that wrote a clip."""

    cut_fingerprint: str | None


@_part
class Coding:
    """How a clip was written."""

    cut_mode: CutMode
    format: ClipFormat
    copy_frames: Int32 | None
    """Frames that a copy would have had, where the clip was encoded because those were too few."""
    crf: Int32 | None
    """Quality of an encoded clip, coarser than the recipe's where that made it too large."""
    audio: AudioMode


@dataclass(slots=True, kw_only=True)
class Candidate(
    Named, Extent, Rate, Size, Borders, Scored, Tagged, Retimed, Windowed, Sized, Spanned, InMoment,
):  # fmt: skip
    """A clip before any decision: a row of `candidates/clips`.

    `n_frames`, `written_fps`, `width` and `height` are those that it would be written with.
    """

    seconds: float
    """Length that rules compare with their limits."""


@_part
class Clip(
    Named, Extent, Rate, Size, Borders, Scored, Decided, Tagged, Later, File, Stamped, Coding,
    Resized, Retimed, Windowed, Sized, Spanned, InMoment, Licensed,
):  # fmt: skip
    """A row of `clips`, as `tables.clip_rows` holds it.

    `File` and `Coding` are null until the clip is written, and in rejected clips. A copy begins at
    a key frame and may be shorter than the proposed span. `Extent` is the written span; `clip_id`
    and the scores belong to the proposed span.
    """


@_part
class Length:
    """Frames of a written clip."""

    n_frames: Int32


@dataclass(slots=True, kw_only=True)
class Written(Coding, Extent, Length, Size, Borders, File):
    """Facts of a clip that was written: columns of `cuts`, and of `clips` by the same names."""


FACT_COLUMNS = frozenset({*columns_of(Clip), *columns_of(Candidate)} - {"scores"})
"""Columns of `clips` and `candidates` that are no scores."""

PREFERENCES = ("pixels", "bits_per_pixel", "length")
"""More pixels, less compression, and more frames are better."""
LEAST = "-"
"""Prefix of a criterion for which the lowest value is the best."""

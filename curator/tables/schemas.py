"""Schemas of the tables that readers see. Public: columns may be added, never changed."""

import pyarrow as pa

from curator.measures.scores import SCORES
from curator.records import Crop

CROP_COLUMNS = ("crop_x", "crop_y", "crop_width", "crop_height")
"""Columns of `clips`, each `crop_` and a field of `records.Crop`."""


def crop_columns(crop: Crop | None) -> dict[str, int | None]:
    """Values of `CROP_COLUMNS`."""
    return {name: getattr(crop, name.removeprefix("crop_"), None) for name in CROP_COLUMNS}


SOURCES_SCHEMA = pa.schema(
    [
        ("source_id", pa.string()),
        ("uri", pa.string()),
        ("bytes", pa.int64()),
        ("version", pa.string()),
        ("sha256", pa.string()),
        ("container", pa.string()),
        ("codec", pa.string()),
        ("pixel_format", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("rotation_deg", pa.int16()),
        ("pixel_aspect", pa.string()),
        ("duration_s", pa.float64()),
        ("n_frames", pa.int64()),
        ("fps", pa.float64()),
        ("is_vfr", pa.bool_()),
        ("is_hdr", pa.bool_()),
        ("is_interlaced", pa.bool_()),
        ("has_audio", pa.bool_()),
        ("header_duration_s", pa.float64()),
        ("header_n_frames", pa.int64()),
        ("n_decode_errors", pa.int32()),
        ("n_shots", pa.int32()),
        ("n_clips", pa.int32()),
        ("n_kept", pa.int32()),
        ("notes", pa.list_(pa.string())),
        ("outcome", pa.string()),
        ("error_stage", pa.string()),
        ("error_code", pa.string()),
        ("error_message", pa.string()),
    ]
)
"""A row per input, whatever became of it. `width`, `height` are after rotation; `duration_s`,
`n_frames`, `fps` and `is_vfr` are measured from decoded frames; `header_*` are the container's
claims. Two URIs with the same bytes have two rows; the clips stand under the first URI."""

SHOTS_SCHEMA = pa.schema(
    [
        ("source_id", pa.string()),
        ("shot", pa.int32()),
        ("start_frame", pa.int64()),
        ("end_frame", pa.int64()),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
        ("transition_in", pa.string()),
        ("transition_out", pa.string()),
    ]
)
"""A row per shot: frames [start_frame, end_frame) in decode order; seconds from the first frame."""

CLIPS_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("source_id", pa.string()),
        ("source_uri", pa.string()),
        ("shot", pa.int32()),
        ("start_frame", pa.int64()),
        ("end_frame", pa.int64()),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
        ("start_pts", pa.int64()),
        ("end_pts", pa.int64()),
        ("time_base", pa.string()),
        ("n_frames", pa.int64()),
        ("fps", pa.float64()),
        ("fps_fraction", pa.string()),
        ("measured_fps", pa.float64()),
        ("is_vfr", pa.bool_()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        *((name, pa.int32()) for name in CROP_COLUMNS),
        *((name, pa.float64()) for name in SCORES if name != "fps"),
        ("content_type", pa.string()),
        ("decision", pa.string()),
        ("reason", pa.string()),
        ("reason_score", pa.float64()),
        ("reason_threshold", pa.float64()),
        ("reasons", pa.list_(pa.string())),
        ("reason_detail", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("duplicate_of", pa.string()),
        ("duplicate_similarity", pa.float64()),
        ("caption", pa.string()),
        ("caption_model", pa.string()),
        ("caption_failure", pa.string()),
        ("caption_alignment", pa.float64()),
        ("bucket", pa.string()),
        ("shard", pa.string()),
        ("key", pa.string()),
        ("mp4_offset", pa.int64()),
        ("mp4_bytes", pa.int64()),
        ("mp4_sha256", pa.string()),
        ("cut_fingerprint", pa.string()),
        ("cut_mode", pa.string()),
        ("copy_frames", pa.int32()),
        ("crf", pa.int32()),
        ("audio", pa.string()),
    ]
)
"""A row per candidate clip. `start_frame`, `end_frame` count the source's frames in decode order;
seconds are from the source's first frame; `start_pts`, `end_pts` are the container's own, in
`time_base`. `n_frames`, `fps`, `width` and `height` are those of the clip as written. `crop_*` is
the picture inside black borders, in upright pixels of the source, null for no borders. `reasons`
lists all reasons against it, `reason` the first. `tags` are what was found about the clip and what
rules of severity `flag` say. `content_type` is null where no CLIP model tells it. `measured_fps` is
the score `fps`, and differs from the rate that the clip is written at where the rate varies.
`mp4_offset` is where its MP4 begins in `shard`. `cut_mode` is how a kept clip was written, `copy`
or `encode`. A copy begins at a key frame and may be shorter than what was proposed: its span is the
one written, while `clip_id` and the scores stay those of the span proposed. `copy_frames` is how
many frames a copy would have had, where it was encoded because those were too few. `crf` is the
quality of an encoded clip, coarser than the recipe's where that made it too large. `audio` is what
became of a kept clip's: `dropped`, `copy`, `aac`, or `none` where the source has none then.
`caption_failure` is why a clip that was asked about has no caption, and `caption_alignment` the
cosine of the caption's CLIP embedding to that of the clip."""

SIDECARS_SCHEMA = pa.schema(
    [("source_uri", pa.string()), ("uri", pa.string()), ("json", pa.string())]
)
"""A row per source of a kept clip that has metadata beside it: where, and what it says."""

ANNOTATIONS_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("source_id", pa.string()),
        ("window", pa.int32()),
        ("start_frame", pa.int32()),
        ("end_frame", pa.int32()),
        ("shown", pa.list_(pa.int32())),
        ("model", pa.string()),
        ("prompt", pa.string()),
        ("facts", pa.string()),
        ("short", pa.string()),
        ("medium", pa.string()),
        ("long", pa.string()),
        ("structured", pa.string()),
        ("content_type", pa.string()),
        ("answers", pa.string()),
        ("safety", pa.string()),
        ("extra", pa.string()),
        ("failure", pa.string()),
        ("failure_detail", pa.string()),
        ("set_aside", pa.string()),
        ("lost", pa.string()),
        ("judge", pa.string()),
        ("candidates", pa.string()),
        ("n_unscored", pa.int32()),
        ("tokens_in", pa.int32()),
        ("tokens_out", pa.int32()),
        ("request_keys", pa.list_(pa.string())),
        ("annotation_key", pa.string()),
        ("clip_start_frame", pa.int64()),
        ("clip_end_frame", pa.int64()),
        ("clip_start_s", pa.float64()),
        ("clip_end_s", pa.float64()),
        ("prompt_fingerprint", pa.string()),
        ("judge_prompt_fingerprint", pa.string()),
        ("label", pa.string()),
        ("known", pa.string()),
        ("questions", pa.string()),
    ]
)
"""A row per window of a clip that a model was asked about: its answer, or `failure`, one of
`captions.records.Unanswered`. `start_frame`, `end_frame` (half-open) and `shown` count the frames
of the clip as it was asked about: as written, or as proposed where answers may reject clips before
they are cut; `clip_start_frame` to `clip_end_s` are where that lies in the source.
`structured`, `answers`, `extra`, `set_aside` (answers that were not taken, by reason), `lost`
(candidates that failed where another is whole, by reason) and `candidates` (all answers with the
judge's scores) are JSON. `n_unscored` counts candidates that the judge gave no score that can be
read. `request_keys` name the rows of `replies` that it came from,
`annotation_key` what makes it. `label` is the class of events
that metadata gives the window, `known` (JSON) what else it says: the caption made of it, events,
values and what could not be used. `questions` (JSON) are questions that metadata or the model
answers, each with the origin of its answer. `label` and `known` are null where the recipe takes
nothing from metadata."""

LATER_COLUMNS = (
    "decision", "reason", "reason_score", "reason_threshold", "reasons", "reason_detail",
    "duplicate_of", "duplicate_similarity", "caption", "caption_model", "caption_failure",
    "caption_alignment", "shard", "key", "mp4_offset", "mp4_bytes", "mp4_sha256",
    "cut_fingerprint", "cut_mode", "copy_frames", "crf", "audio",
)  # fmt: skip
"""Columns of `clips` that follow from decisions."""

CANDIDATES_SCHEMA = pa.schema(
    [field for field in CLIPS_SCHEMA if field.name not in (*LATER_COLUMNS, "bucket")]
    + [pa.field("seconds", pa.float64())]
)
"""A row per candidate clip before any decision: span, facts, scores, and `tags` that come from what
was measured. `seconds` is the length that rules judge."""

PICTURES_SCHEMA = pa.schema([("clip_id", pa.string()), ("jpeg", pa.binary())])
"""A thumbnail of a clip, from its middle."""


def score_column(score: str) -> str:
    """Column of `clips` that holds a score."""
    return "measured_fps" if score == "fps" else score


def embeddings_schema(dim: int) -> pa.Schema:
    """Schema of `embeddings`: one vector per clip that could be described."""
    return pa.schema(
        [
            ("clip_id", pa.string()),
            ("model", pa.string()),
            ("vector", pa.list_(pa.float32(), dim)),
        ]
    )

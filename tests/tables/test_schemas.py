"""The columns of tables that readers see, and of `cuts`: public, so pinned down word for word."""

import pyarrow as pa
import pytest

from curator.measures.score_list import SCORES
from curator.tables.schemas import CUT_SCHEMA, SOURCES_SCHEMA, candidates_schema, clips_schema

SOURCES = """
source_id: string; uri: string; bytes: int64; version: string; sha256: string; medium: string;
container: string; codec: string; pixel_format: string; width: int32; height: int32;
rotation_deg: int16;
pixel_aspect: string; duration_s: double; n_frames: int64; fps: double; is_vfr: bool; is_hdr:
bool; is_interlaced: bool; has_audio: bool; header_duration_s: double; header_n_frames: int64;
n_decode_errors: int32; n_shots: int32; n_clips: int32; n_kept: int32; generation: int32;
spans: string; license: string; origin: string; c2pa: string; c2pa_generated: bool;
c2pa_issuer: string; c2pa_tool: string; clock: string; notes: list<item: string>; outcome: string;
error_stage: string;
error_code: string;
error_message: string
"""
MEASURED = """
clip_id: string; source_id: string; source_uri: string; medium: string; shot: int32;
start_frame: int64;
end_frame: int64; start_s: double; end_s: double; start_pts: int64; end_pts: int64; time_base:
string; n_frames: int64; written_fps: double; fps_fraction: string; is_vfr: bool; width: int32;
height: int32; crop_x: int32; crop_y: int32; crop_width: int32; crop_height: int32; short_side_px:
double; aspect: double; fps: double; duration_s: double; hdr: double; bits_per_pixel: double;
bit_rate_kbps: double; interlaced: double; corrupt_fraction: double; audio_coverage: double;
audio_rms_db: double; silence: double; luma: double; contrast: double; clipped_fraction: double;
sharpness: double; noise: double; motion: double; camera_motion: double; camera_jitter: double;
camera_share: double; object_motion: double; pan_rate: double; tilt_rate: double; zoom_rate:
double; roll_rate: double; blocking: double; flattening: double; quantizer: double; banding:
double; combing: double; true_resolution: double; stripes: double; frozen_fraction: double;
black_fraction: double; content_area: double; text_area: double; overlay_text_area: double;
logo_area: double; split_screen: double; picture_in_picture: double; aesthetic: double;
content_probability: double; nsfw: double; consistency: double; layout_consistency: double;
shot_doubt: double; distortion: double; repeated_fraction: double;
title_card: double; drawn_boxes: double;
"""
CLIPS = f"""{MEASURED}
content_type: string; decision: string; reason: string; reason_score: double; reason_threshold:
double; reasons: list<item: string>; reason_detail: string; tags: list<item: string>;
duplicate_of: string; duplicate_similarity: double; duplicate_offset_s: double;
duplicate_overlap_s: double; cluster: int32; caption: string; caption_model: string;
caption_failure: string; caption_clip_score: double; bucket: string; shard: string; key: string;
mp4_offset: int64; mp4_bytes: int64; mp4_sha256: string; cut_fingerprint: string; cut_mode:
string; format: string; copy_frames: int32; crf: int32; audio: string; scale_factor: double;
cropped_share: double; rate_factor: double; repeated_share: double; window_frames: int32;
window_fps: double; output_size: string; span_start_s: double; span_end_s: double;
moment: string; moment_cameras: int32;
moment_offset_s: double; moment_residual_s: double;
license: string; origin: string; c2pa: string; c2pa_generated: bool
"""
CANDIDATES = f"{MEASURED} content_type: string; tags: list<item: string>; "
CANDIDATES += "rate_factor: double; repeated_share: double; window_frames: int32; "
CANDIDATES += "window_fps: double; output_size: string; span_start_s: double; span_end_s: double; "
CANDIDATES += "moment: string; moment_cameras: int32; moment_offset_s: double; "
CANDIDATES += "moment_residual_s: double; seconds: double"
CUTS = """
clip_id: string; cut_mode: string; format: string; copy_frames: int32; crf: int32; audio: string;
start_frame: int64; end_frame: int64; start_s: double; end_s: double; start_pts: int64;
end_pts: int64; n_frames: int32; width: int32; height: int32; crop_x: int32; crop_y: int32;
crop_width: int32; crop_height: int32; mp4_bytes: int64; mp4_sha256: string; mp4: binary
"""


def columns(pinned: str) -> list[tuple[str, str]]:
    """Names and types of columns."""
    pairs = (column.split(": ", 1) for column in " ".join(pinned.split()).split("; "))
    return [(name, kind) for name, kind in pairs]


@pytest.mark.parametrize(
    ("schema", "pinned"),
    [
        (SOURCES_SCHEMA, SOURCES),
        (clips_schema(SCORES), CLIPS),
        (candidates_schema(SCORES), CANDIDATES),
        (CUT_SCHEMA, CUTS),
    ],
    ids=["sources", "clips", "candidates", "cuts"],
)
def test_columns_keep_their_names_types_and_order(schema: pa.Schema, pinned: str) -> None:
    assert [(field.name, str(field.type)) for field in schema] == columns(pinned)
    assert all(field.nullable for field in schema)

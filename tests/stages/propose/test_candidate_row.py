"""Rows of candidate clips: every column, and the decision with its reasons."""

from fractions import Fraction

import numpy as np
import pytest
from filtered_clips import decide
from samples import made_track

from curator.cut_requests import cut_request, target_n_frames
from curator.measures.rule_config import FilterConfig
from curator.measures.score_list import SCORES
from curator.records.clips import Reason, Span
from curator.records.tracks import Track
from curator.stages.propose.candidate_row import candidate_of
from curator.stages.propose.clip_spans import clip_id
from curator.stages.propose.config import ProposeConfig
from curator.stages.shard.config import ShardConfig
from curator.tables.clip_rows import candidates_table
from curator.tables.parts import rows_to_table
from curator.tables.schemas import clips_schema

RULES = {"motion": {"min": 0.05}, "luma": {"min": 0.2, "max": 0.8}}


def row_of(
    track: Track, start: int = 30, end: int = 180, rules: dict[str, dict[str, float]] | None = None
) -> dict[str, object]:
    span = Span(start_frame=start, end_frame=end, shot=4)
    row = candidate_of(track, span, "s3://films/a.mp4", aggregates={}, crop_borders=True)
    decided = decide(
        candidates_table([row], SCORES),
        FilterConfig.model_validate(RULES if rules is None else rules).root,
        min_s=ProposeConfig().min_s,
        shard=ShardConfig(),
    )
    (decided_row,) = decided.clips.drop_columns(["seconds"]).to_pylist()
    return decided_row


def test_a_kept_clip_has_span_timing_size_scores_and_bucket() -> None:
    """Pins the row of a kept clip, and that it fits the public schema."""
    track = made_track(300)
    row = row_of(track)
    assert row["clip_id"] == clip_id(track.source_id, 30 * 512, 180 * 512)
    expected = {
        "source_uri": "s3://films/a.mp4", "shot": 4, "start_frame": 30, "end_frame": 180,
        "start_s": 1.0, "end_s": 6.0, "start_pts": 30 * 512, "end_pts": 180 * 512,
        "time_base": "1/15360", "n_frames": 150, "written_fps": 30.0, "fps_fraction": "30",
        "is_vfr": False, "width": 1280, "height": 720, "decision": "kept", "reasons": [],
        "bucket": "720p_16-9_129f",
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert row["reason"] is row["reason_score"] is row["reason_threshold"] is None
    assert set(SCORES) <= set(row)
    assert rows_to_table([row], clips_schema(SCORES)).num_rows == 1
    # Pins that length stands before the rules, and that all reasons are listed once.
    row = row_of(made_track(300, luma_mean=np.zeros(300, np.float32)), 30, 60)
    assert row["decision"] == "rejected"
    assert (row["reason"], row["reason_score"], row["reason_threshold"]) == ("too_short", 1.0, 2.0)
    assert row["reasons"] == ["too_short", "too_dark"]
    assert row["luma"] == 0.0
    # Pins that 2 s at 29.97 frames/s, which is no round number of ticks, is not too short.
    pts = np.arange(300, dtype=np.int64) * 1001
    track = made_track(300, time_base=Fraction(1, 30_000), frame_pts=pts, end_pts=300 * 1001)
    assert row_of(track, 0, 60)["decision"] == "kept"
    assert row_of(track, 0, 59)["reason"] == Reason.TOO_SHORT


def test_seconds_count_from_the_first_frame_at_the_nominal_rate() -> None:
    # Pins that a stream which starts late in its own clock starts at 0 s, with its own ticks.
    track = made_track(300)
    late = made_track(300, frame_pts=track.frame_pts + 7000, end_pts=track.end_pts + 7000)
    row = row_of(late)
    assert (row["start_s"], row["start_pts"]) == (1.0, 30 * 512 + 7000)
    # Pins that frames and rate of the row are those of the file that will be written.
    steps = np.tile([10, 20, 20, 35, 15], 60)
    pts = np.concatenate([[0], np.cumsum(steps)[:-1]]).astype(np.int64)
    track = made_track(300, time_base=Fraction(1, 600), frame_pts=pts, end_pts=int(steps.sum()))
    row = row_of(track, 50, 200)
    request = cut_request(track, "x", Span(start_frame=50, end_frame=200, shot=0))
    assert (row["is_vfr"], row["fps_fraction"]) == (True, "30")
    assert row["n_frames"] == target_n_frames(request) == 150 * 20 // 20
    # Pins what is asked of the cut at the end of a film, where no frame tells the end.
    track = made_track(300, rotation_deg=90, is_interlaced=True)
    request = cut_request(track, "name", Span(start_frame=290, end_frame=300, shot=0))
    assert request.frame_pts.tolist() == [i * 512 for i in range(290, 300)]
    assert (request.start_pts, request.end_pts) == (290 * 512, 300 * 512)
    assert (request.clip_id, request.rotation_deg, request.is_interlaced) == ("name", 90, True)
    # Pins that the row has the size which is written.
    row = row_of(made_track(300, width=853, height=481))
    assert (row["width"], row["height"]) == (852, 480)


@pytest.mark.parametrize(
    ("track", "score", "threshold"),
    [
        (made_track(300, width=320, height=180), 180.0, 240.0),
        (made_track(300, time_base=Fraction(1, 1024)), 10.0, 17.0),
        (made_track(300, width=1, height=1), 0.0, 240.0),
    ],
)
def test_a_clip_for_no_bucket_says_what_it_lacks(
    track: Track, score: float, threshold: float
) -> None:
    """Pins size before length as the cause, and that one pixel, which has no even size, is one."""
    row = row_of(track, 30, 40 if threshold == 17 else 180)
    assert row["reasons"] == ["no_bucket"]
    assert (row["reason_score"], row["reason_threshold"]) == (score, threshold)
    assert row["bucket"] is None

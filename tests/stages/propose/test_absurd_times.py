"""Times that no camera writes: clips stay few, and rates are numbers that a file can have."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from filtered_clips import decide
from samples import made_track

from curator.cut_requests import MAX_VARIABLE_FPS, cut_request, target_n_frames
from curator.executor.unit_worker import UnitWorker
from curator.measures.score_list import SCORES
from curator.records.clips import Reason, Span
from curator.records.sources import SourceRef
from curator.records.tracks import Track, nominal_fps
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.families import families_of
from curator.stages.propose.candidate_row import candidate_of
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.stage import KeepProposed, ProposeStage
from curator.stages.shard.config import ShardConfig
from curator.storage import open_store
from curator.tables.clip_rows import candidates_table
from curator.tables.removal_records import Removals
from curator.tables.track_parts import AnalyzedUnit, StoredTrack, TrackParts


@pytest.mark.parametrize(
    ("pts", "end", "time_base", "rate"),
    [
        ([0, 10, 1010], 2010, Fraction(1, 1000), Fraction(400, 202)),
        ([0], 10**9, Fraction(1, 1000), Fraction(1, 10**6)),
        ([0, 10**9, 2 * 10**9], 3 * 10**9, Fraction(1, 1000), Fraction(1, 10**6)),
    ],
    ids=["two unlike intervals", "one frame of days", "days between frames"],
)
def test_every_track_has_a_rate_above_zero(
    pts: list[int], end: int, time_base: Fraction, rate: Fraction
) -> None:
    assert nominal_fps(np.array(pts, np.int64), end, time_base) == rate


def test_an_absurd_unit_of_time_asks_for_no_millions_of_frames() -> None:
    """Pins pairs of frames a microsecond apart, seconds after each other."""
    pts = np.array([at for second in range(20) for at in (second * 10**6, second * 10**6 + 1)])
    track = made_track(40, time_base=Fraction(1, 10**6), frame_pts=pts, end_pts=20 * 10**6)
    request = cut_request(track, "x", Span(start_frame=0, end_frame=40, shot=0))
    assert request.is_vfr
    assert request.fps <= MAX_VARIABLE_FPS
    assert target_n_frames(request) <= 20 * MAX_VARIABLE_FPS


def days(n_frames: int = 4) -> Track:
    pts = np.arange(n_frames, dtype=np.int64) * 10**12
    return made_track(
        n_frames, time_base=Fraction(1, 1000), frame_pts=pts, end_pts=n_frames * 10**12
    )


@pytest.mark.parametrize(("max_s", "reason"), [(60.0, Reason.TOO_LONG), (None, None)])
def test_a_picture_that_stands_for_days_is_too_long_for_any_recipe(
    max_s: float | None, reason: Reason | None
) -> None:
    span = Span(start_frame=1, end_frame=2, shot=0)
    row = candidate_of(days(), span, "a.mp4", aggregates={}, crop_borders=False)
    clips = candidates_table([row], SCORES)
    decided = decide(clips, {}, min_s=2.0, shard=ShardConfig(), max_s=max_s)
    (filtered,) = decided.clips.drop_columns(["seconds"]).to_pylist()
    assert (Reason.TOO_LONG in filtered["reasons"]) == (reason is not None)
    rules = {rule.rule: rule.n_any for rule in decided.rules}
    assert rules.get("propose.max_s") == (1 if reason else None)


def test_what_proposing_raises_ends_in_the_row_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that the other sources of the unit go on, and that nothing is stored as done."""
    families = families_of(AnalyzeConfig(distortion=False))
    store = open_store(str(tmp_path))
    parts = TrackParts(store, families)
    sources = {
        name: SourceRef(uri=f"{name}.mp4", n_bytes=1, version="1-1-1-1", source_id=name)
        for name in ("good", "odd")
    }
    tracks = [(source, made_track(90, source_id=name)) for name, source in sources.items()]
    stored = parts.write(tracks, [family.name for family in families])

    def refuse(track: Track, *_: object) -> list[Span]:
        if track.source_id == "odd":
            raise ZeroDivisionError("not foreseen")
        return []

    monkeypatch.setattr("curator.stages.propose.stage.propose_clips", refuse)
    worker = UnitWorker(
        stage=ProposeStage(ProposeConfig()),
        load=parts.load,
        keep=KeepProposed(store=store, fingerprint="x", removals=Removals()),
    )
    unit = [StoredTrack(source=source, parts=stored) for source in sources.values()]
    proposed = worker(AnalyzedUnit(tracks=tuple(unit))).results
    rows = {row["uri"]: row for row in proposed.sources.to_pylist()}
    assert rows["good.mp4"]["outcome"] == "done"
    assert (rows["odd.mp4"]["error_stage"], rows["odd.mp4"]["error_code"]) == (
        "propose",
        "internal",
    )
    assert rows["odd.mp4"]["source_id"] is None
    assert set(proposed.shots["source_id"].to_pylist()) == {"good"}

"""Scores of a clip's audio, by levels made by hand and by films."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from one_by_one import verdicts_on
from pydantic import ValidationError
from samples import framed, made_track
from sound import Sound, tone, write_film

from curator.errors import RecipeError, UsageError
from curator.measures.rule_config import FilterConfig
from curator.measures.rules import resolve
from curator.measures.score_list import BUILT_IN, ScoreConfig
from curator.recipe import describe, load_recipe
from curator.records.clips import Reason, Span
from curator.records.sources import Note
from curator.records.tracks import Track
from curator.runs.start import check_measured
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.families import families_of
from curator.tables.track_table import table_to_tracks, tracks_to_table


def span(start: int, end: int) -> Span:
    return Span(start_frame=start, end_frame=end, shot=0)


def heard(levels: list[float], first: int = 0) -> Track:
    """Ten seconds of video with these levels, at one every tenth of a second."""
    return made_track(
        300, has_audio_levels=True, audio_rms_first=first, audio_rms_db=np.array(levels, np.float32)
    )


def audio_scores(
    track: Track, of: Span, **scores: float
) -> tuple[float | None, float | None, float | None]:
    """Coverage, level and silence."""
    found = BUILT_IN.score_clip(track, of, scores)
    return found["audio_coverage"], found["audio_rms_db"], found["silence"]


def test_a_tone_and_then_silence_is_half_silent_and_missing_audio_is_not(tmp_path: Path) -> None:
    """Pins all three scores of a film, and of clips that hold one half of it."""
    wave = np.concatenate([tone(2), np.zeros((1, 96_000), np.float32)], axis=1)
    write_film(tmp_path / "a.mp4", [Sound(wave=wave)], n_frames=120)
    track = framed(tmp_path / "a.mp4")
    assert track.n_frames == 120
    coverage, level_db, silence = audio_scores(track, span(0, 120))
    assert (coverage, silence) == (1.0, pytest.approx(0.5, abs=0.026))
    assert level_db == pytest.approx(-9.03 - 3.01, abs=0.1)
    assert audio_scores(track, span(0, 57)) == (1.0, pytest.approx(-9.03, abs=0.1), 0.0)
    assert audio_scores(track, span(66, 120)) == (1.0, pytest.approx(-120, abs=30), 1.0)
    # Pins that no audio, digital silence and unmeasured audio are three things.
    write_film(tmp_path / "a.mp4", [])
    assert audio_scores(framed(tmp_path / "a.mp4"), span(0, 60)) == (0.0, None, None)
    assert audio_scores(heard([-120.0] * 100), span(0, 60)) == (1.0, -120.0, 1.0)
    assert audio_scores(made_track(300), span(0, 60)) == (None, None, None)
    # Pins that absent audio is no silence.
    write_film(tmp_path / "a.mov", [Sound(wave=tone(1), codec="pcm_s16le")], n_frames=120)
    coverage, level_db, silence = audio_scores(framed(tmp_path / "a.mov"), span(0, 120))
    assert (coverage, silence) == (pytest.approx(0.25), 0.0)
    assert level_db == pytest.approx(-9.03, abs=0.01)


def test_cells_belong_to_the_clip_of_their_middle_and_silence_is_the_recipes() -> None:
    """Pins which tenths of a second are a clip's, whatever the time base and the first frame."""
    track = heard([*[-20.0] * 10, *[-70.0] * 5, *[np.nan] * 5], first=20)
    assert audio_scores(track, span(60, 90)) == (1.0, pytest.approx(-20, abs=1e-5), 0.0)
    assert audio_scores(track, span(90, 105))[::2] == (1.0, 1.0)
    assert audio_scores(track, span(75, 105))[::2] == (1.0, 0.5)
    assert audio_scores(track, span(90, 120))[::2] == (0.5, 1.0)
    assert audio_scores(track, span(0, 60)) == (0.0, None, None)
    # One frame holds no middle of a cell.
    assert audio_scores(track, span(60, 61)) == (None, None, None)
    late = made_track(
        300, has_audio_levels=True, audio_rms_first=1000, audio_rms_db=np.full(5, -20, np.float32),
        frame_pts=np.arange(300, dtype=np.int64) * 512 + 100 * 15360,
        end_pts=300 * 512 + 100 * 15360,
    )  # fmt: skip
    assert late.time_base == Fraction(1, 15360)
    assert audio_scores(late, span(0, 30))[0] == pytest.approx(0.5)
    # The level of silence is the recipes.
    track = heard([-50.0] * 5 + [-65.0] * 5)
    assert audio_scores(track, span(0, 30))[2] == 0.5
    assert audio_scores(track, span(0, 30), silence=-40.0)[2] == 1.0
    assert audio_scores(track, span(0, 30), silence=-70.0)[2] == 0.0
    recipe = load_recipe("quickstart", ["scores.silence=-50"])
    assert recipe.scores.root == {"silence": -50.0}
    assert ("scores.silence", -50.0, "share below it") in [row[:3] for row in describe(recipe)]
    with pytest.raises(RecipeError, match="silence' has the aggregate 'mean'; expected a number"):
        load_recipe("quickstart", ["scores.silence=mean"])
    with pytest.raises(RecipeError, match=r"^--set: scores: .*has the aggregate 'men'; expected"):
        load_recipe("quickstart", ["scores.motion=men"])
    with pytest.raises(ValidationError, match="'motion' has the aggregate 3; expected one of"):
        ScoreConfig.model_validate({"motion": 3})


def test_rules_on_audio_name_what_is_wrong_and_need_it_measured() -> None:
    rules = FilterConfig.model_validate(
        {"audio_coverage": {"min": 0.9}, "silence": {"max": 0.5}, "audio_rms_db": {"max": -3}}
    ).root
    bounds = resolve(rules)

    def reasons(track: Track) -> list[Reason]:
        return [
            verdict.reason
            for verdict in verdicts_on(BUILT_IN.score_clip(track, span(0, 60)), bounds)
        ]

    assert reasons(heard([-20.0] * 100)) == []
    assert reasons(heard([-90.0] * 100)) == ["silent"]
    assert reasons(heard([-1.0] * 100)) == ["too_loud"]
    assert reasons(heard([-20.0] * 10)) == ["too_little_audio"]
    assert reasons(heard([])) == [
        "too_little_audio", Reason.NOT_MEASURED, Reason.NOT_MEASURED
    ]  # fmt: skip
    # A rule on audio that is not measured is refused.
    changes = ["filters.silence.max=0.5", "analyze.audio=false"]
    with pytest.raises(UsageError, match=r"filters\.silence .* analyze\.audio = false"):
        check_measured(load_recipe("quickstart", changes))
    check_measured(load_recipe("quickstart", changes[:1]))


def test_levels_and_notes_are_stored_with_the_track() -> None:
    track = heard([-20.0, np.nan, -60.0], first=-3)
    noted = made_track(
        300, has_audio_levels=True, audio_rms_first=-3, audio_rms_db=track.audio_rms_db,
        notes=(Note.AUDIO_ERRORS,),
    )  # fmt: skip
    families = families_of(AnalyzeConfig(text=False, distortion=False))
    tables = [tracks_to_table([("a", noted)], family.columns) for family in families]
    ((_, stored),) = table_to_tracks(tables, {"a": "a.mp4"})
    assert isinstance(stored, Track)
    assert (stored.has_audio_levels, stored.audio_rms_first) == (True, -3)
    assert stored.notes == (Note.AUDIO_ERRORS,)
    assert stored.audio_rms_db.dtype == np.float32
    np.testing.assert_array_equal(stored.audio_rms_db, track.audio_rms_db)

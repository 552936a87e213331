"""Pins how found shots are scored against labels: what is right, what leaks, what is drawn."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1] / "benchmarks")])
    return importlib.import_module("shot_scores")


def labelled(bench: Any, *gaps: tuple[int, int], ignored: Any = (), name: str = "a") -> Any:  # noqa: ANN401
    kinds = (bench.Label(start, end, "cut" if start == end else "fade") for start, end in gaps)
    return bench.Labelled(Path(name), tuple(kinds), tuple(ignored), name, 60.0, "25", "h264")


def found(bench: Any, *shots: tuple[int, int], clips: Any = ()) -> Any:  # noqa: ANN401
    return bench.Found(list(shots), list(clips), 25.0)


def test_a_boundary_within_two_frames_is_right_and_another_false(bench: Any) -> None:  # noqa: ANN401
    file = labelled(bench, (100, 100), (200, 220))
    done = bench.tally(file, found(bench, (0, 102), (102, 198), (222, 300), (300, 400)))
    assert done.spans == [(102, 102), (198, 222)]
    assert done.false == 1
    figures = bench.summary([file], [done])
    assert (figures["found"], figures["missed"], figures["false"]) == (2, 0, 1)
    assert figures["f1"] == pytest.approx(0.8)
    assert figures["marked_iou"] == pytest.approx(20 / 24)


def test_two_cuts_within_a_transition_count_once_and_mark_no_extent(bench: Any) -> None:  # noqa: ANN401
    file = labelled(bench, (200, 220))
    done = bench.tally(file, found(bench, (0, 205), (205, 215), (215, 400)))
    figures = bench.summary([file], [done])
    assert (figures["found"], figures["false"], figures["marked_share"]) == (1, 0, 0.0)


def test_nothing_counts_in_an_ignored_range(bench: Any) -> None:  # noqa: ANN401
    file = labelled(bench, ignored=[(50, 60)])
    assert bench.tally(file, found(bench, (0, 48), (48, 100))).false == 0
    assert bench.tally(file, found(bench, (0, 47), (47, 100))).false == 1


def test_clips_that_hold_a_boundary_and_frames_that_leak(bench: Any) -> None:  # noqa: ANN401
    """A clip that begins at a cut, or ends before a transition, holds none of it."""
    file = labelled(bench, (100, 100), (200, 220))
    clips = [(0, 100), (100, 200), (90, 110), (210, 300)]
    done = bench.tally(file, found(bench, clips=clips))
    assert (done.clips, done.dirty_clips, done.leaked_frames) == (4, 2, 10)
    assert done.kept_s == pytest.approx(310 / 25)


def test_intervals_draw_units_not_files(bench: Any) -> None:  # noqa: ANN401
    """Files of one recording are drawn together: with one recording nothing varies."""
    files = [labelled(bench, (100, 100)), labelled(bench, (100, 100))]
    shots = [found(bench, (0, 100), (100, 200)), found(bench, (0, 200))]
    tallies = [bench.tally(file, one) for file, one in zip(files, shots, strict=True)]
    figures = bench.intervals(files, tallies)
    assert figures["f1_95"] == pytest.approx([2 / 3, 2 / 3])
    assert figures["f1_units_once"] == pytest.approx(2 / 3)


def test_reliability_of_forecasts(bench: Any) -> None:  # noqa: ANN401
    """Of peaks six frames apart; the last frame of a shot is right."""
    values = np.zeros(200, np.float32)
    values[[99, 102, 150]] = 0.9, 0.8, 0.25
    file = labelled(bench, (100, 100))
    forecasts = bench.forecasts([file], {file.path: values})
    assert forecasts.tolist() == pytest.approx(np.array([[0.9, 1], [0.25, 0]]), abs=1e-6)
    assert bench.reliability(forecasts)["ece"] == pytest.approx((0.1 + 0.25) / 2)

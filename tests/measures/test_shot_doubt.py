"""`shot_doubt`: the likeliest boundary within a clip that was not taken for one."""

import numpy as np
import pytest
from numpy.typing import NDArray
from samples import made_track

from curator.measures.clip_view import ClipView
from curator.measures.score_list import SCORES
from curator.records.clips import Span


def doubt(
    peaks: dict[int, float], start: int, end: int, descriptor: NDArray[np.float32] | None = None
) -> float | None:
    probability = np.zeros(100, np.float32)
    for frame, value in peaks.items():
        probability[frame] = value
    blank = np.zeros((7, 8), np.float32)
    shown = blank if descriptor is None else descriptor
    track = made_track(100, boundary_probability=probability, descriptor=shown)
    return SCORES["shot_doubt"].of(ClipView(track, Span(start_frame=start, end_frame=end, shot=0)))


def test_the_highest_peak_inside_counts() -> None:
    assert doubt({30: 0.2, 50: 0.4}, 10, 90) == pytest.approx(0.4)
    assert doubt({}, 10, 90) == 0
    # Pins that neither the frame before the clip nor its last one is a doubt, slopes included.
    assert doubt({9: 0.9, 89: 0.9}, 10, 90) == 0
    assert doubt({7: 0.9, 11: 0.3}, 10, 90) == 0
    assert doubt({10: 0.3}, 10, 90) == pytest.approx(0.3)
    # A source whose shots were not measured has none.
    empty = np.zeros(0, np.float32)
    track = made_track(50, boundary_probability=empty, inside_probability=empty)
    assert (
        SCORES["shot_doubt"].of(ClipView(track, Span(start_frame=0, end_frame=9, shot=0))) is None
    )
    # Pins the odds of 0.2, a quarter, where both sides have nothing in common, and are one.
    scenes = np.eye(2, 8, dtype=np.float32)[[0, 0, 0, 0, 1, 1, 1]]
    risen = np.exp(1.5) / 4
    assert doubt({49: 0.2}, 10, 90, scenes) == pytest.approx(risen / (1 + risen))
    assert doubt({49: 0.2}, 10, 90, scenes[:1].repeat(7, 0)) == pytest.approx(0.0046, abs=1e-4)

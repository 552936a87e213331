"""Which frames count as repeats, and what the score is of tracks that lack its signal."""

import numpy as np
import pytest
from samples import made_signals, made_track

from curator.measures.clip_view import ClipView
from curator.measures.distortion import SCORES, repeated_frames
from curator.records.clips import Span


def luma(n: int, *, step: float) -> np.ndarray:
    """The mean luma of a picture that changes by about `step` per frame."""
    rng = np.random.default_rng(0)
    return np.cumsum(rng.uniform(0.5, 1.5, n) * step).astype(np.float32)


def repeats(values: np.ndarray) -> float:
    return repeated_frames(values, np.full(len(values), 0.2, np.float32))


@pytest.mark.parametrize("every", [3, 5, 20])
def test_repeated_frames_are_counted_while_the_picture_moves(every: int) -> None:
    numbers = np.arange(121)
    held = np.where(numbers % every == 0, np.maximum(numbers - 1, 0), numbers)
    assert repeats(luma(121, step=0.004)[held]) == pytest.approx(1 / every, abs=0.02)


def test_a_drawing_held_for_two_frames_counts_half() -> None:
    assert repeats(luma(60, step=0.004)[np.arange(120) // 2]) == pytest.approx(0.5, abs=0.02)


def test_still_pictures_and_even_motion_repeat_nothing() -> None:
    assert repeats(luma(120, step=0.004)) == 0
    assert repeats(luma(120, step=0.00005)) == 0
    assert repeats(np.full(120, 0.3, np.float32)) == 0


def test_few_frames_have_no_value() -> None:
    assert np.isnan(repeats(luma(11, step=0.004)))
    assert not np.isnan(repeats(luma(12, step=0.004)))


def test_the_score_is_null_where_its_family_was_not_measured() -> None:
    of = SCORES["distortion"].of
    assert callable(of)
    span = Span(start_frame=0, end_frame=120, shot=0)
    without = made_track(signals=made_signals(20), descriptor=np.zeros((20, 8), np.float32))
    assert of(ClipView(without, span)) is None
    values = np.full(20, np.nan)
    values[::3] = 0.25
    signals = made_signals(20) | {"distortion": values.astype(np.float32)}
    found = of(ClipView(made_track(signals=signals, descriptor=without.descriptor), span))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [0.25] * len(found)
    assert len(found) == 3

"""The same frames are found wherever they are in another source, and nothing else is."""

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from curator.tables.frame_hashes import (
    STEP,
    STRIDE,
    WINDOW,
    matching_regions,
    moving_frames,
    overlapping_regions,
    shares_frames,
    span_hashes,
)

Luma = tuple[NDArray[np.float32], NDArray[np.float32]]


def luma(n_frames: int, seed: int) -> Luma:
    """Luma of a shot that changes a little from frame to frame."""
    rng = np.random.default_rng(seed)
    mean = 0.4 + np.cumsum(rng.normal(0, 1e-3, n_frames))
    spread = 0.2 + np.cumsum(rng.normal(0, 1e-3, n_frames))
    return mean.astype(np.float32), spread.astype(np.float32)


def joined(*parts: Luma) -> Luma:
    means, spreads = zip(*parts, strict=True)
    return np.concatenate(means), np.concatenate(spreads)


@pytest.mark.parametrize("before", [0, 1, 7, 40])
@pytest.mark.parametrize("noise", [0, STEP / 200])
def test_a_span_is_found_at_any_place(before: int, noise: float) -> None:
    removed = luma(100, 1)
    hashes = span_hashes(*removed, [(10, 75)])
    assert len(hashes) == (75 - 10 - WINDOW) // STRIDE + 2
    mean, spread = joined(luma(before, 2), removed, luma(30, 3))
    mean = (mean + np.random.default_rng(4).normal(0, 1, len(mean)) * noise).astype(np.float32)
    ((start, end),) = matching_regions(mean, spread, hashes)
    if not noise:
        assert (start, end) == (before + 10, before + 75)
    assert before + 10 <= start < end <= before + 75


def test_a_part_of_a_second_is_found_and_spans_apart_are_two() -> None:
    removed = luma(100, 1)
    hashes = span_hashes(*removed, [(0, 100)])
    n_least = STRIDE + WINDOW - 1
    for start in range(0, 100 - n_least):
        part = tuple(values[start : start + n_least] for values in removed)
        assert len(matching_regions(*part, hashes)) == 1
    assert not len(matching_regions(*luma(5000, 2), hashes))
    # Still pictures and short spans have no hashes.
    still = np.full(100, 0.3, np.float32), np.full(100, 0.1, np.float32)
    assert not len(span_hashes(*still, [(0, 100)]))
    assert not len(span_hashes(*luma(100, 1), [(0, WINDOW - 1)]))
    assert not len(span_hashes(*luma(WINDOW - 1, 1), [(0, 100)]))
    assert not len(matching_regions(*luma(3, 1), span_hashes(*luma(100, 1), [(0, 100)])))
    # Two spans apart are two regions.
    removed = luma(200, 1)
    hashes = span_hashes(*removed, [(0, 40), (120, 160)])
    assert matching_regions(*removed, hashes).tolist() == [[0, 40], [120, 160]]


def test_a_frame_of_a_still_picture_does_not_move() -> None:
    """Pins the ends of a source and of a still picture."""
    moving, still = luma(3, 1), (np.full(4, 0.4, np.float32), np.full(4, 0.2, np.float32))

    assert moving_frames(*joined(moving, still, luma(2, 2))).tolist() == [
        *[True] * 3, *[False] * 4, *[True] * 2,
    ]  # fmt: skip
    assert moving_frames(*luma(1, 1)).tolist() == [True]
    assert not len(moving_frames(*luma(0, 1)))


def test_more_than_a_frame_is_shared() -> None:
    regions = np.array([[10, 20], [50, 60]])
    starts = np.array([0, 0, 19, 18, 20, 59, 58, 30, 60])
    ends = np.array([11, 12, 40, 40, 51, 90, 90, 40, 70])
    expected = [False, True, False, True, False, False, True, False, False]
    assert shares_frames(regions, starts, ends).tolist() == expected
    clips = pa.table(
        {"source_id": ["a", "b", "a"], "start_frame": [12, 12, 20], "end_frame": [15, 15, 50]}
    )
    assert overlapping_regions(clips, {"a": regions}).tolist() == [True, False, False]

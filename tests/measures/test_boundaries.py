"""Boundaries of a track, what both of their sides show, and the doubt that they leave."""

import numpy as np
import pytest
from numpy.typing import NDArray
from samples import made_track

from curator.measures.boundaries import boundaries, boundary_peaks
from curator.measures.clip_view import ClipView
from curator.measures.score_list import SCORES
from curator.records.clips import Span


def found(
    probability: float, sides: float, *, at: int = 49, inside: tuple[int, int] = (0, 0)
) -> list[tuple[int, int, int, float]]:
    """Boundaries of a track with one peak whose two sides have this cosine."""
    peak, marked = np.zeros(100, np.float32), np.zeros(100, np.float32)
    peak[at] = probability
    marked[slice(*inside)] = 0.9
    track = made_track(
        100, boundary_probability=peak, inside_probability=marked, descriptor=turned(sides, at + 1)
    )
    return [one[:4] for one in boundaries(track)]


def turned(cosine: float, at: int) -> NDArray[np.float32]:
    """Descriptors of a sample every 15 frames, of which those from a frame on have this cosine."""
    other = np.float32([cosine, np.sqrt(1 - cosine**2)])
    return np.stack([other if frame >= at else np.float32([1, 0]) for frame in range(0, 97, 15)])


def test_the_likeliest_of_neighbours_is_the_peak_in_a_span_as_in_the_track() -> None:
    flat = np.array([0, 0.5, 0.5, 0, 0, 0, 0, 0, 0, 0.2], np.float32)
    assert boundary_peaks(flat).tolist() == [1, 9]
    # Pins that 5 is a peak: 10 is near to it and none itself, since 15 is likelier.
    chain = np.zeros(30, np.float32)
    chain[[5, 10, 15, 25]] = 0.6, 0.7, 0.8, 0.1
    assert boundary_peaks(chain).tolist() == [5, 15, 25]
    assert boundary_peaks(chain, 0.2).tolist() == [5, 15]
    # A span has the boundaries that the whole track has there.
    rng = np.random.default_rng(0)
    probability = np.float32(rng.random(400) * (rng.random(400) < 0.25))
    track = made_track(
        400, boundary_probability=probability, inside_probability=np.zeros(400, np.float32)
    )
    whole = boundaries(track)
    for first, end in ((0, 400), (37, 38), (90, 200), (201, 390), (50, 50)):
        inside = [one for one in whole if first <= one.frame < end]
        assert boundaries(track, slice(first, end)) == inside


def test_what_both_sides_show_changes_the_odds() -> None:
    empty = np.zeros(0, np.float32)
    track = made_track(50, boundary_probability=empty, inside_probability=empty)
    assert boundaries(track) == []
    with pytest.raises(ValueError, match="one of the head's probabilities"):
        made_track(50, boundary_probability=empty)
    # Sides that differ leave the probability as it is.
    for cosine in (-0.1, 0.0, 0.49):
        assert found(0.7, cosine) == [(49, 50, 50, pytest.approx(0.7))]
    # Pins the odds at one value, and that of a sure boundary more is left than of a likely one.
    assert found(0.7, 0.8)[0][3] == pytest.approx(1 / (1 + 3 / 7 * np.exp(2.4)), abs=1e-6)
    assert found(0.7, 0.8)[0][3] < 0.2 < 0.9 < found(0.9999, 0.8)[0][3]
    # Pins that a sample in the midst of a dissolve, which is like either side, does not count.
    peak, marked = np.zeros(100, np.float32), np.zeros(100, np.float32)
    peak[47], marked[40:56] = 0.7, 0.9
    sides = turned(0.0, 60)
    sides[3] = np.sqrt(0.5)
    track = made_track(100, boundary_probability=peak, inside_probability=marked, descriptor=sides)
    assert [one[:4] for one in boundaries(track)] == [(47, 40, 56, pytest.approx(0.7))]
    # Samples that are missing flat or far say nothing.
    peak = np.zeros(100, np.float32)
    peak[49] = 0.7
    alike = turned(1.0, 50)
    blank = alike.copy()
    blank[4] = 0
    far = np.arange(100, dtype=np.int64) * 512
    far[50:] += 2 * 15360
    ends = made_track(100, boundary_probability=np.roll(peak, 48), descriptor=alike)
    for track in (
        made_track(100, boundary_probability=peak, descriptor=np.zeros((0, 2), np.float32)),
        made_track(100, boundary_probability=peak, descriptor=blank),
        made_track(100, boundary_probability=peak, descriptor=alike, frame_pts=far,
                   end_pts=int(far[-1]) + 512),
        ends,
    ):  # fmt: skip
        assert [one[3:] for one in boundaries(track)] == [(pytest.approx(0.7), None)]


@pytest.mark.parametrize(
    ("cosine", "step", "is_exposure"), [(0.8, 0.1, True), (0.8, -0.1, True), (0.8, 0.05, False),
                                        (0.65, 0.1, False)],
)  # fmt: skip
def test_a_jump_of_the_exposure_is_less_likely(
    cosine: float, step: float, is_exposure: bool
) -> None:
    """Of sides that are alike, not of those that have something in common."""
    peak, luma = np.zeros(100, np.float32), np.full(100, 0.4, np.float32)
    peak[49], luma[50:] = 0.99, 0.4 + step
    track = made_track(
        100, boundary_probability=peak, inside_probability=np.zeros(100, np.float32),
        descriptor=turned(cosine, 50), luma_mean=luma,
    )  # fmt: skip
    odds = 8 * (cosine - 0.5) + (3 if is_exposure else 0)
    assert boundaries(track)[0].probability == pytest.approx(1 / (1 + np.exp(odds) / 99), abs=1e-4)


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

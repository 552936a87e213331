"""Clocks of made sources: curves that several cameras sample, with known offsets and losses."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from curator.matching.clock_series import ClockSeries, series_of
from curator.matching.common_clock import ClockReason, GroupClock, common_clock

Floats = NDArray[np.float64]
LENGTH_S, HZ, LEAD_S = 40.0, 200.0, 8.0


def curve(seed: int) -> Floats:
    """A curve of what happens: moves and pauses, at `HZ` from -`LEAD_S` on."""
    rng = np.random.default_rng(seed)
    n = int((LENGTH_S + 2 * LEAD_S) * HZ)
    moves = np.repeat(rng.normal(size=n // 40 + 1), 40)[:n]
    return np.asarray(np.convolve(moves, np.hanning(25) / 12, "same"))


def camera(
    happens: Floats,
    *,
    seed: int,
    fps: float = 30.0,
    offset_s: float = 0.0,
    drift: float = 0.0,
    lost: tuple[float, float] | None = None,
    noise: float = 0.25,
    length_s: float = LENGTH_S,
    with_sound: bool = False,
) -> ClockSeries:
    """A camera whose clock shows 0 at the true time `offset_s`.

    `lost` is a true time and the seconds of frames that are missing there, without a trace.
    """
    rng = np.random.default_rng([seed, 7])

    def seen(times_s: Floats) -> Floats:
        true_s = offset_s + times_s * (1 + drift)
        if lost is not None:
            true_s[true_s >= lost[0]] += lost[1]
        values = np.interp((true_s + LEAD_S) * HZ, np.arange(len(happens)), happens)
        return np.asarray(values + noise * rng.normal(size=len(values)))

    shown_s = np.arange(int(length_s * fps)) / fps
    cell_s = (np.arange(int(length_s * 10)) + 0.5) / 10
    return series_of(
        shown_s,
        duration_s=length_s,
        luma_F=0.5 + 0.001 * rng.normal(size=len(shown_s)),
        # A change lies between two frames, a luma at one.
        change_F=0.01 * np.exp(0.5 * seen(shown_s - 0.5 / fps)),
        level_A=-30 + 5 * seen(cell_s) if with_sound else np.zeros(0),
    )


def lag_error_s(
    found: GroupClock, a: str, b: str, true_lag_s: float, at_s: Sequence[float]
) -> float:
    """Largest error of the times of b at times of a, for two clocks that differ by an offset."""
    times_s = np.array(at_s)
    of_b = found.clocks[b].source_s(found.clocks[a].common_s(times_s))
    return float(np.abs(of_b - times_s - true_lag_s).max())


def test_cameras_of_three_rates_get_one_clock_within_half_a_frame() -> None:
    happens = curve(1)
    offsets = {"a": 0.0, "b": 1.37, "c": -0.52}
    found = common_clock(
        {
            name: camera(happens, seed=n, fps=fps, offset_s=offsets[name])
            for n, (name, fps) in enumerate(zip("abc", (24.0, 30.0, 60.0), strict=True))
        }
    )
    assert not found.refusals
    for a, b in (("a", "b"), ("a", "c"), ("b", "c")):
        lag_s = offsets[a] - offsets[b]
        assert lag_error_s(found, a, b, lag_s, (5.0, 20.0, 35.0)) < 0.5 / 60
    assert found.clocks["b"].residual_at(10, 15) < 0.5 / 30
    assert 0 < found.residual_at(10, 15, ["a", "b"]) <= found.residual_at(10, 15, "abc") < 0.5 / 24
    assert found.residual_at(60, 65, "abc") == math.inf
    times_s = np.array([0.0, 12.3, 39.0])
    clock = found.clocks["c"]
    assert np.allclose(clock.source_s(clock.common_s(times_s)), times_s)


def test_a_drift_of_long_recordings_is_found() -> None:
    happens = np.concatenate([curve(n) for n in range(2, 6)])
    long = {
        "a": camera(happens, seed=1, length_s=180.0, noise=0.05),
        "b": camera(happens, seed=2, length_s=180.0, drift=9e-5, noise=0.05),
    }
    found = common_clock(long)
    # After 180 s, the second clock is 16 ms behind.
    assert found.clocks["b"].drift == pytest.approx(-9e-5, abs=3.5e-5)
    at_s = np.array([10.0, 170.0])
    of_b = found.clocks["b"].source_s(found.clocks["a"].common_s(at_s))
    assert np.abs(of_b - at_s / (1 + 9e-5)).max() < 0.006


def test_frames_that_are_lost_without_a_trace_are_found() -> None:
    happens = curve(3)
    found = common_clock(
        {
            "a": camera(happens, seed=1),
            "b": camera(happens, seed=2, offset_s=0.5, fps=25.0, lost=(20.0, 0.4)),
        }
    )
    assert not found.clocks["a"].lost
    (loss,) = found.clocks["b"].lost
    assert loss.lost_s == pytest.approx(0.4)
    assert loss.first_s <= 19.5 <= loss.last_s
    assert lag_error_s(found, "a", "b", -0.5, (5.0, 12.0)) < 0.02
    assert lag_error_s(found, "a", "b", -0.9, (28.0, 35.0)) < 0.02
    assert found.clocks["b"].residual_at(19.0, 21.0) == math.inf
    assert found.clocks["b"].residual_at(2.0, 7.0) < 0.02


def test_sound_aligns_where_pictures_share_nothing() -> None:
    happens = curve(4)
    sources = {
        name: ClockSeries(
            duration_s=made.duration_s, frame_s=made.frame_s,
            values={"sound": made.values["sound"]},
        )
        for name, made in (
            ("a", camera(happens, seed=1, with_sound=True)),
            ("b", camera(happens, seed=2, offset_s=-1.2, with_sound=True)),
        )
    }  # fmt: skip
    found = common_clock(sources)
    assert lag_error_s(found, "a", "b", 1.2, (20.0,)) < 0.5 / 30
    # Sound travels for an unknown time.
    assert found.clocks["b"].residual_at(18, 22) > 0.012


@pytest.mark.parametrize("seed", range(5))
def test_another_event_is_refused_with_the_pair_and_the_number(seed: int) -> None:
    found = common_clock(
        {"a": camera(curve(10 + seed), seed=1), "b": camera(curve(50 + seed), seed=2)}
    )
    assert not found.clocks
    refusal = found.refusals["a"]
    assert refusal.pair == ("a", "b")
    assert refusal.reason in (ClockReason.NO_EVIDENCE, ClockReason.AMBIGUOUS)
    assert "a and b have no common clock" in str(refusal)
    assert "expected 1.35" in str(refusal)


def test_a_stranger_is_refused_and_the_others_are_aligned() -> None:
    happens = curve(6)
    found = common_clock(
        {
            "a": camera(happens, seed=1),
            "b": camera(happens, seed=2, offset_s=0.7),
            "stranger": camera(curve(7), seed=3),
        }
    )
    assert set(found.clocks) == {"a", "b"}
    assert set(found.refusals) == {"stranger"}


def test_a_still_scene_is_refused() -> None:
    still = np.zeros_like(curve(0))
    found = common_clock({"a": camera(still, seed=1), "b": camera(still, seed=2)})
    assert not found.clocks


def test_regular_motion_is_refused_because_many_lags_fit() -> None:
    beat = 2 * np.sin(2 * np.pi * np.arange(len(curve(0))) / HZ / 0.8)
    found = common_clock(
        {
            "a": camera(beat, seed=1, noise=0.05),
            "b": camera(beat, seed=2, noise=0.05, offset_s=0.3),
        }
    )
    assert not found.clocks


def test_lags_beyond_the_bound_need_nominal_times() -> None:
    happens = curve(8)
    sources = {
        "a": camera(happens, seed=1),
        "b": camera(happens, seed=2, offset_s=5.0, length_s=34.0),
    }
    assert not common_clock(sources).clocks
    found = common_clock(sources, start_s={"a": 100.0, "b": 104.2})
    assert lag_error_s(found, "a", "b", -5.0, (10.0, 30.0)) < 0.5 / 30


def test_short_overlaps_and_single_sources_are_refused() -> None:
    happens = curve(9)
    short = {name: camera(happens, seed=n, length_s=15.0) for n, name in enumerate("ab")}
    assert common_clock(short).refusals["b"].reason is ClockReason.NO_SERIES
    with pytest.raises(ValueError, match="at least two sources, not 1"):
        common_clock({"a": short["a"]})

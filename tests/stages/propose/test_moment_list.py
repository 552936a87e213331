"""Moments divide common time at the cuts of every camera, and each camera shows all of its own."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from samples import made_track

from curator.matching.common_clock import Clock
from curator.records.clips import Shot, Window
from curator.records.moments import Moment
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.manifest_spans import moment_spans
from curator.stages.propose.moment_list import Camera, moments_of

CONFIG = ProposeConfig(guard_frames=3, min_s=1, max_s=60)


def camera(n_frames: int, *cuts: int, clock: Clock | None = None, start_s: float = 0.0) -> Camera:
    """A camera of 30 frames/s with cuts."""
    edges = [0, *cuts, n_frames]
    kinds = ["none", *["cut"] * len(cuts), "none"]
    shots = [
        Shot(start_frame=a, end_frame=b, transition_in=one, transition_out=other)  # type: ignore[arg-type]
        for a, b, one, other in zip(edges, edges[1:], kinds, kinds[1:], strict=False)
    ]
    track = made_track(n_frames, source_id=f"{n_frames:032x}")
    return Camera(track=track, shots=shots, clock=clock, start_s=start_s)


def clock(offset_s: float, drift: float = 0.0, error_s: float = 1e-3, last_s: float = 99) -> Clock:
    return Clock(
        offset_s=offset_s, drift=drift, middle_s=0.0, offset_error_s=error_s, drift_error=0.0,
        spans=((0.0, last_s),),
    )  # fmt: skip


def spans_of(moments: list[Moment]) -> list[tuple[float, float, int]]:
    return [(round(m.at.start_s, 3), round(m.at.end_s, 3), m.n_cameras) for m in moments]


def test_each_cut_of_a_camera_divides_all_and_guard_frames_are_left_out_in_all() -> None:
    made = moments_of("g", {"a": camera(300), "b": camera(310, 150)}, CONFIG)
    both = [(0.0, 4.9, 2), (5.1, 10.0, 2)]
    assert spans_of(made["b"]) == [*both, (10.0, 10.333, 1)]
    # The guard frames of b's cut are a clip of a alone, which is too short for a rule.
    assert spans_of(made["a"]) == [both[0], (4.9, 5.1, 1), both[1]]
    names = [[m.name for m in own if m.n_cameras == 2] for own in made.values()]
    assert names[0] == names[1]
    assert len(set(names[0])) == 2


def test_times_are_mapped_by_offset_and_drift() -> None:
    """Pins that b's second 2 is common second 0, and 100 millionths over 10 s."""
    cameras = {"a": camera(300, clock=clock(0.0)), "b": camera(400, clock=clock(2.0, 1e-4))}
    made = moments_of("g", cameras, CONFIG)
    assert [m.n_cameras for m in made["b"]] == [1, 2, 1]
    assert made["b"][1].at == pytest.approx((2.0, 12.001), abs=1e-6)
    assert made["a"][0].at == pytest.approx((0.0, 10.0), abs=1e-6)
    assert made["b"][1].residual_s == pytest.approx(2e-3 * np.sqrt(2))


@pytest.mark.parametrize(("error_s", "last_s"), [(0.02, 99), (1e-3, 5.0)])
def test_a_camera_that_is_not_sure_within_half_a_frame_is_left_out(
    error_s: float, last_s: float
) -> None:
    """Pins an imprecise clock, and one without support by content."""
    cameras = {
        "a": camera(300, clock=clock(0.0)),
        "b": camera(301, clock=clock(0.0)),
        "c": camera(302, clock=clock(0.0, error_s=error_s, last_s=last_s)),
    }
    made = moments_of("g", cameras, CONFIG)
    assert made["c"][0].n_cameras == 0
    assert made["c"][0].name is None
    assert made["a"][0].n_cameras == made["b"][0].n_cameras == 2


def test_long_moments_are_divided_alike_and_windows_begin_together() -> None:
    config = CONFIG.model_copy(update={"max_s": 4.0})
    made = moments_of("g", {"a": camera(300), "b": camera(301)}, config)
    assert [round(m.at.end_s - m.at.start_s, 2) for m in made["a"]] == [3.33] * 3
    windows = ProposeConfig(guard_frames=3, windows=["49@24"])  # type: ignore[list-item]
    cameras = {"a": camera(300), "b": camera(400, start_s=1.02)}
    made = moments_of("g", cameras, windows)
    assert [m.size for m in made["a"]] == [(49, Fraction(24))] * 4
    spans = moment_spans(cameras["b"].track, cameras["b"].shots, made["b"])
    first = next(iter(spans))
    assert isinstance(first, Window)
    assert (first.n_written, first.fps, first.start_frame) == (49, 24, 31)


def test_cameras_of_one_rate_have_equally_many_frames() -> None:
    """Pins the nearest frame, and 3.33 s at 30 frames/s wherever the moment begins."""
    for start_s in np.linspace(0.0, 0.1, 7):
        cameras = {"a": camera(300), "b": camera(400, start_s=float(start_s))}
        made = moments_of("g", cameras, CONFIG.model_copy(update={"max_s": 4.0}))
        spans = [moment_spans(cameras[n].track, cameras[n].shots, made[n]) for n in "ab"]
        lengths = [{m.name: s.n_frames for s, m in of.items() if m.n_cameras == 2} for of in spans]
        assert lengths[0] == lengths[1]
        for span, moment in spans[1].items():
            assert abs(span.start_frame / 30 - moment.at.start_s) <= 0.5 / 30 + 1e-9


@pytest.mark.parametrize("max_s", [2.1, 60])
def test_moments_of_a_camera_share_no_frame_and_those_of_a_rate_are_equally_long(
    max_s: float,
) -> None:
    """Pins lengths of part frames, clocks that drift, and cuts in the middle of another's frame."""
    config = CONFIG.model_copy(update={"max_s": max_s})
    for number in range(40):
        # Every fourth begins half a frame later.
        start_s, drift = number / 240, (number % 3) * 1e-4
        cameras = {
            "a": camera(300, 100 + number, clock=clock(0.0)),
            "b": camera(400, 217, clock=clock(start_s, drift)),
            "c": camera(409, 111, 313, clock=clock(2 * start_s, -drift)),
        }
        made = moments_of("g", cameras, config)
        lengths: dict[str | None, set[int]] = {}
        for name, own in cameras.items():
            found = moment_spans(own.track, own.shots, made[name])
            for before, after in pairwise(sorted(found, key=lambda span: span.start_frame)):
                assert before.end_frame <= after.start_frame
            for span, moment in found.items():
                lengths.setdefault(moment.name, set()).add(span.n_frames)
        assert {len(of) for of in lengths.values()} == {1}

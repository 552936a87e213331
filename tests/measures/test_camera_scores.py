"""Scores and tags of the camera, from tracks made by hand."""

import numpy as np
import pytest
from numpy.typing import NDArray
from one_by_one import judge
from samples import made_signals, made_track

from curator.measures.camera import SHAKY, camera_jitter, camera_tags
from curator.measures.clip_view import ClipView
from curator.measures.score_list import BUILT_IN, SCORES
from curator.records.clips import Reason, Span
from curator.stages.filter.config import Rule
from curator.stages.filter.rules import resolve

N = 10
NAN = float("nan")


def clip_of(n: int = N, **signals: object) -> ClipView:
    """A clip of some samples, two a second; the camera's speed follows from its rates."""
    full = {
        name: np.broadcast_to(np.asarray(signals.pop(name, 0.0), np.float64), n)
        for name in ("pan_rate", "tilt_rate", "zoom_rate", "roll_rate")
    }
    speed = np.hypot(full["pan_rate"], full["tilt_rate"])
    speed = speed + 0.5 * np.abs(full["zoom_rate"]) + 0.5 * np.radians(np.abs(full["roll_rate"]))
    track = made_track(
        15 * n,
        signals=made_signals(n, **{"camera_motion": speed, "camera_share": 1.0, **full, **signals}),
    )
    return ClipView(track, Span(start_frame=0, end_frame=15 * n, shot=0))


def shaking(deviation: float, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0, deviation, N)


@pytest.mark.parametrize(
    ("signals", "tags"),
    [
        ({}, ["static"]),
        ({"pan_rate": shaking(0.003), "tilt_rate": shaking(0.003, 1)}, ["static"]),
        ({"pan_rate": 0.05}, ["pan_right"]),
        ({"pan_rate": -0.05}, ["pan_left"]),
        ({"tilt_rate": 0.05}, ["tilt_up"]),
        ({"tilt_rate": -0.05}, ["tilt_down"]),
        ({"zoom_rate": 0.05}, ["zoom_in"]),
        ({"zoom_rate": -0.05}, ["zoom_out"]),
        ({"roll_rate": 5.0}, ["roll"]),
        ({"roll_rate": -5.0}, ["roll"]),
        ({"pan_rate": 0.2, "zoom_rate": -0.2}, ["pan_right", "zoom_out"]),
        ({"pan_rate": 1.0, "tilt_rate": 0.05}, ["pan_right"]),
        ({"pan_rate": np.repeat([0.2, -0.2], 5)}, ["pan_left", "pan_right"]),
        ({"pan_rate": np.linspace(0.5, 1.5, N)}, ["pan_right"]),
        ({"pan_rate": shaking(0.05), "tilt_rate": shaking(0.05, 1)}, ["handheld"]),
        ({"pan_rate": shaking(0.3), "tilt_rate": shaking(0.3, 1)}, ["shaky"]),
        ({"pan_rate": 0.3 + shaking(0.05), "tilt_rate": shaking(0.05, 1)},
         ["pan_right", "handheld"]),
    ],
)  # fmt: skip
def test_tags(signals: dict[str, object], tags: list[str]) -> None:
    assert camera_tags(clip_of(**signals)) == tags


def test_what_is_short_wrong_or_not_known_is_no_tag() -> None:
    rates = np.zeros(30)
    rates[4:6] = 0.1
    assert camera_tags(clip_of(30, pan_rate=rates)) == ["static"]
    # Samples whose flow went wrong do not shake the camera.
    rates = np.zeros(N)
    rates[4] = 1.5
    assert camera_tags(clip_of(pan_rate=rates)) == ["static"]
    # Without a known camera there are no tags.
    unknown = np.where(np.arange(N) < 6, NAN, 0.3)
    clip = clip_of(pan_rate=unknown, tilt_rate=unknown, camera_motion=unknown)
    assert camera_tags(clip) == []
    known = np.where(np.arange(N) < 3, NAN, 0.3)
    assert camera_tags(clip_of(pan_rate=known, camera_motion=known)) == ["pan_right"]
    # A single sample has tags and no jitter.
    track = made_track(15, signals=made_signals(1, pan_rate=0.3, camera_motion=0.3))
    clip = ClipView(track, Span(start_frame=0, end_frame=15, shot=0))
    assert camera_jitter(clip) is None
    assert camera_tags(clip) == ["pan_right"]


def test_jitter_is_the_deviation_from_an_even_course() -> None:
    found = [
        camera_jitter(clip_of(pan_rate=2 + shaking(0.1, seed), tilt_rate=shaking(0.1, seed + 100)))
        for seed in range(40)
    ]
    assert np.mean(found) == pytest.approx(0.1 * np.sqrt(2), rel=0.1)  # type: ignore[arg-type]
    assert camera_jitter(clip_of(pan_rate=np.linspace(0, 2, N))) == pytest.approx(0, abs=1e-6)
    assert camera_jitter(clip_of(pan_rate=NAN)) is None


def test_static_violent_and_shaky_clips_have_different_reasons() -> None:
    rules = {"motion": Rule(min=0.005), "camera_motion": Rule(max=2.0),
             "camera_jitter": Rule(max=0.5)}  # fmt: skip
    bounds = resolve(rules)

    def reasons(**signals: object) -> list[Reason]:
        clip = clip_of(**signals)
        return [
            verdict.reason for verdict in judge(BUILT_IN.score_clip(clip.track, clip.span), bounds)
        ]

    assert reasons(motion=0.001) == ["motion_too_low"]
    assert reasons(pan_rate=3.0) == ["camera_too_violent"]
    assert reasons(pan_rate=shaking(1.0)) == ["camera_too_shaky"]
    assert reasons(pan_rate=0.5) == []
    # Bounds of the recipe leave hand held cameras.
    assert SHAKY < 0.5
    assert SCORES["camera_jitter"].high == "camera_too_shaky"

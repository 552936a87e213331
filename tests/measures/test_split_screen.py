"""How looks become the score of a divided picture; each of these scenes once had a high one."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from film_shots import photograph
from numpy.typing import NDArray
from test_inset_score import OTHER, SCENE, luma, track_of, view

from curator.measures.score_list import BUILT_IN
from curator.media.opencv import cv2
from curator.records.clips import Span
from curator.records.tracks import Track

Gray = NDArray[np.uint8]
THIRD = luma(12)


def score(track: Track, end: int | None = None) -> float | None:
    span = Span(start_frame=0, end_frame=end or track.n_frames, shot=0)
    return BUILT_IN.score_clip(track, span)["split_screen"]


def of_two_cameras(track: Track) -> Track:
    """A track in which one motion of the camera explains three fifths of the picture."""
    share = np.full(len(track.sample_frame), 0.6, np.float32)
    return replace(track, signals={**track.signals, "camera_share": share})


def pan(scene: Gray, speed: int) -> Callable[[int], Gray]:
    """A picture under a camera that pans there and back, faster and slower."""
    return lambda step: view(scene, round(180 + 180 * np.sin(speed * step / 7)))


def beside(left: Callable[[int], Gray], right: Callable[[int], Gray]) -> Callable[[int], Gray]:
    return lambda step: np.hstack([left(step)[:, :320], right(step)[:, :320]])


def wall() -> Gray:
    """Bricks, whose joints go all the way through the picture."""
    bricks = cv2.cvtColor(photograph("brick"), cv2.COLOR_RGB2GRAY)
    made = np.asarray(cv2.resize(bricks, (640, 640))[:360], np.uint8).copy()
    made[::60] = 40
    made[:, ::80] = 40
    return made


def with_person(scene: Gray, left: int) -> Gray:
    made = scene.copy()
    made[90:, max(0, left) : left + 120] = THIRD[90:360, :120][:, max(0, -left) : 640 - left]
    return made


@pytest.mark.parametrize("turned", [False, True], ids=["side by side", "above"])
def test_two_recordings_divide_the_picture(turned: bool) -> None:
    both = beside(pan(SCENE, 1), pan(OTHER, 9))
    track = track_of(lambda i: np.ascontiguousarray(both(i).T) if turned else both(i))
    assert (score(of_two_cameras(track)) or 0) > 0.5


def with_edge(step: int) -> Gray:
    """A table's edge keeps its place under a camera that pans along it: both sides move."""
    made = pan(SCENE, 5)(step).copy()
    made[180:] = made[180:] // 2 + 100
    made[178:182] = 10
    return made


def with_bar(step: int) -> Gray:
    """A window's bar stands still, and both sides are one view."""
    made = pan(SCENE, 5)(step).copy()
    made[:, 310:322] = 15
    return made


@pytest.mark.parametrize(
    "frame",
    [
        lambda i: with_person(wall(), 50 * i - 60),
        lambda i: with_person(with_person(wall(), 30 + 9 * (i % 3)), 420 - 8 * (i % 4)),
        with_edge,
        with_bar,
        beside(lambda _: view(OTHER, 0), pan(SCENE, 5)),
    ],
    ids=["bricks", "bricks behind two people", "edge", "bar", "a half that stands still"],
)
def test_what_stands_before_or_in_one_scene_divides_nothing(frame: Callable[[int], Gray]) -> None:
    assert (score(track_of(frame)) or 0) < 0.5


def test_a_wall_alone_and_fewer_than_four_looks_cannot_be_told() -> None:
    assert score(track_of(lambda _: wall())) is None
    # Fewer than four looks with their next samples are too few.
    track = track_of(beside(pan(SCENE, 1), pan(OTHER, 9)))
    assert score(track, 106) is not None
    assert score(track, 105) is None

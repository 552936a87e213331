"""What a look says of insets, and how looks become the score of a picture within the picture."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest
from film_shots import texture
from numpy.typing import NDArray

from curator.measures.look_maps import (
    LINE_ACROSS,
    LINE_ALONG,
    LINE_BYTES,
    MOVED_BYTES,
    MOVED_SIDE,
    lines_of,
    moved_map,
    moved_of,
    standing_lines,
)
from curator.measures.score_list import BUILT_IN
from curator.records.clips import Span
from curator.records.tracks import Track
from tests.samples import made_track

Gray = NDArray[np.uint8]
N_LOOKS = 6
BOX = (0.66, 0.62, 0.96, 0.95)
"""x0, y0, x1, y1 of the inset."""
AREA = 0.30 * 0.33


def luma(seed: int) -> Gray:
    picture = texture(seed, width_px=1100, height_px=700)
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), np.uint8)


SCENE, OTHER = luma(5), luma(9)


def view(scene: Gray, x: int) -> Gray:
    return np.ascontiguousarray(scene[100:460, 20 + x : 660 + x])


def with_box(frame: Gray, shown: Gray, box: tuple[float, float, float, float] = BOX) -> Gray:
    """A frame with another picture's top left part in a box with a bright line around it."""
    x0, x1 = round(box[0] * 640), round(box[2] * 640)
    y0, y1 = round(box[1] * 360), round(box[3] * 360)
    made = frame.copy()
    made[max(0, y0 - 2) : y1 + 2, max(0, x0 - 2) : x1 + 2] = 255
    made[y0:y1, x0:x1] = shown[: y1 - y0, : x1 - x0]
    return made


def track_of(frame_at: Callable[[int], Gray], n_looks: int = N_LOOKS) -> Track:
    """A track whose looks, one a second, show the frames of even number, and the next sample."""
    pairs = [(frame_at(2 * index), frame_at(2 * index + 1)) for index in range(n_looks)]
    frames = np.arange(n_looks, dtype=np.int32) * 30
    none = made_track(30 * n_looks)
    return made_track(
        30 * n_looks,
        look_frame=frames,
        look_next_frame=frames + 15,
        look_edges=none.look_edges[:1].repeat(n_looks, 0),
        look_boxes=none.look_boxes[:1].repeat(n_looks, 0),
        look_standing=np.stack([standing_lines(*pair) for pair in pairs]),
        look_moved=np.stack([moved_map(*pair) for pair in pairs]),
    )


def score(track: Track, end: int | None = None) -> float | None:
    span = Span(start_frame=0, end_frame=end or track.n_frames, shot=0)
    return BUILT_IN.score_clip(track, span)["picture_in_picture"]


Frame = Callable[[int], Gray]


def moving(step: int) -> Gray:
    return view(SCENE, 25 * step)


def standing(_: int) -> Gray:
    return view(SCENE, 0)


def over(scene: Frame, *, speed: int = 22, box: tuple[float, float, float, float] = BOX) -> Frame:
    """A scene with a video over it, or a picture of no speed."""
    return lambda step: with_box(scene(step), view(OTHER, speed * step), box)


def framed(step: int) -> Gray:
    """A line around a part of the scene, which goes on in it."""
    scene = moving(step)
    x0, y0, x1, y1 = (round(share * side) for share, side in zip(BOX, 2 * (640, 360), strict=True))
    return with_box(scene, scene[y0:y1, x0:x1])


def with_screen(step: int) -> Gray:
    """A screen that moves with the scene."""
    scene = SCENE.copy()
    shown = view(OTHER, 22 * step)[:120, :190]
    scene[250:370, 420:610] = np.minimum(shown.astype(int) + 40, 255)
    return view(scene, 25 * step)


def with_tilted_screen(step: int) -> Gray:
    """A screen before a standing camera, tilted by 8 px in 190, which are 2.4 degrees."""
    corners = np.array([[420, 225], [610, 233], [602, 345], [412, 337]], np.float32)
    whole = np.array([[0, 0], [190, 0], [190, 112], [0, 112]], np.float32)
    matrix = cv2.getPerspectiveTransform(whole, corners)
    shown = np.minimum(view(OTHER, 22 * step)[:112, :190].astype(int) + 40, 255)
    lit = cv2.warpPerspective(shown.astype(np.uint8), matrix, (640, 360))
    mask = cv2.warpPerspective(np.full((112, 190), 255, np.uint8), matrix, (640, 360))
    return np.where(mask > 127, lit, view(SCENE, 0)).astype(np.uint8)


def grainy_wall(step: int) -> Gray:
    """The demo's wall of bricks, which was tagged: its joints stand, and its grain moves."""
    wall = np.full((360, 640), 150, np.float64)
    wall[::60], wall[:, ::80] = 40, 40
    grain = np.random.default_rng(step).normal(0, 3, wall.shape)
    return np.clip(wall + grain, 0, 255).astype(np.uint8)


CORNER = (0.0, 0.0, 0.3, 0.35)


@pytest.mark.parametrize(
    ("frame", "area"),
    [
        (over(moving), AREA),
        (over(standing), AREA),
        (over(standing, box=CORNER), 0.3 * 0.35),
        (moving, 0),
        (with_screen, 0),
        (framed, 0),
        (over(moving, speed=0), 0),
        (with_tilted_screen, 0),
        (over(standing, speed=0), None),
        (grainy_wall, None),
    ],
    ids=["over a moving scene", "over a standing scene", "closed by the picture's borders",
         "a scene alone", "a screen in the scene", "a frame that a game draws",
         "a banner or a logo", "a tilted screen", "nothing moves", "grain"],
)  # fmt: skip
def test_a_video_over_a_scene_covers_its_area(frame: Frame, area: float | None) -> None:
    assert score(track_of(frame)) == (area and pytest.approx(area, rel=0.15))


def test_fewer_than_three_looks_with_their_next_samples_are_too_few() -> None:
    track = track_of(over(moving))
    assert score(track, 76) == pytest.approx(AREA, rel=0.15)
    # The third look's next sample, frame 75, is another clip's.
    assert score(track, 75) is None


PLAIN: Gray = np.asarray(
    cv2.cvtColor(texture(3, width_px=900, height_px=600), cv2.COLOR_RGB2GRAY), np.uint8
)


def stepped(x: int, *, turned: bool = False) -> Gray:
    """A picture of 640 by 360 that is dark up to x, and bright from there; or up to y."""
    gray = np.full((360, 640), 60, np.uint8)
    if turned:
        gray[x:] = 160
    else:
        gray[:, x:] = 160
    return gray


@pytest.mark.parametrize(("turned", "side"), [(False, 640), (True, 360)])
def test_an_edge_in_one_place_is_a_line_there_and_nowhere_else(turned: bool, side: int) -> None:
    at = side // 4
    lines = lines_of(standing_lines(stepped(at, turned=turned), stepped(at, turned=turned))[None])
    assert lines.shape == (1, 2, LINE_ALONG, LINE_ACROSS)
    found = lines[0, int(turned)]
    assert found.any(1).all()
    places = np.flatnonzero(found.any(0))
    assert abs(places - LINE_ACROSS // 4).max() <= 1
    assert not lines[0, 1 - int(turned)].any()


def test_an_edge_that_moves_or_is_faint_is_no_line() -> None:
    assert not lines_of(standing_lines(stepped(160), stepped(163))[None]).any()
    # An edge below the step is no line.
    faint = np.where(stepped(160) > 100, 66, 60).astype(np.uint8)
    assert not lines_of(standing_lines(faint, faint)[None]).any()


@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (144, 176), (642, 642), (640, 360)])
def test_any_size_has_maps_of_the_same_length(shape: tuple[int, int]) -> None:
    gray = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    assert standing_lines(gray, gray).shape == (LINE_BYTES,)
    assert moved_map(gray, gray).shape == (MOVED_BYTES,)


def test_what_moves_is_found_where_it_is_and_by_how_much() -> None:
    before = PLAIN[100:460, 40:680]
    after = before.copy()
    after[:180, :320] = PLAIN[130:310, 90:410]
    moved = moved_of(moved_map(before, after)[None])[0]
    half = MOVED_SIDE // 2
    assert np.median(moved[: half - 1, : half - 1]) > 3
    assert moved[half + 1 :].max() == moved[:, half + 1 :].max() == 0
    # Flicker of a standing scene is no motion.
    before = PLAIN[100:460, 40:680]
    brighter = np.clip(before.astype(int) + 12, 0, 255).astype(np.uint8)
    shifted = PLAIN[100:460, 52:692]
    flicker, motion = (
        float(moved_of(moved_map(before, after)[None]).mean()) for after in (brighter, shifted)
    )
    assert flicker < 2
    assert motion > 4
    # Levels are kept to a third of an octave.
    flat = np.full((64, 64), 100, np.uint8)
    for levels in (1, 4, 12):
        moved = moved_of(moved_map(flat, flat + np.uint8(levels))[None])
        assert moved == pytest.approx(np.full(moved.shape, levels), rel=0.2)

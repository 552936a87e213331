"""What looks say of things drawn over the picture, and how that becomes scores of a clip."""

from collections.abc import Sequence

import cv2
import numpy as np
import pytest
from film_shots import texture
from numpy.typing import NDArray
from overlays import drawn, emblem, lettering

from curator.measures.drawn_marks import EDGE_BYTES, EDGE_SIDE, edge_map, edges_of
from curator.measures.look_maps import MOVED_SIDE
from curator.measures.motion import DenseFlow
from curator.measures.overlay_text import may_have_text, place_values, slides
from curator.measures.score_list import BUILT_IN, SCORES
from curator.records.clips import Span
from curator.records.tracks import Track
from curator.tools.footage.scenes import Picture
from tests.samples import made_track

Line = tuple[float, ...]
"""x0, y0, x1, y1, stay, around, slide."""

NAN = float("nan")
MIDDLE = (0.3, 0.4, 0.6, 0.5)
"""A place where no overlay is expected."""
BOTTOM = (0.3, 0.85, 0.7, 0.92)
STILL = (0.99, 0.99, 0.0)
"""Where nothing moves."""


def track_with(*looks: Sequence[Line], n_frames: int | None = None, **changes: object) -> Track:
    """A track with a look a second, and the lines of text in each."""
    frames = [30 * index for index, lines in enumerate(looks) for _ in lines]
    rows = [
        (*line[:4], 0.9, (line[2] - line[0]) * (line[3] - line[1]), *line[4:])
        for lines in looks
        for line in lines
    ]
    values: dict[str, object] = {
        "has_text": True,
        "text_frame": np.array(frames, np.int32),
        "text_line": np.array(rows, np.float32).reshape(-1, 9),
    }
    return made_track(n_frames or 30 * len(looks), **(values | changes))


def scores(track: Track, start: int = 0, end: int | None = None) -> dict[str, float | None]:
    end = track.n_frames if end is None else end
    return BUILT_IN.score_clip(track, Span(start_frame=start, end_frame=end, shot=0))


def overlay(*looks: Sequence[Line]) -> float | None:
    return scores(track_with(*looks))["overlay_text_area"]


def test_text_area_is_the_mean_over_looks_and_overlay_the_largest() -> None:
    """Pins a clip's own looks, and that both are absent without a look."""
    found = scores(made_track())
    assert found["text_area"] is found["overlay_text_area"] is None
    assert SCORES["text_area"].needs == SCORES["overlay_text_area"].needs == "analyze.text"
    line = (*BOTTOM, 1.0, 0.1, 0.0)
    found = scores(track_with([line], [], [line], []))
    assert found["text_area"] == pytest.approx(0.4 * 0.07 / 2)
    assert found["overlay_text_area"] == pytest.approx(0.4 * 0.07)
    assert scores(track_with([], []))["text_area"] == 0
    assert scores(track_with([(*MIDDLE, 1.0, 0.1, 0.0)], [], [], []), 30)["text_area"] == 0


def sliding(y: float, slide: float, width: float = 0.9) -> Line:
    return (0.05, y, 0.05 + width, y + 0.05, 0.1, 0.9, slide)


SHORT, LONG = (0.4, 0.4, 0.6, 0.47, *STILL), (0.25, 0.4, 0.75, 0.47, *STILL)
LEFT, RIGHT = (0.25, 0.4, 0.48, 0.47, *STILL), (0.52, 0.4, 0.75, 0.47, *STILL)


@pytest.mark.parametrize(
    ("looks", "area"),
    [
        # Text is drawn over a scene if it stays while its surrounding moves.
        *(([[(*MIDDLE, stay, around, 0.0)]] * 3, 0.03 * is_overlay)
          for stay, around, is_overlay in ((0.95, 0.1, 1), (0.6, 0.1, 1), (0.95, NAN, 0),
                                           (0.95, 0.9, 0), (0.99, 0.65, 0), (0.1, 0.1, 0))),
        # Thin letters keep their place a little and often; twice is not enough.
        ([[(*MIDDLE, 0.3, 0.02, 0.0)]] * 3, 0.03),
        ([[(*MIDDLE, 0.3, 0.02, 0.0)]] * 2, 0),
        # A sign that goes by slowly agrees with itself and is none.
        ([[(0.3 + x, 0.4, 0.6 + x, 0.5, 0.3, 0.02, 0.0)] for x in (0, 0.01, 0.02, 0.03)], 0),
        # Nor are blocks that a hand rearranges.
        ([[(0.4, 0.4, 0.5, 0.5, *STILL)], *[[(0.35, 0.4, 0.55, 0.5, *STILL)]] * 2], 0),
        # A wide band of text that slides is a ticker, unlike the writing of a lorry, and text that
        # moves with its surrounding.
        ([[sliding(0.9, -0.15)]] * 3, 0.9 * 0.05),
        ([[sliding(0.5, -0.15, 0.2)]] * 3, 0),
        ([[sliding(0.5, -0.01)]] * 3, 0),
        # Text that other text replaces before a standing scene is drawn over it.
        ([[SHORT], [SHORT], [LONG], [LONG]], 0.5 * 0.07),
        ([[SHORT]] * 3, 0),
        # A line that is parted between words has not changed.
        ([[LONG], [LEFT, RIGHT], [LONG], [LONG]], 0),
        # Where nothing changes the place decides: a corner and a caption, and no sign.
        ([[(0.02, 0.04, 0.2, 0.09, 1, 1, 0), (*BOTTOM, 1, 1, 0), (*MIDDLE, 1, 1, 0)]] * 3,
         0.18 * 0.05 + 0.4 * 0.07),
    ],
)  # fmt: skip
def test_text_is_drawn_over_the_picture_on_evidence(looks: list[list[Line]], area: float) -> None:
    assert overlay(*looks) == pytest.approx(area)


def test_evidence_of_one_look_or_of_an_unlike_scene_counts_for_a_place() -> None:
    moving, still = (*MIDDLE, 0.9, 0.1, 0.0), (*MIDDLE, 0.9, 0.9, 0.0)
    track = track_with([still], [still], [moving], [still])
    assert scores(track, 0, 60)["overlay_text_area"] == 0
    assert scores(track)["overlay_text_area"]
    n_samples = len(made_track(240).sample_frame)
    same = np.eye(1, 8, dtype=np.float32).repeat(n_samples, 0)
    unlike = same.copy()
    unlike[n_samples // 2 :] = np.eye(2, 8, dtype=np.float32)[1]
    for descriptor, is_overlay in ((same, False), (unlike, True)):
        track = track_with(*[[(*MIDDLE, 1.0, 1.0, 0.0)]] * 8, descriptor=descriptor)
        assert bool(scores(track, 0, 90)["overlay_text_area"]) == is_overlay


def looks_of(n: int, *, moving: bool, mark: bool = True, stands: bool = True) -> dict[str, object]:
    """Packed edges of a scene, with a mark of 6 by 6 cells in a corner; and what moved around it.

    The mark's own cells may move too.
    """
    rng = np.random.default_rng(1)
    edges = np.repeat(rng.random((1, 2, EDGE_SIDE, EDGE_SIDE)) < 0.2, n, 0)
    if moving:
        edges = rng.random((n, 2, EDGE_SIDE, EDGE_SIDE)) < 0.2
    codes = np.full((n, MOVED_SIDE, MOVED_SIDE), 10 if moving else 0, np.uint8)
    if mark:
        edges[:, :, 4:10, 60:66] = True
    if mark and stands:
        codes[:, 2:5, 27:31] = 0
    first, second = codes.reshape(-1, 2).T
    moved: NDArray[np.uint8] = ((first << 4) | second).reshape(n, -1)
    return {"look_edges": np.packbits(edges.reshape(n, -1), axis=1), "look_moved": moved}


@pytest.mark.parametrize(
    ("looks", "area"),
    [
        (looks_of(10, moving=True), 36 / EDGE_SIDE**2),
        (looks_of(10, moving=True, mark=False), 0),
        # Edges that stay in cells that move are texture.
        (looks_of(10, moving=True, stands=False), 0),
        # Where the picture stands still nothing can tell a logo.
        (looks_of(10, moving=False), None),
    ],
    ids=["mark", "none", "texture", "still"],
)
def test_a_mark_whose_edges_stay_while_the_rest_moves_is_a_logo(
    looks: dict[str, object], area: float | None
) -> None:
    found = scores(made_track(300, **looks))["logo_area"]
    assert found == (None if area is None else pytest.approx(area, rel=0.4))


def test_a_standing_clip_borrows_looks_from_the_moving_source_around_it() -> None:
    still, rest = looks_of(8, moving=False), looks_of(32, moving=True)
    joined = {name: np.vstack([rest[name][:16], still[name], rest[name][16:]]) for name in rest}
    assert scores(made_track(1200, **joined), 480, 720)["logo_area"]
    # Two looks are too few for a logo.
    assert scores(made_track(60))["logo_area"] is None


SCENE = cv2.addWeighted(texture(5, width_px=900, height_px=600), 1.6, np.zeros((600, 900, 3),
                        np.uint8), 0, -60)  # fmt: skip
PATCH = lettering("Where were you?", size_px=32)
BOX = np.array([[100 / 640, 250 / 360, (100 + PATCH.shape[1]) / 640, (250 + PATCH.shape[0]) / 360]],
               np.float32)  # fmt: skip


def view(x: int, text_x: int | None = 100, *, in_scene: bool = False) -> NDArray[np.uint8]:
    """Luma of a 640 by 360 view of the scene at x, with text over it, or painted into it."""
    scene: Picture = SCENE
    if in_scene and text_x is not None:
        scene = drawn(scene, PATCH, text_x + 40, 350)
    frame = np.ascontiguousarray(scene[100:460, 40 + x : 680 + x])
    if not in_scene and text_x is not None:
        frame = drawn(frame, PATCH, text_x, 250)
    return np.asarray(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), np.uint8)


def test_text_stays_or_moves_with_its_surrounding() -> None:
    stay, around = place_values(view(0), view(40), BOX)[0]
    assert stay > 0.8
    assert around < 0.4
    # Text of the scene moves with its surrounding.
    stay, around = place_values(view(0, in_scene=True), view(40, in_scene=True), BOX)[0]
    assert stay < 0.4
    assert around < 0.4
    # Where nothing moves both stay.
    assert place_values(view(0), view(0), BOX)[0] == pytest.approx([1, 1])
    # Text that is replaced changes and its surrounding stays.
    stay, around = place_values(view(0), view(0, None), BOX)[0]
    assert stay < 0.6
    assert around == pytest.approx(1)
    # Without edges about it nothing is said.
    flat = np.full((360, 640, 3), 90, np.uint8)
    gray = cv2.cvtColor(drawn(flat, PATCH, 100, 250), cv2.COLOR_RGB2GRAY)
    stay, around = place_values(gray, gray, BOX)[0]
    assert stay == pytest.approx(1)
    assert np.isnan(around)


@pytest.mark.parametrize("speed_px", [-12, 8])
def test_scrolling_is_measured_against_the_surrounding(speed_px: int) -> None:
    patch = lettering("Markets close higher and rain is expected until Friday", size_px=22)
    frames = []
    for step in (0, 1):
        frame = np.ascontiguousarray(SCENE[100:460, 40 + 4 * step : 680 + 4 * step])
        frame = drawn(frame, patch, 20 + speed_px * step, 250)
        small = cv2.resize(frame, (320, 180), interpolation=cv2.INTER_AREA)
        frames.append(np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.uint8))
    box = np.array([[0, 252 / 360, 1, (250 + patch.shape[0]) / 360]], np.float32)
    flow = DenseFlow().between(frames[0], frames[1])
    speed = slides(frames[0], frames[1], flow, box, 0.1)[0]
    # The scene moves by -4 px of 640 at the same time.
    assert speed == pytest.approx((speed_px + 4) / 640 / 0.1, abs=0.035)


def test_edge_maps_hold_each_cell_and_direction() -> None:
    gray = np.full((360, 640), 20, np.uint8)
    gray[:, 320:] = 220
    packed = edge_map(gray)
    assert packed.shape == (EDGE_BYTES,)
    edges = edges_of(packed[None])[0]
    assert edges.shape == (2, EDGE_SIDE, EDGE_SIDE)
    assert edges[0, :, EDGE_SIDE // 2 - 1 : EDGE_SIDE // 2 + 1].any(1).all()
    assert edges[0].sum() <= 2 * EDGE_SIDE
    assert not edges[1].any()
    # An emblem has edges of both directions.
    frame = drawn(np.full((360, 640, 3), 90, np.uint8), emblem(50), 20, 20)
    edges = edges_of(edge_map(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY))[None])[0]
    assert edges.sum((1, 2)).min() >= 6


def test_a_picture_without_strokes_needs_no_detector() -> None:
    smooth = cv2.GaussianBlur(view(0, None), (0, 0), 6)
    assert not may_have_text(smooth)
    for size_px in (10, 24, 60):
        frame = cv2.cvtColor(smooth, cv2.COLOR_GRAY2RGB)
        frame = drawn(frame, lettering("Where were you?", size_px=size_px), 60, 200)
        assert may_have_text(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY))

"""What one look says of things drawn over the picture."""

import cv2
import numpy as np
import pytest
from film_shots import texture
from numpy.typing import NDArray
from overlays import drawn, emblem, lettering

from curator.footage.scenes import Picture
from curator.measures.drawn_marks import EDGE_BYTES, EDGE_SIDE, edge_map, edges_of, straight_lines
from curator.measures.motion import DenseFlow
from curator.measures.overlay_text import may_have_text, place_values, slides

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


def test_edge_maps_hold_a_bit_for_each_cell_and_direction() -> None:
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


def test_a_divided_picture_has_a_line_all_the_way() -> None:
    left, right = view(0, None), view(200, None)[::-1]
    both = np.hstack([left[:, :320], right[:, :320]])
    x, cover, _, across = straight_lines(both)
    assert x == pytest.approx(0.5, abs=0.005)
    assert cover > 0.6
    assert across < 0.4
    assert straight_lines(both.T)[3] == pytest.approx(cover)
    assert straight_lines(left)[1] < 0.4
    # The edge of a black bar divides nothing.
    barred = view(0, None).copy()
    barred[:, :100] = 16
    assert straight_lines(barred)[1] == 0


def test_a_picture_without_strokes_needs_no_detector() -> None:
    smooth = cv2.GaussianBlur(view(0, None), (0, 0), 6)
    assert not may_have_text(smooth)
    for size_px in (10, 24, 60):
        frame = cv2.cvtColor(smooth, cv2.COLOR_GRAY2RGB)
        frame = drawn(frame, lettering("Where were you?", size_px=size_px), 60, 200)
        assert may_have_text(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY))

"""What one look says of insets: lines that stand, and what moved."""

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

Gray = NDArray[np.uint8]
SCENE: Gray = np.asarray(
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
    before = SCENE[100:460, 40:680]
    after = before.copy()
    after[:180, :320] = SCENE[130:310, 90:410]
    moved = moved_of(moved_map(before, after)[None])[0]
    half = MOVED_SIDE // 2
    assert np.median(moved[: half - 1, : half - 1]) > 3
    assert moved[half + 1 :].max() == moved[:, half + 1 :].max() == 0
    # Flicker of a standing scene is no motion.
    before = SCENE[100:460, 40:680]
    brighter = np.clip(before.astype(int) + 12, 0, 255).astype(np.uint8)
    shifted = SCENE[100:460, 52:692]
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

"""Where the crops of the distortion score are, and that damage of each kind raises it."""

import cv2
import numpy as np
import pytest
from film_shots import photograph
from numpy.typing import NDArray

from curator.models.distortion_network import (
    CROP_PX,
    GRID_PX,
    DistortionNetwork,
    crops_of,
    full_range,
    read_corners,
)

Luma = NDArray[np.uint8]


def luma(name: str = "coffee") -> Luma:
    gray = np.asarray(cv2.cvtColor(photograph(name), cv2.COLOR_RGB2GRAY), np.uint8)
    return np.ascontiguousarray(gray[:272, :480])


def crops(picture: Luma) -> Luma:
    height, width = picture.shape
    return crops_of(picture, read_corners((0, height, 0, width)))


@pytest.fixture(scope="module")
def network() -> DistortionNetwork:
    return DistortionNetwork()


@pytest.mark.parametrize("shape", [(1, 1), (15, 200), (200, 15), (16, 4096), (17, 16)])
def test_pictures_below_the_stride_have_no_score(
    network: DistortionNetwork, shape: tuple[int, int]
) -> None:
    (score,) = scores(network, np.zeros(shape, np.uint8))
    assert np.isfinite(score) == (min(shape) >= 16)


def scores(network: DistortionNetwork, *pictures: Luma) -> list[float]:
    return network.embed([crops(picture) for picture in pictures])[:, 0].tolist()


@pytest.mark.parametrize(
    ("box", "n"),
    [
        ((0, 1080, 0, 1920), 4),
        ((0, 1920, 0, 1080), 4),
        ((138, 942, 0, 1920), 4),
        ((3, 275, 5, 485), 4),
        ((0, 108, 0, 192), 3),
        ((0, 100, 0, 100), 1),
        ((7, 140, 9, 138), 1),
    ],
)
def test_crops_are_inside_the_box_and_on_the_grid(box: tuple[int, int, int, int], n: int) -> None:
    top, bottom, left, right = box
    corners = read_corners(box)
    assert len(corners) == n
    for y, x in corners:
        assert top <= y <= max(top, bottom - CROP_PX)
        assert left <= x <= max(left, right - CROP_PX)
        # A side that is hardly longer than a crop may have no place on the grid.
        assert y % GRID_PX == 0 or y == top
        assert x % GRID_PX == 0 or x == left


def test_turned_pictures_have_turned_places() -> None:
    wide, tall = read_corners((0, 720, 0, 1280)), read_corners((0, 1280, 0, 720))
    assert {(x, y) for y, x in wide} == set(tall)


def test_limited_range_becomes_full_range() -> None:
    given = np.array([[[0, 16, 126, 235, 255]]], np.uint8)
    assert full_range(given, black=16, white=235).tolist() == [[[0, 0, 128, 255, 255]]]
    assert full_range(given, black=0, white=255) is given


def _coded(picture: Luma, quality: int) -> Luma:
    _, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_GRAYSCALE), np.uint8)


def test_stronger_damage_has_a_higher_score(network: DistortionNetwork) -> None:
    """Pins the direction of the score, on JPEG, which no training saw, and on blur and noise."""
    clean = luma()
    rng = np.random.default_rng(0)
    noisy = [
        np.clip(clean + rng.normal(0, sigma, clean.shape), 0, 255).astype(np.uint8)
        for sigma in (10, 30)
    ]
    blurred = [np.asarray(cv2.GaussianBlur(clean, (0, 0), s), np.uint8) for s in (1.5, 4)]
    coded = [_coded(clean, quality) for quality in (30, 6)]
    own, *damaged = scores(network, clean, *noisy, *blurred, *coded)
    assert own < 0.2
    for weak, strong in zip(damaged[::2], damaged[1::2], strict=True):
        assert own < weak < strong
        assert strong > 0.4


def test_a_score_depends_on_its_own_picture_only(network: DistortionNetwork) -> None:
    first, second = luma(), luma("astronaut")
    assert scores(network, first, second) == scores(network, first) + scores(network, second)

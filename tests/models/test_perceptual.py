"""What copies of a picture or clip the descriptor recognises, and what it tells apart."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest
from film_shots import photograph
from numpy.typing import NDArray

from curator.models.perceptual import DIM, bar_box, describe

Picture = NDArray[np.uint8]

SIMILARITY = 0.6
NAMES = ("astronaut", "camera", "cat", "coffee", "coins", "hubble", "ihc", "motorcycle", "rocket")


def frame(name: str) -> Picture:
    """The middle of a photograph at the size that the pipeline describes."""
    picture = photograph(name)
    height = min(picture.shape[0], picture.shape[1] * 9 // 16)
    top = (picture.shape[0] - height) // 2
    return cv2.resize(picture[top : top + height], (320, 180), interpolation=cv2.INTER_AREA)


def jpeg(picture: Picture, quality: int) -> Picture:
    _, coded = cv2.imencode(".jpg", picture[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return cv2.imdecode(coded, cv2.IMREAD_COLOR)[:, :, ::-1]


def rescaled(picture: Picture) -> Picture:
    return cv2.resize(
        jpeg(cv2.resize(picture, (107, 60), interpolation=cv2.INTER_AREA), 40), (320, 180)
    )


def cropped(picture: Picture, share: float) -> Picture:
    height, width = (round(side * share) for side in picture.shape[:2])
    top, left = (picture.shape[0] - height) // 2, (picture.shape[1] - width) // 2
    return cv2.resize(picture[top : top + height, left : left + width], (320, 180))


def graded(picture: Picture) -> Picture:
    gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float32)
    return np.repeat(np.clip(gray * 1.2 - 20, 0, 255).astype(np.uint8)[:, :, None], 3, axis=2)


def with_logo(picture: Picture) -> Picture:
    marked = picture.copy()
    cv2.rectangle(marked, (262, 9), (310, 36), (255, 220, 0), -1)
    cv2.putText(marked, "TV1", (266, 31), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (0, 0, 0), 1)
    return marked


def with_banner(picture: Picture) -> Picture:
    marked = picture.copy()
    marked[153:] = (30, 30, 140)
    cv2.putText(marked, "BREAKING NEWS", (20, 172), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (255,) * 3, 1)
    return marked


def boxed(picture: Picture, top: int, left: int) -> Picture:
    return cv2.copyMakeBorder(picture, top, top, left, left, cv2.BORDER_CONSTANT)


COPIES: dict[str, Callable[[Picture], Picture]] = {
    "re-encoded": lambda p: jpeg(p, 15),
    "rescaled to a third": rescaled,
    "blurred": lambda p: cv2.GaussianBlur(p, (0, 0), 2),
    "darker": lambda p: (p * 0.5).astype(np.uint8),
    "gray with more contrast": graded,
    "logo": with_logo,
    "banner": with_banner,
    "cropped to 90%": lambda p: cropped(p, 0.9),
    "cropped to 80%": lambda p: cropped(p, 0.8),
    "letterboxed": lambda p: jpeg(boxed(p, 30, 0), 50),
    "pillarboxed": lambda p: jpeg(boxed(p, 0, 50), 50),
    "squeezed": lambda p: cv2.resize(p, (240, 180), interpolation=cv2.INTER_AREA),
}


@pytest.mark.parametrize("copy", COPIES, ids=str)
def test_copy_of_a_picture_is_recognised(copy: str) -> None:
    alike = [float(describe(frame(n)) @ describe(COPIES[copy](frame(n)))) for n in NAMES]
    # Crops to 80% in most pictures.
    least = np.median(alike) if copy == "cropped to 80%" else min(alike)
    assert least >= SIMILARITY


def test_different_pictures_stay_far_below_the_threshold_at_unit_length() -> None:
    vectors = np.stack([describe(frame(name)) for name in NAMES])
    unlike = (vectors @ vectors.T)[np.triu_indices(len(NAMES), 1)]
    assert unlike.max() < 0.75 * SIMILARITY
    # Descriptor has unit length and views with negative strides are accepted.
    picture = frame("cat")
    vector = describe(np.rot90(picture))
    assert (vector.shape, vector.dtype) == ((DIM,), np.float32)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert np.array_equal(vector, describe(np.rot90(picture).copy()))


@pytest.mark.parametrize("size", [(1, 1), (6, 10), (31, 320), (4320, 240)])
def test_odd_sizes_are_described(size: tuple[int, int]) -> None:
    picture = cv2.resize(frame("camera"), size[::-1], interpolation=cv2.INTER_AREA)
    vector = describe(picture)
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) == pytest.approx(0 if size == (1, 1) else 1, abs=1e-5)


def noisy(level: int) -> Picture:
    noise = np.random.default_rng(0).normal(0, 3, (180, 320, 3))
    return np.clip(level + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    "flat",
    [
        np.zeros((180, 320, 3), np.uint8),
        np.full((180, 320, 3), (20, 200, 90), np.uint8),
        noisy(16),
        boxed(np.full((140, 320, 3), 90, np.uint8), 20, 0),
    ],
    ids=["black", "one colour", "grain", "grey in bars"],
)
def test_picture_without_structure_has_the_zero_vector(flat: Picture) -> None:
    assert not describe(flat).any()


def test_bars_are_cut_to_the_line_and_a_plain_background_is_none() -> None:
    luma = cv2.cvtColor(frame("cat"), cv2.COLOR_RGB2GRAY)
    barred = cv2.copyMakeBorder(luma, 30, 24, 50, 50, cv2.BORDER_CONSTANT, value=3)
    height, width = luma.shape
    assert bar_box(barred) == (30, 30 + height, 50, 50 + width)
    luma = np.full((180, 320), 240, np.uint8)
    cv2.circle(luma, (160, 90), 40, 30, -1)
    assert bar_box(luma) == (0, 180, 0, 320)

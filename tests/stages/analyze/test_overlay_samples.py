"""OverlaySamples: which samples they are, and where their lines of text come from."""

import cv2
import numpy as np
import pytest
import torch
from film_shots import texture
from overlays import drawn, lettering

from curator.models.text_detector import TextDetector
from curator.stages.analyze.device_samples import DeviceView
from curator.stages.analyze.overlay_samples import LookGrid, OverlaySamples


@pytest.mark.parametrize(
    ("every", "steps", "due"),
    [
        (2, [0, 1, 2, 3, 4], [0, 2, 4]),
        (2, [3, 4, 5, 6], [4, 6]),
        (3, [0, 2, 4, 9, 10], [0, 4, 9]),
        (1, [5, 6, 8], [5, 6, 8]),
    ],
)
def test_a_look_is_due_at_the_first_sample_of_each_block(
    every: int, steps: list[int], due: list[int]
) -> None:
    """Pins segments that begin within a block, and blocks whose first samples are missing."""
    grid = LookGrid(every)
    assert [step for step in steps if grid.is_due(step)] == due


@pytest.fixture(scope="module")
def detector() -> TextDetector:
    return TextDetector()


def seen(**arrays: np.ndarray) -> DeviceView:
    """A sample whose pictures are known."""
    return DeviceView(tiny=(torch.zeros(1, 27, 48, 3), 0), **arrays)


def looked_at(detector: TextDetector | None, *, with_text: bool, from_map: bool) -> np.ndarray:
    plain = texture(3, width_px=320, height_px=192)
    picture = drawn(plain, lettering("Title", size_px=24), 10, 40) if with_text else plain
    gray = np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), np.uint8)
    looks = OverlaySamples(every=1, with_overlays=False, detector=detector)
    if from_map:
        assert detector is not None
        (text_map,) = detector.maps(torch.from_numpy(picture[None])).numpy()
        looks.sample(0, 0, seen(gray=gray, text_map=text_map))
    else:
        looks.sample(0, 0, seen(gray=gray, picture=picture))
    return np.asarray(looks.columns()["text_line"])


@pytest.mark.parametrize("with_text", [True, False])
def test_a_given_map_has_the_lines_of_the_picture(detector: TextDetector, with_text: bool) -> None:
    found = looked_at(detector, with_text=with_text, from_map=True)
    assert len(found) == with_text
    expected = looked_at(detector, with_text=with_text, from_map=False)
    np.testing.assert_array_equal(found, expected)


def test_a_map_with_lines_counts_only_where_strokes_are(detector: TextDetector) -> None:
    """Pins the condition that the detector's own call has."""
    text_map = np.zeros((384, 640), np.uint8)
    text_map[100:120, 100:300] = 250
    looks = OverlaySamples(every=1, with_overlays=False, detector=detector)
    looks.sample(0, 0, seen(gray=np.full((192, 320), 99, np.uint8), text_map=text_map))
    assert not len(looks.columns()["text_line"])

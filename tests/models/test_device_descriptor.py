"""Descriptors on a device are the host's."""

import numpy as np
import pytest
import torch
from film_shots import texture

from curator.media.opencv import cv2
from curator.models.device_descriptor import LEAST_PX, describe_of
from curator.models.perceptual import describe


@pytest.mark.parametrize(("width", "height"), [(320, 180), (180, 320), (320, 133), (90, LEAST_PX)])
def test_descriptors_are_the_hosts(width: int, height: int) -> None:
    rgb = np.stack([texture(seed, width_px=width, height_px=height) for seed in (1, 2, 3)])
    gray = np.stack([cv2.cvtColor(one, cv2.COLOR_RGB2GRAY) for one in rgb])
    found = describe_of(torch.from_numpy(gray)).numpy()
    for one, expected in zip(found, map(describe, rgb), strict=True):
        assert float(one @ expected) > 0.99999
        assert one == pytest.approx(expected, abs=1e-3)


def test_a_picture_without_structure_has_none() -> None:
    flat = torch.full((2, 180, 320), 200, dtype=torch.uint8)
    flat[1, 40:90, 100:200] = 10
    found = describe_of(flat)
    assert not found[0].any()
    assert float(found[1].norm()) == pytest.approx(1, abs=1e-5)

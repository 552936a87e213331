"""Maps of looks on a device are the host's to the bit.

Where a side is odd, pictures are halved with another rounding: a code of what moved may be one
step off.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch
from film_shots import texture
from numpy.typing import NDArray

from curator.measures.device_overlays import LEAST_PX, edges_of, moved_of, standing_of
from curator.measures.drawn_marks import edge_map
from curator.measures.look_maps import moved_map, packed_codes, standing_lines
from curator.media.opencv import cv2

SIZES = [(640, 360), (640, 268), (360, 640), (640, 427), (481, 640), (640, LEAST_PX)]


def pictures(width: int, height: int) -> NDArray[np.uint8]:
    """Luma [5, H, W]: a scene with a frame drawn into it, which moves, stands and is split."""
    found = []
    for number in range(5):
        rgb = texture(3, width_px=width + 20, height_px=height)[:, 3 * number : 3 * number + width]
        gray = cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2GRAY)
        cv2.rectangle(gray, (40, 30), (160, 110), 250, 3)
        gray[:, width // 2 :] //= 1 + number % 2
        found.append(gray)
    return np.stack(found)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_maps_are_the_hosts(width: int, height: int) -> None:
    gray = pictures(width, height)
    device = torch.from_numpy(gray)
    edges = edges_of(device).numpy()
    standing = standing_of(device[:-1], device[1:]).numpy()
    moved = moved_of(device[:-1], device[1:]).numpy()
    assert edges.any()
    assert standing.any()
    assert moved.any()
    for number, one in enumerate(gray):
        assert np.array_equal(np.packbits(edges[number]), edge_map(one))
    for number, (before, after) in enumerate(pairwise(gray)):
        assert np.array_equal(np.packbits(standing[number]), standing_lines(before, after))
        packed = packed_codes(moved[number]), moved_map(before, after)
        off = np.subtract(*(np.stack([one >> 4, one & 15]).astype(int) for one in packed))
        assert np.abs(off).max() <= 1
        assert np.mean(off != 0) <= (0.01 if width % 2 or height % 2 else 0)


def test_a_flat_picture_shows_nothing() -> None:
    flat = torch.full((2, 360, 640), 90, dtype=torch.uint8)
    assert not edges_of(flat).any()
    assert not standing_of(flat, flat).any()
    assert not moved_of(flat, flat).any()

"""Pictures to film: photographs from scikit-image's wheel, and textures that need no package.

Photographs are read by path, because `skimage.data` would go to the network for a picture that is
not in the wheel.
"""

import importlib.util
from functools import cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from curator.errors import UsageError

Picture = NDArray[np.uint8]
"""A picture or video frame: uint8 RGB, height x width x 3."""

PHOTOGRAPHS = {
    "astronaut": "astronaut.png",
    "brick": "brick.png",
    "camera": "camera.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "coins": "coins.png",
    "grass": "grass.png",
    "gravel": "gravel.png",
    "hubble": "hubble_deep_field.jpg",
    "ihc": "ihc.png",
    "moon": "moon.png",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
}
"""Name here, and file inside `skimage/data`."""

_REMEDY = "install it with: pip install 'curate-video[demo]'"


@cache
def photograph(name: str) -> Picture:
    """Reads one photograph; the array is shared and read-only.

    Args:
        name: A key of `PHOTOGRAPHS`.

    Returns:
        uint8 RGB, height x width x 3, from 300 to 1411 pixels a side.

    Raises:
        UsageError: scikit-image, or the file in it, is missing.
    """
    path = _data_folder() / PHOTOGRAPHS[name]
    bgr = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if bgr is None:
        raise UsageError(f"cannot read {path}, which scikit-image's wheel carries; re{_REMEDY}")
    picture = np.ascontiguousarray(bgr[:, :, ::-1]).astype(np.uint8, copy=False)
    picture.setflags(write=False)
    return picture


def _data_folder() -> Path:
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise UsageError(f"demo footage is filmed from scikit-image's photographs; {_REMEDY}")
    return Path(spec.origin).parent / "data"


def texture(seed: int, *, width_px: int = 640, height_px: int = 480) -> Picture:
    """A coloured cloud texture with detail at every scale, where no photograph is needed.

    Args:
        seed: Equal seeds give equal pictures.
        width_px: Width.
        height_px: Height.

    Returns:
        uint8 RGB, height x width x 3.
    """
    rng = np.random.default_rng(seed)
    total = np.zeros((height_px, width_px, 3), np.float32)
    cells = 3
    while cells < max(width_px, height_px):
        coarse = rng.standard_normal((cells, cells, 3)).astype(np.float32)
        octave = cv2.resize(coarse, (width_px, height_px), interpolation=cv2.INTER_CUBIC)
        total += octave.astype(np.float32) / cells**0.6
        cells *= 2
    total -= total.mean(axis=(0, 1))
    total *= 55 / total.std()
    base = rng.uniform(90, 165, 3).astype(np.float32)
    picture: Picture = np.clip(total + base, 0, 255).astype(np.uint8)
    return picture

"""All signals of a sample: their names, and their values for one picture.

The functions depend only on pixels, not on the clip or on thresholds of the recipe.
"""

import numpy as np
from numpy.typing import NDArray

from curator.measures import camera
from curator.measures.borders import Sides, content_of, find_borders
from curator.measures.exposure import exposure_signals
from curator.measures.noise import noise
from curator.measures.picture_quality import sharpness, stripes
from curator.measures.strips import (
    banding,
    blocking,
    combing,
    every_other_strip,
    flattening,
    resolution,
    strips,
)

PAIR_SIGNALS = ("motion", *camera.SIGNALS, "change")  # from a sample and the frame 0.1 s later
_FULL_SIZE = ("noise", "blocking", "flattening", "banding", "combing", "resolution")
SIGNALS = (
    "sharpness", "dark_fraction", "bright_fraction", "stripes", *_FULL_SIZE, "quantizer",
    *(f"border_{side}" for side in Sides._fields), *PAIR_SIGNALS,
)  # fmt: skip
"""Names of the values of a sample; each value is float32, and NaN if not measured."""

MIN_PX = 32


def picture_signals(gray_HW: NDArray[np.uint8]) -> dict[str, float]:
    """Returns exposure of a picture of 640 px, and sharpness and stripes inside black borders."""
    inner = content_of(gray_HW, find_borders(gray_HW))
    return {"sharpness": sharpness(inner), **exposure_signals(gray_HW), "stripes": stripes(inner)}


def native_signals(
    luma_HW: NDArray[np.uint8], *, black: int = 0, white: int = 255
) -> dict[str, float]:
    """Returns the signals that need full size: borders, noise, compression, combs, resolution.

    `luma_HW` is uint8 luma in the source's size, as coded: neither rotated nor with square pixels.
    Only a part of its rows and columns is read.
    """
    sides = find_borders(luma_HW, black=black, white=white)
    inner = content_of(luma_HW, sides)
    values = {f"border_{side}": share for side, share in sides._asdict().items()}
    if min(inner.shape) < MIN_PX:
        return values | dict.fromkeys(_FULL_SIZE, float("nan"))
    rows, columns = strips(inner), strips(inner.T)
    few_rows, few_columns = every_other_strip(rows), every_other_strip(columns)
    scale = 255 / (white - black)
    level = noise(few_rows, black=black, white=white)
    noise_level = float(np.fmax(level, 0))
    finest = [resolution(lines, noise_level=noise_level) for lines in (rows, columns)]
    return values | {
        "noise": level * scale,
        "blocking": blocking(rows, columns),
        "flattening": flattening(few_rows, few_columns, black=black, white=white),
        "banding": (banding(rows) + banding(columns)) / 2 * scale**2,
        "combing": combing(columns),
        "resolution": float(np.fmax.reduce(finest)),
    }

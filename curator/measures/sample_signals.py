"""All signals of a sample: what they are called, and how one picture gives them.

Pure functions of pixels; they know no threshold and no clip.
"""

# ruff: noqa: N803 - shape letters

import numpy as np
from numpy.typing import NDArray

from curator.measures import (
    borders,
    camera,
    compression,
    exposure,
    interlacing,
    motion,
    noise,
    quantizer,
    resolution,
    sharpness,
    stillness,
    stripes,
)
from curator.measures.borders import Luma, border_signals, content_of, find_borders
from curator.measures.measure_contract import Signal
from curator.measures.strips import every_other_strip, strips

_FULL_SIZE: dict[str, Signal] = (
    noise.SIGNALS | compression.SIGNALS | interlacing.SIGNALS | resolution.SIGNALS
)
SIGNALS: dict[str, Signal] = {
    **sharpness.SIGNALS,
    **exposure.SIGNALS,
    **stripes.SIGNALS,
    **_FULL_SIZE,
    **quantizer.SIGNALS,
    **borders.SIGNALS,
    **motion.SIGNALS,
    **camera.SIGNALS,
    **stillness.SIGNALS,
}
"""Values of a sample, float32 each, NaN where one could not be measured."""

_MIN_PX = 32


def picture_signals(gray_HW: NDArray[np.uint8]) -> dict[str, float]:
    """Exposure of a picture of 640 px; sharpness and stripes of what is inside black borders."""
    inner = content_of(gray_HW, find_borders(gray_HW))
    return {
        "sharpness": sharpness.sharpness(inner),
        **exposure.exposure_signals(gray_HW),
        "stripes": stripes.stripes(inner),
    }


def native_signals(luma_HW: Luma, *, black: int = 0, white: int = 255) -> dict[str, float]:
    """Borders, and what shows at full size only: noise, blocks, bands, combs and resolution.

    Args:
        luma_HW: uint8 luma at the source's own size, as coded: not turned, pixels not squared. It
            may be on a device: a part of its rows and columns is read.
        black: Level of black in it.
        white: Level of white.
    """
    sides = find_borders(luma_HW, black=black, white=white)
    inner = content_of(luma_HW, sides)
    values = border_signals(sides)
    if min(inner.shape) < _MIN_PX:
        return values | dict.fromkeys(_FULL_SIZE, float("nan"))
    rows, columns = strips(inner), strips(inner.T)
    few_rows, few_columns = every_other_strip(rows), every_other_strip(columns)
    scale = 255 / (white - black)
    level = noise.noise(few_rows, black=black, white=white)
    found = float(np.fmax(level, 0))
    finest = [resolution.resolution(lines, noise_level=found) for lines in (rows, columns)]
    return values | {
        "noise": level * scale,
        "blocking": compression.blocking(rows, columns),
        "flattening": compression.flattening(few_rows, few_columns, black=black, white=white),
        "banding": (compression.banding(rows) + compression.banding(columns)) / 2 * scale**2,
        "combing": interlacing.combing(columns),
        "resolution": float(np.fmax.reduce(finest)),
    }

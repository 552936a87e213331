"""A stage that blurs fixed regions, such as a burnt-in clock, in each frame before encoding.

    stages:
      - use: blur_regions:BlurRegions
        config: {regions: [[0.0, 0.9, 0.3, 1.0]]}

Run it with this folder in PYTHONPATH. The cut stage encodes all clips, because packets copied from
the source cannot be blurred.
"""

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from curator.stage import ClipFrames, PixelStage, StageConfig

Region = tuple[float, float, float, float]


class BlurConfig(StageConfig):
    """The regions, and the strength of the blur."""

    regions: tuple[Region, ...] = Field(
        min_length=1, description="regions: left, top, right, bottom, as fractions of the frame"
    )
    strength: float = Field(
        0.1, gt=0, le=1, description="size of the blur, as a fraction of the region's longer side"
    )


class BlurRegions(PixelStage[BlurConfig]):
    """Blurs the configured regions."""

    name = "blur"
    version = 1
    config_type = BlurConfig

    def process(self, unit: ClipFrames) -> Iterator[NDArray[np.uint8]]:
        """Yields the blurred frames of a clip."""
        for frame in unit.frames:
            height, width, _ = frame.shape
            blurred = frame.copy()
            for left, top, right, bottom in self.config.regions:
                rows = slice(round(top * height), round(bottom * height))
                columns = slice(round(left * width), round(right * width))
                part = frame[rows, columns]
                size = max(1, round(self.config.strength * max(part.shape[:2]))) | 1
                blurred[rows, columns] = cv2.blur(part, (size, size))
            yield blurred

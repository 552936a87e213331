"""A stage that blurs fixed regions of every frame before the encoder, such as a burnt-in clock.

    stages:
      - use: blur_regions:BlurRegions
        config: {regions: [[0.0, 0.9, 0.3, 1.0]]}

Run it with this folder in PYTHONPATH. Clips are encoded, because copied packets cannot be changed.
"""

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from curator.stage import ClipFrames, PixelStage, StageConfig

Region = tuple[float, float, float, float]


class BlurConfig(StageConfig):
    """Which regions, and how much."""

    regions: tuple[Region, ...] = Field(
        min_length=1, description="left, top, right, bottom of each, as shares of the picture"
    )
    strength: float = Field(0.1, gt=0, le=1, description="share of the region's longer side")


class BlurRegions(PixelStage[BlurConfig]):
    """Blurs regions of the picture."""

    name = "blur"
    version = 1
    config_type = BlurConfig

    def process(self, unit: ClipFrames) -> Iterator[NDArray[np.uint8]]:
        """Yields the frames of a clip, blurred."""
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

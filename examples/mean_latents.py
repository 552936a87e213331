"""An annotator that adds a tensor to each sample: block means of the frames over time.

    stages:
      - use: mean_latents:MeanLatents
        config: {block_px: 16}

Run it with this folder in PYTHONPATH. Write an autoencoder the same way: `setup` loads the model,
and `kinds` requests a GPU. The training loop reads the tensors without importing this file:

    ClipDataset("out", members=["latents"], video=False, batch_size=4)
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from curator.family import Array, Family, Scope
from curator.stage import Annotator, FrameRequest, SampledClip, StageConfig


class LatentsConfig(StageConfig):
    """The size of the blocks."""

    block_px: int = Field(16, gt=0, description="side of a block, in pixels")


class MeanLatents(Annotator[LatentsConfig]):
    """Averages blocks of frames of 160x96 pixels, eight frames a second."""

    name = "mean_latents"
    version = 1
    config_type = LatentsConfig
    batch = 4
    frames = (FrameRequest(at=8.0, size=(160, 96)),)
    families = (
        Family(
            "latents", Scope.CLIP, Array("f16", (3, "t", "h", "w")), member="latents.safetensors"
        ),
    )

    def process(self, unit: Sequence[SampledClip]) -> list[NDArray[np.generic]]:
        """Returns one float16 array [3, t, h, w] per clip."""
        side = self.config.block_px
        latents = []
        for clip in unit:
            frames, height, width, _ = clip.frames.shape
            cells = clip.frames[:, : height // side * side, : width // side * side]
            blocks = cells.reshape(frames, height // side, side, width // side, side, 3)
            means = blocks.mean(axis=(2, 4), dtype=np.float32) / 127.5 - 1
            latents.append(np.moveaxis(means, -1, 0).astype(np.float16))
        return latents

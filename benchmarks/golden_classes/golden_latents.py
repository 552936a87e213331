"""A custom annotator for `golden.py`; it needs families, which older checkouts lack."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from curator.family import Array, Family, Scope, Text
from curator.stage import Annotator, FrameRequest, SampledClip, StageConfig


class Latents(Annotator[StageConfig]):
    """A tensor of every 16th pixel, four times a second, and a text that quotes the caption."""

    name, version, config_type, batch = "latents", 1, StageConfig, 4
    frames = (FrameRequest(at=4.0, size=(160, 96)), FrameRequest(at="all", size=64))
    columns = ("caption",)
    families = (
        Family("latents", Scope.CLIP, Array("f16", ("t", 6, 10, 3)), member="latents.safetensors"),
        Family("told", Scope.CLIP, Text(), member="told.txt"),
    )

    def process(self, unit: Sequence[SampledClip]) -> list[dict[str, Any]]:
        return [
            {
                "latents": clip.requested[0].pixels[:, ::16, ::16].astype(np.float16),
                "told": f"{len(clip.requested[1].pixels)} {clip.facts.columns['caption']}",
            }
            for clip in unit
        ]

"""The annotator that puts signals of the analysis into samples, with a value per frame."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from curator.family import FRAMES, Array, Family, Scope
from curator.stage import Annotator, SampledClip
from curator.stages.shard.config import ShardConfig


class FrameSignals(Annotator[ShardConfig]):
    """Adds each signal of `shard.signals` to the samples: `<signal>.npy`, float32 [frames].

    Nothing is decoded. `Annotator.signals` says which value a frame has.
    """

    name = "frame_signals"
    version = 1
    config_type = ShardConfig
    frames = ()
    batch = 256

    def __init__(self, config: ShardConfig) -> None:
        super().__init__(config)
        self.signals = config.signals
        self.families = tuple(
            Family(name, Scope.CLIP, Array("f32", (FRAMES,)), member=f"{name}.npy")
            for name in config.signals
        )

    def settings(self) -> dict[str, object]:
        """Returns no settings: `signals` has them."""
        return {}

    def process(self, unit: Sequence[SampledClip]) -> list[Mapping[str, NDArray[np.float32]]]:
        """Returns the values of each clip by signal."""
        return [clip.signals for clip in unit]

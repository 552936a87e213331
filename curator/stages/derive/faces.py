"""The annotator `faces`: how many faces a clip shows, and how large they are."""

from collections.abc import Sequence

import numpy as np

from curator.family import Columns, Family, Scope
from curator.models.face_detector import FACE_MODEL, Boxes, FaceDetector, face_weights
from curator.stage import Annotator, FrameRequest, SampledClip, StageConfig, setting


class FacesConfig(StageConfig):
    """Settings of the frames that the detector sees."""

    frames_per_s: float = setting(1.0, gt=0, le=30, unit="1/s")
    """frames per second that the detector sees, evenly spread"""
    longer_px: int = setting(640, ge=64, unit="px")
    """longer side of the picture that the detector sees; faces below some 10 px there are missed"""
    least_confidence: float = setting(0.5, gt=0, lt=1, unit="share")
    """confidence of the detector from which a face counts"""


class Faces(Annotator[FacesConfig]):
    """Finds faces with CenterFace.

    `face_count` is the largest number of faces in a frame, `face_area` the mean share of the
    picture that faces cover, and `face_height` the height of the tallest face, as a share of the
    picture's height (0 without faces).
    """

    name = "faces"
    version = 1
    config_type = FacesConfig
    batch = 4
    families = (
        Family(
            "faces",
            Scope.CLIP,
            Columns({"face_count": "i32", "face_area": "f32", "face_height": "f32"}),
        ),
    )

    def __init__(self, config: FacesConfig) -> None:
        super().__init__(config)
        self.frames = (FrameRequest(at=config.frames_per_s, size=config.longer_px),)
        self._detector: FaceDetector | None = None

    def models(self) -> tuple[object, ...]:
        """Returns the name of the network, whose file is checked by its hash."""
        return (FACE_MODEL,)

    def preflight(self) -> None:
        """Raises `ModelError` if the weights are missing."""
        face_weights()

    def setup(self) -> None:
        """Loads the network."""
        config = self.config
        self._detector = FaceDetector(
            longer_px=config.longer_px, least_confidence=config.least_confidence
        )

    def process(self, unit: Sequence[SampledClip]) -> list[dict[str, float]]:
        """Returns number, area and height of faces of each clip."""
        detector = self._detector
        assert detector is not None
        return [_columns([detector.boxes(frame) for frame in clip.frames]) for clip in unit]


def _columns(found: Sequence[Boxes]) -> dict[str, float]:
    sizes = [boxes[:, 2:4] - boxes[:, :2] for boxes in found]
    return {
        "face_count": max(map(len, found)),
        "face_area": float(np.mean([size.prod(axis=1).sum() for size in sizes])),
        "face_height": float(max((size[:, 1].max(initial=0.0) for size in sizes), default=0.0)),
    }

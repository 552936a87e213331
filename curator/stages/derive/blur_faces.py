"""The pixel stage `blur_faces`: blurs faces before clips are encoded.

stages: [blur_faces]
"""

from curator.models.face_detector import FACE_MODEL, FaceDetector, face_weights
from curator.stage import setting
from curator.stages.derive.tracked_blur import Boxes, Frame, TrackedBlur, TrackedBlurConfig


class BlurFacesConfig(TrackedBlurConfig):
    """Settings of the detector of faces."""

    least_confidence: float = setting(0.2, gt=0, lt=1, unit="share")
    """confidence of the detector from which a face is blurred; the annotator `faces` has 0.5"""
    longer_px: int = setting(960, ge=64, unit="px")
    """longer side of the picture that the detector sees; faces below some 10 px there are missed"""


class BlurFaces(TrackedBlur[BlurFacesConfig]):
    """Blurs faces that CenterFace finds, along their tracks."""

    name = "blur_faces"
    version = 2
    config_type = BlurFacesConfig

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

    def boxes(self, frame_HW3: Frame) -> Boxes:  # noqa: N803 - shape letters
        """Returns the faces of a frame."""
        return self._detector.boxes(frame_HW3)

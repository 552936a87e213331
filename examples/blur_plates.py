"""Blurs number plates, or anything else that a detector of your own finds, along its tracks.

    stages:
      - use: blur_plates:BlurPlates
        config: {weights: /models/plates.onnx, every_frames: 3}

Run it with this folder in PYTHONPATH. `plates.onnx` stands for a detector of yours that reads one
picture of 640 x 640 and returns rows of left, top, right, bottom (pixels of that picture) and a
confidence, such as YOLO with its suppression of overlaps exported. For another form, change
`boxes`; the tracks, the blur and the checks of the file are those of `TrackedBlur`.
"""

import hashlib
from pathlib import Path

import cv2
import numpy as np

from curator.errors import ModelError
from curator.stage import setting
from curator.stages.derive.tracked_blur import Boxes, Frame, TrackedBlur, TrackedBlurConfig

SIDE_PX = 640


class PlatesConfig(TrackedBlurConfig):
    """Settings of the detector."""

    weights: str = setting(unit="path")
    """file of the network, in ONNX"""
    least_confidence: float = setting(0.25, gt=0, lt=1, unit="share")
    """confidence from which a plate is blurred"""


class BlurPlates(TrackedBlur[PlatesConfig]):
    """Blurs what a network in ONNX finds."""

    name = "blur_plates"
    version = 1
    config_type = PlatesConfig
    # The hash of the file counts, not its path.
    results_ignore = frozenset({"weights"})

    def models(self) -> tuple[object, ...]:
        """Returns the hash of the weights: other weights cut the clips again."""
        self.preflight()
        return (hashlib.sha256(Path(self.config.weights).read_bytes()).hexdigest(),)

    def files(self) -> tuple[str, ...]:
        """Returns what the sandbox may read."""
        return (self.config.weights,)

    def preflight(self) -> None:
        """Raises `ModelError` if the file is missing."""
        if not Path(self.config.weights).is_file():
            raise ModelError(f"stage blur_plates: {self.config.weights} does not exist")

    def setup(self) -> None:
        """Loads the network."""
        self._network = cv2.dnn.readNetFromONNX(self.config.weights)

    def boxes(self, frame_HW3: Frame) -> Boxes:  # noqa: N803 - shape letters
        """Returns the plates of a frame, in shares of its width and height."""
        blob = cv2.dnn.blobFromImage(frame_HW3, 1 / 255, (SIDE_PX, SIDE_PX))
        self._network.setInput(blob)
        rows = np.asarray(self._network.forward(), np.float32).reshape(-1, 5)
        rows = rows[rows[:, 4] >= self.config.least_confidence]
        return np.column_stack([np.clip(rows[:, :4] / SIDE_PX, 0, 1), rows[:, 4]])

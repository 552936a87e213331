"""Finds text in pictures with the detection network that comes in the `rapidocr` wheel.

The network (PP-OCRv6 small, Apache-2.0) says for each pixel how surely it lies in the core of a
line of text; lines are read off that map as differentiable binarization means it (arXiv
1911.08947). Nothing of `rapidocr` is imported and nothing is fetched: importing it costs 1.1
CPU-seconds, of which its detector needs only the model file.
"""

# ruff: noqa: N803 - shape letters

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.media.opencv import cv2
from curator.models.cpu_arithmetic import Precision

TEXT_MODEL = "PP-OCRv6_det_small"
BOX_COLUMNS = ("x0", "y0", "x1", "y1", "confidence", "area")
"""A line of text: its upright box as shares of width and height, how surely it is text (0 to 1),
and its own area, as a share of the picture: less than the box's where the line is tilted."""
_SHA256 = "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f"

LONG_SIDE_PX = 640
"""Longer side of the network's picture. At half the size, a third of the lines that
are 18 px high is missed."""
_STRIDE_PX = 32
"""The network's sides are multiples of this."""

# The network is published with 0.3 and 1.6, and with 0.5 for a line, at which it marks faces and
# bottle caps; lines of text at least 10 px high have 0.75 upwards.
_CORE = int(0.3 * 255)
"""In maps; no byte is 0.3 of 255 itself."""
_LINE_PROBABILITY = 0.65
_GROW = 1.6
_MIN_CORE_PX = 3
_MAX_LINE = 0.25
"""Height of a line as a part of the picture's shorter side above which it is not taken for text: on
real footage without text the network marks whole cars, people and bottles."""
MAX_BOXES = 64
"""Lines that are kept of one picture, the largest first: a page of text has fewer."""


def text_model_file(model: str = TEXT_MODEL, *, setting: str = "analyze.text") -> Path:
    """A network's file in the installed wheel; `setting` is the recipe's key that does without it.

    Raises:
        ModelError: The wheel, or the model in it, is not there.
    """
    spec = find_spec("rapidocr")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / "models" / f"{model}.onnx"
        if path.is_file():
            return path
    raise ModelError(
        f"the model {model}.onnx is not installed; `pip install rapidocr` brings it, or set "
        f"{setting} to false"
    )


def checked_model(path: Path, sha256: str, *, setting: str = "analyze.text") -> bytes:
    """Bytes of a network's file; `setting` is the recipe's key that does without it.

    Raises:
        ModelError: It is another file than the one that was tested.
    """
    weights = path.read_bytes()
    digest = hashlib.sha256(weights).hexdigest()
    if digest != sha256:
        raise ModelError(
            f"{path} has SHA-256 {digest}, expected {sha256}; install the version of rapidocr "
            f"that constraints.txt names, or set {setting} to false"
        )
    return weights


class TextDetector:
    """The detection network of one worker, on one thread.

    Args:
        path: The network's file; None for the installed wheel's.
        device: Where torch computes it, such as `cuda`.
        precision: Arithmetic on a CPU; a GPU computes in float32.
        is_gated: Whether a picture without text is left early, at the cost of a few faint lines.
        long_side_px: Longer side of the network's picture.

    Raises:
        ModelError: The file is missing, or is not the one that was tested.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        device: str = "cpu",
        precision: Precision = "float32",
        is_gated: bool = True,
        long_side_px: int = LONG_SIDE_PX,
    ) -> None:
        weights = checked_model(path or text_model_file(), _SHA256)
        # Imported here: torch takes seconds.
        from curator.models.device_text import DeviceTextDetector

        self.on_device = DeviceTextDetector(
            weights,
            device=device,
            precision=precision,
            is_gated=is_gated,
            long_side_px=long_side_px,
        )
        """Computes maps of pictures."""

    @property
    def n_halved(self) -> int:
        """How often a GPU's memory was too small."""
        return self.on_device.n_halved

    def boxes(self, rgb_HWC: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Lines of text in a picture, the largest first.

        Args:
            rgb_HWC: uint8 RGB, upright with square pixels, of any size.

        Returns:
            float32 [n, 6], the columns of `BOX_COLUMNS`.
        """
        return lines_of(self.on_device.host_map(rgb_HWC))

    def quads(
        self, rgb_HWC: NDArray[np.uint8], *, probability: float, most_height: float
    ) -> NDArray[np.float64]:
        """Corners of the lines of text in a picture, turned ones as they lie; see `quads_of`."""
        text_map = self.on_device.host_map(rgb_HWC)
        return quads_of(text_map, probability=probability, most_height=most_height)[0]


def network_size(width: int, height: int, long_side_px: int = LONG_SIDE_PX) -> tuple[int, int]:
    """Width and height in pixels that a picture of this size is shown to the network at."""
    scale = long_side_px / max(width, height) / _STRIDE_PX
    return tuple(max(1, round(side * scale)) * _STRIDE_PX for side in (width, height))  # type: ignore[return-value]


def lines_of(map_HW: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Lines of text in a map of probabilities from 0 to 255.

    Returns:
        float32 [n, 6], the columns of `BOX_COLUMNS`, the largest first.
    """
    lines = []
    for corners, confidence, area in zip(*quads_of(map_HW), strict=True):
        x0, y0 = np.clip(corners.min(0), 0, 1)
        x1, y1 = np.clip(corners.max(0), 0, 1)
        lines.append((x0, y0, x1, y1, confidence, min(area, (x1 - x0) * (y1 - y0))))
    lines.sort(key=lambda line: (-line[5], line[1], line[0]))
    return np.array(lines[:MAX_BOXES], np.float32).reshape(-1, len(BOX_COLUMNS))


def quads_of(
    map_HW: NDArray[np.uint8],
    *,
    probability: float = _LINE_PROBABILITY,
    most_height: float = _MAX_LINE,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Lines of text in a map of probabilities, as rectangles that may be turned.

    The network marks a line's core, which is the line shrunk by area / perimeter times a ratio; a
    core is grown back by the same rule.

    Args:
        map_HW: How surely each pixel is in the core of a line, from 0 to 255.
        probability: Mean over a core below which it is no line.
        most_height: Of a line, as a part of the picture's shorter side.

    Returns:
        Corners float64 [n, 4, 2], x and y as shares of width and height, in turn around the
        rectangle, possibly outside of the picture; confidences [n]; areas [n] as shares of the
        picture. In no order.
    """
    height, width = map_HW.shape
    quads, confidences, areas = [], [], []
    for contour in _cores(map_HW):
        centre, (long, short), angle = cv2.minAreaRect(contour)
        if min(long, short) < _MIN_CORE_PX:
            continue
        x, y, w, h = cv2.boundingRect(contour)
        mask = np.zeros((h, w), np.uint8)
        cv2.fillPoly(mask, [contour - (x, y)], 1)
        confidence = cv2.mean(map_HW[y : y + h, x : x + w], mask)[0] / 255
        if confidence < probability:
            continue
        grow = long * short * _GROW / (2 * (long + short))
        sides = (long + 2 * grow, short + 2 * grow)
        if min(sides) > most_height * min(width, height):
            continue
        quads.append(cv2.boxPoints((centre, sides, angle)) / (width, height))
        confidences.append(confidence)
        areas.append(sides[0] * sides[1] / (width * height))
    return np.array(quads).reshape(-1, 4, 2), np.array(confidences), np.array(areas)


def _cores(map_HW: NDArray[np.uint8]) -> Sequence[NDArray[np.int32]]:
    """Contours of the cores of lines, and of all else that may be one."""
    if map_HW.max() <= _CORE:
        return ()
    core = (map_HW > _CORE).view(np.uint8)
    joined = np.asarray(cv2.dilate(core, np.ones((2, 2), np.uint8)), np.uint8)
    return cv2.findContours(joined, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)[0]  # type: ignore[return-value]

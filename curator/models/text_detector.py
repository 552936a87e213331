"""Finds text in pictures with the detection network that comes in the `rapidocr` wheel.

The network (PP-OCRv6 small, Apache-2.0) computes a map: for each pixel, the probability that it is
in the core of a line of text. Lines are derived from the map by differentiable binarization (arXiv
1911.08947). Only the model file of `rapidocr` is used: importing the package costs 1.1 CPU-seconds.
Nothing is downloaded.

Starting the network's 200 operators one by one on a GPU is the largest cost of text on a CPU core.
On CUDA, they are captured as a graph, which starts by one call. torch takes seconds to import, so
it is imported in functions.

Shape letters: S pictures, H, W their height and width, h, w those of the network's pictures.
"""

# ruff: noqa: N803, N806 - shape letters

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from curator.errors import DeviceMemoryError
from curator.media.device_graphs import Replayed, constants, is_out_of_memory
from curator.media.opencv import cv2
from curator.models.cpu_arithmetic import Precision, has_fast_bfloat16
from curator.models.picture_network import BatchedNetwork
from curator.models.wheel_weights import WheelWeights

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from curator.models.onnx_network import OnnxNetwork

TEXT_MODEL = "PP-OCRv6_det_small"
BOX_COLUMNS = ("x0", "y0", "x1", "y1", "confidence", "area")
"""A line of text: its upright box in shares of width and height, the probability that it is text (0
to 1), and its area as a share of the picture, which is below the box's area for a tilted line."""
TEXT_WEIGHTS = WheelWeights(
    wheel="rapidocr",
    package="rapidocr",
    file=f"models/{TEXT_MODEL}.onnx",
    sha256="090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
    setting="analyze.text",
)
GATE = Path(__file__).with_name("text_gate.safetensors")
"""Weights of the `Gate` for pictures without text. Changes raise the version of family `text`."""
GATED = "Add.121"
"""Inner result that the gate reads: features at 16 px. 2/5 of the network's time come after it."""

LONG_SIDE_PX = 640
"""Longer side of the network's picture. At half the size, a third of lines 18 px high is missed."""
_STRIDE_PX = 32
"""Sides of the network's picture are multiples of this."""

# The network's authors use 0.3, 1.6, and 0.5 for a line. At 0.5, it marks faces and bottle caps;
# lines of text at least 10 px high have 0.75 or more.
_CORE = int(0.3 * 255)
"""Least level of a core, exclusive; 0.3 of 255 is not a whole number."""
_LINE_PROBABILITY = 0.65
_GROW = 1.6
_MIN_CORE_PX = 3
_MAX_LINE = 0.25
"""Largest height of a line, relative to the picture's shorter side. On real footage without text,
the network also marks whole cars, people and bottles."""
MAX_BOXES = 64
"""Most lines of a picture, the largest first. A page of text has fewer."""

_BATCHES = (1, 2, 4)
"""Pictures per graph. A batch of 32 frames has one or two pictures to search for text."""
_MOST_GRAPHS = 12
"""Most graphs that are kept, by last use. There is one for each of `_BATCHES` and each size of the
network's picture; the sources of a collection have few sizes. All graphs share the memory of the
largest, 19 MB per picture and that of cuDNN; each also has 3 MB per picture."""


class TextDetector(BatchedNetwork):
    """The detection network of a worker; uses one thread.

    Args:
        path: File of the network; None for the installed wheel's.
        device: torch's name of the device, such as `cuda`.
        precision: Unless it is float32, a GPU uses float16, and a CPU with `has_fast_bfloat16` uses
            bfloat16. bfloat16 moves the sides of most boxes by 0.0001, and adds or removes 1 line
            of 100, near the threshold. float16 is more exact.
        is_gated: Whether the `GATE` sets the maps of pictures without text to zero early. It
            misses a few faint lines.
        long_side_px: Longer side of the network's picture.

    Raises:
        ModelError: The file is missing, or differs from the tested one.
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
        super().__init__(_BATCHES[-1])
        weights = TEXT_WEIGHTS.read(path)
        import torch
        from safetensors.torch import load_file

        from curator.models.onnx_network import Gate, OnnxNetwork

        # TF32 is on by default for torch's convolutions, and changes lines close to the threshold.
        torch.backends.cudnn.allow_tf32 = False
        self._device = device
        self._long_side_px = long_side_px
        dtype = torch.float32
        if precision != "float32" and device != "cpu":
            dtype = torch.float16
        elif precision != "float32" and has_fast_bfloat16():
            dtype = torch.bfloat16
        gate = Gate(name=GATED, **load_file(GATE, device=device)) if is_gated else None
        network = OnnxNetwork(weights, device=device, dtype=dtype, gate=gate)
        self._compute = partial(_maps_of, network)
        self._graph: Callable[[tuple[int, ...]], Replayed] | None = None
        if torch.device(device).type == "cuda":
            pool = torch.cuda.graph_pool_handle()
            # The cache drops the oldest graph after the new one is made, so that the pool persists.
            self._graph = lru_cache(_MOST_GRAPHS)(partial(self._captured, pool))

    def boxes(self, rgb_HWC: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Finds the lines of text in a picture, the largest first.

        Args:
            rgb_HWC: uint8 RGB, upright with square pixels, of any size.

        Returns:
            float32 [n, 6], the columns of `BOX_COLUMNS`.
        """
        return lines_of(self.host_map(rgb_HWC))

    def quads(
        self, rgb_HWC: NDArray[np.uint8], *, probability: float, most_height: float
    ) -> NDArray[np.float64]:
        """Finds the lines of text in a picture as rectangles, which may be rotated.

        Args:
            rgb_HWC: As for `boxes`.
            probability: Least mean probability over a line's core.
            most_height: Largest height of a line, relative to the picture's shorter side.

        Returns:
            Corners around each rectangle, float64 [n, 4, 2], x and y in shares of width and height;
            possibly outside of the picture. The lines are not sorted.
        """
        text_map = self.host_map(rgb_HWC)
        return _quads(text_map, probability=probability, most_height=most_height)[0]

    def host_map(self, rgb_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the map of a picture in the host's memory; works on any CUDA stream."""
        import torch

        size = network_size(rgb_HWC.shape[1], rgb_HWC.shape[0], self._long_side_px)
        scaled = cv2.resize(rgb_HWC, size, interpolation=cv2.INTER_LINEAR)
        picture = torch.from_numpy(scaled).to(self._device)
        map_HW: NDArray[np.uint8] = self.maps(picture[None], as_graph=False)[0].cpu().numpy()
        return map_HW

    def maps(self, pictures_SHWC: "Tensor", *, as_graph: bool = True) -> "Tensor":
        """Queues the computation of maps, without waiting for it.

        All calls with graphs must be on one CUDA stream.

        Args:
            pictures_SHWC: uint8 RGB on the device, upright with square pixels.
            as_graph: Whether to use graphs on CUDA.

        Returns:
            Probabilities from 0 to 255 for `lines_of`, uint8 [S, h, w] on the device.

        Raises:
            DeviceMemoryError: The device has too little memory for the network and one picture.
        """
        import torch

        n_pictures, height, width = pictures_SHWC.shape[:3]
        w, h = network_size(width, height, self._long_side_px)
        with torch.inference_mode():
            maps = torch.empty((n_pictures, h, w), dtype=torch.uint8, device=pictures_SHWC.device)

            def compute(some: slice) -> None:
                levels = _levels(pictures_SHWC[some], h, w)
                maps[some].copy_(self._computed(levels, as_graph=as_graph))

            try:
                for _ in self.in_batches(n_pictures, compute):
                    pass
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise DeviceMemoryError(
                    f"the GPU has too little memory for text detection in a picture of {w} x {h} "
                    "pixels; set analyze.workers_per_gpu lower"
                ) from error
        return maps

    def _computed(self, levels_SCHW: "Tensor", *, as_graph: bool) -> "Tensor":
        if self._graph is None or not as_graph:
            return self._compute(levels_SCHW, stops_early=self._device == "cpu")
        size = next(size for size in _BATCHES if size >= len(levels_SCHW))
        (maps,) = self._graph((size, *levels_SCHW.shape[1:]))(levels_SCHW)
        return maps

    def _captured(self, pool: object, shape: tuple[int, ...]) -> Replayed:
        import torch

        given = torch.zeros(shape, device=self._device)
        return Replayed(lambda levels: [self._compute(levels)], [given], pool=pool)

    def use_less_memory(self) -> bool:
        """Stops using graphs, or halves batches if it uses none; returns whether it did."""
        if self._graph is None:
            return super().use_less_memory()
        self._graph = None
        return True


def _levels(pictures_SHWC: "Tensor", h: int, w: int) -> "Tensor":
    """Scales pictures to the network's size, RGB [S, 3, h, w] in whole numbers from 0 to 255.

    The result is bit-exact to OpenCV's bilinear scaling of bytes. If one value in 20 differed by 1,
    probabilities would differ by up to 0.24.
    """
    H, W = pictures_SHWC.shape[1:3]
    if (h, w) == (H, W):
        return pictures_SHWC.permute(0, 3, 1, 2)
    columns, weights = _neighbours(W, w, pictures_SHWC.device)
    parts = pictures_SHWC.index_select(2, columns) * weights[:, None]
    across = (parts[:, :, :w] + parts[:, :, w:]) >> 4
    rows, weights = _neighbours(H, h, pictures_SHWC.device)
    parts = (across.index_select(1, rows) * weights[:, None, None]) >> 16
    return ((parts[:, :h] + parts[:, h:] + 2) >> 2).permute(0, 3, 1, 2)


@constants(64)
def _neighbours(source: int, result: int, device: "torch.device") -> "tuple[Tensor, Tensor]":
    """Returns the two neighbours in the source of each pixel of the result, and their weights.

    Returns:
        Indices [2 result], all left ones first; weights, int32 [2 result], pairs sum to 2048.
    """
    import torch

    centres = ((np.arange(result) + 0.5) * (source / result) - 0.5).astype(np.float32)
    left = np.floor(centres)
    right_share = centres - left
    indices = np.clip(np.concatenate([left, left + 1]).astype(np.int64), 0, source - 1)
    weights = np.rint(2048 * np.concatenate([1 - right_share, right_share])).astype(np.int32)
    return torch.from_numpy(indices).to(device), torch.from_numpy(weights).to(device)


def _maps_of(
    network: "OnnxNetwork", levels_SCHW: "Tensor", *, stops_early: bool = False
) -> "Tensor":
    import torch

    # The network was trained on blue, green, red in [-1, 1].
    if levels_SCHW.device.type == "cpu":
        bgr = _looked_up(levels_SCHW, network.dtype)
    else:
        bgr = levels_SCHW.flip(1) / 127.5 - 1
    return (network(bgr, stops_early=stops_early)[:, 0] * 255).round().to(torch.uint8)


def _looked_up(levels_SCHW: "Tensor", dtype: "torch.dtype") -> "Tensor":
    """Returns the network's pictures by a table of its 256 values, whose bits cv2 copies."""
    import torch

    bits = torch.int16 if dtype.itemsize == 2 else torch.int32
    table = (torch.arange(256) / 127.5 - 1).to(dtype).view(bits)
    S, _, h, w = levels_SCHW.shape
    rgb = levels_SCHW.permute(0, 2, 3, 1).to(torch.uint8).reshape(S * h, w, 3)
    bgr = cv2.LUT(cv2.cvtColor(rgb.numpy(), cv2.COLOR_RGB2BGR), table.numpy())
    return torch.from_numpy(bgr).view(dtype).view(S, h, w, 3).permute(0, 3, 1, 2)


def network_size(width: int, height: int, long_side_px: int = LONG_SIDE_PX) -> tuple[int, int]:
    """Returns width and height of the network's picture for a picture of this size, in pixels."""
    scale = long_side_px / max(width, height) / _STRIDE_PX
    return tuple(max(1, round(side * scale)) * _STRIDE_PX for side in (width, height))  # type: ignore[return-value]


def lines_of(map_HW: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Finds the lines of text in a map of probabilities from 0 to 255.

    Returns:
        float32 [n, 6], the columns of `BOX_COLUMNS`, the largest first.
    """
    lines = []
    for corners, confidence, area in zip(*_quads(map_HW), strict=True):
        x0, y0 = np.clip(corners.min(0), 0, 1)
        x1, y1 = np.clip(corners.max(0), 0, 1)
        lines.append((x0, y0, x1, y1, confidence, min(area, (x1 - x0) * (y1 - y0))))
    lines.sort(key=lambda line: (-line[5], line[1], line[0]))
    return np.array(lines[:MAX_BOXES], np.float32).reshape(-1, len(BOX_COLUMNS))


def _quads(
    map_HW: NDArray[np.uint8],
    *,
    probability: float = _LINE_PROBABILITY,
    most_height: float = _MAX_LINE,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Finds lines of text in a map: corners as in `TextDetector.quads`, confidences, areas.

    The network marks a line's core: the line, shrunk by area / perimeter times a ratio. A core is
    grown back by the same rule. Areas are shares of the picture.
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
    """Returns the contours of regions that may be cores of lines."""
    if map_HW.max() <= _CORE:
        return ()
    core = (map_HW > _CORE).view(np.uint8)
    joined = np.asarray(cv2.dilate(core, np.ones((2, 2), np.uint8)), np.uint8)
    return cv2.findContours(joined, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)[0]  # type: ignore[return-value]

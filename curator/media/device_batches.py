"""Batches of frames in a device's memory, and what crosses from there to the host.

A batch is copied out of the surfaces of a decoder, which takes them back. What is computed of it is
queued, and comes to the host by one copy into pinned memory, which an event ends: nothing waits for
the device while frames are decoded.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curator.media.decode import FrameTime
from curator.media.device_frames import Form

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNED = 16
"""Bytes to whose multiples tensors are placed: more than the largest element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBatch:
    """Some frames that follow each other.

    Attributes:
        planes: uint8 or uint16 [B, 3 H / 2, W] on the device: luma, and below it chroma as
            pairs (NV12, P016). Of 16 bits the uppermost count.
        rotation_deg: Clockwise rotation that shows them upright.
    """

    planes: "Tensor"
    places: Sequence[FrameTime]
    form: Form
    rotation_deg: int

    def __len__(self) -> int:
        return len(self.places)

    def part(self, rows: slice) -> "DeviceBatch":
        """Some of the frames, views."""
        return replace(self, planes=self.planes[rows], places=self.places[rows])

    def taken(self, rows: Sequence[int]) -> "Tensor":
        """Planes of some frames, copied by one call of the device."""
        import torch

        # Some of torch's kernels take no unsigned 16 bits; all take bytes.
        planes = self.planes.view(torch.uint8)
        return torch.stack([planes[row] for row in rows]).view(self.planes.dtype)


Program = Callable[[Iterator[DeviceBatch]], Iterator[tuple[Sequence[FrameTime], Sequence[Any]]]]
"""What is computed of batches: yields places of frames in order, each with one value for each of
its frames. It runs in the decoder's thread, on its stream; what it yields has been computed."""


def planes_of_frames(
    batches: Iterator[DeviceBatch],
) -> "Iterator[tuple[Sequence[FrameTime], Sequence[Tensor]]]":
    """The program that computes nothing: a frame's value is its planes."""
    for batch in batches:
        yield batch.places, list(batch.planes)


class HostCopy:
    """Tensors of a device on their way to the host, in one copy.

    Args:
        tensors: By name; on a CPU they are the host's already.
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
        """The tensors' values, views of one buffer; waits until they are there."""
        if self._event is not None:
            self._event.synchronize()
        data = self._bytes.numpy()
        arrays = {}
        for name, (at, kind, shape) in self._places.items():
            part = data[at : at + math.prod(shape) * kind.itemsize]
            arrays[name] = part.view(kind).reshape(shape)
        return arrays

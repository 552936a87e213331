"""Base classes of networks that read pictures: batches that fit into memory, and video streams.

Shape letters: N pictures, C channels (RGB), H, W height and width, D dimensions.
"""

# ruff: noqa: N803 - shape letters

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from curator.media.device_graphs import is_out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

PUSHED = 8
"""Pictures of a video that a CPU computes together. They take 1 MB."""

Picture = NDArray[np.uint8]
T = TypeVar("T")


class BatchedNetwork:
    """Computes pictures in batches, and halves the batch size when a device is out of memory."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.n_halved = 0
        """Times that the device was out of memory."""

    def in_batches(self, n_pictures: int, compute: Callable[[slice], T]) -> Iterator[T]:
        """Yields the results of `compute` for the slices of successive batches."""
        import torch

        begin = 0
        while begin < n_pictures:
            some = slice(begin, min(begin + self._batch, n_pictures))
            try:
                made = compute(some)
            except RuntimeError as error:
                if not is_out_of_memory(error) or not self.use_less_memory():
                    raise
            else:
                yield made
                begin = some.stop
                continue
            # After the handler, because its error keeps the allocated memory alive.
            self.n_halved += 1
            torch.cuda.empty_cache()

    def use_less_memory(self) -> bool:
        """Halves the batch size; returns whether this was possible."""
        is_possible = self._batch > 1
        self._batch = (self._batch + 1) // 2
        return is_possible


class PictureNetwork(BatchedNetwork):
    """A network that returns unit vectors of pictures of one size.

    Args:
        device: torch's name of the device.
        batch: Pictures per batch.
        side_px: Side of the network's pictures.
        dim: Dimensions of a vector, D.
        name: Name of the thread that computes in the background.
    """

    def __init__(self, *, device: str, batch: int, side_px: int, dim: int, name: str) -> None:
        super().__init__(batch)
        self.device, self.size_px, self.dim, self._name = device, side_px, dim, name

    def prepare(self, rgb_HWC: Picture) -> Picture:
        """Returns the network's picture of a frame, which is uint8 RGB of any size."""
        raise NotImplementedError

    def embed(self, prepared_NHWC: Sequence[Picture]) -> NDArray[np.float32]:
        """Returns unit vectors of pictures from `prepare`, float32 [N, D]."""
        parts = self.in_batches(len(prepared_NHWC), lambda some: self._seen(prepared_NHWC[some]))
        return np.concatenate([np.zeros((0, self.dim), np.float32), *parts])

    def stream(self, *, in_background: bool = False) -> "PictureStream":
        """Begins a video; with `in_background`, computes while more pictures are pushed."""
        return PictureStream(self, self._name if in_background else None)

    def _seen(self, some_NHWC: Sequence[Picture]) -> NDArray[np.float32]:
        import torch

        # All batches have one size, because arithmetic may depend on the size.
        batch = np.zeros((self._batch, self.size_px, self.size_px, 3), np.uint8)
        batch[: len(some_NHWC)] = some_NHWC
        if self.device == "cpu":
            # More threads would compete with other workers for cores.
            torch.set_num_threads(1)
        with torch.inference_mode():
            given = torch.from_numpy(batch).to(self.device).permute(0, 3, 1, 2).float()
            unit = torch.nn.functional.normalize(self._features(given), dim=-1)
        vectors: NDArray[np.float32] = unit.cpu().numpy()[: len(some_NHWC)]
        return vectors

    def _features(self, pictures_NCHW: "Tensor") -> "Tensor":
        """Returns vectors, float32 [N, D], of pictures with values from 0 to 255."""
        raise NotImplementedError


class OneAhead:
    """Runs calls one after the other, in the caller's thread or at most one in another thread."""

    def __init__(self, thread: str | None) -> None:
        self._pool = ThreadPoolExecutor(1, thread) if thread is not None else None
        self._underway: Future[None] | None = None

    def run(self, work: Callable[..., None], *args: Any, **options: Any) -> None:  # noqa: ANN401
        """Waits for the previous call, raises its error if it failed, and begins the next call."""
        self.wait()
        if self._pool is None:
            work(*args, **options)
        else:
            self._underway = self._pool.submit(work, *args, **options)

    def wait(self) -> None:
        """Waits for the current call; raises its error if it failed."""
        underway, self._underway = self._underway, None
        if underway is not None:
            underway.result()

    def close(self) -> None:
        """Waits for the current call, and ends the thread."""
        if self._pool is not None:
            self._pool.shutdown()
        self.wait()


class PictureStream:
    """Collects a network's vectors of pictures of a video, in bounded memory.

    Args:
        network: The network.
        thread: Name of the thread that computes; None to compute in the thread that pushes.
    """

    def __init__(self, network: PictureNetwork, thread: str | None) -> None:
        self._network = network
        self._is_in_background = thread is not None
        self._work = OneAhead(thread)
        self._pending: list[Picture] = []
        self._vectors: list[NDArray[np.float32]] = []
        self._frames: list[int] = []
        self.cpu_s = 0.0
        """CPU-seconds of preparation and of the network."""
        self.own_s = 0.0
        """The part of `cpu_s` in the thread that pushes."""

    def push(self, index: int, rgb_HWC: Picture) -> None:
        """Takes the picture of a frame, uint8 RGB of any size."""
        begun_s = time.thread_time()
        self._frames.append(index)
        self._pending.append(self._network.prepare(rgb_HWC))
        self._spent(begun_s, is_own=True)
        if len(self._pending) == PUSHED:
            self._take()

    def finish(self) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
        """Ends the video; returns frames, int32 [N], and their vectors, float16 [N, D]."""
        if self._pending:
            self._take()
        self._work.close()
        vectors = np.concatenate([np.zeros((0, self._network.dim), np.float32), *self._vectors])
        return np.array(self._frames, np.int32), vectors.astype(np.float16)

    def _take(self) -> None:
        some, self._pending = self._pending, []
        self._work.run(self._run, some)

    def _run(self, some: list[Picture]) -> None:
        begun_s = time.thread_time()
        self._vectors.append(self._network.embed(some))
        self._spent(begun_s, is_own=not self._is_in_background)

    def _spent(self, begun_s: float, *, is_own: bool) -> None:
        seconds = time.thread_time() - begun_s
        self.cpu_s += seconds
        self.own_s += seconds if is_own else 0.0

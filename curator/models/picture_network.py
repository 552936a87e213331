"""What networks that see pictures share: batches that fit the memory, and streams of a video.

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
"""Pictures of a video that are computed together on a CPU: 1 MB."""

Picture = NDArray[np.uint8]
T = TypeVar("T")


class BatchedNetwork:
    """Computes pictures in batches, halved from when a device's memory is too small for one."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.n_halved = 0
        """How often the device's memory was too small."""

    def in_batches(self, n_pictures: int, compute: Callable[[slice], T]) -> Iterator[T]:
        """Yields what is computed of each batch, of the pictures that a slice names."""
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
            # Outside of the handler, whose error holds on to what was allocated.
            self.n_halved += 1
            torch.cuda.empty_cache()

    def use_less_memory(self) -> bool:
        """Halves batches; returns whether that was possible."""
        is_possible = self._batch > 1
        self._batch = (self._batch + 1) // 2
        return is_possible


class PictureNetwork(BatchedNetwork):
    """Gives unit vectors of pictures of one size.

    Args:
        device: torch's name of it.
        batch: Pictures that pass through the network at a time.
        side_px: Side of its pictures.
        dim: D.
        name: Of the thread that computes in the background.
    """

    def __init__(self, *, device: str, batch: int, side_px: int, dim: int, name: str) -> None:
        super().__init__(batch)
        self.device, self.size_px, self.dim, self._name = device, side_px, dim, name

    def prepare(self, rgb_HWC: Picture) -> Picture:
        """The network's picture of a frame, uint8 RGB of any size."""
        raise NotImplementedError

    def embed(self, prepared_NHWC: Sequence[Picture]) -> NDArray[np.float32]:
        """Unit vectors of pictures from `prepare`, float32 [N, D]."""
        parts = self.in_batches(len(prepared_NHWC), lambda some: self._seen(prepared_NHWC[some]))
        return np.concatenate([np.zeros((0, self.dim), np.float32), *parts])

    def stream(self, *, in_background: bool = False) -> "PictureStream":
        """Begins a video; in the background it computes while more pictures are pushed."""
        return PictureStream(self, self._name if in_background else None)

    def _seen(self, some_NHWC: Sequence[Picture]) -> NDArray[np.float32]:
        import torch

        # Batches are of one size, because arithmetic may depend on it.
        batch = np.zeros((self._batch, self.size_px, self.size_px, 3), np.uint8)
        batch[: len(some_NHWC)] = some_NHWC
        if self.device == "cpu":
            # More threads would fight other workers for cores.
            torch.set_num_threads(1)
        with torch.inference_mode():
            given = torch.from_numpy(batch).to(self.device).permute(0, 3, 1, 2).float()
            unit = torch.nn.functional.normalize(self._features(given), dim=-1)
        vectors: NDArray[np.float32] = unit.cpu().numpy()[: len(some_NHWC)]
        return vectors

    def _features(self, pictures_NCHW: "Tensor") -> "Tensor":
        """Vectors, float32 [N, D], of pictures of 0 to 255."""
        raise NotImplementedError


class OneAhead:
    """Runs calls one after the other: in a thread, one at most under way, or in the caller's."""

    def __init__(self, thread: str | None) -> None:
        self._pool = ThreadPoolExecutor(1, thread) if thread is not None else None
        self._underway: Future[None] | None = None

    def run(self, work: Callable[..., None], *args: Any, **options: Any) -> None:  # noqa: ANN401
        """Begins a call when the one before has ended; raises what went wrong in that."""
        self.wait()
        if self._pool is None:
            work(*args, **options)
        else:
            self._underway = self._pool.submit(work, *args, **options)

    def wait(self) -> None:
        """Waits for the call that is under way."""
        underway, self._underway = self._underway, None
        if underway is not None:
            underway.result()

    def close(self) -> None:
        """Waits, and ends the thread."""
        if self._pool is not None:
            self._pool.shutdown()
        self.wait()


class PictureStream:
    """Collects a network's vectors of some pictures of a video, in bounded memory.

    Args:
        network: The network.
        thread: Name of a thread that computes; None for the thread that pushes.
    """

    def __init__(self, network: PictureNetwork, thread: str | None) -> None:
        self._network = network
        self._is_in_background = thread is not None
        self._work = OneAhead(thread)
        self._pending: list[Picture] = []
        self._vectors: list[NDArray[np.float32]] = []
        self._frames: list[int] = []
        self.cpu_s = 0.0
        """CPU-seconds of preparing and of the network."""
        self.own_s = 0.0
        """Those of them that were spent in the thread that pushes."""

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

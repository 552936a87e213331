"""Gives pictures of one video to a network in batches, in bounded memory.

Shape letters: N pictures, D dimensions.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray


class PictureStream:
    """Collects the vectors of some pictures of a video.

    Args:
        prepare: Makes the network's picture of a frame, uint8 RGB of any size.
        embed: Gives vectors of prepared pictures, float32 [N, D].
        dim: D.
        batch: Pictures that are given to `embed` at a time.
        thread: Name of a thread that runs `embed`; None for the thread that pushes.
    """

    def __init__(
        self,
        prepare: Callable[[NDArray[np.uint8]], NDArray[np.uint8]],
        embed: Callable[[Sequence[NDArray[np.uint8]]], NDArray[np.float32]],
        *,
        dim: int,
        batch: int,
        thread: str | None,
    ) -> None:
        self._prepare, self._embed = prepare, embed
        self._dim, self._batch = dim, batch
        self._pool = ThreadPoolExecutor(1, thread) if thread is not None else None
        self._underway: Future[None] | None = None
        self._pending: list[NDArray[np.uint8]] = []
        self._done: list[NDArray[np.float32]] = []
        self._frames: list[int] = []
        self.cpu_s = 0.0
        """CPU-seconds of preparing and of the network."""
        self.own_s = 0.0
        """Those of them that were spent in the thread that pushes."""

    def push(self, index: int, rgb_HWC: NDArray[np.uint8]) -> None:  # noqa: N803
        """Takes the picture of a frame, uint8 RGB of any size."""
        begun_s = time.thread_time()
        self._frames.append(index)
        self._pending.append(self._prepare(rgb_HWC))
        seconds = time.thread_time() - begun_s
        self.cpu_s += seconds
        self.own_s += seconds
        if len(self._pending) == self._batch:
            self._take()

    def finish(self) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
        """Ends the video; returns frames, int32 [N], and their vectors, float16 [N, D]."""
        if self._pending:
            self._take()
        self._wait()
        if self._pool is not None:
            self._pool.shutdown()
        none = np.zeros((0, self._dim), np.float32)
        vectors_ND = np.concatenate([none, *self._done]).astype(np.float16)  # noqa: N806
        return np.array(self._frames, np.int32), vectors_ND

    def _take(self) -> None:
        some, self._pending = self._pending, []
        self._wait()
        if self._pool is None:
            self._run(some)
        else:
            self._underway = self._pool.submit(self._run, some)

    def _run(self, some: list[NDArray[np.uint8]]) -> None:
        begun_s = time.thread_time()
        self._done.append(self._embed(some))
        seconds = time.thread_time() - begun_s
        self.cpu_s += seconds
        self.own_s += seconds if self._pool is None else 0.0

    def _wait(self) -> None:
        if self._underway is not None:
            self._underway.result()
            self._underway = None

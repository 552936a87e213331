"""Imports OpenCV on first use, and keeps its costs low in processes that compare small pictures.

Measures also compute scores from stored signals. The process that does so sees no pixels, and
starts 0.07 CPU-seconds faster without OpenCV.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

__all__ = ["cv2", "for_small_pictures"]

_LARGE_BYTES = 31 << 20
"""Size of a block whose release makes glibc keep smaller ones; 32 MiB is the most that it heeds."""

if TYPE_CHECKING:
    import cv2
else:

    class _OpenCV:
        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            attribute = getattr(importlib.import_module("cv2"), name)
            setattr(self, name, attribute)
            return attribute

    cv2 = _OpenCV()


@contextmanager
def for_small_pictures() -> Iterator[None]:
    """Lets OpenCV use one thread in the block, and reuse the memory of pictures after it.

    The second thread mostly busy-waits. By default, glibc also returns each freed block of a
    picture to the system, and the kernel clears and maps new pages for the next picture. Once a
    larger block was freed, glibc keeps up to 62 MiB instead. Results do not change
    (`benchmarks/results/start.md`).
    """
    np.empty(_LARGE_BYTES, np.uint8)
    n_threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(n_threads)

"""The search for duplicates in clusters, on a GPU of this machine or of the cluster.

The driver has all vectors, but often no GPU: a worker that holds one reads them, and searches as
the driver would. Where none comes, or it fails, the driver searches, and `summary.json` counts it.
"""

# ruff: noqa: N803 - shape letters

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.errors import CuratorError, one_line
from curator.stage import Work
from curator.stages.dedup.retention import Duplicates, find_duplicates


@dataclass(frozen=True, slots=True)
class GpuSearch:
    """Searches on the first GPU that a process sees.

    Attributes:
        options: Of `find_duplicates`.
    """

    options: dict[str, Any]

    def __call__(self, vectors_ND: NDArray[np.float32], order: NDArray[np.int64]) -> Duplicates:
        """Finds the duplicates of vectors, given the numbers of clips from best to worst.

        Raises:
            CuratorError: FAISS cannot.
        """
        try:
            return find_duplicates(vectors_ND, order, **self.options, on_gpu=True)
        except RuntimeError as error:
            raise CuratorError(f"FAISS fails on the GPU: {one_line(error)}") from error


def faiss_refusal() -> str | None:
    """Returns why FAISS cannot use a GPU on this node, or None.

    It is asked in a process of its own, which a driver that does not work ends.
    """
    code = "import faiss, sys; sys.exit(not getattr(faiss, 'get_num_gpus', int)())"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=False)
    return "FAISS sees no GPU, or is a build without GPU code" if done.returncode else None


def search_clusters(
    vectors_ND: NDArray[np.float32],
    order: NDArray[np.int64],
    work: Work,
    options: dict[str, Any],
) -> Duplicates:
    """Finds duplicates, on a GPU if there is one.

    Args:
        vectors_ND: float32 [N, D], L2-normalised.
        order: int64 [N], numbers of the clips from best to worst.
        work: Where GPUs are.
        options: Of `find_duplicates`.
    """
    found = work.on_gpu(GpuSearch(options), vectors_ND, order, refusal=faiss_refusal)
    return found or find_duplicates(vectors_ND, order, **options)

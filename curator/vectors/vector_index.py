"""Public signatures of the index; see `VectorIndex`."""
# ruff: noqa: N803 - shape letters

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from curator.storage import Store

Vectors = NDArray[np.float32] | NDArray[np.float16]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """What an index depends on besides its vectors; fixed for the life of an index."""

    dim: int = 256
    cell_vectors: int = 1000
    flat_below: int = 100_000
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """For each of Q queries the best vector of each of its k best owners, best first.

    Attributes:
        cosines: float32 [Q, k]; -1 where there are fewer.
        numbers: int64 [Q, k], numbers of the vectors in the order in which they were added; -1.
        owners: int64 [Q, k]; -1.
    """

    cosines: NDArray[np.float32]
    numbers: NDArray[np.int64]
    owners: NDArray[np.int64]


class VectorIndex:
    """Vectors in cells; `add` gives them numbers from 0 on, in order."""

    n_vectors: int

    @classmethod
    def trained(
        cls, sample_SD: Vectors, n_vectors: int, settings: IndexSettings | None = None
    ) -> Self:
        """Returns an index without vectors whose cells suit `n_vectors` (an estimate)."""
        raise NotImplementedError

    @classmethod
    def open(cls, store: Store, folder: str) -> Self:
        """Opens what `write` wrote: memory-mapped from a folder, by ranges from a bucket."""
        raise NotImplementedError

    def add(self, vectors_ND: Vectors, owners_N: NDArray[np.int64]) -> None:
        """Adds L2-normalised vectors, as one segment, in memory until `write`."""
        raise NotImplementedError

    def write(self, store: Store, folder: str) -> list[str]:
        """Writes what is not written yet; returns the names of all objects of the index."""
        raise NotImplementedError

    def search(
        self,
        queries_QD: Vectors,
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        *,
        probes: int = 32,
    ) -> Neighbours:
        """Finds the nearest vectors of queries; `allowed` is bool by owner."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorPairs:
    """Pairs of vectors of unlike owners, each once: the lower number first, sorted by both.

    Attributes:
        numbers: int64 [P, 2].
        owners: int64 [P, 2].
        cosines: float64 [P], rounded to six digits.
    """

    numbers: NDArray[np.int64]
    owners: NDArray[np.int64]
    cosines: NDArray[np.float64]


def neighbour_pairs(
    index: VectorIndex, work: Any, *, least: float, k: int, since: int = 0, probes: int = 16
) -> VectorPairs:
    """Finds for each vector from number `since` on its k best owners among all vectors.

    `work` is a `curator.stage.Work`. (Will be in `curator.vectors.neighbour_pairs`.)
    """
    raise NotImplementedError


def clusters(
    vectors_ND: Vectors, n: int, *, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns centroids float32 [n, D] of unit length, and the cluster of each vector, int64 [N].

    (Will be in `curator.vectors.k_means`.)
    """
    raise NotImplementedError

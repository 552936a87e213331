"""Makes codes of vectors: projections to fewer dimensions, rounded to 8-bit integers.

All codes have about the same length. Their scalar products are integers below 2**24, which float32
holds exactly. So products are the same on any processor, for any block size and number of threads.

Shape letters: N vectors, D dimensions of vectors, E dimensions of codes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32] | NDArray[np.float16]
Codes = NDArray[np.int8]

BLOCK = 8192  # vectors that are converted at a time
EXACT = 1 << 24  # float32 holds each integer below this number
_LARGEST = 127
_WIDTHS = 4.0  # a code clips projected values above so many standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """An orthonormal projection to random directions, which needs no training vectors.

    Between a picture and its edited copies, 256 of 1,280 dimensions change the cosine with a
    standard deviation of 0.01 to 0.02, and 8 bits with 0.0006. Source:
    `benchmarks/results/vector_index.md`.
    """

    matrix: NDArray[np.float32]  # float32 [D, E]

    @classmethod
    def of(cls, full_dim: int, dim: int, seed: int) -> "Projection":
        """Returns a projection of `full_dim` dimensions to `dim`, at most `full_dim`.

        Indexes store their projection, because other versions of NumPy may make another one.
        """
        shape = full_dim, min(dim, full_dim)
        random_DE = np.random.default_rng(seed).standard_normal(shape)
        return cls(matrix=np.linalg.qr(random_DE)[0].astype(np.float32))

    @property
    def length(self) -> float:
        """Length of a code before rounding."""
        return length_of(self.matrix.shape[1])

    def codes(self, vectors_ND: Vectors) -> Codes:
        """Returns the codes of L2-normalised vectors, int8 [N, E].

        Raises:
            ValueError: Vectors are not finite, have another shape, or are near zero.
        """
        if vectors_ND.ndim != 2 or vectors_ND.shape[1] != len(self.matrix):
            raise ValueError(
                f"vectors are {list(vectors_ND.shape)}, expected [N, {len(self.matrix)}]"
            )
        # In float64, summation orders of processors rarely differ enough to change a code.
        matrix_DE = self.matrix.astype(np.float64)
        codes_NE = np.empty((len(vectors_ND), matrix_DE.shape[1]), np.int8)
        for at in blocks(len(vectors_ND)):
            some = vectors_ND[at].astype(np.float64) @ matrix_DE
            norms = np.sqrt(np.einsum("ne,ne->n", some, some))
            wrong = np.flatnonzero(~(norms > 1e-3))
            if len(wrong):
                raise ValueError(
                    f"vector {at.start + wrong[0]} has norm {norms[wrong[0]]} after projection, "
                    "expected above 0.001: leave out vectors of pictures without structure"
                )
            some *= (self.length / norms)[:, None]
            codes_NE[at] = np.rint(some).clip(-_LARGEST, _LARGEST)
        return codes_NE


def length_of(dim: int) -> float:
    """Returns the length of codes of `dim` dimensions before rounding."""
    return float(_LARGEST / _WIDTHS * np.sqrt(dim))


def blocks(n: int, size: int = BLOCK) -> Iterator[slice]:
    """Yields slices that cover `n` rows."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))

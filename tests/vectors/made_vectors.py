"""Vectors in clusters, of which some are copies of others."""

import numpy as np
from numpy.typing import NDArray

from curator.vectors.vector_index import IndexSettings, VectorIndex

N, DIM, N_COPIES, PER_OWNER = 1500, 96, 60, 3
FLAT = IndexSettings(dim=64)
CELLS = IndexSettings(dim=64, flat_below=1, cell_vectors=60)
OWNERS = np.repeat(np.arange(N // PER_OWNER), PER_OWNER)


def made_vectors() -> NDArray[np.float32]:
    """Returns vectors, float32 [N, D]; the last ones are like the first ones."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((30, DIM))
    # Some clusters are much larger than others.
    own = rng.choice(30, N, p=np.arange(30, 0, -1) / 465)
    vectors = centres[own] + 0.9 * rng.standard_normal((N, DIM))
    vectors[-N_COPIES:] = vectors[:N_COPIES] + 0.2 * rng.standard_normal((N_COPIES, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


VECTORS = made_vectors()


def made_index(settings: IndexSettings, *, parts: int = 1) -> VectorIndex:
    """Returns an index of the vectors, in some segments."""
    index = VectorIndex.trained(VECTORS, N, settings)
    for rows in np.array_split(np.arange(N), parts):
        index.add(VECTORS[rows], OWNERS[rows])
        assert index.segments
    return index

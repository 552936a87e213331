"""Vectors of the clips of a run, in an index in memory.

Shape letters: N vectors, D dimensions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.vectors.vector_index import VectorIndex

TRAINED_ON = 131_072
"""Vectors that cells are made of, and that are added together: 0.34 GB of 1,280 dimensions."""


class VectorBlock(NamedTuple):
    """Some vectors of clips.

    Attributes:
        vectors_ND: float16 [N, D], L2-normalised.
        owners: int64 [N], rows of the clips; negative for vectors that are left out.
        seconds: float32 [N], from each clip's first frame.
    """

    vectors_ND: NDArray[np.float16]  # noqa: N815 - shape letters
    owners: NDArray[np.int64]
    seconds: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorLookup:
    """An index, and the second of each of its vectors, float32 [N]."""

    index: VectorIndex
    seconds: NDArray[np.float32]

    @classmethod
    def of(cls, blocks: Iterable[VectorBlock], n_clips: int) -> "VectorLookup | None":
        """Builds the index of blocks; None without any vector.

        Cells are made of the first vectors. Parts are named by hashes of their sources, so that
        the first ones are a fair sample.

        Args:
            blocks: The vectors, in any order.
            n_clips: Number of clips that may have vectors.
        """
        index: VectorIndex | None = None
        seconds = []
        for block in _gathered(blocks):
            if index is None:
                n_owners = len(np.unique(block.owners))
                n_expected = round(len(block.owners) * max(1.0, n_clips / n_owners))
                index = VectorIndex.trained(block.vectors_ND, n_expected)
            index.add(block.vectors_ND, block.owners)
            seconds.append(block.seconds)
        return None if index is None else cls(index=index, seconds=np.concatenate(seconds))


def _gathered(blocks: Iterable[VectorBlock]) -> Iterator[VectorBlock]:
    """Joins small blocks until there are `TRAINED_ON` vectors."""
    some: list[VectorBlock] = []
    for block in blocks:
        own = block.owners >= 0
        some.append(VectorBlock(block.vectors_ND[own], block.owners[own], block.seconds[own]))
        if sum(len(block.owners) for block in some) >= TRAINED_ON:
            yield _joined(some)
            some = []
    if any(len(block.owners) for block in some):
        yield _joined(some)


def _joined(some: Sequence[VectorBlock]) -> VectorBlock:
    some = [block for block in some if len(block.owners)]
    return VectorBlock(
        np.concatenate([block.vectors_ND for block in some]),
        np.concatenate([block.owners for block in some]),
        np.concatenate([block.seconds for block in some]),
    )

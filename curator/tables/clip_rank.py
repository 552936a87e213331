"""Which of some clips is the best, by columns of `clips`."""

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Preference = Literal["pixels", "bits_per_pixel", "length"]
PREFERENCES: tuple[Preference, ...] = ("pixels", "bits_per_pixel", "length")
"""More pixels, less compression, more frames."""


class HasColumns(Protocol):
    """A corpus or a table."""

    def __getitem__(self, name: str, /) -> pa.ChunkedArray:
        """A column."""


def criterion(clips: HasColumns, name: Preference) -> NDArray[np.float64]:
    """Returns how good clips are by a criterion, float64 [N]; higher is better."""

    def values(column: str) -> NDArray[np.float64]:
        found: NDArray[np.float64] = clips[column].cast(pa.float64()).fill_null(0).to_numpy()
        return found

    match name:
        case "pixels":
            return values("width") * values("height")
        case "bits_per_pixel":
            return values("bits_per_pixel")
        case "length":
            return values("n_frames")


def rank_order(criteria: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Returns the numbers of clips from best to worst, int64 [N].

    Args:
        criteria: float64 [N] each, higher is better, the first one counts most; of equals the
            first of the input is better.

    Raises:
        ValueError: A value is not finite and so has no order.
    """
    for values in criteria:
        wrong = values[~np.isfinite(values)]
        if len(wrong):
            raise ValueError(f"a criterion is {wrong[0]}, expected finite numbers")
    order: NDArray[np.int64] = np.lexsort([-values for values in reversed(criteria)])
    return order

"""Ranks clips by columns of `clips`."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records.clips import LEAST


def criterion(clips: pa.Table, name: str) -> NDArray[np.float64]:
    """Returns how good clips are by a criterion, float64 [N]; higher is better.

    Args:
        clips: A table of clips, or a corpus, which also has columns by name.
        name: `pixels`, `length`, or a column of numbers, times or texts; the highest value is the
            best, and after `LEAST` the lowest. A clip without a value is the worst.
    """

    def numbers(column: str) -> NDArray[np.float64]:
        values: NDArray[np.float64] = clips[column].cast(pa.float64()).to_numpy()
        return values

    base = name.removeprefix(LEAST)
    match base:
        case "pixels":
            values = numbers("width") * numbers("height")
            if "scale_factor" in clips.column_names:
                # Pixels of the source: at one size for all clips, enlarged ones are not better.
                scale = numbers("scale_factor")
                values = values / np.where(scale > 0, scale, 1.0) ** 2
        case "length":
            values = numbers("n_frames")
        case _ if pa.types.is_floating(clips[base].type) or pa.types.is_integer(clips[base].type):
            values = numbers(base)
        case _:
            ranks = pc.rank(clips[base], "ascending", null_placement="at_start", tiebreaker="dense")
            values = np.asarray(ranks, np.float64)
            values[np.asarray(clips[base].is_null())] = np.nan
    values = -values if base != name else values
    worst = np.nanmin(values) - 1 if np.isfinite(values).any() else 0.0
    return np.where(np.isfinite(values), values, worst)


def rank_order(criteria: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Returns the numbers of clips from best to worst, int64 [N].

    Each of `criteria` is float64 [N]; higher is better, and the first criterion counts most. Equal
    clips keep their order. Raises `ValueError` if a value is not finite.
    """
    for values in criteria:
        if not np.isfinite(values).all():
            wrong = values[~np.isfinite(values)][0]
            raise ValueError(f"a criterion is {wrong}, expected finite numbers")
    order: NDArray[np.int64] = np.lexsort([-values for values in reversed(criteria)])
    return order

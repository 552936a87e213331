"""Which clips show one moment from several cameras: those of one group, of different sources."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.storage.metadata_columns import GROUP

Numbers = NDArray[np.int64]
AreViews = Callable[[Numbers, Numbers], NDArray[np.bool_]]
"""Returns of pairs of clips, by number, whether both show the same on purpose."""


def group_texts(clips: Any) -> pa.Array | None:  # noqa: ANN401 - a table or a corpus
    """Returns the group of each clip as text, null for none; None if no manifest names a group."""
    if GROUP not in clips.column_names:
        return None
    column = clips[GROUP]
    if pa.types.is_list(column.type):
        return None
    return pa.chunked_array(column.cast(pa.string())).combine_chunks()


def moment_numbers(clips: Any) -> Numbers | None:  # noqa: ANN401 - a table or a corpus
    """Returns a number for the moment of each clip, -1 for none; None if no clip has a moment."""
    if "moment" not in clips.column_names:
        return None
    moments = clips["moment"]
    return None if moments.null_count == len(moments) else _numbers(moments.combine_chunks())


@dataclass(frozen=True, slots=True)
class ClipGroups:
    """Groups and sources of clips as numbers, int64 [N]; group -1 is none."""

    group: Numbers
    source: Numbers

    @classmethod
    def of(cls, clips: Any) -> Self | None:  # noqa: ANN401 - a table or a corpus
        """Returns the groups of clips; None if no clip has a group."""
        groups = group_texts(clips)
        if groups is None or groups.null_count == len(groups):
            return None
        sources = clips["source_id"].combine_chunks()
        return cls(*(_numbers(column) for column in (groups, sources)))

    def at(self, rows: Numbers) -> "ClipGroups":
        """Returns the groups of some clips, by number."""
        return ClipGroups(self.group[rows], self.source[rows])

    def are_views(self, first: Numbers, second: Numbers) -> NDArray[np.bool_]:
        """Returns whether two clips, by number, are of one group and of different sources."""
        is_same = (self.group[first] == self.group[second]) & (self.group[first] >= 0)
        views: NDArray[np.bool_] = is_same & (self.source[first] != self.source[second])
        return views


def _numbers(column: pa.Array) -> Numbers:
    indices = column.dictionary_encode().indices
    numbers: Numbers = pc.fill_null(indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers

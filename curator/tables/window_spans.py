"""Tells which clips show the same footage on purpose: windows that overlap, or of other sizes.

Shape letters: N clips.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records.clips import WINDOWED

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpans:
    """Sizes of windows and places in the source, int64 [N] each; size 0 is no window."""

    size: Numbers
    source: Numbers
    start_frame: Numbers
    end_frame: Numbers

    @classmethod
    def of(cls, clips: Any) -> Self | None:  # noqa: ANN401 - a table or a corpus
        """Returns the spans of clips; None if no clip is a window."""
        if WINDOWED[0] not in clips.column_names:
            return None
        frames, fps = (_filled(clips[name]) for name in WINDOWED)
        if not frames.any():
            return None
        _, size = np.unique(np.stack([frames, fps]), axis=1, return_inverse=True)
        source = clips["source_id"].combine_chunks().dictionary_encode().indices
        ends = (clips[name].to_numpy().astype(np.int64) for name in ("start_frame", "end_frame"))
        start_frame, end_frame = ends
        return cls(
            size=np.where(frames > 0, size.reshape(-1) + 1, 0),
            source=source.to_numpy(zero_copy_only=False).astype(np.int64),
            start_frame=start_frame,
            end_frame=end_frame,
        )

    def at(self, rows: Numbers) -> "WindowSpans":
        """Returns the spans of some clips."""
        names = ("size", "source", "start_frame", "end_frame")
        return WindowSpans(**{name: getattr(self, name)[rows] for name in names})

    def are_views(self, first: Numbers, second: Numbers) -> NDArray[np.bool_]:
        """Returns whether two clips, by number, are two windows of one take, or of two sizes."""
        starts = np.maximum(self.start_frame[first], self.start_frame[second])
        ends = np.minimum(self.end_frame[first], self.end_frame[second])
        is_overlap = (self.source[first] == self.source[second]) & (starts < ends)
        views: NDArray[np.bool_] = is_overlap | (self.size[first] != self.size[second])
        return views

    def n_overlapping(self) -> int:
        """Returns how many windows usually show the same frame of their source."""
        by_place = np.lexsort((self.start_frame, self.source))
        source = self.source[by_place] << 40
        starts = source + self.start_frame[by_place]
        n = np.searchsorted(starts, source + self.end_frame[by_place]) - np.arange(len(source))
        return max(1, round(float(n.mean())))


def _filled(column: pa.ChunkedArray) -> NDArray[np.float64]:
    filled: NDArray[np.float64] = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy()
    return filled

"""Tells which clips show the same footage on purpose, and which windows are of one take.

Shape letters: N clips.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records.clips import SIZED, WINDOWED

Numbers = NDArray[np.int64]
_LONGEST_S = 60.0  # of a take that is compared as one, as `propose.max_s` of ordinary clips


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpans:
    """Numbers of sizes, and places in the source, [N] each.

    Clips of one size are windows of one length and rate, or not windows, and have one size in
    pixels if the recipe sets several.
    """

    size: Numbers
    is_window: NDArray[np.bool_]
    source: Numbers
    shot: Numbers
    start_frame: Numbers
    end_frame: Numbers
    start_s: NDArray[np.float64]

    @classmethod
    def of(cls, clips: Any) -> Self | None:  # noqa: ANN401 - a table or a corpus
        """Returns the spans of clips; None if no clip is a window, or of one of several sizes."""
        if WINDOWED[0] not in clips.column_names:
            return None
        frames, fps = (_filled(clips[name]) for name in WINDOWED)
        output = np.zeros(len(frames))
        if SIZED[0] in clips.column_names:
            indices = clips[SIZED[0]].combine_chunks().dictionary_encode().indices
            output = pc.fill_null(indices, -1).to_numpy() + 1.0
        if not (frames.any() or output.any()):
            return None
        _, size = np.unique(np.stack([frames, fps, output]), axis=1, return_inverse=True)
        source = clips["source_id"].combine_chunks().dictionary_encode().indices
        places = (_filled(clips[name]) for name in ("shot", "start_frame", "end_frame"))
        shot, start_frame, end_frame = (place.astype(np.int64) for place in places)
        return cls(
            size=size.reshape(-1).astype(np.int64),
            is_window=frames > 0,
            source=source.to_numpy(zero_copy_only=False).astype(np.int64),
            shot=shot,
            start_frame=start_frame,
            end_frame=end_frame,
            start_s=_filled(clips["start_s"]),
        )

    def at(self, rows: Numbers) -> Self:
        """Returns the spans of some clips, by number."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def are_views(self, first: Numbers, second: Numbers) -> NDArray[np.bool_]:
        """Returns whether two clips, by number, are two windows of one take, or of two sizes."""
        starts = np.maximum(self.start_frame[first], self.start_frame[second])
        ends = np.minimum(self.end_frame[first], self.end_frame[second])
        is_overlap = (self.source[first] == self.source[second]) & (starts < ends)
        is_overlap &= self.is_window[first]
        views: NDArray[np.bool_] = is_overlap | (self.size[first] != self.size[second])
        return views

    def takes(self) -> Numbers:
        """Returns a number for each clip: the same for windows of one size that follow each other.

        Windows of a shot follow each other without a gap. A take is at most `_LONGEST_S` long, but
        for its last window. A clip that is no window is a take.
        """
        order = np.lexsort((self.start_frame, self.shot, self.source, self.size))
        at = self.at(order)
        start, end = at.start_frame, at.end_frame
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = ~at.is_window[1:] | (start[1:] > end[:-1])
        for column in (at.size, at.source, at.shot):
            is_first[1:] |= column[1:] != column[:-1]
        begin_s = at.start_s[is_first][np.cumsum(is_first) - 1]
        piece = ((at.start_s - begin_s) // _LONGEST_S).astype(np.int64)
        is_first[1:] |= piece[1:] != piece[:-1]
        takes = np.empty(len(order), np.int64)
        takes[order] = np.cumsum(is_first)
        return takes


def _filled(column: pa.ChunkedArray) -> NDArray[np.float64]:
    filled: NDArray[np.float64] = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy()
    return filled

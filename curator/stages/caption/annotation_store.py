"""The annotations of clips: on the local disk, with 12 bytes of memory each."""

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from curator.stages.caption.annotation_rows import SPAN, CaptionedSpan
from curator.stages.caption.caption_records import Annotation
from curator.tables.clip_locations import KeyRows
from curator.tables.clip_rows import ClipRow, ClipRows
from curator.tables.spill_file import Spill


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipAnnotations:
    """The annotations of one clip."""

    span: CaptionedSpan
    """Its span when it was annotated."""
    annotations: list[Annotation]
    """Of its windows, in their order."""


class AnnotatedClips:
    """The rows of clips, and the annotations of those that are done."""

    def __init__(self, clips: ClipRows) -> None:
        self.clips = clips
        self._rows = KeyRows(clips.column("clip_id"))
        self._spill = Spill()
        self._begin = np.full(len(clips), -1, np.int64)
        self._n_bytes = np.zeros(len(clips), np.int32)
        self.counts: Counter[str] = Counter()
        """Windows, tokens, failures by reason and answers set aside, for the summary."""
        self.events: set[tuple[Any, ...]] = set()
        """Events within windows."""

    def row(self, clip_id: str) -> ClipRow:
        """The row of a clip."""
        return self.clips[self._number(clip_id)]

    def __contains__(self, clip_id: str) -> bool:
        """Whether all windows of a clip are done."""
        return bool(self._begin[self._number(clip_id)] >= 0)

    def __getitem__(self, clip_id: str) -> ClipAnnotations:
        """The annotations of a clip."""
        number = self._number(clip_id)
        if self._begin[number] < 0:
            raise KeyError(clip_id)
        return self._read(number)

    def add(self, clip_id: str, done: ClipAnnotations) -> None:
        """Stores the annotations of a clip."""
        number = self._number(clip_id)
        # Read by this process alone, out of a file that has no name.
        data = pickle.dumps(done, pickle.HIGHEST_PROTOCOL)
        self._begin[number], self._n_bytes[number] = self._spill.add(data), len(data)
        for one in done.annotations:
            self._count(one, self.clips[number])

    def items(self) -> Iterator[tuple[ClipRow, ClipAnnotations]]:
        """Rows of the clips that are done, in their order, with their annotations."""
        for number in np.flatnonzero(self._begin >= 0).tolist():
            yield self.clips[number], self._read(number)

    def _count(self, one: Annotation, row: ClipRow) -> None:
        counts = self.counts
        counts["caption_windows"] += 1
        counts["caption_tokens_in"] += one.tokens_in
        counts["caption_tokens_out"] += one.tokens_out
        if one.failure is not None:
            counts[f"caption_failed_{one.failure}"] += 1
        for name, n in one.set_aside.items():
            counts[f"caption_set_aside_{name}"] += n
        if one.task.known is not None:
            uri = row.source_uri
            self.events |= {(uri, e.label, e.start_s, e.end_s) for e in one.task.known.events}

    def _number(self, clip_id: str) -> int:
        number = self._rows.find(clip_id)
        if number is None:
            raise KeyError(clip_id)
        return number

    def _read(self, number: int) -> ClipAnnotations:
        data = self._spill.read(int(self._begin[number]), int(self._n_bytes[number]))
        done: ClipAnnotations = pickle.loads(data)
        return done


class CaptionedSpans(Mapping[str, CaptionedSpan]):
    """Spans of clips when they were annotated, by id.

    Args:
        tables: Rows with `clip_id` and `clip_` before each of `SPAN`.
    """

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        columns = ["clip_id", *(f"clip_{name}" for name in SPAN)]
        found = [table.select(columns) for table in tables]
        self._table = pa.concat_tables(found) if found else None
        ids = pa.chunked_array([], pa.string()) if self._table is None else self._table["clip_id"]
        self._rows = KeyRows(ids)

    def __getitem__(self, clip_id: str) -> CaptionedSpan:
        """The span of a clip."""
        row = self._rows.find(clip_id)
        if row is None or self._table is None:
            raise KeyError(clip_id)
        return CaptionedSpan(**{name: self._table[f"clip_{name}"][row].as_py() for name in SPAN})

    def __iter__(self) -> Iterator[str]:
        """Ids of the clips, one for each of their windows."""
        return self._rows.keys()

    def __len__(self) -> int:
        """Number of their windows."""
        return len(self._rows)

"""Keeps the annotations of clips on the local disk, with 12 bytes of memory per clip."""

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from curator.stages.caption.annotation_rows import SPAN, CaptionedSpan
from curator.stages.caption.caption_records import Annotation
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_locations import KeyRows
from curator.tables.clip_rows import ClipRow, ClipRows, fields_of
from curator.tables.schemas import ANNOTATIONS_SCHEMA
from curator.tables.spill_file import Spill


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipAnnotations:
    """The annotations of the windows of one clip, in order."""

    span: CaptionedSpan
    """Span at the time of annotation."""
    annotations: list[Annotation]


class AnnotatedClips:
    """The rows of clips, and the annotations of finished clips."""

    def __init__(self, clips: ClipRows) -> None:
        self.clips = clips
        self._rows = KeyRows(clips.column("clip_id"))
        self._spill = Spill()
        self._begin = np.full(len(clips), -1, np.int64)
        self._n_bytes = np.zeros(len(clips), np.int32)
        self.counts: Counter[str] = Counter()
        """Windows, tokens, failures by reason and rejected answers, for the summary."""
        self.events: set[tuple[Any, ...]] = set()

    def row(self, clip_id: str) -> ClipRow:
        """Returns the row of a clip."""
        return self.clips[self._number(clip_id)]

    def __contains__(self, clip_id: str) -> bool:
        """Returns whether all windows of a clip are done."""
        return bool(self._begin[self._number(clip_id)] >= 0)

    def __getitem__(self, clip_id: str) -> ClipAnnotations:
        number = self._number(clip_id)
        if self._begin[number] < 0:
            raise KeyError(clip_id)
        return self._read(number)

    def add(self, clip_id: str, done: ClipAnnotations) -> None:
        """Stores the annotations of a clip."""
        number = self._number(clip_id)
        # Only this process reads the file, which has no name, so pickle is safe.
        data = pickle.dumps(done, pickle.HIGHEST_PROTOCOL)
        self._begin[number], self._n_bytes[number] = self._spill.add(data), len(data)
        counts = self.counts
        for annotation in done.annotations:
            counts["caption_windows"] += 1
            counts["caption_tokens_in"] += annotation.tokens_in
            counts["caption_tokens_out"] += annotation.tokens_out
            if annotation.failure is not None:
                counts[f"caption_failed_{annotation.failure}"] += 1
            for name, n in annotation.set_aside.items():
                counts[f"caption_set_aside_{name}"] += n
            if annotation.task.metadata is not None:
                uri = self.clips[number].source_uri
                self.events |= {
                    (uri, e.label, e.start_s, e.end_s) for e in annotation.task.metadata.events
                }

    def items(self) -> Iterator[tuple[ClipRow, ClipAnnotations]]:
        """Yields rows and annotations of finished clips, in the order of the rows."""
        for number in np.flatnonzero(self._begin >= 0).tolist():
            yield self.clips[number], self._read(number)

    def _number(self, clip_id: str) -> int:
        number = self._rows.find(clip_id)
        if number is None:
            raise KeyError(clip_id)
        return number

    def _read(self, number: int) -> ClipAnnotations:
        data = self._spill.read(int(self._begin[number]), int(self._n_bytes[number]))
        done: ClipAnnotations = pickle.loads(data)
        return done


class CaptionedSpans:
    """Spans of clips at the time of annotation, by id.

    `parts` are parts of the table `annotations`; those of older versions have no spans.
    """

    def __init__(self, store: Store, parts: Iterable[str] = ()) -> None:
        columns = ["clip_id", *(f"clip_{name}" for name in SPAN)]
        tables = [fields_of(ANNOTATIONS_SCHEMA, columns).empty_table()]
        for name in parts:
            table = read_parquet(store, name, columns)
            tables += [table] if set(columns) <= set(table.column_names) else []
        self._table = pa.concat_tables(tables)
        self._rows = KeyRows(self._table["clip_id"])

    def get(self, clip_id: str) -> CaptionedSpan | None:
        """Returns the span of a clip, or None."""
        row = self._rows.find(clip_id)
        if row is None:
            return None
        return CaptionedSpan(**{name: self._table[f"clip_{name}"][row].as_py() for name in SPAN})

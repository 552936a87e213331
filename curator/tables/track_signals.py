"""Reads signals of stored tracks for the frames of written clips, without decoding.

The driver finds the parts (`SignalParts`), and workers read them (`SignalReader`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.cut_requests import source_frames
from curator.errors import CuratorError
from curator.records.tracks import FRAME_SIGNALS, TIME_SIGNALS, SourceFrames
from curator.stage import THUMBNAILS, ClipFacts
from curator.storage import Store
from curator.tables.parts import Parts
from curator.tables.track_items import PartsByFamily, StoredFamily
from curator.tables.track_parts import TRACKS, TrackParts
from curator.tables.track_table import table_to_source_frames

_TIMES = "frame_pts"
_SAMPLES = ("sample_frame", "sample_pair_frame")
_COLUMN_OF = dict(zip(TIME_SIGNALS, (_TIMES, _TIMES, *_SAMPLES), strict=True))
"""The column of tracks that decides about each of `TIME_SIGNALS`."""
PartsByColumn = Mapping[str, str]
"""The part of `tracks` that has a column of a source."""


class SignalParts:
    """The stored families of a recipe, by the signals that they have.

    `families` is called at the first use, because fingerprints need the weights of models.
    `measure` measures lost families of sources again, and returns errors; None if the caller reads
    no sources.
    """

    def __init__(
        self,
        store: Store,
        families: Callable[[], Sequence[StoredFamily]],
        measure: Callable[[Collection[str]], Sequence[str]] | None = None,
    ) -> None:
        self._store, self._families, self._measure = store, families, measure

    @cached_property
    def _family_of(self) -> dict[str, StoredFamily]:
        return {column: family for family in self._families() for column in family.columns}

    def fingerprints(self, signals: Iterable[str]) -> dict[str, str]:
        """Returns the fingerprint of the family of each signal, by names that no column has."""
        return {
            f"track {name}": self._family_of[_COLUMN_OF.get(name, name)].fingerprint
            for name in signals
        }

    def find(self, source_ids: Collection[str], signals: Iterable[str]) -> dict[str, PartsByColumn]:
        """Returns the parts with the signals of sources, and with their frames and samples.

        Raises:
            CuratorError: A source has no part of a family, and this run cannot measure it again.
        """
        names = {_TIMES, *_SAMPLES, *signals}.difference(TIME_SIGNALS)
        families = {self._family_of[name].name: self._family_of[name] for name in names}
        tracks = TrackParts(self._store, list(families.values()))
        stored, _ = tracks.stored(source_ids)
        errors: Sequence[str] = ()
        lost = _lost(source_ids, families, stored)
        if lost and self._measure is not None:
            errors = self._measure(lost)
            stored, _ = tracks.stored(source_ids)
            lost = _lost(source_ids, families, stored)
        for source_id, family in lost.items():
            remedy = (
                "`curate run SOURCE... OUT` with the sources of the last run measures it again"
                if self._measure is None
                else f"it could not be measured again: {next(iter(errors), 'unknown source')}"
            )
            raise CuratorError(
                f"{self._store.uri}: source {source_id} has no stored track of the family "
                f"{family!r}, from which signals are read; {remedy}"
            )
        shared: dict[int, PartsByColumn] = {}
        found: dict[str, PartsByColumn] = {}
        for source_id in source_ids:
            # Sources of one unit share one mapping.
            parts = stored[source_id]
            if id(parts) not in shared:
                shared[id(parts)] = {name: parts[self._family_of[name].name] for name in names}
            found[source_id] = shared[id(parts)]
        return found


def _lost(
    source_ids: Iterable[str], families: Collection[str], stored: Mapping[str, PartsByFamily]
) -> dict[str, str]:
    """Returns the first family that a source lacks, by id of the source."""
    missing = ((name, set(families).difference(stored.get(name, ()))) for name in source_ids)
    return {name: min(lost) for name, lost in sorted(missing) if lost}


@dataclass(frozen=True, slots=True)
class _SourceSignals:
    """Frames of a source, and columns of its track; signals have a NaN more at their end."""

    track: SourceFrames
    columns: Mapping[str, NDArray[np.generic]]

    def of_clip(self, clip: ClipFacts, signals: Iterable[str]) -> dict[str, NDArray[np.float32]]:
        frames = source_frames(self.track, clip)
        first, pair = (self.columns[name] for name in _SAMPLES)
        start, end = (clip.columns[name] for name in ("start_frame", "end_frame"))
        inside = np.flatnonzero((first >= start) & (pair < end))
        # The last entry is NaN: no sample is at or before the frame.
        samples = np.append(inside, -1)[np.searchsorted(first[inside], frames, side="right") - 1]
        values = {}
        times = self._times(start, frames, samples) if _COLUMN_OF.keys() & set(signals) else {}
        for name in signals:
            if name in times:
                values[name] = times[name].astype(np.float32)
                continue
            column = self.columns[name]
            at = frames if name in FRAME_SIGNALS else samples
            is_measured = len(column) > 1
            values[name] = column[at if is_measured else np.zeros_like(at)].astype(np.float32)
        return values

    def _times(
        self, start: int, frames: NDArray[np.int64], samples: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        """Returns `TIME_SIGNALS`; -1 in `samples` is no sample."""
        pts, end_pts = self.track.frame_pts, self.track.end_pts
        after = np.append(pts[1:], end_pts)[frames] - pts[frames]
        # A source's first frame has only the frame after it.
        before = np.where(frames > 0, pts[frames] - pts[frames - 1], after)

        def seconds(of: NDArray[np.generic]) -> NDArray[np.float64]:
            if not len(of):
                return np.full(len(frames), np.nan)
            return np.where(samples < 0, np.nan, (pts[of[samples]] - pts[start]) * tick_s)

        tick_s = float(self.track.time_base)
        shown_s, interval_s = (
            (pts[frames] - pts[start]) * tick_s,
            np.minimum(after, before) * tick_s,
        )
        of_samples = (seconds(self.columns[name]) for name in _SAMPLES)
        return dict(zip(TIME_SIGNALS, (shown_s, interval_s, *of_samples), strict=True))


class SignalReader:
    """Reads signals of clips; keeps the parts and the track of the last source for the next one."""

    def __init__(self, store: Store) -> None:
        self._store = Parts(store, TRACKS, "")
        self._parts: PartsByColumn = {}
        self._tables: list[pa.Table] = []
        """The frames of the last parts' sources, then the columns of each part."""
        self._last: tuple[str, _SourceSignals] | None = None

    def __call__(
        self, clip: ClipFacts, parts: PartsByColumn, signals: Iterable[str]
    ) -> dict[str, NDArray[np.float32]]:
        """Returns the values of a clip by signal, float32 [n_frames], as `Annotator.signals` says.

        `parts` is from `SignalParts.find`.
        """
        return self._of(clip, parts).of_clip(clip, signals)

    def thumbnails(self, clip: ClipFacts, parts: PartsByColumn) -> tuple[bytes, ...]:
        """Returns the JPEGs of a clip, in order; `parts` is from `SignalParts.find`."""
        columns = self._of(clip, parts).columns
        frames, jpegs = (columns[name] for name in THUMBNAILS)
        start, end = (clip.columns[name] for name in ("start_frame", "end_frame"))
        return tuple(jpegs[(frames >= start) & (frames < end)].tolist())

    def _of(self, clip: ClipFacts, parts: PartsByColumn) -> _SourceSignals:
        """Returns the track of a clip's source."""
        if self._parts != parts:
            self._parts, self._last = parts, None
            self._tables = [self._store.read(parts[_TIMES])]
            for part in sorted(set(parts.values())):
                own = [name for name in parts if parts[name] == part]
                self._tables.append(self._store.read_columns(part, ["source_id", *own]))
        if self._last is None or self._last[0] != clip.source_id:
            self._last = clip.source_id, self._source(clip.source_id)
        return self._last[1]

    def _source(self, source_id: str) -> _SourceSignals:
        frames, *tables = self._tables
        columns: dict[str, NDArray[np.generic]] = {}
        for table in tables:
            row = table["source_id"].to_pylist().index(source_id)
            names = [name for name in table.column_names if name != "source_id"]
            columns |= {name: _array(table[name][row].values) for name in names}
        for name in columns.keys() - {_TIMES, *_SAMPLES, *THUMBNAILS}:
            columns[name] = np.append(columns[name], np.float32("nan"))
        return _SourceSignals(table_to_source_frames(frames, source_id), columns)


def _array(values: pa.Array) -> NDArray[np.generic]:
    """Returns a list of a track; texts and bytes become objects."""
    if pa.types.is_binary(values.type):
        found = np.empty(len(values), object)
        found[:] = values.to_pylist()
        return found
    return np.asarray(values)

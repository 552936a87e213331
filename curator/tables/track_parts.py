"""Stores tracks: one object per family of columns and unit of sources.

    tracks/frames/<fingerprint>-<hash>.parquet    the base of all other families, and failures
    tracks/<family>/<fingerprint>-<hash>.parquet  the columns of one family
    segments/<fingerprint>-<hash>.parquet         measurements of a segment of one source

The name of a part has the fingerprint of its family and a hash of its sources, so that all parts of
one decode have the same hash. A source that failed permanently is only in `frames`.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import RETRIED, ErrorCode
from curator.fingerprints import fingerprint
from curator.media.source_segments import WholeReason
from curator.records.sources import Failure, SourceRef
from curator.records.tracks import Track
from curator.stage import THUMBNAILS
from curator.storage import ContentHashes, Store
from curator.storage.source_reader import is_racy
from curator.tables.checksums import read_parquet
from curator.tables.frame_hashes import matching_regions, moving_frames
from curator.tables.key_index import KnownKeys, part_versions
from curator.tables.out_layout import is_own
from curator.tables.parts import Parts, with_column
from curator.tables.removal_records import Removals, RemovedSpan
from curator.tables.track_items import (
    FRAMES,
    AnalyzeItem,
    JoinItem,
    PartsByFamily,
    SegmentItem,
    SourceItem,
    StoredFamily,
    TrackItem,
)
from curator.tables.track_table import ORIGIN, PLACES, table_to_tracks, tracks_to_table

TRACKS, SEGMENTS = "tracks", "segments"
_CHECKED = ("frame_pts", "frame_bytes")
Found = Track | Failure | WholeReason | ContentHashes
"""The result of analyzing an item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrack:
    """A source, and the parts that hold its track."""

    source: SourceRef
    parts: PartsByFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDone:
    """The outcome of a segment, a hash or a join; `whole` says why a source needs one analysis."""

    source: SourceRef
    hashes: ContentHashes | None = None
    whole: WholeReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedUnit:
    """The stored results of some items; another run retries those in `failed`."""

    tracks: tuple[StoredTrack, ...] = ()
    failed: tuple[tuple[SourceRef, Failure], ...] = ()
    segments: tuple[SegmentDone, ...] = ()

    def divided(self) -> "list[AnalyzedUnit]":
        """Returns one unit per track; failures and segments stay with the first unit."""
        if len(self.tracks) < 2:
            return [self]
        first, *others = self.tracks
        return [replace(self, tracks=(first,)), *(AnalyzedUnit(tracks=(item,)) for item in others)]


class TrackParts:
    """The stored tracks of a recipe; it stores no thumbnails of footage in `removals`."""

    def __init__(
        self, store: Store, families: Sequence[StoredFamily], removals: Removals | None = None
    ) -> None:
        self._removals = removals or Removals()
        self._families = {family.name: family for family in families}
        self._store = store
        self._since_ns = time.time_ns()
        self._written: dict[str, pa.Table] = {}
        """The tables of the last `write`, by the names of their parts: the next step of a worker's
        chain reads them, and needs no request for it."""

    def stored(
        self, source_ids: Collection[str], *, may_write: bool = False
    ) -> tuple[dict[str, PartsByFamily], set[str]]:
        """Returns the parts of sources by id and family, and ids that failed permanently.

        Sources of one unit share one dictionary. An id without stored results is in neither.
        """
        parts_of: dict[str, PartsByFamily] = {}
        failed: set[str] = set()
        if not source_ids:
            # Saves the requests that list and read parts.
            return parts_of, failed
        # Custom measures share a folder.
        listed: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for name, version in part_versions(self._store, TRACKS).items():
            listed[name.rpartition("/")[0]][name] = version
        by_hash: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for family in self._families:
            parts = self._parts(family)
            for name in parts.of(listed[parts.stage]):
                by_hash[name.rpartition("-")[2]][family] = name
        units = sorted(by_hash.values(), key=lambda names: FRAMES not in names)
        # All parts of a unit have the same keys, so the search reads one part.
        sought: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for number, names in enumerate(units):
            family = FRAMES if FRAMES in names else next(iter(names))
            sought[family][names[family]] = number
        ids, matches = sorted(source_ids), defaultdict[int, list[str]](list)
        for family, numbers in sought.items():
            folder = self._parts(family).stage
            keys = KnownKeys.of(self._store, folder, listed[folder], numbers, may_write=may_write)
            for row, part, has_failed in keys.matches(ids):
                matches[numbers[part]].append(ids[row])
                if has_failed:
                    failed.add(ids[row])
        for number in sorted(matches):
            # Keys are `id()`s, which stay valid because the values hold the dictionaries.
            merged: dict[int, tuple[PartsByFamily, PartsByFamily]] = {}
            names = units[number]
            for key in matches[number]:
                stored = parts_of.setdefault(key, names)
                if stored is not names:
                    both = merged.setdefault(id(stored), (stored, {**stored, **names}))
                    parts_of[key] = both[1]
        return parts_of, failed

    def write(
        self, sources: Sequence[tuple[SourceRef, Track | Failure]], families: Collection[str]
    ) -> dict[str, str]:
        """Stores measured families of some sources, and failures; returns the parts, by family."""
        results = [(str(source.source_id), result) for source, result in sources]
        if self._removals:
            results = [(key, self._excluded(key, result)) for key, result in results]
        tracks = [item for item in results if isinstance(item[1], Track)]
        names: dict[str, str] = {}
        self._written = {}
        for family in sorted(families, key=lambda name: (name == FRAMES, name)):
            rows = results if family == FRAMES else tracks
            if rows:
                table = tracks_to_table(rows, self._families[family].columns)
                if family == FRAMES:
                    # If a file is young, a later write may leave its version as it is.
                    origins = (
                        (s.uri, None if is_racy(s.uri, s.version, self._since_ns) else s.version)
                        for s, _ in sources
                    )
                    for name, values in zip(ORIGIN, zip(*origins, strict=True), strict=True):
                        table = table.append_column(name, pa.array(values, pa.string()))
                failed = [key for key, result in rows if isinstance(result, Failure)]
                keys = [key for key, _ in rows]
                names[family] = self._parts(family).write(table, keys, failed=failed)
                self._written[names[family]] = table
        return names

    def _excluded(self, source_id: str, result: Track | Failure) -> Track | Failure:
        """Returns a track without thumbnails of removed footage."""
        if isinstance(result, Failure) or not result.thumbnails:
            return result
        removals = self._removals
        spans = removals.spans_of(source_id)
        shown = shown_frames(result.thumbnail_frame, spans)
        regions = matching_regions(result.luma_mean, result.luma_spread, removals.frames)
        for start, end in regions.tolist():
            shown &= (result.thumbnail_frame < start) | (result.thumbnail_frame >= end)
        hashes = [hashlib.sha256(jpeg).hexdigest() for jpeg in result.thumbnails]
        is_removed = np.array([digest in removals.pictures for digest in hashes])
        if not (spans or len(regions) or is_removed.all()):
            # Other sources may have the same title card or black picture.
            is_moving = moving_frames(result.luma_mean, result.luma_spread)
            # Without luma, which another part has, a known picture is taken out.
            is_removed &= is_moving[result.thumbnail_frame] if len(is_moving) else True
        shown &= ~is_removed
        thumbnails = tuple(result.thumbnails[at] for at in np.flatnonzero(shown))
        return replace(result, thumbnail_frame=result.thumbnail_frame[shown], thumbnails=thumbnails)

    def read(self, tracks: Iterable[StoredTrack]) -> list[TrackItem]:
        """Reads tracks; a part that several sources share is read once."""
        groups: dict[tuple[str, ...], list[SourceRef]] = {}
        for stored in tracks:
            names = (stored.parts[FRAMES], *(n for f, n in stored.parts.items() if f != FRAMES))
            groups.setdefault(names, []).append(stored.source)
        items: list[TrackItem] = []
        for names, sources in groups.items():
            tables = [
                self._written[name] if name in self._written else self._parts(FRAMES).read(name)
                for name in names
            ]
            of = {str(source.source_id): source for source in sources}
            uris = {source_id: source.uri for source_id, source in of.items()}
            items += [
                TrackItem(source=of[source_id], track=track, frames_part=names[0])
                for source_id, track in table_to_tracks(tables, uris)
            ]
        return items

    def segments(self, families: Collection[str]) -> Parts:
        """Returns the parts of segments on which some families were measured."""
        fingerprints = {name: self._families[name].fingerprint for name in families}
        return Parts(self._store, SEGMENTS, fingerprint(SEGMENTS, fingerprints))

    def load_segments(self, items: Sequence[JoinItem]) -> list[JoinItem]:
        """Returns sources to join with the measurements of their segments."""

        def tracks(item: JoinItem) -> Iterator[Track]:
            parts, uris = self.segments(item.families), {str(item.source.source_id): item.uri}
            for name in item.segments:
                ((_, track),) = table_to_tracks([parts.read(name)], uris)
                assert isinstance(track, Track)
                yield track

        return [replace(item, tracks=tuple(tracks(item))) for item in items]

    def load(self, unit: AnalyzedUnit) -> list[TrackItem] | None:
        """Returns tracks and failures; None for a unit of segments, which have no track yet."""
        if unit.segments:
            return None
        failed = [TrackItem(source=s, track=f, frames_part=None) for s, f in unit.failed]
        return [*failed, *self.read(unit.tracks)]

    def keep(
        self, items: Sequence[AnalyzeItem], results: Sequence[Found], *, stage: str
    ) -> AnalyzedUnit:
        """Stores the results of a unit: a track by family, a segment as one row.

        All sources of a unit have the same families to measure. `stage` is the name for failures.
        """
        kept: list[tuple[SourceItem, Track | Failure]] = []
        failed: list[tuple[SourceRef, Failure]] = []
        segments: list[SegmentDone] = []
        for item, result in zip(items, results, strict=True):
            if isinstance(item, SourceItem):
                result = self._checked(item, result, stage)
            if isinstance(result, WholeReason):
                segments.append(SegmentDone(source=item.source, whole=result))
            elif isinstance(result, ContentHashes):
                segments.append(SegmentDone(source=item.source, hashes=result))
            elif isinstance(item, SegmentItem):
                assert isinstance(result, Track)
                self._write_segment(item, result)
                segments.append(SegmentDone(source=item.source))
            elif isinstance(item, SourceItem):
                # If an earlier run decoded the frames, the failure is not permanent.
                is_for_good = FRAMES in item.families
                if isinstance(result, Failure) and (result.code in RETRIED or not is_for_good):
                    failed.append((item.source, result))
                else:
                    kept.append((item, result))
        parts: dict[str, str] = {}
        if kept:
            parts = self.write([(i.source, r) for i, r in kept], kept[0][0].families)
        stored = [
            StoredTrack(
                source=item.source,
                parts={**item.parts, **parts} if isinstance(r, Track) else {FRAMES: parts[FRAMES]},
            )
            for item, r in kept
        ]
        return AnalyzedUnit(tracks=tuple(stored), failed=tuple(failed), segments=tuple(segments))

    def _write_segment(self, item: SegmentItem, track: Track) -> None:
        own = (self._families[name].columns for name in sorted(item.families))
        columns = list(dict.fromkeys((*PLACES, *(name for names in own for name in names))))
        table = tracks_to_table([(str(item.source.source_id), track)], columns)
        self.segments(item.families).write(table, [item.key])

    def _checked(self, item: SourceItem, result: Found, stage: str) -> Found:
        """Returns the result, or a replacement if it contradicts the stored frames."""
        if not isinstance(result, Track) or FRAMES in item.families:
            return result
        table = self._parts(FRAMES).read(item.parts[FRAMES], ["source_id", *_CHECKED])
        row = table["source_id"].to_pylist().index(str(item.source.source_id))
        pts, n_bytes = (np.asarray(table[name][row].values) for name in _CHECKED)
        if np.array_equal(pts, result.frame_pts):
            has_bytes = (n_bytes > 0) & (result.frame_bytes > 0)
            if np.array_equal(n_bytes[has_bytes], result.frame_bytes[has_bytes]):
                return result
        if isinstance(item, JoinItem):
            return WholeReason.INDEX_LIES
        return Failure(
            uri=item.uri,
            stage=stage,
            code=ErrorCode.CHANGED,
            message=f"{item.uri} decodes to {result.n_frames} frames that differ from the frames "
            "measured before, perhaps because of another FFmpeg version; use the versions that "
            "summary.json names, or delete OUT/tracks to measure all sources again",
        )

    def _parts(self, family: str) -> Parts:
        stored = self._families[family]
        return Parts(self._store, f"{TRACKS}/{stored.folder}", stored.fingerprint)


def shown_frames(
    frames_N: NDArray[np.int32],  # noqa: N803
    spans: Iterable[RemovedSpan],
) -> NDArray[np.bool_]:
    """Returns which frames are outside all removed spans, bool [N]."""
    shown = np.ones(len(frames_N), bool)
    for span in spans:
        shown &= (frames_N < span.start_frame) | (frames_N >= span.end_frame)
    return shown


def without_removed_thumbnails(table: pa.Table, removals: Removals) -> pa.Table:
    """Returns rows of tracks without the thumbnails of removed spans, or the same table."""
    if not {"source_id", *THUMBNAILS} <= set(table.column_names):
        return table
    ids = table["source_id"].to_pylist()
    rows = np.flatnonzero(removals.named(table["source_id"], removals.spans)).tolist()
    columns: dict[str, list[Any]] = {name: table[name].to_pylist() for name in THUMBNAILS}
    is_changed = False
    for row in rows:
        frames = columns["thumbnail_frame"][row]
        if frames is None:
            continue
        shown = shown_frames(np.asarray(frames, np.int32), removals.spans_of(ids[row]))
        if not shown.all():
            is_changed = True
            for held in columns.values():
                held[row] = [held[row][number] for number in np.flatnonzero(shown)]
    if not is_changed:
        return table
    for name, values in columns.items():
        table = with_column(table, name, pa.array(values, table[name].type))
    return table


def track_origins(store: Store, source_ids: Set[str]) -> Iterator[dict[str, Any]]:
    """Yields the origin of the stored results of source ids, under any settings.

    Only runs may call this, because it may write the index. Rows have `source_id`, `sha256` (None
    for a failure) and `ORIGIN`, which may be null.
    """
    folder, ids = f"{TRACKS}/{FRAMES}", sorted(source_ids)
    listed = part_versions(store, folder)
    keys = KnownKeys.of(store, folder, listed, list(filter(is_own, listed)), may_write=True)
    wanted = pa.array(ids, pa.string())
    for name in sorted({part for _, part, _ in keys.matches(ids)}):
        table = read_parquet(store, name)
        table = table.filter(pc.is_in(table["source_id"], value_set=wanted))
        yield from table.select(["source_id", "sha256", *ORIGIN]).to_pylist()

"""Deletes removed footage from the objects that runs store for later runs, in place."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.storage import Store
from curator.tables.candidate_store import FOLDER as CANDIDATES
from curator.tables.candidate_store import PAYLOAD, ROWS_PER_GROUP
from curator.tables.checksums import read_parquet, read_rows
from curator.tables.corpus_tables import FOLDER as ALIKE
from curator.tables.family_store import row_keys
from curator.tables.footage_index import FOLDER as VECTORS
from curator.tables.long_columns import joined_chunks
from curator.tables.mark_table import mark_objects, take_out_removed
from curator.tables.named_ids import without_named
from curator.tables.out_layout import FAMILIES, FRAME_PARTS, REPLIES, VALUES, is_own
from curator.tables.parts import FAILED, KEYS, Parts, to_parquet, with_column
from curator.tables.removal_records import Removals, removal_hash
from curator.tables.sample_members import VALUE
from curator.tables.track_items import FRAMES
from curator.tables.track_parts import SEGMENTS, TRACKS, shown_frames
from curator.tools.removal.removal_selection import Summaries, stored_clips, tables_of

_NAMING = "duplicate_of"
"""Column that names another clip."""
_THUMBNAILS = ("thumbnail_frame", "thumbnails")


def scrubbed(table: pa.Table, removals: Removals) -> pa.Table | None:
    """Returns a table without the rows, names, ids in texts and thumbnails of removed footage.

    The keys of removed rows are deleted from the table's metadata. Returns None if the table holds
    nothing of removed footage.
    """
    is_gone = removals.rows(table)
    gone = table.filter(pa.array(is_gone))
    left = table.filter(pa.array(~is_gone)) if gone.num_rows else table
    left = _without_thumbnails(_without_names(left, removals), removals)
    left = without_named(left, removals)
    metadata = dict(table.schema.metadata or {})
    # Parts of probes are keyed by version and address of the source.
    is_scan = {"uri", "version"} <= set(table.column_names)
    lost = set(row_keys(gone, ("version", "uri")).to_pylist()) if is_scan else set()
    for field in (KEYS, FAILED):
        if field in metadata:
            keys = json.loads(metadata[field])
            rest = [key for key in keys if key not in lost and not names_removed(key, removals)]
            if len(rest) < len(keys):
                metadata[field] = json.dumps(rest).encode()
                left = left.replace_schema_metadata(metadata)
    return None if left is table else left


def names_removed(key: str, removals: Removals) -> bool:
    """Returns whether a part's key begins with a removed id or ends with a removed address."""
    if removal_hash(key.partition(" ")[0]) in removals.ids:
        return True
    _, tab, uri = key.partition("\t")
    return bool(tab) and removal_hash(uri) in removals.uris


def _without_names(table: pa.Table, removals: Removals) -> pa.Table:
    """Clears cells that name a removed clip as the original of a duplicate."""
    if _NAMING not in table.column_names:
        return table
    names = table[_NAMING]
    is_named = removals.named(names, removals.clip_ids)
    if not is_named.any():
        return table
    null = pa.scalar(None, names.type)
    return with_column(table, _NAMING, pc.if_else(pa.array(is_named), null, names))


def _without_thumbnails(table: pa.Table, removals: Removals) -> pa.Table:
    """Drops thumbnails of removed clips from tracks of sources that stay."""
    if not {"source_id", *_THUMBNAILS} <= set(table.column_names):
        return table
    ids = table["source_id"].to_pylist()
    rows = np.flatnonzero(removals.named(table["source_id"], removals.spans)).tolist()
    columns: dict[str, list[Any]] = {name: table[name].to_pylist() for name in _THUMBNAILS}
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


_WHOLE = frozenset({"clips", "shots", "vectors", "sources"})
"""Kinds of objects that every complete part of candidates has."""
_Sizes = Mapping[tuple[str, int], int]
"""New size in bytes of a part of tracks, by its name and its old size."""


@dataclass
class StateScrubbing:
    """Deletes removed footage from stored state; `n_replies` counts the deleted replies."""

    store: Store
    removals: Removals
    n_replies: int = 0

    def pairs(self) -> list[str]:
        """Returns the tables of similar pairs that name a removed clip; runs compute them anew."""
        return [n for n in self._own(ALIKE) if self._names(n, "clip_id") or self._names(n, "other")]

    def scrub(self, summaries: Summaries) -> None:
        """Rewrites or deletes objects with removed footage; `summaries` are rewritten already."""
        clip_ids = _surviving_clips(self.store, summaries)
        for folder in ("scan", "hashes"):
            for name in self._own(folder):
                self._rewrite(name)
        self._candidates(self._tracks())
        # Only an interrupted run leaves such objects, and the next run makes them again.
        unfinished = [name for name in self._own(SEGMENTS) if self._names(name, "source_id")]
        for folder in ("cuts", FRAME_PARTS, VALUES):
            for name in filter(_is_parquet, self._own(folder)):
                own = self._columns(name, "clip_id")["clip_id"]
                is_known = pc.all(pc.is_in(own, value_set=clip_ids)).as_py() is not False
                if not is_known or self._names(name, "clip_id"):
                    unfinished.append(name)
        for name in filter(_is_parquet, self._own(FAMILIES)):
            self._values(name, clip_ids)
        self.marks()
        # Codes mix the vectors of all clips.
        self.store.delete([*unfinished, *self._own(VECTORS)])
        self._replies(frozenset(_surviving_requests(self.store, summaries)))

    def _own(self, folder: str) -> Iterator[str]:
        names = [info.key for info in self.store.list(f"{folder}/")]
        return (name for name in names if is_own(name))

    def _columns(self, name: str, *columns: str) -> pa.Table:
        read = partial(pq.ParquetFile.read, columns=list(columns))
        return read_rows(self.store, name, read)

    def _names(self, name: str, column: str) -> bool:
        """Returns whether a part has rows or keys of removed footage."""
        table, removals = self._columns(name, column), self.removals
        if removals.named(table[column], removals.ids | removals.spans.keys()).any():
            return True
        return any(names_removed(key, removals) for key in Parts(self.store, "", "").keys(name))

    def _keep(self, name: str, left: pa.Table, rows_per_group: int | None = None) -> None:
        """Rewrites an object with the remaining rows; deletes it if empty, except candidates."""
        if left.num_rows or name.startswith(f"{CANDIDATES}/"):
            data = to_parquet(joined_chunks(left), name, rows_per_group=rows_per_group)
            self.store.write(name, data)
        else:
            self.store.delete([name])

    def _rewrite(self, name: str, rows_per_group: int | None = None) -> None:
        left = scrubbed(read_parquet(self.store, name), self.removals)
        if left is not None:
            self._keep(name, left, rows_per_group)

    def _values(self, name: str, clip_ids: pa.Array) -> None:
        """Deletes the values of removed and of unknown clips from a part."""
        table = read_parquet(self.store, name)
        stays = pc.is_in(table["clip_id"], value_set=clip_ids)
        left = table.filter(pc.and_(stays, pa.array(~self.removals.rows(table))))
        left = without_named(left, self.removals)
        if not left.equals(table):
            keys = json.dumps(left["key"].to_pylist()).encode()
            left = left.replace_schema_metadata({**(table.schema.metadata or {}), KEYS: keys})
            self._keep(name, left, 1 if VALUE in left.column_names else None)

    def marks(self) -> None:
        """Deletes marks of removed clips and of clips that show removed frames."""
        for name in mark_objects(self.store):
            take_out_removed(self.store, name, self.removals)

    def _tracks(self) -> _Sizes:
        prefix = f"{TRACKS}/{FRAMES}/"
        before = {info.key: info.bytes for info in self.store.list(prefix)}
        for name in self._own(TRACKS):
            if self._names(name, "source_id"):
                self._rewrite(name)
        after = {info.key: info.bytes for info in self.store.list(prefix)}
        return {(name, n): after[name] for name, n in before.items() if after.get(name, n) != n}

    def _candidates(self, sizes: _Sizes) -> None:
        """Rewrites candidates; the remaining ones stay valid with the rewritten tracks."""
        parts: dict[str, dict[str, str]] = {}
        for name in self._own(CANDIDATES):
            _, kind, part = name.split("/")
            parts.setdefault(part, {})[kind] = name
        for kinds in parts.values():
            if not kinds.keys() >= _WHOLE and kinds.keys() != {*PAYLOAD}:
                # Runs do not read incomplete parts.
                self.store.delete(kinds.values())
                continue
            for kind, name in kinds.items():
                if kind != "sources":
                    self._rewrite(name, ROWS_PER_GROUP.get(kind))
        for name in self._own(f"{CANDIDATES}/sources"):
            table = read_parquet(self.store, name)
            left = scrubbed(table, self.removals)
            left = _resized(table if left is None else left, sizes)
            left = self._recounted(left, f"{CANDIDATES}/clips/{name.rpartition('/')[2]}")
            if left is not table:
                self._keep(name, left)

    def _recounted(self, sources: pa.Table, clips: str) -> pa.Table:
        """Returns the rows of `sources` with the numbers of clips that are left."""
        is_less = self.removals.named(sources["source_id"], self.removals.spans)
        if not is_less.any() or not self.store.exists(clips):
            return sources
        ids = read_parquet(self.store, clips, ["source_id"])["source_id"].to_pylist()
        counts, old = Counter(ids), sources["n_clips"].to_pylist()
        rows = zip(is_less.tolist(), sources["source_id"].to_pylist(), old, strict=True)
        now = [counts[name] if less and count else count for less, name, count in rows]
        return sources if now == old else with_column(sources, "n_clips", pa.array(now, pa.int32()))

    def _replies(self, keys: frozenset[str]) -> None:
        """Deletes replies that no annotation uses, since these may be about removed clips."""
        wanted = pa.array(sorted(keys), pa.string())
        for name in self._own(REPLIES):
            table = read_parquet(self.store, name)
            left = table.filter(pc.is_in(table["key"], value_set=wanted))
            left = without_named(left, self.removals)
            self.n_replies += table.num_rows - left.num_rows
            if not left.equals(table) or not left.num_rows:
                self._keep(name, left)


def _is_parquet(name: str) -> bool:
    return name.endswith(".parquet")


def _surviving_requests(store: Store, summaries: Summaries) -> set[str]:
    """Returns the keys of all annotations and of the replies that they are made from."""
    keys: set[str] = set()
    for table in tables_of(store, summaries, "annotations", ("request_keys", "annotation_key")):
        for batch in table.to_batches(max_chunksize=1024):
            for row in batch.to_pylist():
                keys.update(filter(None, (row.get("annotation_key"), *(row["request_keys"] or ()))))
    return keys


def _surviving_clips(store: Store, summaries: Summaries) -> pa.Array:
    """Returns the ids of the clips of all snapshots and of stored candidates."""
    clips = [*tables_of(store, summaries, "clips", ("clip_id",)), *stored_clips(store)]
    chunks = [chunk for table in clips for chunk in table["clip_id"].chunks]
    return pa.chunked_array(chunks, pa.string()).unique()


def _resized(sources: pa.Table, sizes: _Sizes) -> pa.Table:
    """Returns the rows of `sources` with the present sizes of their tracks."""
    rows = zip(sources["track_part"].to_pylist(), sources["track_bytes"].to_pylist(), strict=True)
    now = pa.array([sizes.get((part, size), size) for part, size in rows], pa.int64())
    if pc.all(pc.equal(now, sources["track_bytes"])).as_py() is not False:
        return sources
    return with_column(sources, "track_bytes", now)

"""Deletes removed footage from the objects that runs store for later runs, in place."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curator.storage import Store
from curator.tables.candidate_store import FOLDER as CANDIDATES
from curator.tables.candidate_store import PAYLOAD
from curator.tables.checksums import read_parquet, read_rows
from curator.tables.family_store import row_keys
from curator.tables.long_columns import joined_chunks
from curator.tables.mark_table import mark_objects, take_out_removed
from curator.tables.named_ids import without_named
from curator.tables.out_layout import (
    KINDS,
    REPLIES,
    FolderLifetime,
    OnRemoval,
    StoredKind,
    is_own,
)
from curator.tables.parts import FAILED, KEYS, Parts, to_parquet, with_column
from curator.tables.removal_records import Removals, removal_hash
from curator.tables.track_items import FRAMES
from curator.tables.track_parts import TRACKS, without_removed_thumbnails
from curator.tools.removal.removal_selection import Summaries, stored_clips, tables_of

_NAMING = "duplicate_of"
"""Column that names another clip."""


def scrubbed(
    table: pa.Table, removals: Removals, unused: NDArray[np.bool_] | None = None
) -> pa.Table | None:
    """Returns a table without the rows, names, ids in texts and thumbnails of removed footage.

    Rows that are `unused`, bool [N], count as rows of removed footage. The keys of removed rows are
    deleted from the table's metadata. Returns None if the table holds nothing of removed footage.
    """
    is_gone = removals.rows(table)
    is_gone = is_gone if unused is None else is_gone | unused
    gone = table.filter(pa.array(is_gone))
    left = table.filter(pa.array(~is_gone)) if gone.num_rows else table
    left = without_removed_thumbnails(_without_names(left, removals), removals)
    left = without_named(left, removals)
    metadata = dict(table.schema.metadata or {})
    for field in (KEYS, FAILED):
        if field in metadata:
            keys, lost = json.loads(metadata[field]), _keys(gone)
            rest = [key for key in keys if key not in lost and not names_removed(key, removals)]
            if len(rest) < len(keys):
                metadata[field] = json.dumps(rest).encode()
                left = left.replace_schema_metadata(metadata)
    return None if left is table else left


def _keys(rows: pa.Table) -> set[str]:
    """Returns the keys of rows that do not begin with an id or end with an address."""
    if "key" in rows.column_names:
        return {*rows["key"].to_pylist()}
    # Parts of probes are keyed by version and address of the source.
    is_scan = {"uri", "version"} <= set(rows.column_names)
    return {*row_keys(rows, ("version", "uri")).to_pylist()} if is_scan else set()


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


_WHOLE = frozenset({"clips", "shots", "vectors", "sources"})
"""Kinds of objects that every complete part of candidates has."""


@dataclass
class StateScrubbing:
    """Deletes removed footage from stored state; `n_replies` counts the deleted replies."""

    store: Store
    removals: Removals
    n_replies: int = 0

    def named_by_snapshots(self) -> list[str]:
        """Returns the objects to delete that snapshots may name; runs make them again."""
        return [
            name
            for kind in KINDS
            if kind.on_removal is OnRemoval.OBJECT and kind.lifetime is FolderLifetime.NAMED
            for name in self._parts(kind.folder)
            if self._has_removed(name, kind, {})
        ]

    def scrub(self, summaries: Summaries) -> None:
        """Rewrites or deletes objects with removed footage; `summaries` are rewritten already."""
        used = {
            "clip_id": _surviving_clips(self.store, summaries),
            "key": pa.array(sorted(_surviving_requests(self.store, summaries)), pa.string()),
        }
        before = self._track_bytes()
        self._delete_incomplete()
        for kind in KINDS:
            match kind.on_removal:
                case OnRemoval.ROWS:
                    for name in self._parts(kind.folder):
                        self._take_out(name, kind, used)
                case OnRemoval.OBJECT:
                    parts = self._parts(kind.folder)
                    self.store.delete([n for n in parts if self._has_removed(n, kind, used)])
                case OnRemoval.FOLDER:
                    objects = self.store.list(f"{kind.folder}/")
                    self.store.delete([info.key for info in objects if is_own(info.key)])
        self._renew_sources(before)
        self.marks()

    def _parts(self, folder: str) -> list[str]:
        names = [info.key for info in self.store.list(f"{folder}/")]
        return [name for name in names if name.endswith(".parquet") and is_own(name)]

    def _has_removed(self, name: str, kind: StoredKind, used: Mapping[str, pa.Array]) -> bool:
        """Returns whether an object has rows or keys of removed footage, or rows without use."""
        read = partial(pq.ParquetFile.read, columns=[*kind.footage])
        table, removals = read_rows(self.store, name, read), self.removals
        if not {*kind.footage} <= {*table.column_names}:
            # Vectors for workers, which a killed run left, are of clips without names.
            return True
        ids = removals.ids | removals.spans.keys()
        if any(removals.named(table[column], ids).any() for column in kind.footage):
            return True
        if kind.used in used and _unused(table, kind, used).any():
            return True
        return any(names_removed(key, removals) for key in Parts(self.store, "", "").keys(name))

    def _take_out(self, name: str, kind: StoredKind, used: Mapping[str, pa.Array]) -> None:
        """Rewrites an object with the remaining rows; deletes it if it has none and no snapshot."""
        if kind.footage and not self._has_removed(name, kind, used):
            return
        table = read_parquet(self.store, name)
        unused = _unused(table, kind, used) if kind.used else None
        left = scrubbed(table, self.removals, unused)
        if left is None:
            return
        if kind.folder == REPLIES:
            self.n_replies += table.num_rows - left.num_rows
        if left.num_rows or kind.lifetime is FolderLifetime.NAMED:
            self._write(name, left)
        else:
            self.store.delete([name])

    def _write(self, name: str, table: pa.Table) -> None:
        """Replaces an object by a table, with as many rows in a row group."""
        groups = read_rows(self.store, name, _rows_per_group)
        data = to_parquet(joined_chunks(table), name, rows_per_group=groups)
        self.store.write(name, data)

    def marks(self) -> None:
        """Deletes marks of removed clips and of clips that show removed frames."""
        for name in mark_objects(self.store):
            take_out_removed(self.store, name, self.removals)

    def _track_bytes(self) -> dict[str, int]:
        return {info.key: info.bytes for info in self.store.list(f"{TRACKS}/{FRAMES}/")}

    def _delete_incomplete(self) -> None:
        """Deletes incomplete parts of candidates, which runs do not read."""
        parts: dict[str, dict[str, str]] = {}
        for name in self._parts(CANDIDATES):
            _, kind, part = name.split("/")
            parts.setdefault(part, {})[kind] = name
        for kinds in parts.values():
            if not kinds.keys() >= _WHOLE and kinds.keys() != {*PAYLOAD}:
                self.store.delete(kinds.values())

    def _renew_sources(self, before: Mapping[str, int]) -> None:
        """Keeps candidates valid: their sources name sizes of tracks, and count clips."""
        after = self._track_bytes()
        sizes = {(name, n): after[name] for name, n in before.items() if after.get(name, n) != n}
        for name in self._parts(f"{CANDIDATES}/sources"):
            table = read_parquet(self.store, name)
            left = _resized(table, sizes)
            left = self._recounted(left, f"{CANDIDATES}/clips/{name.rpartition('/')[2]}")
            if left is not table:
                self._write(name, left)

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


def _unused(table: pa.Table, kind: StoredKind, used: Mapping[str, pa.Array]) -> NDArray[np.bool_]:
    """Returns which rows no snapshot and no candidate uses, bool [N]."""
    is_used = pc.is_in(table[kind.used], value_set=used[kind.used])
    return ~np.asarray(is_used.to_numpy(zero_copy_only=False), bool)


def _rows_per_group(file: pq.ParquetFile) -> int | None:
    metadata = file.metadata
    return metadata.row_group(0).num_rows if metadata.num_row_groups > 1 else None


def _surviving_requests(store: Store, summaries: Summaries) -> set[str]:
    """Returns the keys of all annotations, and of the replies and texts that they are made from."""
    keys: set[str] = set()
    columns = ("request_keys", "annotation_key", "text_key")
    for table in tables_of(store, summaries, "annotations", columns):
        for batch in table.to_batches(max_chunksize=1024):
            for row in batch.to_pylist():
                own = (row.get("annotation_key"), row.get("text_key"))
                keys.update(filter(None, (*own, *(row["request_keys"] or ()))))
    return keys


def _surviving_clips(store: Store, summaries: Summaries) -> pa.Array:
    """Returns the ids of the clips of all snapshots and of stored candidates."""
    clips = [*tables_of(store, summaries, "clips", ("clip_id",)), *stored_clips(store)]
    chunks = [chunk for table in clips for chunk in table["clip_id"].chunks]
    return pa.chunked_array(chunks, pa.string()).unique()


def _resized(sources: pa.Table, sizes: Mapping[tuple[str, int], int]) -> pa.Table:
    """Returns the rows of `sources` with the present sizes of their tracks.

    `sizes` has them by the name of the part and its old size.
    """
    rows = zip(sources["track_part"].to_pylist(), sources["track_bytes"].to_pylist(), strict=True)
    now = pa.array([sizes.get((part, size), size) for part, size in rows], pa.int64())
    if pc.all(pc.equal(now, sources["track_bytes"])).as_py() is not False:
        return sources
    return with_column(sources, "track_bytes", now)

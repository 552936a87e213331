"""Takes removed footage out of rows: of tables, tracks, probes and candidates."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.tables.family_store import row_keys
from curator.tables.parts import FAILED, KEYS, with_column
from curator.tables.removal_records import Removals, removal_hash
from curator.tables.track_parts import shown_frames

_NAMING = "duplicate_of"
"""Column that names another clip."""
_THUMBNAILS = ("thumbnail_frame", "thumbnails")


def scrubbed(table: pa.Table, removals: Removals) -> pa.Table | None:
    """Returns a table without the rows, names and thumbnails of removed footage.

    Keys in its metadata go with the rows. None if nothing had to go.
    """
    is_gone = removals.rows(table)
    gone = table.filter(pa.array(is_gone))
    left = table.filter(pa.array(~is_gone)) if gone.num_rows else table
    left = _without_thumbnails(_without_names(left, removals), removals)
    metadata = dict(table.schema.metadata or {})
    # The keys by which probes of some sources are done.
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
    """Returns whether a key of a part begins with a removed id, or ends with a removed address."""
    if removal_hash(key.partition(" ")[0]) in removals.ids:
        return True
    _, tab, uri = key.partition("\t")
    return bool(tab) and removal_hash(uri) in removals.uris


def _without_names(table: pa.Table, removals: Removals) -> pa.Table:
    """Clears cells that name a removed clip as the one that stayed of duplicates."""
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

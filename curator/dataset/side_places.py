"""Finds members in side tars."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.tables.out_layout import SHARDS

PLACES_SCHEMA = pa.schema(
    {
        "clip_id": pa.string(), "shard": pa.string(), "member": pa.string(), "name": pa.string(),
        "offset": pa.int64(), "bytes": pa.int64(),
    }
)  # fmt: skip
"""A row per member: the tar of its sample, relative to `shards/`, the tar with the member, under
the output root, and where the member begins there."""
SIDE_COLUMNS = ("clip_id", "shard", "side_members")
"""Columns of `dataset.parquet` that `side_places` reads."""


def side_places(rows: pa.Table, manifest: Mapping[str, Any]) -> pa.Table:
    """Returns the places of all members in side tars, as `PLACES_SCHEMA` says.

    `rows` are rows of `dataset.parquet`; those of an older version have no such members.
    """
    names = {
        f"{entry['name']}\t{suffix}": f"{SHARDS}/{side['name']}"
        for entry in manifest["shards"]
        for suffix, side in entry.get("sides", {}).items()
    }
    if not names or "side_members" not in rows.column_names:
        return PLACES_SCHEMA.empty_table()
    listed = rows["side_members"].combine_chunks()
    of = rows.select(["clip_id", "shard"]).take(pc.list_parent_indices(listed))
    member, offset, n_bytes = pc.list_flatten(listed).flatten()
    keys = pc.binary_join_element_wise(of["shard"], member, "\t")
    found = pc.index_in(keys, value_set=pa.array(list(names), pa.string()))
    tars = pa.array(list(names.values()), pa.string()).take(found.combine_chunks())
    columns = [of["clip_id"], of["shard"], member, tars, offset, n_bytes]
    places = pa.table(columns, schema=PLACES_SCHEMA)
    return places.filter(pc.is_valid(places["name"]))

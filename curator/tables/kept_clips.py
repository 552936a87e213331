"""The kept clips of a snapshot, and those that meet a condition."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import UsageError
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.snapshot_store import find_summary, read_snapshot
from curator.tables.sql_condition import matching_clips


def kept_clips(store: Store, summary: Mapping[str, Any]) -> pa.Table:
    """Returns the rows of `clips` that the tars of a snapshot hold, with all columns.

    `shard` has the store key of a clip's tar, `key` its key in the tar, `mp4_offset` and
    `mp4_bytes` the place of its MP4 there.
    """
    parts = [read_parquet(store, name) for name in summary["tables"]["clips"]]
    kept = [part.filter(pc.equal(part["decision"], "kept")) for part in parts]
    return pa.concat_tables(kept, promote_options="permissive")


def selected_clips(store: Store, condition: str | None, *, snapshot: int | None = None) -> pa.Table:
    """Returns the kept clips of a snapshot that meet a condition.

    Args:
        store: Output root.
        condition: SQL after WHERE, over the columns of `clips`; None selects all.
        snapshot: Number of the snapshot; None for the newest.

    Raises:
        UsageError: The root has no finished run, or the condition is wrong or needs DuckDB.
    """
    summary = find_summary(store) if snapshot is None else read_snapshot(store, snapshot)
    if summary is None:
        raise UsageError(
            f"{store.uri} has no finished run, of which the table `clips` is needed; name OUT of a "
            "run, not its folder shards"
        )
    clips = kept_clips(store, summary)
    if condition is None:
        return clips
    ids = matching_clips(
        clips, condition, example="motion > 0.3 and duration_s < 10", instead="leave it out"
    )
    return clips.filter(pc.is_in(clips["clip_id"], value_set=pa.array(ids, pa.string())))

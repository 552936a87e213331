"""Sources of earlier runs that a run does not name: they stay, unless the user says otherwise."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.storage import Store
from curator.storage.metadata_columns import PREFIX
from curator.tables.checksums import read_parquet
from curator.tables.output_format import existing
from curator.tables.schemas import SOURCES_SCHEMA
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_table import SourceTable

CARRIED = "sources_of_earlier_runs"
"""Count in `work` of the summary: sources that stay although the run does not name them."""


def earlier_sources(store: Store, previous: Mapping[str, Any]) -> pa.Table:
    """Returns the rows of `sources` of the newest snapshot that did not fail.

    Args:
        store: Output root.
        previous: Summary of the snapshot; empty without one.
    """
    parts = [read_parquet(store, name) for name in existing(store, previous, "sources")]
    if not parts:
        return SOURCES_SCHEMA.empty_table()
    # Older versions had no generations.
    table = pa.concat_tables([*parts, SOURCES_SCHEMA.empty_table()], promote_options="default")
    return table.filter(pc.equal(table["outcome"], "done"))


def carry(earlier: pa.Table, sources: SourceTable, metadata: SourceMetadata) -> int:
    """Adds earlier sources that are not in a run, neither their address nor their content.

    Returns:
        Their number.
    """
    rows = sources.carry(earlier)
    names = [name for name in rows.column_names if name.startswith(PREFIX)]
    if names:
        for row in rows.select(["uri", *names]).to_pylist():
            uri = row.pop("uri")
            metadata.add(uri, {name: value for name, value in row.items() if value is not None})
    return int(rows.num_rows)

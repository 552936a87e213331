"""The vectors of the clips that a generation keeps, in one object, for the generations to come.

They are in `embeddings` too, among those of all clips: without this each addition would read all.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.fingerprints import fingerprint
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_rows import ClipColumns
from curator.tables.clip_vectors import StoredVectors
from curator.tables.parts import parquet_by_content

FOLDER = "alike"
JUDGED, KEPT = "judged", "kept_vectors"
"""Field of a summary, and the names of these objects in it."""
_COLUMNS = ["clip_id", "vector"]


def write_kept(store: Store, clips: ClipColumns, vectors: StoredVectors) -> str:
    """Writes the vectors of the kept clips of a decided generation; returns the object's name."""
    kept = _kept(clips.blocks(("clip_id", "decision")))
    return _write(store, vectors.blocks(), vectors.schema, kept)


def write_vectors(store: Store, vectors: NDArray[np.float32]) -> str:
    """Writes vectors alone, float32 [N, D], for workers; returns the object's name.

    Whoever writes them removes them; else the next commit does.
    """
    flat = pa.array(vectors.astype(np.float32, copy=False).ravel())
    column = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    table = pa.table({"vector": column})
    return _put(store, [table], table.schema)


def kept_vectors(store: Store, summary: Mapping[str, Any]) -> list[str]:
    """Returns objects with `clip_id` and `vector` of the clips that a snapshot keeps.

    Where the objects of `write_kept` are not there, they are made from the tables: after a run in
    `exact` mode, in which each changed bound would need new ones, and after `curate remove`.
    """
    names: list[str] | None = summary[JUDGED].get(KEPT)
    there = {info.key for info in store.list(f"{FOLDER}/")}
    if names is not None and there.issuperset(names):
        return names
    tables = summary["tables"]
    kept = _kept(read_parquet(store, name, ["clip_id", "decision"]) for name in tables["clips"])
    parts = (read_parquet(store, name, _COLUMNS) for name in tables["embeddings"])
    return [_write(store, [part], part.schema, kept) for part in parts if part.num_rows]


def _write(store: Store, tables: Iterable[pa.Table], schema: pa.Schema, kept: pa.Array) -> str:
    rows = (
        table.filter(pc.is_in(table["clip_id"], value_set=kept)).select(_COLUMNS)
        for table in tables
    )
    return _put(store, rows, pa.schema([schema.field(c) for c in _COLUMNS]))


def _put(store: Store, tables: Iterable[pa.Table], schema: pa.Schema) -> str:
    name = f"{FOLDER}/{fingerprint('kept vectors', 1)}-{'~' * 16}.parquet"
    name, data = parquet_by_content(tables, schema, name)
    store.write(name, data)
    return name


def _kept(clips: Iterable[pa.Table]) -> pa.Array:
    """Returns the ids of kept clips."""
    kept = [pa.array([], pa.string())]
    for block in clips:
        own = block["clip_id"].filter(pc.equal(block["decision"], "kept"))
        kept.append(own.combine_chunks())
    return pa.concat_arrays(kept)

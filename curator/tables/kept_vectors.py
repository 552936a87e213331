"""The vectors of the clips that a generation keeps, in one object, for the generations to come.

They are in `embeddings` too, among those of all clips: without this each addition would read all.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.fingerprints import fingerprint
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_rows import ClipColumns
from curator.tables.clip_vectors import StoredVectors
from curator.tables.parts import tables_to_parquet

FOLDER = "alike"
JUDGED, KEPT = "judged", "kept_vectors"
"""Field of a summary, and the names of these objects in it."""
_COLUMNS = ["clip_id", "vector"]


def write_kept(store: Store, clips: ClipColumns, vectors: StoredVectors) -> str:
    """Writes the vectors of the kept clips; returns the object's name.

    Args:
        store: Output root.
        clips: Of a generation, decided.
        vectors: Of these clips.
    """
    kept = _kept(clips.blocks(("clip_id", "decision")))
    rows = (
        block.filter(pc.is_in(block["clip_id"], value_set=kept)).select(_COLUMNS)
        for block in vectors.blocks()
    )
    schema = pa.schema([vectors.schema.field(name) for name in _COLUMNS])
    data = tables_to_parquet(rows, schema)
    named = hashlib.sha256(data).hexdigest()[:16]
    name = f"{FOLDER}/{fingerprint('kept vectors', 1)}-{named}.parquet"
    store.write(name, data)
    return name


def kept_vectors(store: Store, summary: Mapping[str, Any]) -> Iterator[pa.Table]:
    """Yields `clip_id` and `vector` of the clips that a snapshot keeps, some at a time.

    Where the objects of `write_kept` are not there, the tables are read: after a run in `exact`
    mode, in which each changed bound would need new ones, and after `curate remove`.
    """
    names = summary[JUDGED].get(KEPT)
    if names is not None and all(map(store.exists, names)):
        for name in names:
            yield read_parquet(store, name, _COLUMNS)
        return
    tables = summary["tables"]
    kept = _kept(read_parquet(store, name, ["clip_id", "decision"]) for name in tables["clips"])
    for name in tables["embeddings"]:
        vectors = read_parquet(store, name, _COLUMNS)
        yield vectors.filter(pc.is_in(vectors["clip_id"], value_set=kept))


def _kept(clips: Iterator[pa.Table]) -> pa.Array:
    """Returns the ids of kept clips."""
    kept = [pa.array([], pa.string())]
    for block in clips:
        own = block["clip_id"].filter(pc.equal(block["decision"], "kept"))
        kept.append(own.combine_chunks())
    return pa.concat_arrays(kept)

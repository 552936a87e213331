"""Computes the centroids of clusters anew, from the clips that stay.

A centroid is the mean of its cluster's embeddings, of unit length. Whoever has the embeddings of
the other clips can subtract them, so a centroid from before a removal reveals a removed clip: of a
cluster of two, all of it. Every centroid is computed anew, also those of clusters whose removed
clips are in no table any more, because `curate clean` took out their rows.

The clusters keep their numbers; a cluster without clips gets a vector of zeros.

Shape letters: K clusters, N clips, D embedding dimensions.
"""
# ruff: noqa: N806 - shape letters

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_vectors import as_matrix
from curator.tables.removal_records import Removals
from curator.tables.snapshot_store import CENTROIDS, CLUSTERS, DECIDED_WITH

_COLUMNS = ("clip_id", "source_id", "source_uri", "start_s", "end_s", "fps", "cluster")


def centroids_without(store: Store, summary: Mapping[str, Any], removals: Removals) -> str | None:
    """Returns the packed centroids of a snapshot; None for a snapshot without centroids.

    They depend only on embeddings of clips that are in the snapshot and not removed.
    """
    packed, described = (summary[DECIDED_WITH].get(name) for name in (CENTROIDS, CLUSTERS))
    if not packed or not described:
        return None
    n_dims = len(b64decode(packed)) // np.dtype(np.float16).itemsize // len(described)
    clips = pa.concat_tables(read_parquet(store, n, _COLUMNS) for n in summary["tables"]["clips"])
    stays_N = ~removals.rows(clips) & np.asarray(pc.is_valid(clips["cluster"]))
    clips = clips.filter(pa.array(stays_N))
    ids, cluster_N = clips["clip_id"], clips["cluster"].to_numpy()
    sums_KD = np.zeros((len(described), n_dims))
    name = "clip_embeddings" if summary["tables"].get("clip_embeddings") else "embeddings"
    for part in summary["tables"].get(name, ()):
        embeddings = read_parquet(store, part, ("clip_id", "vector")).combine_chunks()
        rows = pc.index_in(embeddings["clip_id"], value_set=ids).fill_null(-1).to_numpy()
        if (rows >= 0).any():
            vectors_ND = as_matrix(embeddings["vector"].combine_chunks())[rows >= 0]
            np.add.at(sums_KD, cluster_N[rows[rows >= 0]], vectors_ND)
    lengths_K = np.linalg.norm(sums_KD, axis=1, keepdims=True)
    centroids_KD = (sums_KD / lengths_K.clip(1e-12)).astype(np.float16)
    return b64encode(centroids_KD.tobytes()).decode()

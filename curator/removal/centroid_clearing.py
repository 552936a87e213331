"""Clears centroids that reveal a removed clip.

A centroid that is the mean of several clips stays. A cleared centroid becomes a vector of zeros, so
the other clusters keep their numbers.

Shape letters: K clusters, N clips, D embedding dimensions.
"""
# ruff: noqa: N806 - shape letters

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.stages.cluster.stage import CENTROIDS, CLUSTERS
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_vectors import as_matrix
from curator.tables.removal_records import Removals
from curator.tables.snapshot_store import JUDGED

_SAME = 0.9999
"""Cosine from which a centroid counts as the embedding of one clip.

Rounding to float16 lowers the cosine by at most 2**-23. The rest is a margin: a centroid that is so
close to an embedding shows the same clip.
"""
_COLUMNS = ("clip_id", "source_id", "source_uri", "start_s", "end_s", "fps", "cluster")


def without_removed(store: Store, summary: Mapping[str, Any], removals: Removals) -> str | None:
    """Returns the packed centroids of a snapshot, cleared; None for a snapshot without centroids.

    A centroid is cleared if its cluster has only removed clips, or if the centroid equals the
    embedding of a removed clip and of no other clip. The tables in `summary` must still have the
    rows of removed clips.
    """
    packed, described = (summary[JUDGED].get(name) for name in (CENTROIDS, CLUSTERS))
    if not packed or not described:
        return None
    centroids_KD = np.frombuffer(b64decode(packed), np.float16).reshape(len(described), -1).copy()
    clips = pa.concat_tables(read_parquet(store, n, _COLUMNS) for n in summary["tables"]["clips"])
    clips = clips.filter(pc.is_valid(clips["cluster"]))
    is_gone_N, cluster_N = removals.rows(clips), clips["cluster"].to_numpy()
    n_gone_K, n_left_K = (
        np.bincount(cluster_N[mask], minlength=len(described)) for mask in (is_gone_N, ~is_gone_N)
    )
    is_cleared_K = (n_gone_K > 0) & (n_left_K == 0)
    is_removed_K, is_another_K = np.zeros((2, len(described)), np.bool_)
    ids = clips["clip_id"]
    name = "clip_embeddings" if summary["tables"].get("clip_embeddings") else "embeddings"
    for part in summary["tables"].get(name, ()) if n_gone_K.any() else ():
        embeddings = read_parquet(store, part, ("clip_id", "vector")).combine_chunks()
        rows = pc.index_in(embeddings["clip_id"], value_set=ids).fill_null(-1).to_numpy()
        has_cluster = rows >= 0
        rows = rows[has_cluster]
        vectors_ND = as_matrix(embeddings["vector"].combine_chunks())[has_cluster]
        own_ND = centroids_KD[cluster_N[rows]].astype(np.float32)
        lengths_N = np.linalg.norm(vectors_ND, axis=1) * np.linalg.norm(own_ND, axis=1)
        rows = rows[np.einsum("nd,nd->n", vectors_ND, own_ND) >= _SAME * lengths_N]
        is_removed_K[cluster_N[rows[is_gone_N[rows]]]] = True
        is_another_K[cluster_N[rows[~is_gone_N[rows]]]] = True
    centroids_KD[is_cleared_K | (is_removed_K & ~is_another_K)] = 0
    return b64encode(centroids_KD.tobytes()).decode()

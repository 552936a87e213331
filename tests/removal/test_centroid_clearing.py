"""No centroid of a growing output is the embedding of a removed clip."""

from base64 import b64decode
from pathlib import Path
from typing import Any

import made_corpus
import numpy as np
import pytest

from curator.removal.snapshot_rewriting import SnapshotRewriting
from curator.storage import open_store
from curator.tables.checksums import read_parquet
from curator.tables.removal_records import Removals, removal_hash
from curator.tables.snapshot_store import read_snapshot, snapshot_numbers

N_CLIPS, N_SOURCES, N_CLUSTERS = 200, 4, 40
HOURS = 2 * 250 / 3600
"""Of the sources of one generation."""


def snapshots(out: Path) -> list[dict[str, Any]]:
    store = open_store(str(out))
    return [read_snapshot(store, number) for number in snapshot_numbers(store)]


def centroids(summary: dict[str, Any]) -> np.ndarray:
    packed = b64decode(summary["judged"]["centroids"])
    return np.frombuffer(packed, np.float16).reshape(N_CLUSTERS, -1)


def rows(out: Path, summary: dict[str, Any], table: str) -> list[dict[str, Any]]:
    store = open_store(str(out))
    return [r for name in summary["tables"][table] for r in read_parquet(store, name).to_pylist()]


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two generations; the clusters are those of the first one. Not to be changed."""
    out = tmp_path_factory.mktemp("growing") / "out"
    settings = [*made_corpus.SETTINGS, "run.mode=growing", f"run.generation_hours={HOURS}"]
    recipe = made_corpus.recipe_of([*settings, f"cluster.n={N_CLUSTERS}"])
    made_corpus.make(out, N_CLIPS, recipe)
    made_corpus.execute(out, recipe, N_SOURCES)
    return out


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_centroid_that_is_a_removed_clip_goes(
    growing: Path, tmp_path: Path, is_alone: bool
) -> None:
    """Pins clusters with removed clips alone, and with clips that joined them later."""
    out = made_corpus.copied(growing, tmp_path / "out")
    first, last = snapshots(out)
    members = [
        [row["clip_id"] for row in rows(out, summary, "clips") if row["cluster"] == cluster]
        for cluster in range(N_CLUSTERS)
        for summary in (first, last)
    ]
    sizes = [(len(a), len(b)) for a, b in zip(members[::2], members[1::2], strict=True)]
    cluster = next(k for k, (n, m) in enumerate(sizes) if n == 1 and (m == 1) == is_alone)
    (victim,) = members[2 * cluster]
    vectors = {row["clip_id"]: row["vector"] for row in rows(out, last, "embeddings")}
    assert np.dot(centroids(last)[cluster], vectors[victim]) > 0.9999
    removals = Removals(clip_ids=frozenset({removal_hash(victim)}), n_records=1)
    rewriting = SnapshotRewriting(open_store(str(out)), removals, (), {})
    others = np.arange(N_CLUSTERS) != cluster
    for before in (first, last):
        after = rewriting.rewrite(before).summary
        assert not centroids(after)[cluster].any()
        assert (centroids(after)[others] == centroids(before)[others]).all()
        assert victim not in [row["clip_id"] for row in rows(out, after, "clips")]

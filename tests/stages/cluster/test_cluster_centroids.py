"""Clusters of a growing output stay, and no centroid is the embedding of a removed clip."""

from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import made_corpus
import numpy as np
import pytest

from curator.storage import open_store
from curator.tables.checksums import read_parquet
from curator.tables.removal_records import Removals, removal_hash
from curator.tables.snapshot_store import read_snapshot, snapshot_numbers
from curator.tools.removal.snapshot_rewriting import SnapshotRewriting

N_CLIPS, N_SOURCES, N_CLUSTERS = 200, 4, 20
HOURS = 2 * 250 / 3600
"""Of the sources of one generation."""


def snapshots(out: Path) -> list[dict[str, Any]]:
    store = open_store(str(out))
    return [read_snapshot(store, number) for number in snapshot_numbers(store)]


def centroids(summary: dict[str, Any]) -> np.ndarray:
    packed = b64decode(summary["decided_with"]["centroids"])
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


def recovered(centroid: np.ndarray, others: np.ndarray, victim: np.ndarray) -> float:
    """Cosine of a clip and of what its centroid reveals to somebody who has the other clips.

    Embeddings have unit length, which gives the length of the sum: two solutions.
    """
    rest = others.sum(0)
    along = float(rest @ centroid)
    root = np.sqrt(max(along**2 - rest @ rest + 1, 0.0))
    found = [length * centroid - rest for length in (along + root, along - root)]
    return max(float(abs(f @ victim) / max(np.linalg.norm(f), 1e-9)) for f in found)


def test_clusters_of_the_first_generation_stay(growing: Path) -> None:
    """Pins that later generations join the clusters, and that the summary counts all clips."""
    found = snapshots(growing)
    assert len(found) > 1
    assert {summary["decided_with"]["centroids"] for summary in found} == {
        found[0]["decided_with"]["centroids"]
    }
    sizes = [one["n_clips"] for one in found[-1]["decided_with"]["clusters"]]
    clusters = Counter(row["cluster"] for row in rows(growing, found[-1], "clips"))
    assert sizes == [clusters[number] for number in range(N_CLUSTERS)]


@pytest.mark.parametrize("n_members", [1, 2, 3])
def test_no_centroid_reveals_a_removed_clip(growing: Path, tmp_path: Path, n_members: int) -> None:
    """Pins clusters of one, two and more clips, whose other clips are known."""
    out = made_corpus.copied(growing, tmp_path / "out")
    before = snapshots(out)
    vectors = {
        row["clip_id"]: np.array(row["vector"]) for row in rows(out, before[-1], "embeddings")
    }
    by_cluster: dict[int, list[str]] = {}
    for row in rows(out, before[0], "clips"):
        if row["cluster"] is not None:
            by_cluster.setdefault(row["cluster"], []).append(row["clip_id"])
    cluster, (victim, *rest) = min(
        ((k, ids) for k, ids in by_cluster.items() if len(ids) >= n_members),
        key=lambda item: len(item[1]),
    )
    known = np.array([vectors[name] for name in rest]).reshape(-1, len(vectors[victim]))
    for summary in before:
        assert recovered(centroids(summary)[cluster].astype(float), known, vectors[victim]) > 0.99
    removals = Removals(clip_ids=frozenset({removal_hash(victim)}), n_records=1)
    rewriting = SnapshotRewriting(open_store(str(out)), removals, (), {})
    for summary in before:
        after = centroids(rewriting.rewrite(summary).summary).astype(float)
        assert np.isfinite(after).all()
        for centroid in after:
            assert recovered(centroid, known, vectors[victim]) < 0.9
        there = rows(out, summary, "clips")
        ids = [r["clip_id"] for r in there if r["cluster"] == cluster and r["clip_id"] != victim]
        expected = sum((vectors[name] for name in ids), np.zeros(after.shape[1]))
        expected /= max(np.linalg.norm(expected), 1e-12)
        assert np.abs(after[cluster] - expected).max() < 0.002


def test_a_clip_whose_row_is_gone_is_in_no_centroid(growing: Path, tmp_path: Path) -> None:
    """Pins a removal by a version that left centroids as they were: another removal mends them."""
    out = made_corpus.copied(growing, tmp_path / "out")
    summary = snapshots(out)[0]
    gone = {row["clip_id"] for row in rows(out, summary, "clips") if row["cluster"] == 0}
    removals = Removals(clip_ids=frozenset(map(removal_hash, gone)), n_records=1)
    rewritten = SnapshotRewriting(open_store(str(out)), removals, (), {}).rewrite(summary).summary
    stale = {
        **rewritten,
        "decided_with": {
            **rewritten["decided_with"],
            "centroids": summary["decided_with"]["centroids"],
        },
    }
    other = Removals(clip_ids=frozenset({removal_hash("another")}), n_records=1)
    again = SnapshotRewriting(open_store(str(out)), other, (), {}).rewrite(stale).summary
    assert not centroids(again)[0].any()
    assert centroids(again)[1].any()

"""Clusters of meaning: every clip with a vector is in one, and the best of like clips stays."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from filtered_clips import run_stage
from pydantic import ValidationError

from curator.errors import RecipeError
from curator.models.catalogue import ModelEntry
from curator.models.weight_store import ModelStore
from curator.recipe import load_recipe
from curator.stages.cluster import stage
from curator.stages.cluster.config import ClusterConfig
from curator.stages.cluster.stage import WORDS, ClusterStage, semantic_duplicates
from curator.tables.clip_rows import ClipRows
from curator.tables.clip_vectors import vectors_table
from curator.tables.window_spans import WindowSpans
from tests.made_clips import clip_rows
from tests.tiny_clip import TINY

KINDS, EACH = 3, 8


def clips(n: int) -> ClipRows:
    """Clips whose quality falls with their number."""
    return clip_rows(
        {
            "clip_id": f"clip{number:02}", "decision": "kept", "reasons": [], "width": 640,
            "height": 360, "n_frames": 1000 - number, "bits_per_pixel": 0.1,
        }
        for number in range(n)
    )  # fmt: skip


def vectors(noise: float) -> np.ndarray:
    """Clips of three kinds in turn, float32 [24, 16]."""
    rng = np.random.default_rng(0)
    centres = np.eye(KINDS, 16)
    found = np.tile(centres, (EACH, 1)) + noise * rng.standard_normal((KINDS * EACH, 16))
    unit: np.ndarray = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit.astype(np.float32)


def decided(noise: float, without: int = 0, **config: Any) -> tuple[ClipRows, dict[str, Any]]:  # noqa: ANN401
    rows = clips(KINDS * EACH)
    named = [(row.clip_id, v) for row, v in zip(rows, vectors(noise), strict=True)][without:]
    left = run_stage(ClusterStage(ClusterConfig(**config)), rows, vectors_table(named))
    return rows, left


def test_clips_of_a_kind_are_in_one_cluster_and_the_summary_lists_them() -> None:
    rows, left = decided(0.02, n=KINDS)
    numbers = rows.values("cluster")
    assert all(len({numbers[kind + KINDS * k] for k in range(EACH)}) == 1 for kind in range(KINDS))
    assert len(set(numbers)) == KINDS
    assert {row.decision for row in rows} == {"kept"}
    assert [one["n_clips"] for one in left["clusters"]] == [EACH] * KINDS
    medoids = {one["cluster"]: one["medoid"] for one in left["clusters"]}
    of = dict(zip(rows.values("clip_id"), numbers, strict=True))
    assert all(of[medoid] == number for number, medoid in medoids.items())


def test_the_nearest_clips_of_the_largest_clusters_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage, "N_GALLERIES", 2)
    rows, left = decided(0.02, n=KINDS)
    of = dict(zip(rows.values("clip_id"), rows.values("cluster"), strict=True))
    first, second, last = left["clusters"]
    for one in (first, second):
        assert len(set(one["nearest"])) == EACH
        assert one["nearest"][0] == one["medoid"]
        assert {of[name] for name in one["nearest"]} == {one["cluster"]}
    assert "nearest" not in last


def test_words_tell_a_cluster_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the words of three kinds, and that clusters have none where the weights are missing."""
    entry = {"kind": "clip", "about": "", "config": TINY, "dim": 32, "file": "m", "licence": ""}
    (tmp_path / "catalogue.yaml").write_text(f"test-tiny: {entry}")
    (tmp_path / "test-tiny").mkdir()
    (tmp_path / "test-tiny" / "m").write_bytes(b"weights")
    models = ModelStore.at(str(tmp_path))
    clip = models.catalogue.find("test-tiny", "clip")

    def embedder(_: ModelEntry, weights: Path) -> Any:  # noqa: ANN401
        # "a beach" is of no kind and "the sea" is of all; then each word is of one kind.
        of_words = np.eye(KINDS, 16, dtype=np.float32)[np.arange(len(WORDS)) % KINDS]
        of_words *= np.linspace(1.0, 0.5, len(WORDS), dtype=np.float32)[:, None]
        of_words[0], of_words[1] = 0.0, np.eye(KINDS, 16, dtype=np.float32).sum(0)
        return lambda prompts: (of_words, 100.0)

    monkeypatch.setattr(stage, "text_embedder", embedder)
    rows = clips(KINDS * EACH)
    named = [(row.clip_id, v) for row, v in zip(rows, vectors(0.0), strict=True)]
    of_stage = ClusterStage(ClusterConfig(n=KINDS), clip=clip, models=models)
    left = run_stage(of_stage, rows, vectors_table(named))
    found = {one["medoid"]: one["words"] for one in left["clusters"]}
    kinds = {int(name[4:]) % KINDS: words for name, words in found.items()}
    assert kinds == {
        kind: [WORDS[n] for n in range(kind, 12, KINDS) if n > 1][:3] for kind in kinds
    }
    (tmp_path / "test-tiny" / "m").unlink()
    left = run_stage(of_stage, clips(KINDS * EACH), vectors_table(named))
    assert all("words" not in one for one in left["clusters"])


def test_clips_of_later_generations_get_the_clusters_of_the_first() -> None:
    growing = ClusterStage(ClusterConfig(n=KINDS), is_growing=True)
    left: dict[str, Any] = {}
    numbers: list[list[int]] = []
    for name, shown in (("a", vectors(0.02)), ("b", vectors(0.02)[KINDS - 1 :: KINDS]), ("c", [])):
        rows = clips(len(shown))
        for row in rows:
            row.clip_id = f"{name}{row.clip_id}"
        named = [(row.clip_id, v) for row, v in zip(rows, shown, strict=True)]
        left = run_stage(growing, rows, vectors_table(named), earlier=left)
        numbers.append(rows.values("cluster"))
    assert set(numbers[1]) == {numbers[0][KINDS - 1]}
    assert sorted(one["n_clips"] for one in left["clusters"]) == [EACH, EACH, 2 * EACH]
    assert all(one["medoid"].startswith("a") for one in left["clusters"])


def test_the_best_of_like_clips_stays_and_what_cannot_be_meant_is_refused() -> None:
    rows, _ = decided(0.005, n=KINDS, similarity=0.99)
    assert [row.clip_id for row in rows if row.decision == "kept"] == ["clip00", "clip01", "clip02"]
    rejected = [row for row in rows if row.decision == "rejected"]
    assert {row.reason for row in rejected} == {"semantic_duplicate"}
    assert all(int(row.duplicate_of[4:]) == int(row.clip_id[4:]) % KINDS for row in rejected)
    assert all(row.duplicate_similarity >= 0.99 for row in rejected)
    # A clip without a vector is in no cluster and stays.
    rows, _ = decided(0.005, without=2, n=KINDS, similarity=0.99)
    assert [(row.cluster, row.decision) for row in rows][:2] == [(None, "kept")] * 2
    # The second is like the first and the third, which are not like each other.
    angles = np.radians([0, 20, 40])
    chain = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    order, cluster = np.arange(3), np.zeros(3, np.int64)
    assert semantic_duplicates(chain, cluster, order, 0.9).tolist() == [0, 0, 2]
    assert semantic_duplicates(chain, np.array([0, 1, 1]), order, 0.9).tolist() == [0, 1, 1]
    # Without clusters the stage does nothing.
    rows, left = decided(0.02)
    assert (set(rows.values("cluster")), left) == ({None}, {})
    assert ClusterStage(ClusterConfig()).is_on is False
    # What cannot be meant is refused.
    with pytest.raises(ValidationError, match="similarity compares clips within clusters"):
        ClusterConfig(similarity=0.9)
    with pytest.raises(RecipeError, match=r"select.by names cluster, and cluster.n is null"):
        load_recipe("quickstart", ["select.by=[cluster]"])
    for wrong in ("cluster.n=2001", "cluster.similarity=0.9"):
        with pytest.raises(RecipeError, match=r"run.mode is growing"):
            load_recipe("quickstart", ["cluster.n=5", "run.mode=growing", wrong])
    assert pa.types.is_int32(clips(1).schema.field("cluster").type)


def test_like_windows_of_one_take_are_no_semantic_duplicates() -> None:
    """Pins windows of one film: two of a size in one take, one of another size; and of a copy."""
    frames, fps = [81, 81, 121, 81, 121], [16.0, 16.0, 24.0, 16.0, 24.0]
    start = np.array([0, 64, 0, 0, 0])
    end = start + np.round(np.array(frames) * 25 / np.array(fps)).astype(int)
    table = pa.table(
        {
            "source_id": ["film", "film", "film", "copy", "copy"],
            "window_frames": frames,
            "window_fps": fps,
            "shot": [0] * 5,
            "start_frame": start,
            "end_frame": end,
            "start_s": start / 25,
        }
    )
    vectors = np.ones((5, 4), np.float32) / 2
    cluster, order = np.zeros(5, np.int64), np.arange(5)
    windows = WindowSpans.of(table)
    assert windows is not None
    of = semantic_duplicates(vectors, cluster, order, 0.9, [windows.are_views])
    assert of.tolist() == [0, 1, 2, 0, 2]


@pytest.mark.parametrize(
    ("similarity", "expected"), [(0.93, [0.93, "null"]), (1.0, ["null"]), (None, ["null"])]
)
def test_a_semantic_duplicate_stays_above_its_similarity_or_without_the_comparison(
    similarity: float | None, expected: list[object]
) -> None:
    made = ClusterStage(ClusterConfig(n=2, similarity=0.9))
    row = SimpleNamespace(duplicate_similarity=similarity)
    found = list(made.remedies("semantic_duplicate", row))
    assert found == [{"cluster.similarity": value} for value in expected]
    assert list(made.remedies("duplicate", row)) == []
    assert made.compares_clips
    assert not ClusterStage(ClusterConfig(n=2)).compares_clips

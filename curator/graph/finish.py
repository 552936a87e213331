"""Commits a run: tables, report and `summary.json`, then the removal of what no longer counts."""

import json
import logging
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import curator
from curator.errors import StorageError
from curator.graph.source_table import SourceTable, SourceTotals
from curator.lake import SUMMARY, rows_to_table, write_table, write_table_part
from curator.models.perceptual import CLIP_DIM, PERCEPTUAL_MODEL
from curator.recipe import Recipe
from curator.stages.report import render_report
from curator.storage import Store
from curator.tables import CLIPS_SCHEMA, embeddings_schema

logger = logging.getLogger(__name__)

TABLES = ("sources", "shots", "clips", "embeddings", "clip_embeddings")
VERSIONS = ("av", "numpy", "opencv-python-headless", "pyarrow", "ray", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """All that a finished run leaves behind."""

    store: Store
    recipe: Recipe
    sources: SourceTable
    shots: pa.Table
    clips: list[dict[str, Any]]
    embeddings: Mapping[str, NDArray[np.float32]]
    clip_embeddings: Mapping[str, NDArray[np.float32]]
    thumbnails: Mapping[str, bytes]
    shards: list[dict[str, Any]]
    n_skipped_names: int
    seconds: Mapping[str, float]
    counts: Mapping[str, int]
    long_whole: Mapping[str, int]
    cpu_s: Callable[[], Mapping[str, float]]
    """CPU-seconds of the run up to the call, by what they went into."""
    cut: Mapping[str, Any]
    stamps: Mapping[str, str]


def read_summary(store: Store) -> dict[str, Any]:
    """Summary of the last finished run, or an empty one."""
    if not store.exists(SUMMARY):
        return {}
    summary: dict[str, Any] = json.loads(store.read(SUMMARY))
    return summary


def commit_run(run: Commit) -> dict[str, Any]:
    """Writes what readers see, `summary.json` last, and removes what an older run left.

    Returns:
        The summary.
    """
    kept = Counter(clip["source_id"] for clip in run.clips if clip["decision"] == "kept")
    totals = SourceTotals()
    names: dict[str, list[str]] = {"sources": []}
    for number, rows in enumerate(run.sources.rows(kept)):
        names["sources"].append(write_table_part(run.store, "sources", number, rows))
        totals.add(rows)
    tables = {
        "shots": run.shots,
        "clips": rows_to_table(run.clips, CLIPS_SCHEMA),
        "embeddings": _embeddings(run.embeddings, PERCEPTUAL_MODEL, CLIP_DIM),
    }
    if run.recipe.analyze.clip is not None:
        # A table of its own: the length of a vector is part of a column's type.
        tables["clip_embeddings"] = _embeddings(run.clip_embeddings, run.recipe.analyze.clip, 1)
    names |= {name: write_table(run.store, name, table) for name, table in tables.items()}
    summary = _summary(run, totals, names)
    page = render_report(
        summary=summary, sources=totals.failed_rows, clips=run.clips, thumbnails=run.thumbnails
    )
    run.store.write("report/index.html", page.encode())
    run.store.write("config.json", _json(_config(run)))
    run.store.write(SUMMARY, _json(summary))
    run.store.delete(_leftovers(run.store, names, run.stamps, run.shards))
    try:
        run.store.clean_temporary()
    except StorageError as error:
        # What killed writers left costs space, not correctness.
        logger.warning("unfinished objects were not all removed: %s", error)
    return summary


def _embeddings(
    embeddings: Mapping[str, NDArray[np.float32]], model: str, least_dim: int
) -> pa.Table:
    names = sorted(embeddings)
    vectors = [embeddings[name] for name in names]
    dim = len(vectors[0]) if vectors else least_dim
    flat = np.concatenate(vectors) if vectors else np.zeros(0, np.float32)
    schema = embeddings_schema(dim)
    return pa.table(
        [
            pa.array(names, pa.string()),
            pa.array([model] * len(names), pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), dim),
        ],
        schema=schema,
    )


def _summary(run: Commit, sources: SourceTotals, names: Mapping[str, list[str]]) -> dict[str, Any]:
    kept = [clip for clip in run.clips if clip["decision"] == "kept"]
    return {
        "curate_version": curator.__version__,
        "recipe": run.recipe.model_dump(mode="json"),
        "fingerprints": dict(run.stamps),
        "counts": {
            "sources": sources.n_sources,
            "done": sources.n_sources - sources.n_failed,
            "failed": sources.n_failed,
            "skipped_names": run.n_skipped_names,
            "by_error": _count(sources.by_error),
            "by_note": _count(sources.by_note),
            "clips": len(run.clips),
            "kept": len(kept),
            "rejected": len(run.clips) - len(kept),
            "by_reason": _count(c["reason"] for c in run.clips if c["decision"] == "rejected"),
            "by_cut_mode": _count(clip["cut_mode"] for clip in kept),
            "by_any_reason": _count(reason for c in run.clips for reason in c["reasons"]),
        },
        "work": dict(run.counts),
        "long_sources_analyzed_whole": dict(run.long_whole),
        "cut": dict(run.cut),
        "video_s": round(sources.video_s, 3),
        "source_bytes": sources.n_bytes,
        "kept_s": round(sum(clip["end_s"] - clip["start_s"] for clip in kept), 3),
        "stage_seconds": dict(run.seconds),
        "cpu_seconds": dict(run.cpu_s()),
        "shards": run.shards,
        "tables": dict(names),
        "versions": {"python": platform.python_version(), **{n: version(n) for n in VERSIONS}},
    }


def _count(values: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))


def _config(run: Commit) -> dict[str, Any]:
    return {"recipe": run.recipe.model_dump(mode="json"), "fingerprints": dict(run.stamps)}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"


def _leftovers(
    store: Store,
    names: Mapping[str, list[str]],
    stamps: Mapping[str, str],
    shards: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Objects of older runs: other parts of tables, other fingerprints, shards no longer named.

    Encoded clips lie in the shards now and segments in whole tracks, so that no part of `cuts` and
    of `segments` stays.
    """
    current = {part for parts in names.values() for part in parts}
    current |= {shard["name"] for shard in shards}
    old = [i.key for table in TABLES for i in store.list(f"{table}/") if i.key not in current]
    old += [info.key for info in store.list("shards/") if info.key not in current]
    old += [info.key for stage in ("cuts", "segments") for info in store.list(f"{stage}/")]
    for stage in ("scan", "tracks"):
        prefix = f"{stage}/{stamps[stage]}-"
        old += [i.key for i in store.list(f"{stage}/") if not i.key.startswith(prefix)]
    return old

"""A finished run made of tables alone: no source, no decode, no shards."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa

from curator.dataset.output_form import as_written
from curator.dataset.shard_index import set_files
from curator.executor.corpus_work import CorpusWork
from curator.matching.verify_pair import Match
from curator.measures.score_list import SCORES
from curator.pipeline import graph_of
from curator.recipe import Recipe
from curator.records.clips import FITTED, IN_MOMENT, SIZED, SPANNED, WINDOWED
from curator.records.cuts import CROP_COLUMNS
from curator.runs.commit_run import Commit, commit_run, kept_by_source, no_lease_check
from curator.runs.corpus import SHOT_ORDER, CorpusState
from curator.stages.propose.stage import ProposeStage
from curator.storage import Store
from curator.tables.candidate_store import Candidates, ProposedUnit, write_payload
from curator.tables.clip_vectors import StoredVectors, vectors_table
from curator.tables.corpus_tables import CorpusTables
from curator.tables.disk_table import SortedRows
from curator.tables.duplicate_pairs import PAIRS, NearDuplicatePairs, Pair
from curator.tables.fenced_store import FencedStore
from curator.tables.output_format import read_summary
from curator.tables.parts import Parts, rows_to_table
from curator.tables.schemas import (
    FOOTAGE_SCHEMA,
    PICTURES_SCHEMA,
    SHOTS_SCHEMA,
    candidates_schema,
)
from curator.tables.source_table import MEASURED_SCHEMA, SourceTable

TRACK_STAMP = "0" * 16
CLIPS_PER_SOURCE = 50


def candidates_table(n: int, **columns: Sequence[Any]) -> pa.Table:
    """Candidates of 1280x720 and 5 s, not HDR; other scores are 1 where nothing else is given."""
    numbers = range(n)
    values: dict[str, Sequence[Any]] = {
        "clip_id": [f"{(number * 2654435761) % 2**32:08x}{number:016x}" for number in numbers],
        "source_id": [f"{number // CLIPS_PER_SOURCE:032x}" for number in numbers],
        "source_uri": [f"/films/{number // CLIPS_PER_SOURCE:05}.mp4" for number in numbers],
        "medium": ["video"] * n,
        "shot": [number % CLIPS_PER_SOURCE for number in numbers],
        "start_frame": [number % CLIPS_PER_SOURCE * 150 for number in numbers],
        "end_frame": [number % CLIPS_PER_SOURCE * 150 + 150 for number in numbers],
        "start_s": [number % CLIPS_PER_SOURCE * 5.0 for number in numbers],
        "end_s": [number % CLIPS_PER_SOURCE * 5.0 + 5.0 for number in numbers],
        "start_pts": [number % CLIPS_PER_SOURCE * 150 for number in numbers],
        "end_pts": [number % CLIPS_PER_SOURCE * 150 + 150 for number in numbers],
        "time_base": ["1/30"] * n,
        "n_frames": [150] * n,
        "written_fps": [30.0] * n,
        "fps_fraction": ["30"] * n,
        "is_vfr": [False] * n,
        "width": [1280] * n,
        "height": [720] * n,
        "seconds": [5.0] * n,
        "content_type": [None] * n,
        "tags": [[]] * n,
        **{name: [float(name != "hdr")] * n for name in SCORES},
        **dict.fromkeys(
            (*CROP_COLUMNS, *FITTED, *WINDOWED, *SIZED, *SPANNED, *IN_MOMENT), [None] * n
        ),
    } | columns
    return pa.table(
        [pa.array(values[field.name], field.type) for field in candidates_schema(SCORES)],
        schema=candidates_schema(SCORES),
    )


def unlike_vectors(n: int, seed: int = 0) -> np.ndarray:
    """float32 [n, 64] of unit length, no two of which are alike."""
    vectors = np.random.default_rng(seed).standard_normal((n, 64)).astype(np.float32)
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


SAME = Match(
    offset_s=0.0, speed=1.0, start_s=0.0, overlap_s=5.0, share_a=1.0, share_b=1.0, mirrored=False,
    similarity=0.95, n_inliers=50,
)  # fmt: skip
"""The same footage from beginning to end."""


def store_pairs(
    store: Store, recipe: Recipe, stamp: str, ids: Sequence[str], pairs: Sequence[tuple[int, int]]
) -> None:
    """Stores that all clips were compared, and which show the same footage, by their numbers."""
    none = NearDuplicatePairs.of(None, recipe.dedup.search_fingerprint)
    found = [Pair(clip_id=ids[a], other=ids[b], match=SAME) for a, b in pairs]
    table = none.with_new(pa.array(ids, pa.string()), [], found).table()
    CorpusTables(store, stamp).write(PAIRS, table)


def alike(vectors: np.ndarray) -> list[tuple[int, int]]:
    """Numbers of vectors that are nearly the same."""
    return [(int(a), int(b)) for a, b in np.argwhere(np.tril(vectors @ vectors.T, -1) > 0.9)]


def thumbnail(number: int) -> bytes:
    """A small JPEG with a number in it."""
    picture = np.full((90, 160, 3), 60 + number * 37 % 150, np.uint8)
    cv2.putText(picture, str(number), (20, 60), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (255, 255, 255), 2)
    return io.BytesIO(cv2.imencode(".jpg", picture)[1].tobytes()).getvalue()


def candidates_fingerprint(recipe: Recipe) -> str:
    """Fingerprint of candidates of `TRACK_STAMP`."""
    stage = ProposeStage(recipe.propose, aggregates=recipe.scores.root)
    return stage.fingerprint({"tracks": TRACK_STAMP})


def store_candidates(
    store: Store, recipe: Recipe, clips: pa.Table, vectors: np.ndarray, *, pictures: bool = True
) -> Candidates:
    """Stores candidates as a run would have; all their tracks stand in one object."""
    ids = clips["clip_id"].to_pylist()
    none = pa.nulls(0, pa.string())
    luma = pa.nulls(0, pa.list_(pa.float32()))
    track = Parts(store, "tracks/frames", TRACK_STAMP).write(
        pa.table(
            {
                "source_id": none,
                "uri": none,
                "version": none,
                "luma_mean": luma,
                "luma_spread": luma,
            }
        ),
        clips["source_id"].unique().to_pylist(),
    )
    sources = [
        {"source_id": source, "uri": uri, "outcome": "done", "duration_s": 250.0, "notes": []}
        for source, uri in dict(
            zip(clips["source_id"].to_pylist(), clips["source_uri"].to_pylist(), strict=True)
        ).items()
    ]
    jpegs = [thumbnail(number) for number in range(min(len(ids), 200))]
    shown = [
        {"clip_id": name, "duration_s": 5.0, "jpeg": [jpegs[number % len(jpegs)]]}
        for number, name in enumerate(ids)
        if pictures
    ]
    candidates = Candidates(
        store, candidates_fingerprint(recipe), has_clip=recipe.analyze.clip is not None
    )
    payload = write_payload(
        store,
        candidates.fingerprint,
        FOOTAGE_SCHEMA.empty_table(),
        rows_to_table(shown, PICTURES_SCHEMA),
    )
    candidates.add(
        ProposedUnit(
            track_parts={row["source_id"]: track for row in sources},
            sources=rows_to_table(sources, MEASURED_SCHEMA),
            shots=SHOTS_SCHEMA.empty_table(),
            clips=clips,
            vectors=vectors_table(list(zip(ids, vectors, strict=True))),
            payload=payload,
        )
    )
    candidates.flush()
    store_pairs(store, recipe, candidates.fingerprint, ids, alike(vectors))
    return candidates


def finish_run(
    store: Store, recipe: Recipe, candidates: Candidates, clips: pa.Table, vectors: pa.Table
) -> dict[str, Any]:
    """Decides about candidates and commits, without cutting; returns the summary."""
    clips = as_written(clips, recipe.cut, recipe.shard)
    stored = StoredVectors.of(vectors)
    tables = CorpusTables(store, candidates.fingerprint)
    decided = CorpusState(
        clips, 1 << 30, vectors=lambda _: stored, tables=tables, footage=candidates.footage
    )
    for stage in graph_of(recipe).deciding():
        decided.decide(stage, CorpusWork(stage.name))
    for row in decided.rows.kept():
        row.cut_mode = "copy"
    return finish_rows(store, recipe, candidates, decided, stored)


def finish_rows(
    store: Store,
    recipe: Recipe,
    candidates: Candidates,
    decided: CorpusState,
    vectors: StoredVectors,
    **tables: StoredVectors,
) -> dict[str, Any]:
    """Commits clips that have been decided about; `tables` are further tables by name."""
    shots = SortedRows(SHOTS_SCHEMA, SHOT_ORDER, 0)
    facts = {
        "recipe": recipe.model_dump(mode="json"),
        "fingerprints": {"scan": "0", "tracks": TRACK_STAMP, "candidates": candidates.fingerprint},
        "listed_ns": 0,
        "rules": decided.carried_state["rules"],
        "reasons": graph_of(recipe).reasons(),
        "work": {},
        "long_sources_analyzed_whole": {},
        "cut": {},
        "stage_seconds": {},
        "cpu_seconds": {},
        "shards": [],
        "extensions": [],
        "decided_with": {},
        "candidates": sorted(
            candidates.names() | CorpusTables(store, candidates.fingerprint).names(PAIRS)
        ),
    }
    return commit_run(
        Commit(
            store=FencedStore(store, no_lease_check),
            previous=read_summary(store),
            facts=lambda: facts,
            sources=SourceTable().rows(kept_by_source(decided.clips)),
            clips=decided.clips,
            tables={
                "shots": (shots.blocks(), shots.schema),
                "embeddings": (vectors.blocks(), vectors.schema),
                **{name: (table.blocks(), table.schema) for name, table in tables.items()},
            },
            shard_files=set_files([], seed=0, fingerprint="0", made_by="a test"),
            pictures=candidates.pictures,
        )
    )


def made_out(
    out: str | Path, clips: pa.Table, recipe: Recipe, vectors: np.ndarray | None = None
) -> dict[str, Any]:
    """Makes a finished run; returns its summary."""
    from curator.storage import open_store

    store = open_store(str(out))
    vectors = unlike_vectors(clips.num_rows) if vectors is None else vectors
    candidates = store_candidates(store, recipe, clips, vectors)
    ids = clips["clip_id"].to_pylist()
    table = vectors_table(list(zip(ids, vectors, strict=True)))
    return finish_run(store, recipe, candidates, clips, table)

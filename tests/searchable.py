"""A finished run made of tables and footage, to be searched: no source, no decode, one tar."""

# ruff: noqa: N806 - shape letters

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from made_out import candidates_fingerprint, candidates_table, finish_rows, thumbnail

from curator.executor.corpus_work import CorpusWork
from curator.matching.clip_footage import ClipFootage
from curator.models.scene_network import SCENE_DIM, SCENE_MODEL
from curator.pipeline import graph_of
from curator.recipe import Recipe
from curator.runs.corpus import CorpusState
from curator.storage import open_store
from curator.tables.candidate_store import Candidates, ProposedUnit, write_payload
from curator.tables.clip_vectors import StoredVectors, vectors_table
from curator.tables.parts import rows_to_table
from curator.tables.schemas import FOOTAGE_SCHEMA, LUMA_HZ, PICTURES_SCHEMA, SHOTS_SCHEMA
from curator.tables.source_table import MEASURED_SCHEMA

SECONDS = (0.0, 2.0, 4.0)
"""Of the pictures of a made clip of 5 s."""


def unit_vectors(n: int, dim: int = SCENE_DIM, seed: int = 0) -> np.ndarray:
    """float32 [n, dim] of unit length, no two of which are alike."""
    vectors = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def made_footage(clip_id: str, number: int, vectors: np.ndarray) -> ClipFootage:
    """Footage of a clip of 5 s, whose luma says nothing."""
    n_luma = 5 * LUMA_HZ
    return ClipFootage(
        clip_id=clip_id, fps=LUMA_HZ, picture_s=np.array(SECONDS, np.float32),
        pictures=tuple(thumbnail(number) for _ in SECONDS),
        vector_s=np.array(SECONDS[: len(vectors)], np.float32), vectors_VD=vectors,
        luma_F=np.full(n_luma, 0.5, np.float32), luma_spread_F=np.full(n_luma, 0.1, np.float32),
    )  # fmt: skip


def searchable_out(
    out: Path,
    n: int,
    *,
    recipe: Mapping[str, Any] | None = None,
    footage: Mapping[int, ClipFootage] | None = None,
    clip_vectors: np.ndarray | None = None,
    captions: Mapping[int, str] | None = None,
    mp4: bytes = b"an mp4",
    **columns: Any,  # noqa: ANN401
) -> list[str]:
    """Makes a run of `n` clips; returns their ids.

    Clip i has pictures with the vectors 3 i to 3 i + 2 of `unit_vectors` and their mean, where
    `footage` by number gives no others. All kept clips have the bytes `mp4`.
    """
    store = open_store(str(out))
    settings = Recipe.model_validate({"dedup": {"enabled": False}, **(recipe or {})})
    clips = candidates_table(n, **columns)
    ids = clips["clip_id"].to_pylist()
    pictures_ND = unit_vectors(3 * n).reshape(n, 3, -1)
    shown = [made_footage(name, at, pictures_ND[at]) for at, name in enumerate(ids)]
    for number, other in (footage or {}).items():
        shown[number] = other
    vectors_ND = pictures_ND.mean(1) / np.linalg.norm(pictures_ND.mean(1), axis=1)[:, None]
    vectors = vectors_table(list(zip(ids, vectors_ND, strict=True)), model=SCENE_MODEL)
    candidates = _stored(store, settings, clips, vectors, dict(zip(ids, shown, strict=True)))
    stored = StoredVectors.of(vectors)
    decided = CorpusState(clips, 1 << 30, vectors=lambda _: stored)
    for stage in graph_of(settings).deciding():
        decided.decide(stage, CorpusWork(stage.name))
    for row in decided.rows:
        if row.decision == "kept":
            row.shard, row.key, row.mp4_offset = "shards/train-0.tar", row.clip_id, 512
            row.mp4_bytes, row.cut_mode = len(mp4), "copy"
        row.caption = (captions or {}).get(ids.index(row.clip_id))
    store.write("shards/train-0.tar", bytes(512) + mp4)
    tables = {}
    if clip_vectors is not None:
        rows = vectors_table(list(zip(ids, clip_vectors, strict=True)), model=settings.analyze.clip)
        tables["clip_embeddings"] = StoredVectors.of(rows)
    finish_rows(store, settings, candidates, decided, stored, **tables)
    return [str(name) for name in ids]


def _stored(
    store: Any,  # noqa: ANN401
    recipe: Recipe,
    clips: pa.Table,
    vectors: pa.Table,
    footage: Mapping[str, ClipFootage],
) -> Candidates:
    track = "tracks/frames/made.parquet"
    store.write(track, b"tracks")
    uris = dict(zip(clips["source_id"].to_pylist(), clips["source_uri"].to_pylist(), strict=True))
    sources = [
        {"source_id": source, "uri": uri, "outcome": "done", "duration_s": 250.0, "notes": []}
        for source, uri in uris.items()
    ]
    vectors_rows = [
        {"clip_id": name, "second": one.vector_s, "vector": one.vectors_VD.astype("f2").ravel()}
        for name, one in footage.items()
    ]
    pictures_rows = [
        {"clip_id": name, "duration_s": one.duration_s, "second": one.picture_s,
         "jpeg": list(one.pictures), "luma_mean": one.luma_F.astype("f2"),
         "luma_spread": one.luma_spread_F.astype("f2")}
        for name, one in footage.items()
    ]  # fmt: skip
    candidates = Candidates(store, candidates_fingerprint(recipe), has_clip=False)
    payload = write_payload(
        store,
        candidates.fingerprint,
        rows_to_table(vectors_rows, FOOTAGE_SCHEMA),
        rows_to_table(pictures_rows, PICTURES_SCHEMA),
    )
    candidates.add(
        ProposedUnit(
            track_parts=dict.fromkeys(uris, track),
            sources=rows_to_table(sources, MEASURED_SCHEMA),
            shots=SHOTS_SCHEMA.empty_table(),
            clips=clips,
            vectors=vectors,
            payload=payload,
        )
    )
    candidates.flush()
    return candidates

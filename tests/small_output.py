"""Runs over clips that are made, not decoded: milliseconds each, with the commit of a real run.

The steps that decide what stays under OUT are the package's own: repair, the newest summary, the
sources of earlier runs, the check for dropped clips, reuse of tars, the plan and packing of tars,
the commit, `clean`, `remove` and `verify`. Analysis, cut and captions are replaced.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from made_out import (
    TRACK_STAMP,
    candidates_table,
    store_candidates,
    unlike_vectors,
)
from made_samples import FPS, HEIGHT, WIDTH, made_mp4

from curator.executor.engine import Engine
from curator.measures.score_list import SCORES
from curator.pipeline import graph_of
from curator.recipe import Recipe
from curator.runs.commit_run import Commit, commit_run, kept_by_source, no_lease_check
from curator.runs.corpus import SHOT_ORDER
from curator.runs.dropped_clips import DropCheck
from curator.runs.generations import last_sources
from curator.runs.reference_clips import exclude_removed_sources
from curator.runs.repair import ALL, repair_objects, with_repair
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.reusable_shards import ReusableShards
from curator.stages.shard.shard_driver import Sharding
from curator.storage import open_store
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRows, reject
from curator.tables.clip_vectors import StoredVectors, vectors_table
from curator.tables.corpus_tables import CorpusTables
from curator.tables.disk_table import SortedRows
from curator.tables.fenced_store import FencedStore
from curator.tables.output_format import earlier_state, existing, refuse_lost_commit
from curator.tables.parts import Parts, read_parquet
from curator.tables.removal_records import finished_removals, read_removals
from curator.tables.schemas import SCAN_SCHEMA, SHOTS_SCHEMA, clips_schema
from curator.tables.snapshot_store import clean
from curator.tables.source_table import SourceTable
from curator.tools.removal.removing import (
    begin_removal,
    finish_removal,
    plan_removal,
    repair_before,
)

CLIPS = 3
"""Clips of a source."""
CONFIG = ShardConfig(
    resolutions=(HEIGHT,), aspects=("16,9",), lengths=(4,), max_bytes=1 << 16, min_bytes=0,
    val_share=0.0,
)  # fmt: skip
_RECIPE = Recipe()
_PLACE = ("clip_id", "shard", "mp4_offset", "mp4_bytes")


def source_id(number: int) -> str:
    return hashlib.sha256(f"source {number}".encode()).hexdigest()[:32]


def clip_id(number: int, clip: int) -> str:
    return hashlib.sha256(f"clip {number} {clip}".encode()).hexdigest()[:24]


@dataclass
class SmallOutput:
    """An output root, and the numbers of the sources that exist."""

    out: Path
    sources: set[int] = field(default_factory=set)

    def run(self, named: Collection[int], *, recipe: int = 0, replace: bool = False) -> None:
        """Runs over some sources; raises what a run raises.

        Recipe 0 keeps all clips, and each other recipe rejects some and describes them otherwise.
        """
        store = open_store(str(self.out))
        with_repair(store, lambda: self._run(sorted(named), recipe=recipe, replace=replace), ALL)

    def clean(self, keep: int) -> None:
        store = open_store(str(self.out))
        read_removals(store).require_finished(store.uri)
        refuse_lost_commit(store)
        clean(store, keep=keep)

    def remove(self, number: int) -> None:
        """Removes a source from all snapshots."""
        store = open_store(str(self.out))
        repair_before(store)
        begin_removal(store, plan_removal(store, "sources", [source_id(number)]))
        finish_removal(store)

    def finish_removal(self) -> None:
        store = open_store(str(self.out))
        repair_before(store)
        finish_removal(store)

    def _run(self, named: Sequence[int], *, recipe: int, replace: bool) -> None:
        store = open_store(str(self.out))
        removals = finished_removals(store)
        repair_objects(store)
        previous = earlier_state(store)
        sources = self._scanned(named)
        exclude_removed_sources(sources, removals)
        check = DropCheck(store, previous, replace=replace, unlisted=())
        earlier = last_sources(store, previous)
        if not replace:
            check.refuse_unread(sources)
            sources.carry(earlier)
        ids = sources.contents().to_pylist()
        generations = pa.array([1] * len(ids), pa.int32())
        numbers = pa.table({"source_id": pa.array(ids, pa.string()), "generation": generations})
        sources.set_generations(numbers)
        check.after_scan(sources)
        table = _candidates([number for number in range(99) if source_id(number) in set(ids)])
        vectors = unlike_vectors(table.num_rows)
        candidates = store_candidates(store, _RECIPE, table, vectors, pictures=False)
        sources.measured([
            {"source_id": i, "uri": u, "outcome": "done", "duration_s": 9.0, "notes": []}
            for u, i in sources.ids()
        ])  # fmt: skip
        clips = _decided(table, recipe)
        reusable = ReusableShards(store, previous)
        locations = self._cut(clips, previous, reusable)
        if previous:
            check.before_shard(sources, clips)
        engine = Engine(address=None, workers=1)
        sharding = Sharding(store, CONFIG, "0" * 16, engine, reusable=reusable)
        sharding.shard(clips, locations)
        shots = SortedRows(SHOTS_SCHEMA, SHOT_ORDER, 0)
        stored = StoredVectors.of(
            vectors_table(list(zip(table["clip_id"].to_pylist(), vectors, strict=True)))
        )
        facts = {
            "recipe": _RECIPE.model_dump(mode="json") | ({"number": recipe} if recipe else {}),
            "fingerprints": {
                "scan": "0", "tracks": TRACK_STAMP, "candidates": candidates.fingerprint,
            },
            "listed_ns": 0, "rules": [], "work": {}, "long_sources_analyzed_whole": {}, "cut": {},
            "reasons": graph_of(_RECIPE).reasons(),
            "stage_seconds": {}, "cpu_seconds": {}, "extensions": [], "decided_with": {},
            "shards": sharding.summary,
            "candidates": sorted(
                candidates.names()
                | CorpusTables(store, candidates.fingerprint).names("duplicate_pairs")
            ),
        }  # fmt: skip
        commit_run(
            Commit(
                store=FencedStore(store, no_lease_check),
                previous=previous,
                facts=lambda: facts,
                sources=sources.rows(kept_by_source(clips)),
                clips=clips,
                tables={
                    "shots": (shots.blocks(), shots.schema),
                    "embeddings": (stored.blocks(), stored.schema),
                },
                shard_files=sharding.files,
                pictures=lambda ids: {},
            )
        )

    def _scanned(self, named: Sequence[int]) -> SourceTable:
        sources = SourceTable()
        rows = [
            {"uri": f"/films/{number}.mp4", "bytes": 9, "version": "1",
             "source_id": source_id(number), "header_duration_s": 9.0}
            for number in named
            if number in self.sources
        ]  # fmt: skip
        sources.add_probes(pa.Table.from_pylist(rows, schema=SCAN_SCHEMA))
        return sources

    def _cut(
        self,
        clips: ClipRows,
        previous: Mapping[str, Any],
        reusable: ReusableShards,
    ) -> dict[str, Location]:
        """Finds the bytes of each kept clip: in a tar of the last run, or of its source."""
        store = reusable.store
        there = {
            row["clip_id"]: Location(
                name=row["shard"], offset=row["mp4_offset"], n_bytes=row["mp4_bytes"]
            )
            for part in existing(store, previous, "clips")
            for row in read_parquet(store, part, _PLACE).to_pylist()
            if row["shard"] in reusable.sizes
        }
        number_of = {source_id(number): number for number in range(99)}
        made: list[tuple[str, bytes]] = []
        for clip in clips.kept():
            mp4 = _mp4(clip.clip_id)
            clip.mp4_bytes, clip.mp4_sha256 = len(mp4), hashlib.sha256(mp4).hexdigest()
            clip.cut_mode, clip.audio = "encode", "none"
            if clip.clip_id in there:
                continue
            if number_of[clip.source_id] in self.sources:
                made.append((clip.clip_id, mp4))
            else:
                reject(clip, "cut_failed", detail="no such file")
        if made:
            parts = Parts(store, "cuts", "1" * 16)
            table = pa.table({"clip_id": [key for key, _ in made], "mp4": [mp4 for _, mp4 in made]})
            name = parts.write(table, [key for key, _ in made], one_row_groups=True)
            for row, (key, mp4) in enumerate(made):
                there[key] = Location(name=name, row=row, n_bytes=len(mp4))
        return there


def _mp4(key: str) -> bytes:
    return made_mp4(int(key[:2], 16) % 8, 5)


def _candidates(numbers: Sequence[int]) -> pa.Table:
    pairs = [(number, clip) for number in numbers for clip in range(CLIPS)]
    n = len(pairs)
    return candidates_table(
        n,
        clip_id=[clip_id(*pair) for pair in pairs],
        source_id=[source_id(number) for number, _ in pairs],
        source_uri=[f"/films/{number}.mp4" for number, _ in pairs],
        shot=[clip for _, clip in pairs],
        n_frames=[5] * n,
        written_fps=[float(FPS)] * n,
        fps_fraction=[str(FPS)] * n,
        width=[WIDTH] * n,
        height=[HEIGHT] * n,
    )


def _decided(candidates: pa.Table, recipe: int) -> ClipRows:
    rows = []
    for row in candidates.drop_columns(["seconds"]).to_pylist():
        is_out = recipe and int(row["clip_id"][-2:], 16) % 3 == recipe % 3
        decided = {"decision": "kept", "reasons": [], "caption": f"recipe {recipe}"}
        if is_out:
            reason = "motion_too_low"
            decided = {"decision": "rejected", "reason": reason, "reasons": [reason]}
        rows.append({**row, **decided})
    schema = clips_schema(SCORES)
    names = set(schema.names)
    return ClipRows(
        pa.Table.from_pylist([{k: v for k, v in r.items() if k in names} for r in rows], schema),
        schema,
    )

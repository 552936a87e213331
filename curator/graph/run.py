"""One run from listing to commit.

    listing -> scan -> analyze -> propose + filter -> dedup -> caption -> cut -> shard -> commit

What an earlier run stored and is still valid is read, not made again. Nothing that readers see
changes before the last step, which writes `summary.json` and then removes what no longer counts.
"""

import logging
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from curator.errors import ErrorCode
from curator.graph.engine import Engine, Resources, Step
from curator.graph.finish import Commit, commit_run, read_summary
from curator.graph.steps import (
    AnalyzeStep,
    AnalyzeUnit,
    CutGroup,
    CutOutcome,
    CutStep,
    ProposedUnit,
    ProposeStep,
    ScanStep,
    ShardStep,
    SourceRef,
)
from curator.graph.survivors import (
    caption_clips,
    mark_duplicates,
    place_samples,
    plan_samples,
    reject,
)
from curator.graph.units import pack
from curator.lake import Parts, table_rows
from curator.listing import ListedSource, SkippedName, UnlistedSource, list_sources
from curator.progress import Progress
from curator.recipe import Recipe
from curator.records import Note, Reason, Span
from curator.stages.analyze import analyze_fingerprint
from curator.stages.cut import cut_fingerprint
from curator.stages.scan import SCAN_SCHEMA, scan_fingerprint, scan_key
from curator.stages.shard import Location, plan_shards
from curator.storage import Store
from curator.tables import SHOTS_SCHEMA

logger = logging.getLogger(__name__)

INLINE_UNITS = 64
"""Units of stored tracks up to which arithmetic runs in the driver: cheaper than starting Ray."""
ANALYZE_UNIT_FRAMES = 1800
ANALYZE_UNIT_SOURCES = 32
SCAN_UNIT_SOURCES = 64
CUT_UNIT_S = 30.0
CUT_UNIT_CLIPS = 16


@dataclass(slots=True, kw_only=True)
class RunState:
    """What a run has found so far; the driver's memory grows with clips, not with pixels."""

    listed: list[SourceRef] = field(default_factory=list)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    n_skipped_names: int = 0
    shots: list[pa.Table] = field(default_factory=list)
    clips: list[dict[str, Any]] = field(default_factory=list)
    embeddings: dict[str, Any] = field(default_factory=dict)
    thumbnails: dict[str, bytes] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


class Run:
    """A run of one recipe over some sources.

    Args:
        store: Output root.
        recipe: Settings.
        engine: Where work is done.
        progress: Where it is shown.
    """

    def __init__(self, store: Store, recipe: Recipe, engine: Engine, progress: Progress) -> None:
        self._store = store
        self._recipe = recipe
        self._engine = engine
        self._progress = progress
        self._state = RunState()
        self._track_stamp = analyze_fingerprint(recipe.analyze)
        self._cut_stamp = cut_fingerprint(recipe.cut)
        self._track_part: dict[str, str] = {}
        self._first: dict[str, SourceRef] = {}
        self._previous = read_summary(store)

    def execute(self, arguments: Sequence[str], *, limit: int | None) -> dict[str, Any]:
        """Does the run.

        Args:
            arguments: Sources as the user named them.
            limit: Most sources.

        Returns:
            What `summary.json` holds.
        """
        with self._timed("list"):
            self._list(list_sources(arguments, limit=limit))
        with self._timed("scan"):
            self._scan()
        with self._timed("analyze"):
            self._analyze()
        state = self._state
        state.clips.sort(key=lambda c: (c["source_id"], c["start_pts"], c["end_pts"]))
        with self._timed("dedup"):
            mark_duplicates(state.clips, state.embeddings, self._recipe.dedup)
        with self._timed("caption"):
            caption_clips(state.clips, self._recipe.caption)
        with self._timed("cut"):
            locations = self._cut()
        with self._timed("shard"):
            shards = self._shard(locations)
        with self._timed("commit"):
            return self._commit(shards)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        self._progress.stage(stage)
        start = time.monotonic()
        yield
        self._state.seconds[stage] = round(time.monotonic() - start, 3)

    def _list(self, listed: Iterable[ListedSource | SkippedName | UnlistedSource]) -> None:
        state = self._state
        for item in listed:
            match item:
                case ListedSource():
                    ref = SourceRef(uri=item.uri, n_bytes=item.bytes, version=item.version)
                    state.listed.append(ref)
                case SkippedName():
                    state.n_skipped_names += 1
                case UnlistedSource():
                    self._fail(item.uri, "list", item.code, item.message)
        self._progress.sources(len(state.listed) + len(state.sources))

    def _fail(self, uri: str, stage: str, code: ErrorCode | str, message: str) -> None:
        row = self._state.sources.setdefault(uri, {"uri": uri})
        row |= {
            "outcome": "failed",
            "error_stage": stage,
            "error_code": str(code),
            "error_message": message,
        }

    def _scan(self) -> None:
        parts = Parts(self._store, "scan", scan_fingerprint())
        done = parts.done()
        wanted = {scan_key(ref.uri, ref.version): ref for ref in self._state.listed}
        stored: dict[str, set[str]] = {}
        for key in wanted:
            if key in done:
                stored.setdefault(done[key], set()).add(key)
        for name, keys in stored.items():
            self._take_probes(parts.read(name), keys)
        pending = [ref for key, ref in wanted.items() if key not in done]
        self._state.counts["sources_scanned"] = len(pending)
        step = Step(
            make=ScanStep,
            settings={"store": self._store, "stamp": parts.stamp},
            resources=Resources(cpus=0.5),
        )
        units = list(pack(pending, max_items=SCAN_UNIT_SOURCES))
        # Probing is reading headers: a few hundred are done before Ray has started.
        few = len(pending) <= INLINE_UNITS * 4
        run = self._engine.run_here if few else self._engine.run
        for table in run([step], units):
            self._take_probes(table, wanted)

    def _take_probes(self, table: pa.Table, wanted: Container[str]) -> None:
        # A part also has rows that it does not make done, such as of a file that was locked then.
        for row in table_rows(table.select(SCAN_SCHEMA.names)):
            if scan_key(row["uri"], row["version"]) not in wanted:
                continue
            row = {key: value for key, value in row.items() if value is not None}
            if "error_code" in row:
                row["outcome"] = "failed"
            row.pop("time_base", None)
            row.pop("fps", None)
            self._state.sources[row["uri"]] = row

    def _analyze(self) -> None:
        parts = Parts(self._store, "tracks", self._track_stamp)
        done = parts.done()
        firsts = self._first_of_each_content()
        stored: dict[str, list[SourceRef]] = {}
        pending: list[SourceRef] = []
        for ref in firsts:
            if (part := done.get(str(ref.source_id))) is not None:
                stored.setdefault(part, []).append(ref)
            else:
                pending.append(ref)
        self._state.counts["sources_analyzed"] = len(pending)
        self._progress.work(len(pending), sum(self._header_s(ref) for ref in pending))
        light = [AnalyzeUnit(sources=tuple(refs), part=part) for part, refs in stored.items()]
        self._propose(light, pending=False)
        pending.sort(key=lambda ref: (-self._header_frames(ref), ref.uri))
        units = [
            AnalyzeUnit(sources=tuple(group))
            for group in pack(
                pending,
                max_items=self._sources_per_unit(len(pending)),
                weight=self._header_frames,
                max_weight=ANALYZE_UNIT_FRAMES,
            )
        ]
        self._propose(units, pending=True)

    def _sources_per_unit(self, n_pending: int) -> int:
        """Enough units to keep all workers busy, few enough to make few objects."""
        per_worker = n_pending // (4 * self._engine.n_workers(max(1, n_pending)))
        return max(1, min(ANALYZE_UNIT_SOURCES, per_worker))

    def _header_s(self, ref: SourceRef) -> float:
        return self._state.sources[ref.uri].get("header_duration_s") or 0.0

    def _header_frames(self, ref: SourceRef) -> float:
        """About how many frames: the longest are begun first, so that none is left alone."""
        row = self._state.sources[ref.uri]
        return row.get("header_n_frames") or 30.0 * (row.get("header_duration_s") or 0.0)

    def _first_of_each_content(self) -> list[SourceRef]:
        first: dict[str, SourceRef] = {}
        for ref in sorted(self._state.listed, key=lambda ref: ref.uri):
            row = self._state.sources[ref.uri]
            if row.get("outcome") == "failed":
                continue
            ref = SourceRef(
                uri=ref.uri, n_bytes=ref.n_bytes, version=ref.version, source_id=row["source_id"]
            )
            first.setdefault(row["source_id"], ref)
        self._first = first
        return list(first.values())

    def _propose(self, units: list[AnalyzeUnit], *, pending: bool) -> None:
        if not units:
            return
        engine = self._engine
        in_ray = pending or len(units) > INLINE_UNITS
        workers = engine.n_workers(len(units))
        steps = [
            Step(
                make=AnalyzeStep,
                settings={
                    "store": self._store,
                    "stamp": self._track_stamp,
                    "config": self._recipe.analyze,
                    "threads": max(1, engine.n_cpus() // workers),
                    "log": engine.ledger() if in_ray else None,
                },
                resources=Resources(cpus=1),
                keeps_state=True,
            ),
            Step(
                make=ProposeStep,
                settings={
                    "store": self._store,
                    "stamp": self._track_stamp,
                    "recipe": self._recipe,
                },
                resources=Resources(cpus=0.5),
            ),
        ]
        with self._progress.polling(engine.progress):
            for proposed in (engine.run if in_ray else engine.run_here)(steps, units):
                self._take_proposed(proposed)

    def _take_proposed(self, proposed: ProposedUnit) -> None:
        state = self._state
        for row in proposed.sources:
            state.sources[row["uri"]] |= row
        state.shots.append(proposed.shots)
        state.clips += proposed.clips
        state.embeddings |= dict(proposed.embeddings)
        state.thumbnails |= dict(proposed.thumbnails)
        if proposed.part is not None:
            self._track_part |= {clip["source_id"]: proposed.part for clip in proposed.clips}
        self._progress.clips(sum(clip["decision"] == "kept" for clip in state.clips))

    def _cut(self) -> dict[str, Location]:
        """Encodes the survivors that no part or shard has yet; returns where each one is."""
        kept = [clip for clip in self._state.clips if clip["decision"] == "kept"]
        written = self._written_clips()
        missing = [clip for clip in kept if clip["clip_id"] not in written]
        self._state.counts["clips_cut"] = len(missing)
        groups = self._cut_groups(missing)
        units = list(
            pack(
                groups,
                max_items=CUT_UNIT_CLIPS,
                weight=lambda g: sum(span.n_frames for _, span in g.spans),
                max_weight=CUT_UNIT_S * 30,
            )
        )
        if units:
            self._progress.work(len(missing), 0.0)
            engine = self._engine
            workers = engine.n_workers(len(units))
            step = Step(
                make=CutStep,
                settings={
                    "store": self._store,
                    "stamp": self._cut_stamp,
                    "track_stamp": self._track_stamp,
                    "config": self._recipe.cut,
                    "max_pixels": self._recipe.analyze.max_pixels,
                    "threads": max(1, engine.n_cpus() // workers),
                    "log": engine.ledger(),
                },
                resources=Resources(cpus=1),
                keeps_state=True,
            )
            outcomes: dict[str, CutOutcome] = {}
            with self._progress.polling(engine.progress):
                for unit in engine.run([step], units):
                    outcomes |= {outcome.clip_id: outcome for outcome in unit}
            written |= self._cut_parts(set(outcomes))
            for clip in missing:
                outcome = outcomes[clip["clip_id"]]
                if outcome.error is not None:
                    reject(clip, Reason.CUT_FAILED, detail=outcome.error)
        for clip in kept:
            if clip["decision"] == "kept":
                facts, _ = written[clip["clip_id"]]
                clip |= facts | {"cut_fingerprint": self._cut_stamp}
        return {name: location for name, (_, location) in written.items()}

    def _cut_groups(self, missing: Sequence[dict[str, Any]]) -> list[CutGroup]:
        groups: list[CutGroup] = []
        by_source: dict[str, list[dict[str, Any]]] = {}
        for clip in missing:
            by_source.setdefault(clip["source_id"], []).append(clip)
        for source_id, clips in by_source.items():
            for chunk in pack(
                clips,
                max_items=CUT_UNIT_CLIPS,
                weight=lambda clip: clip["end_s"] - clip["start_s"],
                max_weight=CUT_UNIT_S,
            ):
                spans = tuple(
                    (
                        clip["clip_id"],
                        Span(
                            start_frame=clip["start_frame"],
                            end_frame=clip["end_frame"],
                            shot=clip["shot"],
                        ),
                    )
                    for clip in chunk
                )
                groups.append(
                    CutGroup(
                        source=self._first[source_id],
                        track_part=self._track_part[source_id],
                        spans=spans,
                    )
                )
        return groups

    def _written_clips(self) -> dict[str, tuple[dict[str, Any], Location]]:
        """Encoded clips that exist: in shards of the last finished run, or in parts of `cuts`."""
        written = self._cut_parts(None)
        standing = {info.key for info in self._store.list("shards/")}
        columns = (
            "clip_id", "n_frames", "width", "height", "mp4_bytes", "mp4_sha256", "shard",
            "mp4_offset", "cut_fingerprint",
        )  # fmt: skip
        for name in self._previous.get("tables", {}).get("clips", []):
            table = Parts(self._store, "clips", "").read(name, columns)
            for row in table_rows(table):
                if row["shard"] not in standing or row["cut_fingerprint"] != self._cut_stamp:
                    continue
                location = Location(
                    name=row["shard"], offset=row["mp4_offset"], n_bytes=row["mp4_bytes"]
                )
                written[row["clip_id"]] = (_cut_facts(row), location)
        return written

    def _cut_parts(self, only: set[str] | None) -> dict[str, tuple[dict[str, Any], Location]]:
        parts = Parts(self._store, "cuts", self._cut_stamp)
        written: dict[str, tuple[dict[str, Any], Location]] = {}
        columns = ("clip_id", "n_frames", "width", "height", "mp4_bytes", "mp4_sha256")
        for name in parts.names():
            for number, row in enumerate(table_rows(parts.read(name, columns))):
                if only is None or row["clip_id"] in only:
                    location = Location(name=name, row=number, n_bytes=row["mp4_bytes"])
                    written[row["clip_id"]] = (_cut_facts(row), location)
        return written

    def _shard(self, locations: Mapping[str, Location]) -> list[dict[str, Any]]:
        state = self._state
        plans = plan_shards(plan_samples(state.clips, locations, self._recipe), self._recipe.shard)
        shards = []
        standing = {info.key for info in self._store.list("shards/")}
        missing = [plan for plan in plans if plan.name not in standing]
        state.counts["shards_written"] = len(missing)
        step = Step(make=ShardStep, settings={"store": self._store}, resources=Resources(cpus=0.5))
        run = self._engine.run if self._engine.is_started else self._engine.run_here
        for _ in run([step], missing):
            pass
        clips = {clip["clip_id"]: clip for clip in state.clips}
        for plan in plans:
            shards.append(place_samples(plan, clips))
        return shards

    def _commit(self, shards: list[dict[str, Any]]) -> dict[str, Any]:
        state = self._state
        self._finish_sources()
        shots = pa.concat_tables([SHOTS_SCHEMA.empty_table(), *state.shots])
        return commit_run(
            Commit(
                store=self._store,
                recipe=self._recipe,
                sources=list(state.sources.values()),
                shots=shots.sort_by([("source_id", "ascending"), ("shot", "ascending")]),
                clips=state.clips,
                embeddings=state.embeddings,
                thumbnails=state.thumbnails,
                shards=shards,
                n_skipped_names=state.n_skipped_names,
                seconds=state.seconds,
                counts=dict(state.counts),
                stamps={
                    "scan": scan_fingerprint(),
                    "tracks": self._track_stamp,
                    "cuts": self._cut_stamp,
                },
            )
        )

    def _finish_sources(self) -> None:
        kept = Counter(c["source_id"] for c in self._state.clips if c["decision"] == "kept")
        for row in self._state.sources.values():
            source_id = row.get("source_id")
            first = self._first.get(source_id) if source_id is not None else None
            if first is None:
                continue
            if first.uri != row["uri"]:
                leader = self._state.sources[first.uri]
                own = {key: row[key] for key in ("uri", "bytes", "version")}
                row |= leader | own | {"n_shots": 0, "n_clips": 0, "n_kept": 0}
                if row["outcome"] == "done":
                    row["notes"] = [*row["notes"], str(Note.SAME_BYTES)]
            elif row.get("outcome") == "done":
                row["n_kept"] = kept[source_id]


def _cut_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("n_frames", "width", "height", "mp4_bytes", "mp4_sha256")}

"""One run from listing to commit.

    listing -> scan -> analyze -> propose -> filter -> dedup -> select -> cut -> shard -> commit

Captions are asked for while clips are cut, or before it where answers decide about them.

What an earlier run stored and is still valid is read, not made again. Nothing that readers see
changes before the last step, which writes `summary.json` and then removes what no longer counts.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from curator.errors import UsageError
from curator.executor.cpu_accounting import cpu_profile, mark_processes
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.executor.unit_worker import UnitWorker
from curator.executor.worker import Step
from curator.fingerprints import fingerprint
from curator.measures.scores import measures_used
from curator.models.weight_store import ModelStore
from curator.recipe import Recipe, semantics_of
from curator.records import SourceRef
from curator.stages.analyze.analysis_driver import Analyzing
from curator.stages.caption.measured_caption import measured_captions
from curator.stages.commit.commit_run import Commit, commit_run, kept_by_source
from curator.stages.cut.cut_driver import CutNeeds, Cutting
from curator.stages.cut.output_form import as_written
from curator.stages.cut.stage import CutStage, CutStageConfig
from curator.stages.dedup.pair_store import StoredPairs, remove_duplicates
from curator.stages.dedup.stage import DedupStage
from curator.stages.filter.judging import Decided, RuleCount, corpus_of, judge_table
from curator.stages.filter.rules import Bounds, resolve
from curator.stages.propose.candidate_store import Candidates
from curator.stages.propose.stage import KeepProposed, ProposedUnit, ProposeStage
from curator.stages.scan.config import ScanConfig
from curator.stages.scan.scan_driver import Scanning
from curator.stages.scan.source_listing import Listed, SkippedName, list_sources
from curator.stages.scan.stage import ScanStage
from curator.stages.select.stage import SelectStage
from curator.stages.shard.shard_driver import Sharding
from curator.storage import Store
from curator.storage.metadata_columns import PREFIX
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRows, sorted_columns
from curator.tables.clip_vectors import Vectors, like_vectors, vectors_table
from curator.tables.output_format import log_older, read_summary
from curator.tables.schemas import SHOTS_SCHEMA, candidates_schema, clips_schema, embeddings_schema
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_table import SourceTable
from curator.tables.track_parts import LoadTracks

if TYPE_CHECKING:
    from curator.stages.caption.caption_driver import Captioning

logger = logging.getLogger(__name__)

CLIP_ORDER = ("source_id", "start_pts", "end_pts")
SMALL_BYTES = 64 << 20
"""Bytes of sources that are likely small work; what they hold is not known before the scan."""


@dataclass(slots=True, kw_only=True)
class RunState:
    """What a run has found so far; the driver's memory grows with clips, not with pixels."""

    sources: SourceTable = field(default_factory=SourceTable)
    metadata: SourceMetadata = field(default_factory=SourceMetadata)
    n_skipped_names: int = 0
    shots: list[pa.Table] = field(default_factory=list)
    candidates: list[pa.Table] = field(default_factory=list)
    vectors: list[pa.Table] = field(default_factory=list)
    clip_vectors: list[pa.Table] = field(default_factory=list)
    all_vectors: pa.Table | None = None
    n_passed: int = 0
    """Candidates that pass the rules that need no other clip, for the display."""
    rules: list[RuleCount] = field(default_factory=list)
    clips: ClipRows = field(default_factory=lambda: _rows_of(candidates_schema().empty_table()))
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_s: Counter[str] = field(default_factory=Counter)
    long_whole: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    cut: dict[str, Any] = field(default_factory=dict)
    captioning: "Captioning | None" = None
    """Annotates clips, where the recipe asks a model."""


def _rows_of(candidates: pa.Table) -> ClipRows:
    return ClipRows(candidates.drop_columns(["seconds"]), clips_schema())


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
        self._semantics = semantics_of(recipe)
        measures = [extension.name for extension in measures_used()]
        self._analyzing = Analyzing(
            store,
            recipe.analyze,
            engine,
            progress,
            clip=self._semantics.clip,
            models=self._semantics.store,
            measures=measures,
        )
        self._propose = ProposeStage(
            recipe.propose,
            aggregates=recipe.scores.root,
            heads_stamp=self._semantics.heads_stamp,
            measures=measures,
        )
        stamp = self._propose.fingerprint({"tracks": self._analyzing.stamp})
        has_clip = recipe.analyze.clip is not None
        self._candidates = Candidates(store, stamp, has_clip=has_clip)
        self._pairs = StoredPairs(store, self._candidates.stamp)
        self._previous = read_summary(store)
        log_older(store, self._previous)
        mark_processes()

    def execute(self, arguments: Sequence[str], *, limit: int | None) -> dict[str, Any]:
        """Does the run.

        Args:
            arguments: Sources as the user named them.
            limit: Most sources.

        Returns:
            What `summary.json` holds.
        """
        sidecar_meta = self._recipe.scan.sidecar_meta
        listed = list_sources(arguments, limit=limit, sidecar_meta=sidecar_meta)
        self._scan(self._described(listed))
        self._check_metadata()
        self._check_replaces()
        with self._timed("analyze"):
            self._analyze()
        state, recipe = self._state, self._recipe
        with self._timed("filter"):
            self._filter()
        with self._timed("dedup"):
            dedup = DedupStage(self._recipe.dedup)
            remove_duplicates(dedup, state.clips, self._vectors(), self._pairs)
        with self._timed("select"):
            SelectStage(self._recipe.select).process(state.clips)
        if recipe.caption.annotates:
            # Imported here: runs that ask no model need nothing of it.
            from curator.stages.caption.caption_driver import Captioning

            # Without a finished run the server was asked before all work.
            state.captioning = Captioning(
                self._store,
                recipe.caption,
                self._engine,
                self._progress,
                checks=bool(self._previous),
            )
        with closing(state.captioning) if state.captioning is not None else nullcontext():
            locations = self._cut()
        with self._timed("shard"):
            sharding = self._shard(locations)
        with self._timed("commit"):
            return self._commit(sharding)

    def _described(self, listed: Iterable[Listed]) -> Iterator[Listed]:
        """Keeps what is said of sources as they pass."""
        for item in listed:
            if not isinstance(item, SkippedName) and item.metadata:
                self._state.metadata.add(item.uri, item.metadata)
            yield item

    def _check_metadata(self) -> None:
        metadata, recipe = self._state.metadata, self._recipe
        metadata.warn()
        numbers, texts = recipe.filters.metadata()
        metadata.check(numbers, [*texts, *(n for n in recipe.select.by if n.startswith(PREFIX))])

    def _check_replaces(self) -> None:
        """Refuses to replace a finished run by nothing.

        Raises:
            UsageError: No source can be read, and the run before had some that could.
        """
        n_done = self._previous.get("counts", {}).get("done", 0)
        sources = self._state.sources
        if n_done and next(sources.to_analyze(), None) is None:
            raise UsageError(
                f"no source of {len(sources)} can be read (the first: {sources.first_error()}); "
                f"{self._store.uri} holds a finished run over {n_done}, and would hold nothing: "
                "check what SOURCE names, or name another OUT"
            )

    def _cut(self) -> Mapping[str, Location]:
        """Cuts what is kept, and has it annotated before or meanwhile."""
        state, cutting, captioning = self._state, self._cutting(), self._state.captioning
        kept = kept_by_source(state.clips)
        sources, track_part = state.sources.find(kept), self._candidates.track_part
        order = None
        if captioning is not None:
            last = self._previous.get("tables", {}).get("annotations", ())
            captioning.begin(state.clips, annotations=last)
            if self._recipe.caption.decides:
                with self._timed("caption"):
                    cutting.refuse_hdr(state.clips)
                    captioning.before_cut(
                        partial(cutting.look, sources=sources, track_part=track_part)
                    )
                    captioning.apply(state.clips)
            else:
                order = captioning.order
        with self._timed("cut"):
            wanted = order if self._recipe.caption.asks else None
            locations = cutting.cut(state.clips, sources, track_part, wanted)
        with self._timed("caption"):
            if order is not None and captioning is not None:
                captioning.after_cut(locations)
                captioning.apply(state.clips)
            # A caption tells the length, and a copy may be shorter than what was proposed.
            measured_captions(state.clips, self._recipe.caption)
        if captioning is not None and self._semantics.clip is not None:
            self._align(captioning)
        state.cut = cutting.work
        state.counts["clips_cut"] = cutting.n_cut
        state.cpu_s.update(cutting.cpu_s)
        if captioning is not None:
            # Not by |=, which drops what is zero.
            state.counts.update(captioning.counts)
            state.cpu_s.update(captioning.cpu_s)
        return locations

    def _align(self, captioning: "Captioning") -> None:
        from curator.stages.caption.alignment_store import Alignments

        table, entry = self._clip_vectors(), self._semantics.clip
        if table is not None and entry is not None:
            found = Alignments(self._store, entry, self._semantics.store, self._engine)
            captioning.align(self._state.clips, found, Vectors(table))

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        self._progress.stage(stage)
        start = time.monotonic()
        yield
        seconds = self._state.seconds
        seconds[stage] = round(seconds.get(stage, 0.0) + time.monotonic() - start, 3)

    def _scan(self, listed: Iterable[Listed]) -> None:
        state, begun = self._state, time.monotonic()
        scanning = Scanning(
            ScanStage(ScanConfig()), self._store, self._engine, self._progress, state.sources
        )
        self._progress.stage("list")
        new = scanning.begin(listed)
        self._progress.stage("scan")
        if not self._previous and new and self._is_small(new):
            scanning.finish(then=self._preload)
        else:
            scanning.finish()
        state.n_skipped_names = scanning.n_skipped_names
        state.counts["sources_scanned"] = scanning.n_scanned
        state.cpu_s.update(scanning.cpu_s)
        state.seconds["list"] = round(scanning.list_s, 3)
        state.seconds["scan"] = round(time.monotonic() - begun - scanning.list_s, 3)

    def _preload(self) -> None:
        """Lets the process for small work load the modules of the analysis."""
        self._engine.preload(("torch", "cv2", "curator.stages.analyze.stage"))

    def _is_small(self, new: Sequence[SourceRef]) -> bool:
        """Whether the sources of a first run are likely small work."""
        n_bytes = sum(source.n_bytes for source in new)
        return n_bytes <= SMALL_BYTES and self._engine.is_small(len(new), 0)

    def _analyze(self) -> None:
        analyzing = self._analyzing
        sources = list(self._state.sources.to_analyze())
        stored = self._candidates.load({str(s.source_id): s.uri for s in sources})
        if stored is not None:
            self._take_candidates(stored)
        known = self._candidates.track_part
        missing = [s for s in sources if str(s.source_id) not in known]
        if missing:
            self._propose.heads = self._semantics.heads()
            analyzing.run(missing, self._propose_step(), self._take_proposed)
        self._candidates.flush()
        counts = analyzing.counts
        self._state.counts["sources_analyzed"] = counts.n_analyzed
        self._state.counts["segments_analyzed"] = counts.n_segments
        self._state.counts["sources_joined"] = counts.n_joined
        self._state.counts["gpu_batches_halved"] = counts.n_halved
        self._state.long_whole |= counts.whole
        self._state.cpu_s.update(analyzing.cpu_s)

    def _propose_step(self) -> Step:
        stage = self._propose
        return Step(
            make=UnitWorker,
            settings={
                "stage": stage,
                "load": LoadTracks(self._analyzing.tracks),
                "keep": KeepProposed(self._recipe.analyze.clip),
            },
            resources=stage.resources,
        )

    def _take_proposed(self, proposed: ProposedUnit) -> None:
        self._candidates.add(proposed)
        self._take_candidates(proposed)

    def _take_candidates(self, proposed: ProposedUnit) -> None:
        state = self._state
        clips = as_written(proposed.clips, self._recipe.cut, self._recipe.shard)
        clips = state.metadata.joined(clips, "source_uri")
        state.sources.measured(proposed.sources)
        state.shots.append(proposed.shots)
        state.candidates.append(clips)
        state.vectors.append(proposed.vectors)
        state.clip_vectors.append(proposed.clip_vectors)
        bounds = resolve(self._recipe.filters.root)
        state.n_passed += self._judged(clips, bounds).n_kept
        self._progress.clips(state.n_passed)

    def _judged(self, clips: pa.Table, bounds: Sequence[Bounds]) -> Decided:
        recipe = self._recipe
        return judge_table(
            clips,
            bounds,
            min_s=recipe.propose.min_s,
            min_frames=recipe.cut.length_frames,
            max_s=recipe.propose.max_s,
            shard=recipe.shard,
            semantic=recipe.semantic,
        )

    def _filter(self) -> None:
        """Judges all candidates: a bound by quantile needs every one of them."""
        state, recipe = self._state, self._recipe
        none = state.metadata.joined(candidates_schema().empty_table(), "source_uri")
        state.candidates.append(none)
        clips = sorted_columns(state.candidates, CLIP_ORDER)
        corpus = corpus_of(clips, min_s=recipe.propose.min_s)
        decided = self._judged(clips, resolve(recipe.filters.root, corpus))
        state.rules = decided.rules
        state.clips = _rows_of(decided.clips)

    def _vectors(self) -> pa.Table:
        """Vectors of all clips, by id."""
        state = self._state
        if state.all_vectors is None:
            tables = like_vectors([*state.vectors, vectors_table([])])
            state.vectors = []
            state.all_vectors = sorted_columns(tables, ["clip_id"])
        return state.all_vectors

    def _clip_vectors(self) -> pa.Table | None:
        """Embeddings of all clips by the CLIP model, by id; None without one."""
        if self._recipe.analyze.clip is None:
            return None
        state = self._state
        tables = like_vectors([*state.clip_vectors, embeddings_schema(1).empty_table()])
        state.clip_vectors = [sorted_columns(tables, ["clip_id"])]
        return state.clip_vectors[0]

    def _cutting(self) -> Cutting:
        recipe = self._recipe
        return Cutting(
            self._cut_config(),
            (),
            CutNeeds(min_s=recipe.propose.min_s, classes=recipe.shard),
            self._store,
            self._engine,
            self._progress,
            previous=self._previous,
        )

    def _cut_config(self) -> CutStageConfig:
        recipe = self._recipe
        return CutStageConfig(cut=recipe.cut, max_pixels=recipe.analyze.max_pixels)

    def _shard(self, locations: Mapping[str, Location]) -> Sharding:
        state, recipe = self._state, self._recipe
        sharding = Sharding(
            self._store,
            recipe.shard,
            fingerprint(recipe.model_dump(mode="json")),
            self._engine,
            previous=self._previous,
        )
        table = None
        if recipe.shard.embedding != "none":
            table = self._clip_vectors() if recipe.shard.embedding == "clip" else self._vectors()
        vectors = Vectors(table) if table is not None else None
        find = None
        if recipe.caption.embedding is not None:
            # Imported here: few recipes have captions embedded.
            from curator.stages.caption.caption_embeddings import text_vectors_of

            embedded = text_vectors_of(
                recipe.caption.embedding,
                ModelStore.at(recipe.models),
                state.clips,
                self._store,
                self._engine,
            )
            if embedded is not None:
                find = embedded.find
                state.counts["captions_embedded"] = embedded.n_made
                state.cpu_s.update(embedded.cpu_s)
        captioning = state.captioning
        told = captioning.sample if captioning is not None else None
        sharding.shard(state.clips, locations, vectors, find, told)
        state.counts["shards_written"] = sharding.n_written
        return sharding

    def _commit(self, sharding: Sharding) -> dict[str, Any]:
        state = self._state
        state.shots.append(SHOTS_SCHEMA.empty_table())
        captioning = state.captioning
        return commit_run(
            Commit(
                store=self._store,
                recipe=self._recipe.model_dump(mode="json"),
                sources=state.sources,
                metadata=state.metadata,
                shots=sorted_columns(state.shots, ("source_id", "shot")),
                clips=state.clips,
                rules=[rule.facts(self._recipe.filters.root) for rule in state.rules],
                embeddings=self._vectors(),
                clip_embeddings=self._clip_vectors(),
                annotations=captioning.tables() if captioning is not None else None,
                sidecars=captioning.sidecars if captioning is not None else None,
                pictures=self._candidates.pictures,
                candidates=self._candidates.names() | self._pairs.names(),
                shards=sharding.summary,
                shard_files=sharding.files,
                shard_names=sharding.names,
                n_skipped_names=state.n_skipped_names,
                seconds=state.seconds,
                counts=dict(state.counts),
                long_whole=dict(state.long_whole),
                cpu_s=lambda: cpu_profile(state.cpu_s),
                cut=state.cut,
                stamps={
                    "scan": ScanStage(ScanConfig()).fingerprint({}),
                    "tracks": self._analyzing.stamp,
                    "candidates": self._candidates.stamp,
                    "cuts": CutStage(self._cut_config()).fingerprint({}),
                },
            )
        )

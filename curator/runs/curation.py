"""One run from listing to commit: the stages of the graph, one after the other.

What an earlier run stored and is still valid is read, not made again. Nothing that readers see
changes before `commit`, which writes `summary.json` and then removes what no longer counts.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from curator.errors import ErrorCode
from curator.executor.cpu_accounting import cpu_profile, mark_processes
from curator.executor.engine import Engine
from curator.executor.host_resources import default_memory_bytes
from curator.executor.progress import Progress
from curator.executor.unit_worker import UnitWorker
from curator.executor.worker import Step
from curator.extensions import named
from curator.fingerprints import fingerprint
from curator.measures.score_list import measures_used
from curator.models.weight_store import ModelStore
from curator.pipeline import AnyStage, graph_of
from curator.recipe import Recipe, semantics_of
from curator.runs.corpus import Corpus, decide
from curator.runs.earlier_sources import CARRIED, carry, earlier_sources
from curator.runs.losses import Losses
from curator.runs.run_log import RunLog
from curator.runs.withheld import WITHHELD, withhold_sources, without_removed
from curator.stages.analyze.analysis_driver import Analyzing
from curator.stages.analyze.identity_driver import Identifying
from curator.stages.caption.captioners.captioner_list import captioner_extensions
from curator.stages.caption.measured_caption import measured_captions
from curator.stages.commit.commit_run import Commit, alone, kept_by_source
from curator.stages.cut.cut_driver import Cutting
from curator.stages.cut.output_form import as_written
from curator.stages.dedup.pair_store import StoredPairs
from curator.stages.propose.candidate_store import Candidates
from curator.stages.propose.stage import KeepProposed, ProposedUnit
from curator.stages.scan.scan_driver import Scanning
from curator.stages.scan.source_listing import (
    Listed,
    SkippedName,
    UnlistedSource,
    list_sources,
)
from curator.stages.shard.shard_driver import Sharding
from curator.stages.shard.standing_shards import StandingShards
from curator.storage import Store
from curator.storage.metadata_columns import PREFIX
from curator.tables.clip_locations import Location
from curator.tables.output_format import earlier_state, existing, log_older
from curator.tables.removal_records import finished_removals
from curator.tables.snapshot_store import EARLIER
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_table import SourceTable
from curator.tables.track_parts import LoadTracks

if TYPE_CHECKING:
    from curator.records.sources import SourceRef
    from curator.stages.caption.caption_driver import Captioning

SMALL_BYTES = 64 << 20
"""Bytes of sources that are likely small work; what they hold is not known before the scan."""


class Run:
    """A run of one recipe over some sources.

    Args:
        store: Output root.
        recipe: Settings.
        engine: Where work is done.
        progress: Where it is shown.
        check: Raises if this run may not write to the root any more.
        memory_bytes: What the columns of clips may take; None for a share of this machine.
    """

    def __init__(
        self,
        store: Store,
        recipe: Recipe,
        engine: Engine,
        progress: Progress,
        *,
        check: Callable[[], None] = alone,
        memory_bytes: int | None = None,
    ) -> None:
        self._check = check
        self._store, self._recipe = store, recipe
        self._engine, self._progress = engine, progress
        self._semantics = semantics_of(recipe)
        self._graph = graph_of(recipe)
        self._removals = finished_removals(store)
        self._previous = earlier_state(store)
        self._standing = StandingShards(store, self._previous)
        log_older(store, self._previous)
        self._log = RunLog(progress=progress)
        self._sources = SourceTable()
        self._metadata = SourceMetadata()
        self._corpus = Corpus(self._formed, memory_bytes or default_memory_bytes())
        self._stamps = self._graph.fingerprints()
        has_clip = recipe.analyze.clip is not None
        earlier = frozenset(self._previous.get(EARLIER, ()))
        stamp = self._stamps["propose"]
        self._candidates = Candidates(store, stamp, has_clip=has_clip, earlier=earlier)
        self._pairs = StoredPairs(store, stamp, earlier=earlier)
        self._captioning: Captioning | None = None
        self._locations: Mapping[str, Location] = {}
        self._arguments: Sequence[str] = ()
        self._listed_ns = 0
        self._limit: int | None = None
        self._unlisted: list[str] = []
        """Addresses that could not be listed or read."""
        mark_processes()

    def execute(
        self, arguments: Sequence[str], *, limit: int | None, replace: bool = False
    ) -> dict[str, Any]:
        """Runs the stages of the graph.

        Args:
            arguments: Sources as the user named them.
            limit: Most sources.
            replace: Whether OUT is to hold these sources alone; else they are added to those of
                earlier runs.

        Returns:
            What `summary.json` holds.

        Raises:
            UsageError: Clips would be lost that may not.
        """
        self._arguments, self._limit = arguments, limit
        self._losses = Losses(self._store, self._previous, replace=replace)
        self._replace = replace
        drivers: Mapping[str, Callable[[Any], Any]] = {
            "scan": self._scan,
            "analyze": self._analyze,
            "filter": self._filter,
            "caption": self._caption,
            "cut": self._cut,
            "shard": self._shard,
            "commit": self._commit,
        } | {stage.name: self._decide for stage in self._graph.deciding()}
        result: Any = None
        try:
            for stage in self._graph:
                # `propose` runs in the chain of `analyze`, stages that change pixels in `cut`.
                if stage.name in drivers:
                    self._check()
                    result = drivers[stage.name](stage)
        finally:
            if self._captioning is not None:
                self._captioning.close()
        summary: dict[str, Any] = result
        return summary

    def _scan(self, stage: Any) -> None:  # noqa: ANN401 - the stage of that name
        log, begun = self._log, time.monotonic()
        self._listed_ns = time.time_ns()
        scanning = Scanning(
            stage, self._store, self._engine, self._progress, self._sources, self._removals
        )
        self._progress.stage("list")
        new = scanning.begin(self._listed(stage.config.sidecar_meta))
        self._progress.stage("scan")
        if not self._previous and new and self._is_small(new):
            scanning.finish(then=self._preload)
        else:
            scanning.finish()
        identifying = Identifying(
            self._store,
            self._recipe.analyze,
            self._engine,
            self._progress,
            sources=self._sources,
            previous=self._previous,
            since_ns=self._listed_ns,
        )
        identifying.run()
        withhold_sources(self._sources, self._removals)
        log.cpu_s.update(identifying.cpu_s)
        log.counts["skipped_names"] = scanning.n_skipped_names
        log.counts["sources_scanned"] = scanning.n_scanned
        log.cpu_s.update(scanning.cpu_s)
        log.seconds["list"] = round(scanning.list_s, 3)
        log.seconds["scan"] = round(time.monotonic() - begun - scanning.list_s, 3)
        if not self._replace:
            self._losses.refuse_unread(self._sources)
            self._carry()
        self._check_metadata()
        self._losses.after_scan(self._sources, self._unlisted)

    def _listed(self, sidecar_meta: bool) -> Iterator[Listed]:
        """The listing; keeps the metadata of sources as they pass."""
        for item in list_sources(self._arguments, limit=self._limit, sidecar_meta=sidecar_meta):
            if isinstance(item, UnlistedSource) and item.code is ErrorCode.UNREADABLE:
                self._unlisted.append(item.uri)
            if not isinstance(item, SkippedName) and item.metadata:
                self._metadata.add(item.uri, item.metadata)
            yield item

    def _carry(self) -> None:
        """Goes on with the sources of earlier runs that this one does not name."""
        earlier = earlier_sources(self._store, self._previous)
        self._log.counts[CARRIED] = carry(earlier, self._sources, self._metadata)

    def _check_metadata(self) -> None:
        self._metadata.warn()
        numbers, texts = self._recipe.filters.metadata()
        groups = [name for name in self._recipe.select.by if name.startswith(PREFIX)]
        self._metadata.check(numbers, [*texts, *groups])

    def _formed(self, clips: pa.Table) -> pa.Table:
        """Candidates as they would be written, with the metadata of their sources."""
        formed = as_written(clips, self._recipe.cut, self._recipe.shard)
        return self._metadata.joined(formed, "source_uri")

    def _preload(self) -> None:
        """Lets the process for small work load the modules of the analysis."""
        self._engine.preload(("torch", "cv2", "curator.stages.analyze.stage"))

    def _is_small(self, new: "Sequence[SourceRef]") -> bool:
        """Whether the sources of a first run are likely small work."""
        n_bytes = sum(source.n_bytes for source in new)
        return n_bytes <= SMALL_BYTES and self._engine.is_small(len(new), 0)

    def _analyze(self, stage: Any) -> None:  # noqa: ANN401 - the stage of that name
        """Analyzes what has no candidates yet, and proposes clips in the same processes."""
        log = self._log
        with log.timed("analyze"):
            analyzing = Analyzing(
                self._store,
                stage.config,
                self._engine,
                self._progress,
                clip=self._semantics.clip,
                models=self._semantics.store,
                measures=[extension.name for extension in measures_used()],
                removals=self._removals,
            )
            sources = list(self._sources.to_analyze())
            for stored in self._candidates.load({str(s.source_id): s.uri for s in sources}):
                self._take(stored)
            known = self._candidates.track_part
            missing = [s for s in sources if str(s.source_id) not in known]
            if missing:
                analyzing.run(missing, self._propose_step(analyzing), self._take_proposed)
            self._candidates.flush()
        counts = analyzing.counts
        log.counts["sources_analyzed"] = counts.n_analyzed
        log.counts["segments_analyzed"] = counts.n_segments
        log.counts["sources_joined"] = counts.n_joined
        log.counts["gpu_batches_halved"] = counts.n_halved
        log.long_whole |= counts.whole
        log.cpu_s.update(analyzing.cpu_s)

    def _propose_step(self, analyzing: Analyzing) -> Step:
        stage = self._graph["propose"]
        stage.heads = self._semantics.heads()
        return Step(
            make=UnitWorker,
            settings={
                "stage": stage,
                "load": LoadTracks(analyzing.tracks),
                "keep": KeepProposed(self._recipe.analyze.clip),
            },
            resources=stage.resources,
        )

    def _take_proposed(self, proposed: ProposedUnit) -> None:
        proposed, n_withheld = without_removed(proposed, self._removals)
        if n_withheld:
            self._log.counts[WITHHELD] += n_withheld
        self._candidates.add(proposed)
        self._take(proposed)

    def _take(self, proposed: ProposedUnit) -> None:
        self._sources.measured(proposed.sources)
        clips = self._corpus.add(proposed)
        self._log.counts["n_passed"] += self._graph["filter"].n_passing(clips)
        self._progress.clips(self._log.counts["n_passed"])

    def _filter(self, stage: Any) -> None:  # noqa: ANN401 - the stage of that name
        with self._log.timed("filter"):
            self._corpus.judge(stage)

    def _decide(self, stage: AnyStage) -> None:
        with self._log.timed(stage.name):
            decide(stage, self._corpus.rows, self._corpus.vectors, self._pairs)

    def _cutting(self) -> Cutting:
        stage = self._graph["cut"]
        return Cutting(
            stage.config,
            stage.pixels,
            self._store,
            self._engine,
            self._progress,
            min_s=self._recipe.propose.min_s,
            buckets=self._recipe.shard,
            previous=self._previous,
            standing=lambda: self._standing.sizes,
        )

    def _caption(self, stage: Any) -> None:  # noqa: ANN401 - the stage of that name
        """Annotates clips before they are cut, where answers decide about them; else with them."""
        if not self._recipe.caption.annotates:
            return
        # Imported here: runs that ask no model need nothing of it.
        from curator.stages.caption.caption_driver import Captioning

        # Without a finished run the server was asked before all work.
        captioning = self._captioning = Captioning(
            self._store,
            stage.config,
            self._engine,
            self._progress,
            self._corpus.rows,
            checks=bool(self._previous),
            pixels=self._graph.pixels_stamp(),
            annotations=existing(self._store, self._previous, "annotations"),
        )
        if not stage.config.decides:
            return
        cutting, clips = self._cutting(), self._corpus.rows
        with self._log.timed("caption"):
            cutting.refuse_hdr(clips)
            captioning.before_cut(partial(cutting.look, **self._origins()))
            captioning.apply(clips)
        self._log.cpu_s.update(cutting.cpu_s)

    def _origins(self) -> dict[str, Any]:
        """Sources of the kept clips, and the parts that have their tracks."""
        kept = kept_by_source(self._corpus.rows)
        return {"sources": self._sources.find(kept), "track_part": self._candidates.track_part}

    def _cut(self, stage: Any) -> None:  # noqa: ANN401 - the stage of that name
        """Cuts what is kept, and takes frames for captions on the way."""
        log, captioning, caption = self._log, self._captioning, self._recipe.caption
        cutting, clips = self._cutting(), self._corpus.rows
        is_open = captioning is not None and not caption.decides
        order = captioning.order if captioning is not None and is_open and caption.asks else None
        with log.timed("cut"):
            self._locations = cutting.cut(clips, order=order, **self._origins())
        with log.timed("caption"):
            if captioning is not None and is_open:
                captioning.after_cut(self._locations)
                captioning.apply(clips)
            # A caption tells the length, and a copy may be shorter than its candidate.
            measured_captions(clips, caption)
        if captioning is not None:
            self._align(captioning)
            # Not by |=, which drops what is zero.
            log.counts.update(captioning.counts)
            log.cpu_s.update(captioning.cpu_s)
        log.cut = cutting.work
        log.counts["clips_cut"] = cutting.n_cut
        log.cpu_s.update(cutting.cpu_s)

    def _align(self, captioning: "Captioning") -> None:
        entry = self._semantics.clip
        if entry is not None:
            from curator.stages.caption.caption_alignment import Alignments

            rows = self._corpus.rows
            found = Alignments(self._store, entry, self._semantics.store, self._engine)
            captioning.align(rows, found, self._corpus.clip_vectors.some(rows.kept_ids()))

    def _shard(self, stage: Any) -> None:  # noqa: ANN401 - the stage of that name
        log, recipe, clips = self._log, self._recipe, self._corpus.rows
        with log.timed("shard"):
            self._losses.before_shard(self._sources, clips, self._unlisted)
            sharding = self._sharding = Sharding(
                self._store,
                stage.config,
                fingerprint(recipe.model_dump(mode="json")),
                self._engine,
                standing=self._standing,
            )
            vectors = None
            if recipe.shard.embedding != "none":
                is_clip = recipe.shard.embedding == "clip"
                stored = self._corpus.clip_vectors if is_clip else self._corpus.vectors
                vectors = stored.some(clips.kept_ids())
            find = None
            if recipe.caption.embedding is not None:
                # Imported here: few recipes have captions embedded.
                from curator.stages.caption.caption_embeddings import text_vectors_of

                models = ModelStore.at(recipe.models)
                embedded = text_vectors_of(
                    recipe.caption.embedding, models, clips, self._store, self._engine
                )
                if embedded is not None:
                    find = embedded.find
                    log.counts["captions_embedded"] = embedded.n_made
                    log.cpu_s.update(embedded.cpu_s)
            sample = self._captioning.sample if self._captioning is not None else None
            sharding.shard(clips, self._locations, vectors, find, sample)
        log.counts["shards_written"] = sharding.n_written

    def _commit(self, stage: Any) -> dict[str, Any]:  # noqa: ANN401 - the stage of that name
        log, corpus, captioning, recipe = self._log, self._corpus, self._captioning, self._recipe
        counts = dict(log.counts)
        counts.pop("n_passed", None)
        with log.timed("commit"):
            summary: dict[str, Any] = stage.process(
                Commit(
                    store=self._store,
                    recipe=recipe.model_dump(mode="json"),
                    sources=self._sources,
                    metadata=self._metadata,
                    shots=corpus.shots,
                    clips=corpus.clips,
                    rules=[rule.facts(recipe.filters.root) for rule in corpus.rules],
                    embeddings=corpus.vectors,
                    clip_embeddings=corpus.clip_vectors if recipe.analyze.clip else None,
                    annotations=captioning.tables() if captioning is not None else None,
                    sidecars=captioning.sidecars if captioning is not None else None,
                    pictures=self._candidates.pictures,
                    previous=self._previous,
                    candidates=self._candidates.names() | self._pairs.names(),
                    shards=self._sharding.summary,
                    shard_files=self._sharding.files,
                    listed_ns=self._listed_ns,
                    n_skipped_names=counts.pop("skipped_names", 0),
                    seconds=log.seconds,
                    counts=counts,
                    long_whole=dict(log.long_whole),
                    cpu_s=lambda: cpu_profile(log.cpu_s),
                    cut=log.cut,
                    check=self._check,
                    stamps={
                        "scan": self._stamps["scan"],
                        "tracks": self._stamps["analyze"],
                        "candidates": self._stamps["propose"],
                        "cuts": self._stamps["cut"],
                    },
                    extensions=[
                        named(extension)
                        for extension in (
                            *self._graph.extensions,
                            *measures_used(),
                            *captioner_extensions(recipe.caption.captioner),
                        )
                    ],
                )
            )
        return summary

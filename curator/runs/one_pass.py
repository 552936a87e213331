"""One pass from analysis to commit: over everything, or over one generation.

What an earlier run stored and is still valid is read, not made again. Nothing that readers see
changes before `commit`, which adds a snapshot and then removes what no longer counts.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from curator.executor.corpus_work import CorpusWork
from curator.executor.engine import Engine
from curator.executor.host_resources import device_of
from curator.extensions import named
from curator.fingerprints import fingerprint
from curator.measures.clip_semantics import Semantics
from curator.measures.learned_score import LearnedScore
from curator.measures.learned_spec import SUITABILITY
from curator.pipeline import Graph
from curator.recipe import Recipe, learned_score_of, measures_of, semantics_of
from curator.records.sources import SourceRef
from curator.runs.annotating import Annotating
from curator.runs.corpus import RULES, ClipCorpus, Compared
from curator.runs.dropped_clips import DropCheck
from curator.runs.elsewhere import elsewhere_of
from curator.runs.excluded_footage import reject_removed
from curator.runs.generations import GENERATION, STAMP, judged_by
from curator.runs.marked_clips import SUMMARY_KEY, MarkedClips, honoured_marks
from curator.runs.measuring import Ahead, Measuring
from curator.runs.run_log import RunLog
from curator.runs.snapshot_scope import FOLDERS, Snapshot
from curator.stage import AnyCorpusStage, AnyStage, Elsewhere, Phase
from curator.stages.caption.captioners.captioner_contract import captioner_extensions
from curator.stages.caption.measured_caption import measured_captions
from curator.stages.caption.sidecar_table import SIDECARS
from curator.stages.commit.commit_run import Commit, Rows, clip_outcomes, kept_by_source
from curator.stages.cut.cut_driver import Cutting
from curator.stages.cut.output_form import as_written
from curator.stages.propose.candidate_store import Candidates
from curator.stages.propose.stage import ProposedUnit
from curator.stages.shard.reusable_shards import ReusableShards
from curator.stages.shard.shard_driver import Sharding
from curator.stages.shard.shard_index import EarlierShards
from curator.storage import Store
from curator.tables.checksums import read_json, read_parquet
from curator.tables.clip_locations import Location
from curator.tables.clip_vectors import StoredVectors, Vectors
from curator.tables.corpus_tables import CorpusTables
from curator.tables.disk_table import SortedRows
from curator.tables.fenced_store import FencedStore
from curator.tables.mark_table import Mark
from curator.tables.out_layout import DATASET, INDEX, LAYOUT, MANIFEST
from curator.tables.removal_records import Removals
from curator.tables.sample_members import MEMBERS, MEMBERS_SCHEMA
from curator.tables.schemas import (
    ANNOTATIONS_SCHEMA,
    SIDECARS_SCHEMA,
    candidates_schema,
    with_declared,
)
from curator.tables.snapshot_store import CANDIDATES, EARLIER, INDEXES, JUDGED
from curator.tables.source_metadata import SourceMetadata
from curator.tables.source_table import SourceTable

if TYPE_CHECKING:
    from curator.stages.caption.caption_driver import Captioning

STAMPED = {"scan": "scan", "tracks": "analyze", "candidates": "propose", "cuts": "cut"}
"""Stages whose fingerprints a summary has, by the folder of their results."""
UNDECIDED = ("undecided", "")
"""Stands for decision and reason of a candidate before all of them are there."""
_ANALYZED = frozenset({"segments", "candidates", "tracks", "scan", INDEX})
"""Folders in which the analysis of another generation may be writing."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What all passes of a run share.

    Attributes:
        store: Output root.
        recipe: Settings.
        engine: Where work is done.
        graph: The stages.
        log: What the run took and did.
        memory_bytes: What the columns of clips may take.
        check: Raises if this run may not write to the root any more.
        removals: What may not come back.
        metadata: Of the sources.
    """

    store: Store
    recipe: Recipe
    engine: Engine
    graph: Graph
    log: RunLog
    memory_bytes: int
    check: Callable[[], None]
    removals: Removals
    metadata: SourceMetadata = field(default_factory=SourceMetadata)

    @cached_property
    def fenced(self) -> FencedStore:
        """The output root, for what snapshots name."""
        return FencedStore(self.store, self.check)

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """Marks by hand that count, by clip id: those of the time when the run asks first."""
        return honoured_marks(self.store, self.recipe)

    @cached_property
    def semantics(self) -> Semantics:
        """The models that the recipe names."""
        return semantics_of(self.recipe)

    @cached_property
    def learned(self) -> LearnedScore | None:
        """The model of the score `suitability`."""
        return learned_score_of(self.recipe)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Of each stage, by its name."""
        return self.graph.fingerprints()

    @cached_property
    def extensions(self) -> list[dict[str, Any]]:
        """Classes from outside this package, with their origins."""
        captioners = captioner_extensions(self.recipe.caption.captioner)
        measures = measures_of(self.recipe).extensions
        return list(map(named, (*self.graph.extensions, *measures, *captioners)))

    @cached_property
    def judged(self) -> dict[str, Any]:
        """What decisions and captions follow from, once all metadata is known."""
        columns = self.metadata.schema()
        fingerprints = dict(self.fingerprints)
        if self.learned is not None:
            fingerprints[SUITABILITY] = self.learned.fingerprint
        return judged_by(self.recipe, self.graph, fingerprints, self.extensions, columns)

    @cached_property
    def measuring(self) -> Measuring:
        """How sources get their candidates."""
        return Measuring(
            self.store, self.recipe, self.graph, self.engine, self.semantics, self.removals
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassScope:
    """What a pass is over.

    Attributes:
        sources: Those whose rows are in the table `sources`, up to this generation.
        candidates: Stored clips with their scores.
        reusable: Tars that may stay if their clips do.
        generation: Number of the generation whose clips are decided about; None for all sources.
        before: Results of the generations before it; None for all sources.
        reuses: Summary whose clips, tars and answers may be used again; empty for none.
        publishes: Whether readers see the results.
        ahead: What is measured while clips of this pass are cut; None for nothing.
        drop_check: Checks that no clips are lost that may not; None where they may.
        snapshot: What stands for the stages that the graph leaves out; None where it has all.
    """

    sources: SourceTable
    candidates: Candidates
    reusable: ReusableShards
    reuses: Mapping[str, Any]
    generation: int | None = None
    before: "Results | None" = None
    publishes: bool = True
    ahead: Ahead | None = None
    drop_check: DropCheck | None = None
    snapshot: Snapshot | None = None

    @property
    def folders(self) -> Sequence[str]:
        """Folders of which what no snapshot names may go once the pass is committed."""
        if self.snapshot is not None:
            return FOLDERS
        return [name for name in LAYOUT if self.ahead is None or name not in _ANALYZED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a pass left.

    Attributes:
        summary: With the tables and shards of all generations so far.
        shards: Gives the shards, for a commit that adds to them.
        n_kept: Clips kept of each source id.
    """

    summary: Mapping[str, Any]
    shards: Callable[[], EarlierShards]
    n_kept: Counter[str]


class Pass:
    """The stages from analysis to commit.

    Args:
        run: What it shares with others.
        scope: What it is over.
        previous: Summary of the newest snapshot; empty without one.
    """

    def __init__(self, run: RunContext, scope: PassScope, previous: Mapping[str, Any]) -> None:
        self._run, self._scope, self._previous = run, scope, previous
        self._store, self._recipe, self._graph = run.store, run.recipe, run.graph
        self._fenced = run.fenced
        self._engine, self._progress, self._log = run.engine, run.log.progress, run.log
        self._check = run.check
        self._sources, self._metadata = scope.sources, run.metadata
        self._candidates, self._reusable = scope.candidates, scope.reusable
        before = scope.before.summary if scope.before is not None else None
        self._marks = MarkedClips(run.marks, before)
        self._columns = [*run.graph.columns(), *self._marks.columns()]
        at = scope.snapshot
        self._is_whole = scope.generation is None
        self._corpus = self._empty() if at is None else at.corpus
        self._locations: Mapping[str, Location] = {} if at is None else at.locations
        self._annotating = Annotating(
            run.store,
            run.graph,
            run.engine,
            self._progress,
            previous=scope.reuses,
            reusable=scope.reusable,
        )
        self._captioning: Captioning | None = None
        self._closing = ExitStack()
        """Closes captioners and workers at the end of the pass."""
        self._results: Results | None = None
        self._n_passed = 0
        self._ahead: Mapping[str, SourceRef] | None = None
        """Sources whose clips are cut before others are measured; None for no such."""

    @cached_property
    def _left(self) -> CorpusTables:
        """Tables that stages left."""
        earlier = frozenset(self._previous.get(EARLIER, ()))
        return CorpusTables(self._fenced, self._run.fingerprints["propose"], earlier=earlier)

    def _empty(self) -> ClipCorpus:
        return ClipCorpus(
            self._formed,
            self._run.memory_bytes,
            scores=measures_of(self._run.recipe).specs,
            earlier=self._earlier,
            tables=self._left if self._is_whole else None,
            compared=Compared(footage=self._candidates.footage, elsewhere=self._elsewhere),
            marks=self._run.marks,
            propose=self._propose,
        )

    def execute(self) -> Results:
        """Runs the stages of the graph behind the scan.

        Raises:
            UsageError: Clips would be lost that may not.
        """
        work: dict[Phase, Callable[..., None]] = {
            Phase.MEASURE: self._measure,
            Phase.DECIDE: self._decide,
            Phase.WRITE: self._write,
            Phase.ANNOTATE: self._annotate,
            Phase.PACK: self._pack,
            Phase.COMMIT: self._commit,
        }
        with self._closing:
            for phase, stages in groupby(self._graph, attrgetter("phase")):
                if phase in work:
                    self._check()
                    work[phase](*stages)
        assert self._results is not None, "a graph ends with a commit"
        return self._results

    def _formed(self, clips: pa.Table) -> pa.Table:
        """Candidates as they would be written, with metadata, and columns for annotators."""
        formed = as_written(clips, self._recipe.cut, self._recipe.shard)
        return with_declared(self._metadata.joined(formed, "source_uri"), self._columns)

    def _measure(self, *_: AnyStage) -> None:
        """Analyzes what has no candidates yet, and proposes clips in the same processes."""
        self._log.clips = {}
        if self._is_whole:
            self._sources.count_anew()
        sources = list(self._sources.to_analyze(self._scope.generation))
        if self._may_cut_ahead(sources):
            self._ahead = {str(source.source_id): source for source in sources}
        with self._log.timed("analyze"):
            self._run.measuring.run(
                sources,
                self._candidates,
                self._take,
                self._log,
                all_=self._is_whole,
            )

    def _take(self, proposed: ProposedUnit) -> None:
        self._sources.measured(proposed.sources)
        clips = self._corpus.add(self._scored(proposed))
        n_clips, seconds = self._log.clips.get(UNDECIDED, (0, 0.0))
        seconds += sum(clips["seconds"].to_pylist())
        self._log.clips = {UNDECIDED: (n_clips + clips.num_rows, seconds)}
        if self._ahead is not None:
            passing = self._corpus.alone(self._graph.deciding(), clips)
            self._n_passed += len(passing.kept_numbers())
            self._progress.clips(self._n_before() + self._n_passed)
            self._cutting.ahead(passing, self._ahead)

    def _scored(self, proposed: ProposedUnit) -> ProposedUnit:
        """Gives candidates the score that is learned, which is not stored with them."""
        learned = self._run.learned
        if learned is None:
            return proposed
        clips = learned.with_score(proposed.clips, proposed.vectors)
        names = candidates_schema(measures_of(self._recipe).specs).names
        return replace(proposed, clips=clips.select(names))

    def _may_cut_ahead(self, sources: Sequence[SourceRef]) -> bool:
        """Returns whether clips are cut as their sources are analyzed.

        On a single machine without a GPU the analysis takes all cores. Frames for questions about
        clips are taken while they are cut, which is after all of them are known.
        """
        return (
            (self._engine.joins or self._decodes_on_gpu(sources))
            and self._graph.may_cut_ahead()
            and not self._recipe.caption.asks
            and not self._cutting.has_written()
        )

    def _decodes_on_gpu(self, sources: Sequence[SourceRef]) -> bool:
        """Returns whether a GPU of this machine analyzes while Ray runs other work."""
        device = device_of(self._recipe.analyze.device, self._engine.n_gpus())
        frames = sum(source.work for source in sources)
        return device == "gpu" and not self._engine.is_small(len(sources), frames)

    def _decide(self, *stages: AnyCorpusStage) -> None:
        for stage in stages:
            self._check()
            work = CorpusWork(stage.name, self._store, self._engine)
            with self._log.timed(stage.name):
                self._corpus.decide(stage, work)
            self._log.cpu_s.update(work.cpu_s)
            self._show_kept()

    def _show_kept(self) -> None:
        """Shows the clips that are kept so far, with those of earlier generations."""
        self._progress.clips(self._n_before() + len(self._corpus.rows.kept_numbers()))
        self._note_outcomes()

    def _note_outcomes(self) -> None:
        if self._log.is_watched:
            self._log.clips = clip_outcomes(self._corpus.clips)

    def _n_before(self) -> int:
        """Returns the clips that earlier generations keep."""
        before = self._scope.before
        return before.n_kept.total() if before is not None else 0

    def _earlier(self, family: str) -> Any:  # noqa: ANN401 - as the stage left it
        """Returns what the generations before left of a family; None where none count."""
        before = self._scope.before
        if before is None:
            return None
        return before.summary[JUDGED].get(family)

    def _propose(self, parts: pa.Table) -> ProposedUnit:
        """Returns the clips that parts of clips are."""
        sources = self._sources.find(parts["source_id"].to_pylist())
        return self._scored(
            self._run.measuring.remainders(sources, self._candidates, parts, self._log)
        )

    def _elsewhere(self) -> list[Elsewhere]:
        """Returns clips that stay whatever is decided now."""
        before = self._scope.before
        summary = before.summary if before is not None else None
        return elsewhere_of(self._store, self._recipe, self._run.removals, summary)

    @cached_property
    def _cutting(self) -> Cutting:
        cutting = Cutting(
            self._graph["cut"],
            self._store,
            self._engine,
            self._progress,
            self._candidates.track_part,
            min_s=self._recipe.propose.min_s,
            buckets=self._recipe.shard,
            previous=self._scope.reuses,
            reusable=lambda: self._reusable.sizes,
        )
        self._closing.callback(cutting.close)
        return cutting

    def _write(self, *_: AnyStage) -> None:
        """Writes and captions clips: captions first where answers decide which clips are cut.

        Else clips that are not written yet give their frames on the way.
        """
        log, clips, caption = self._log, self._corpus.rows, self._graph["caption"].config
        is_written = self._scope.snapshot is not None
        decides = caption.decides and not is_written
        captioning = self._captioning = self._captions(caption) if caption.annotates else None
        if captioning is not None and decides:
            with log.timed("caption"):
                self._cutting.refuse_hdr(clips)
                captioning.before_cut(partial(self._cutting.look, sources=self._kept_sources()))
        self._check()
        if not is_written:
            with log.timed("cut"):
                self._write_clips(captioning if caption.asks and not decides else None)
        with log.timed("caption"):
            if captioning is not None and not decides:
                captioning.after_cut(self._locations)
            # A caption tells the length, and a copy may be shorter than its candidate.
            measured_captions(clips, caption)
            self._marks.write(clips)
        if captioning is not None:
            captioning.close()
            # Not by |=, which drops what is zero.
            log.counts.update(captioning.counts)
            log.cpu_s.update(captioning.cpu_s)

    def _captions(self, config: Any) -> "Captioning":  # noqa: ANN401 - a section of the recipe
        # Imported here: runs that ask no model need nothing of it.
        from curator.stages.caption.caption_driver import Captioning

        at = self._scope.snapshot
        captioning = Captioning(
            self._store,
            config,
            self._engine,
            self._progress,
            self._corpus.rows,
            # Without a finished run the server was asked before all work.
            checks=bool(self._previous),
            pixels=self._graph.pixels_fingerprint(),
            snapshot=at.summary["tables"] if at is not None else None,
        )
        self._closing.callback(captioning.close)
        return captioning

    def _kept_sources(self) -> Mapping[str, SourceRef]:
        return self._sources.find(kept_by_source(self._corpus.rows))

    def _write_clips(self, captioning: "Captioning | None") -> None:
        """Cuts clips; what was sampled of them goes to captions, and sources are measured ahead."""
        log, cutting, clips = self._log, self._cutting, self._corpus.rows
        begin = self._scope.ahead.begin if self._scope.ahead is not None else lambda: None
        if self._engine.joins:
            # There is room for both; on one machine the cut takes its cores first.
            begin()
        order = captioning.order if captioning is not None else None
        for unit in cutting.cut(clips, self._kept_sources(), order):
            begin()
            if captioning is not None:
                captioning.take(unit.frames, unit.facts())
        begin()
        self._locations = cutting.finish(clips)
        reject_removed(clips, self._run.removals)
        log.cut = _summed(log.cut, cutting.work)
        log.counts["clips_cut"] += cutting.n_cut
        log.cpu_s.update(cutting.cpu_s)

    def _vectors(self, kind: str) -> Vectors | None:
        if kind == "none":
            return None
        name = "clip_embeddings" if kind == "clip" else "embeddings"
        return self._corpus.vectors[name].some(self._corpus.rows.kept_ids())

    def _annotate(self, *_: AnyStage) -> None:
        """Runs all annotators: those that look at frames of the same clips share a decode."""
        short = self._captioning.short_caption if self._captioning is not None else None
        with self._log.timed("annotate"):
            self._annotating.annotate(self._corpus.rows, self._locations, self._vectors, short)
        self._log.counts.update(self._annotating.counts)
        self._log.cpu_s.update(self._annotating.cpu_s)

    def _pack(self, stage: Any) -> None:  # noqa: ANN401 - a stage with its config
        log, recipe, clips = self._log, self._recipe, self._corpus.rows
        # Clips that could not be cut or annotated are rejected by now.
        self._note_outcomes()
        with log.timed("shard"):
            if self._scope.drop_check is not None and self._scope.reuses:
                failures = [f"{stage.name}_failed" for stage in self._graph.annotators()]
                self._scope.drop_check.before_shard(
                    self._sources, clips, self._scope.generation, failures
                )
            before = self._scope.before
            sharding = self._sharding = Sharding(
                self._store,
                stage.config,
                fingerprint(recipe.model_dump(mode="json")),
                self._engine,
                reusable=self._reusable,
                before=before.shards() if before is not None else None,
            )
            vectors = self._vectors(recipe.shard.embedding)
            sample = self._captioning.sample if self._captioning is not None else None
            generation_of = self._sources.generation_of()
            sharding.shard(
                clips, self._locations, vectors, self._annotating.members, sample, generation_of
            )
        log.counts["shards_written"] += sharding.n_written

    def _commit(self, stage: Any) -> None:  # noqa: ANN401 - a stage with `process`
        scope, log, corpus = self._scope, self._log, self._corpus
        at, before, sharding = scope.snapshot, scope.before, self._sharding
        n_kept = kept_by_source(corpus.clips)
        with log.timed("commit"):
            if at is not None:
                log.counts["clips_rejected"] = (at.n_kept - n_kept).total()
                facts, parts = at.facts(log.counts["clips_rejected"], self._recipe), at.parts
            else:
                facts, parts = self._decided(), before.summary["tables"] if before else {}
            n_kept += before.n_kept if before is not None else Counter()
            facts.pop(SUMMARY_KEY, None)
            facts |= self._marks.facts(corpus.clips, self._store)
            facts |= {
                "recipe": self._recipe.model_dump(mode="json"),
                "shards": sharding.summary,
            }
            summary: dict[str, Any] = stage.process(
                Commit(
                    store=self._fenced,
                    previous=self._previous,
                    before=before.summary if before is not None else None,
                    facts=lambda: facts | log.facts() | self._engine.facts(),
                    parts=parts,
                    sources=(
                        self._metadata.joined(rows, "uri") for rows in self._sources.rows(n_kept)
                    ),
                    clips=corpus.clips,
                    tables=dict(self._tables()),
                    n_skipped_names=log.n_skipped_names,
                    shard_files=sharding.files,
                    pictures=self._candidates.pictures,
                    publishes=scope.publishes,
                    folders=scope.folders,
                    is_last=scope.ahead is None,
                )
            )
        self._results = Results(
            summary=summary, shards=partial(_written, summary, sharding.files), n_kept=n_kept
        )

    def _decided(self) -> dict[str, Any]:
        """Returns the fields of the summary that the stages before `caption` make."""
        corpus, run = self._corpus, self._run
        left = dict(corpus.decided.left)
        rules = left.pop(RULES)
        judged = {
            STAMP: run.judged[STAMP],
            **left,
            GENERATION: self._sources.last_generation(),
        }
        candidates = self._candidates.names() | self._left.names("alike")
        return {
            "fingerprints": {folder: run.fingerprints[name] for folder, name in STAMPED.items()},
            "extensions": run.extensions,
            **({} if run.learned is None else {SUITABILITY: run.learned.fingerprint}),
            "rules": rules,
            JUDGED: judged,
            CANDIDATES: sorted(candidates),
        }

    def _tables(self) -> Iterator[tuple[str, Rows]]:
        """Yields the tables that this pass makes, but for `sources` and `clips`."""
        corpus, captioning = self._corpus, self._captioning
        if self._scope.snapshot is None:
            tables: dict[str, SortedRows | StoredVectors] = {
                "shots": corpus.shots,
                "embeddings": corpus.vectors["embeddings"],
            }
            if self._recipe.analyze.clip is not None:
                # A separate table: the length of a vector is part of a column's type.
                tables["clip_embeddings"] = corpus.vectors["clip_embeddings"]
            yield from ((n, (rows.blocks(), rows.schema)) for n, rows in tables.items())
        if captioning is not None:
            if captioning.sidecars is not None:
                yield SIDECARS, ([captioning.sidecars], SIDECARS_SCHEMA)
            yield "annotations", (captioning.tables(), ANNOTATIONS_SCHEMA)
        if self._sharding.members is not None:
            yield MEMBERS, (self._sharding.members(), MEMBERS_SCHEMA)


def _summed(before: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Adds numbers, and the numbers of each kind."""
    sums = dict(before)
    for name, value in facts.items():
        if isinstance(value, Mapping):
            sums[name] = _summed(before.get(name, {}), value)
        else:
            sums[name] = round(before.get(name, 0) + value, 3)
    return sums


def earlier_results(store: Store, summary: Mapping[str, Any], n_kept: Counter[str]) -> Results:
    """Returns what the runs before left.

    Args:
        store: Output root.
        summary: Of the newest snapshot.
        n_kept: Clips kept of each source id.
    """

    def shards() -> EarlierShards:
        indexes = summary[INDEXES]
        return EarlierShards.of(
            summary, read_json(store, indexes["manifest"]), read_parquet(store, indexes["dataset"])
        )

    return Results(summary=summary, shards=shards, n_kept=n_kept)


def _written(summary: Mapping[str, Any], files: Mapping[str, bytes]) -> EarlierShards:
    return EarlierShards.of(
        summary, json.loads(files[MANIFEST]), pq.read_table(pa.BufferReader(files[DATASET]))
    )

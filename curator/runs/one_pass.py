"""One pass from analysis to commit, over all sources or over one generation.

A pass reuses valid results of earlier runs. Readers see no change before `commit`, which adds a
snapshot and then removes objects that no snapshot names.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.dataset.output_form import as_written
from curator.dataset.shard_index import EarlierShards
from curator.dataset.tar_reader import Split
from curator.executor.corpus_work import CorpusWork
from curator.executor.host_resources import device_of
from curator.fingerprints import fingerprint
from curator.measures.score_list import SUITABILITY
from curator.recipe import measures_of
from curator.records.sources import SourceRef
from curator.records.time_spans import spans_from_json
from curator.runs.aligning import aligned
from curator.runs.annotating import Annotations, annotate, rejected_before, stored_values
from curator.runs.commit_run import Commit, Rows, clip_outcomes, commit_run, kept_by_source
from curator.runs.corpus import RULES, RunCorpus
from curator.runs.dropped_clips import DropCheck
from curator.runs.generations import FINGERPRINT, GENERATION
from curator.runs.marked_clips import SUMMARY_KEY, MarkedClips
from curator.runs.measuring import Ahead, measure, measure_lost, remainders
from curator.runs.reference_clips import reference_clips_of
from curator.runs.rejected_clips import keep_rejected
from curator.runs.run_context import RunContext
from curator.runs.written_clips import (
    ANNOTATED_BY,
    annotated_by,
    reject_as_before,
    reject_as_written,
    still_failed,
)
from curator.stage import AnyCorpusStage, AnyGraphStage, AnyStage, Phase
from curator.stages.caption.measured_caption import measured_captions
from curator.stages.caption.sidecar_table import SIDECARS
from curator.stages.cut.cut_driver import Cutting, FollowUp
from curator.stages.shard.reusable_shards import ReusableShards
from curator.stages.shard.shard_driver import Sharding, reject_across, sources_alone
from curator.stages.shard.split_groups import SplitGroups, shared_footage, split_sources
from curator.storage import Store
from curator.tables.candidate_store import Candidates, ProposedUnit
from curator.tables.checksums import read_parquet
from curator.tables.clip_locations import Location
from curator.tables.clip_vectors import StoredVectors, Vectors
from curator.tables.corpus_tables import CorpusTables
from curator.tables.disk_table import SortedRows
from curator.tables.json_objects import read_json
from curator.tables.out_layout import DATASET, INDEX, LAYOUT, MANIFEST
from curator.tables.sample_members import MEMBERS, MEMBERS_SCHEMA
from curator.tables.schemas import (
    ANNOTATIONS_SCHEMA,
    SIDECARS_SCHEMA,
    candidates_schema,
    with_declared,
)
from curator.tables.snapshot_store import CANDIDATES, DECIDED_WITH, EARLIER, INDEXES
from curator.tables.source_table import SourceTable
from curator.tools.report.default_words import WITHOUT_TEXT

if TYPE_CHECKING:
    from curator.runs.recaptioning import Snapshot
    from curator.stages.caption.caption_driver import Captioning

FINGERPRINTED = ("scan", "tracks", "candidates", "cuts")
"""Tables of which the summary has the fingerprint of the stage that writes them."""
UNDECIDED = ("undecided", "")
"""Decision and reason that the log counts for a candidate before the stages decide."""
_ANALYZED = frozenset({"segments", "candidates", "tracks", "scan", INDEX})
"""Folders into which the analysis of the next generation may write during a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results of a pass.

    Attributes:
        summary: Names the tables and shards of all generations so far.
        shards: Returns the shards, for a commit that adds to them.
        n_kept: Number of kept clips by source id.
    """

    summary: Mapping[str, Any]
    shards: Callable[[], EarlierShards]
    n_kept: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScope:
    """The input of a pass.

    Attributes:
        sources: Sources of the table `sources`, up to this generation.
        candidates: Stored clips with their scores.
        previous: Summary of the newest snapshot; empty without one.
        reuses: Summary with clips, tars and replies to reuse; empty for none.
        reusable: Tars that `reuses` names.
        generation: Number of the generation to decide about; None for all sources.
        before: Results of the earlier generations; None without any.
        publishes: Whether readers see the results.
        ahead: Analysis of the next generation while this pass cuts clips; None for nothing.
        drop_check: Refuses the loss of clips that must stay; None if the pass may drop any clip.
        snapshot: Replaces the stages that the graph leaves out; None if the graph has all stages.
    """

    sources: SourceTable
    candidates: Candidates
    previous: Mapping[str, Any]
    reuses: Mapping[str, Any]
    reusable: ReusableShards
    generation: int | None = None
    before: Results | None = None
    publishes: bool = True
    ahead: Ahead | None = None
    drop_check: DropCheck | None = None
    snapshot: "Snapshot | None" = None

    @property
    def folders(self) -> Sequence[str]:
        """Folders from which the commit may remove objects that no snapshot names."""
        if self.snapshot is not None:
            return self.snapshot.folders
        return [name for name in LAYOUT if self.ahead is None or name not in _ANALYZED]


class GenerationRun:
    """The stages from analysis to commit."""

    def __init__(self, run: RunContext, scope: RunScope) -> None:
        self._run, self._scope = run, scope
        self._recipe, self._graph, self._log = run.recipe, run.graph, run.log
        self._sources, self._candidates = scope.sources, scope.candidates
        self._before = scope.before.summary if scope.before is not None else None
        self._n_before = scope.before.n_kept if scope.before is not None else Counter[str]()
        self._marks = MarkedClips(run.marks, self._before)
        self._columns = [*run.graph.columns(), *self._marks.columns()]
        at = scope.snapshot
        self._is_whole = scope.generation is None
        self._corpus = self._empty() if at is None else at.corpus
        self._locations: Mapping[str, Location] = {} if at is None else at.locations
        self._annotations = Annotations()
        self._rejected_parts: set[str] = set()
        """Parts with MP4s and members of clips that rules on columns rejected."""
        self._captioning: Captioning | None = None
        self._closing = ExitStack()
        """Closes captioners and workers at the end of the pass."""
        self._results: Results | None = None
        self._n_passed = 0
        self._ahead: Mapping[str, SourceRef] | None = None
        """Sources by id, if their clips are cut while other sources are analyzed; else None."""

    @cached_property
    def _left(self) -> CorpusTables:
        """Tables that stages leave."""
        earlier = frozenset(self._scope.previous.get(EARLIER, ()))
        fingerprint = self._run.fingerprint_of("candidates")
        return CorpusTables(self._run.fenced, fingerprint, earlier=earlier)

    def _empty(self) -> RunCorpus:
        run = self._run
        return RunCorpus(
            self._formed,
            run.memory_bytes,
            scores=measures_of(run.recipe).specs,
            tables=self._left if self._is_whole else None,
            propose=self._propose,
            carried=self._carried,
            footage=self._candidates.footage,
            reference_clips=lambda: reference_clips_of(
                run.store, run.recipe, run.removals, self._before
            ),
            marks=run.marks,
        )

    def execute(self) -> Results:
        """Runs the stages of the graph after the scan.

        Raises `UsageError` if the shards would lose clips that must stay.
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
                    self._run.check()
                    work[phase](*stages)
        assert self._results is not None, "a graph ends with a commit"
        return self._results

    def _formed(self, clips: pa.Table) -> pa.Table:
        """Returns candidates with form in the output, metadata, rights, and columns of stages."""
        formed = as_written(clips, self._recipe.cut, self._recipe.shard)
        described = self._sources.with_credentials(self._run.described(formed, "source_uri"))
        return with_declared(described, self._columns)

    def _measure(self, first: AnyStage, *_: AnyStage) -> None:
        """Analyzes sources without candidates, and proposes clips in the same processes."""
        self._log.clips = {}
        if self._is_whole:
            self._sources.count_anew()
        sources = list(self._sources.to_analyze(self._scope.generation))
        if self._recipe.cameras.enabled:
            with self._log.timed(first.step):
                sources = aligned(self._run, sources, self._sources)
        if self._may_cut_ahead(sources):
            self._ahead = {str(source.source_id): source for source in sources}
        elif not self._cutting.has_written():
            self._cutting.foresee(sources)
        with self._log.timed(first.step):
            measure(
                self._run,
                sources,
                self._candidates,
                self._add_candidates,
                self._log,
                all_=self._is_whole,
            )

    def _add_candidates(self, proposed: ProposedUnit) -> None:
        self._sources.measured(proposed.sources)
        clips = self._corpus.add(self._scored(proposed))
        n_clips, seconds = self._log.clips.get(UNDECIDED, (0, 0.0))
        seconds += sum(clips["seconds"].to_pylist())
        self._log.clips = {UNDECIDED: (n_clips + clips.num_rows, seconds)}
        self._foresee(proposed, clips)
        if self._ahead is not None:
            passing = self._corpus.passing(self._graph.deciding(), clips)
            self._n_passed += len(passing.kept_numbers())
            self._log.progress.clips(self._n_before.total() + self._n_passed)
            self._cutting.ahead(passing, self._ahead)

    def _foresee(self, proposed: ProposedUnit, clips: pa.Table) -> None:
        """Estimates the work of the cut by the new clips that pass the rules on single clips."""
        foreseen = self._cutting.foreseen
        if foreseen is not None and foreseen.wants_more:
            ids = proposed.sources["source_id"].drop_null().to_pylist()
            stages = self._graph.deciding()
            # A bound by quantile applies to the clips of the unit instead.
            alone = [stage for stage in stages if stage.needs_all is None] or stages[:1]
            kept = self._corpus.passing(alone, clips).kept()
            self._cutting.see(kept, self._sources.find(ids), proposed.key_gaps_s)

    def _scored(self, proposed: ProposedUnit) -> ProposedUnit:
        """Adds the learned score to candidates, which are stored without this score."""
        learned = self._run.learned
        if learned is None:
            return proposed
        clips = learned.with_score(proposed.clips, proposed.vectors)
        names = candidates_schema(measures_of(self._recipe).specs).names
        return replace(proposed, clips=clips.select(names))

    def _may_cut_ahead(self, sources: Sequence[SourceRef]) -> bool:
        """Returns whether a pass cuts clips while it analyzes other sources.

        On a single machine without a GPU, analysis uses all cores. Removed footage is recognised
        among all clips at once.
        """
        engine = self._run.engine
        frames = sum(source.work for source in sources)
        # While a GPU of this machine analyzes, Ray can run other work on the cores.
        leaves_cores = engine.joins or (
            device_of(self._recipe.analyze.device, engine.n_gpus()) == "gpu"
            and not engine.is_small(len(sources), frames)
        )
        return (
            leaves_cores
            and self._graph.may_cut_ahead()
            and not self._run.removals.footage
            and not self._cutting.has_written()
        )

    def _decide(self, *stages: AnyCorpusStage) -> None:
        for stage in stages:
            self._run.check()
            work = CorpusWork(stage.name, self._run.store, self._run.engine)
            with self._log.timed(stage.step):
                self._corpus.decide(stage, work)
            self._log.cpu_s.update(work.cpu_s)
            n_kept = self._n_before.total() + len(self._corpus.rows.kept_numbers())
            self._log.progress.clips(n_kept)
            self._note_outcomes()

    def _note_outcomes(self) -> None:
        if self._log.is_watched:
            self._log.clips = clip_outcomes(self._corpus.clips)

    def _carried(self, family: str) -> Any:  # noqa: ANN401 - as the stage left it
        """Returns the values of a family that earlier generations left; None if none count."""
        return None if self._before is None else self._before[DECIDED_WITH].get(family)

    def _propose(self, parts: pa.Table) -> ProposedUnit:
        """Returns candidates made from parts of clips."""
        sources = self._sources.find(parts["source_id"].to_pylist())
        return self._scored(remainders(self._run, sources, self._candidates, parts))

    @cached_property
    def _cutting(self) -> Cutting:
        cutting = Cutting(
            self._graph["cut"],
            self._run.store,
            self._run.engine,
            self._log.progress,
            self._candidates.track_part,
            min_s=self._recipe.propose.min_s,
            buckets=self._recipe.shard,
            previous=self._scope.reuses,
            reusable=lambda: self._scope.reusable.sizes,
        )
        self._closing.callback(cutting.close)
        return cutting

    def _write(self, *_: AnyStage) -> None:
        """Cuts clips, and captions the written clips; answers may reject them."""
        log, clips, stage = self._log, self._corpus.rows, self._graph.writer("annotations")
        caption = stage.config
        captioning = self._captioning = self._captions(caption) if caption.annotates else None
        if self._scope.snapshot is None:
            with log.timed("cut"):
                self._write_clips(captioning)
        with log.timed(stage.name):
            if captioning is not None:
                captioning.finish(self._locations)
            # A caption states the length, and a copied clip may be shorter than its candidate.
            if n_empty := measured_captions(clips, caption):
                log.counts[WITHOUT_TEXT] = n_empty
            self._marks.write(clips)
        if captioning is not None:
            captioning.close()
            # |= would drop zero counts.
            log.counts.update(captioning.counts)
            log.cpu_s.update(captioning.cpu_s)

    def _captions(self, config: Any) -> "Captioning":  # noqa: ANN401 - a section of the recipe
        # Imported here, because other runs do not need it.
        from curator.stages.caption.caption_driver import Captioning

        at, previous = self._scope.snapshot, self._scope.previous.get("tables", {})
        captioning = Captioning(
            self._run.store,
            config,
            self._run.engine,
            self._log.progress,
            self._corpus.rows,
            # The first run into an output checked the server before all work.
            checks=bool(self._scope.previous),
            pixels=self._graph.pixels,
            sidecars=previous.get(SIDECARS, () if at is None else None),
        )
        self._closing.callback(captioning.close)
        return captioning

    def _kept_sources(self) -> Mapping[str, SourceRef]:
        return self._sources.find(kept_by_source(self._corpus.rows))

    def _write_clips(self, captioning: "Captioning | None") -> None:
        """Cuts clips, gives their frames to the captioner, and starts the analysis ahead."""
        log, cutting, clips = self._log, self._cutting, self._corpus.rows
        begin = self._scope.ahead.begin if self._scope.ahead is not None else lambda: None
        if self._run.engine.joins:
            # A cluster has cores for both. On one machine, the cut takes its cores first.
            begin()
        then = None
        if captioning is not None:
            step = captioning.after_cut if self._recipe.caption.asks else None
            then = FollowUp(note=captioning.frames_of, step=step)
        if self._before is not None:
            # Captions and annotators change no split, so clips that no split takes need no cut.
            reject_across(clips, self._splits())
        rejects = partial(self._reject_again, captioning)
        for unit in cutting.cut(clips, self._kept_sources(), then, rejects=rejects):
            begin()
            if captioning is not None:
                captioning.submit(unit.frames, unit.facts())
        begin()
        self._locations = cutting.finish(clips)
        reject_as_written(clips, self._run.removals, self._recipe.shard)
        log.cut = _summed(log.cut, cutting.work)
        log.counts["clips_cut"] += cutting.n_cut
        log.cpu_s.update(cutting.cpu_s)

    def _reject_again(self, captioning: "Captioning | None", written: pa.Table) -> pa.Array:
        """Rejects clips that the last run rejected after the cut, for reasons that still hold."""
        if not written.num_rows:
            return pa.array([], pa.bool_())
        run, shard = self._run, self._recipe.shard
        failed = still_failed(run.store, self._scope.reuses, self._annotated_by)
        is_gone = reject_as_before(self._corpus.rows, written, run.removals, shard, failed)
        if captioning is None:
            return is_gone
        others = pc.indices_nonzero(pc.invert(is_gone))
        by_answers = captioning.rejects_again(written.take(others))
        return pc.replace_with_mask(is_gone, pc.invert(is_gone), by_answers)

    @cached_property
    def _annotated_by(self) -> dict[str, str]:
        return annotated_by(self._graph.annotators(), self._run.decided_with, self._run.marks)

    def _vectors(self, kind: str) -> Vectors | None:
        if kind == "none":
            return None
        name = "clip_embeddings" if kind == "clip" else "embeddings"
        return self._corpus.stored_vectors[name].some(self._corpus.rows.kept_ids())

    def _annotate(self, first: AnyStage, *_: AnyStage) -> None:
        """Runs all annotators; annotators that read frames of the same clips share a decode."""
        run, scope, log = self._run, self._scope, self._log
        of_answers = self._captioning.of_answers if self._captioning is not None else {}
        with log.timed(first.step):
            in_tars = stored_values(run.store, scope.reuses, scope.reusable)
            self._annotations = annotate(
                run,
                self._corpus.rows,
                self._locations,
                self._vectors,
                of_answers,
                in_tars,
                partial(rejected_before, run.store, scope.previous),
                self._measure_lost if scope.snapshot is None else None,
                partial(self._corpus.marked, "keep"),
            )
            self._rejected_parts = keep_rejected(
                run,
                self._corpus.rows,
                self._annotations.rejected,
                self._locations,
                self._annotations.members,
            )
        log.progress.clips(self._n_before.total() + len(self._corpus.rows.kept_numbers()))

    def _measure_lost(self, source_ids: Collection[str]) -> list[str]:
        return measure_lost(self._run, self._sources.find(source_ids).values())

    def _pack(self, stage: Any) -> None:  # noqa: ANN401 - a stage with its config
        log, recipe, clips, scope = self._log, self._recipe, self._corpus.rows, self._scope
        # By now, the pass has rejected clips that it could not cut or annotate.
        self._note_outcomes()
        with log.timed(stage.step):
            if scope.drop_check is not None and scope.reuses:
                failures = [stage.failed_reason for stage in self._graph.annotators()]
                scope.drop_check.before_shard(self._sources, clips, scope.generation, failures)
            sharding = self._sharding = Sharding(
                self._run.store,
                stage.config,
                fingerprint(recipe.model_dump(mode="json")),
                self._run.engine,
                reusable=scope.reusable,
                before=scope.before.shards() if scope.before is not None else None,
            )
            sharding.shard(
                clips,
                self._locations,
                self._vectors(recipe.shard.embedding),
                self._annotations.members,
                self._captioning.sample if self._captioning is not None else None,
                self._sources.generation_of(),
                self._splits(),
            )
        log.counts["shards_written"] += sharding.n_written

    def _splits(self) -> SplitGroups:
        """Puts the sources of kept clips into train or val, together with what they belong to."""
        config, clips, scope = self._recipe.shard, self._corpus.rows, self._scope
        fixed: dict[str, Split] = {}
        earlier = None
        if scope.before is not None:
            earlier = scope.before.shards().dataset.select(["clip_id", "source_id", "split"])
            names = (earlier[name].to_pylist() for name in ("source_id", "split"))
            fixed = dict(zip(*names, strict=True))
        # A source without kept clips may show footage of two others.
        units = sources_alone(clips) | {source: (source,) for source in fixed}
        if scope.snapshot is None:
            units |= {source: (source,) for source in self._sources.contents().to_pylist()}
        column = config.split_column
        names = self._run.metadata.schema().names
        if scope.snapshot is None and column is not None and column in names:
            contents = self._run.metadata.joined(self._sources.by_content(), "uri")
            rows = (contents[name].to_pylist() for name in ("source_id", column, "spans"))
            for source, value, spans in zip(*rows, strict=True):
                own = (span.get(column) for span in spans_from_json(spans).values())
                values = dict.fromkeys(f"{column} {v}" for v in (value, *own) if v is not None)
                if values and source in units:
                    units[source] = tuple(values)
        columns = {name: clips.column(name) for name in ("clip_id", "source_id")}
        # A stored table may be of an earlier recipe, which compared clips.
        pairs = self._corpus.table("duplicate_pairs") if self._recipe.dedup.enabled else None
        return split_sources(
            units,
            config,
            links=shared_footage(pairs, pa.table(columns), earlier),
            committed=ReusableShards(self._run.store, scope.previous).sides(config),
            fixed=fixed,
        )

    def _commit(self, stage: AnyGraphStage) -> None:
        run, scope, log, corpus = self._run, self._scope, self._log, self._corpus
        at, sharding = scope.snapshot, self._sharding
        n_kept = kept_by_source(corpus.clips)
        reasons = self._graph.reasons()
        with log.timed(stage.step):
            if at is not None:
                log.counts["clips_rejected"] = (at.n_kept - n_kept).total()
                facts, parts = at.facts(self._recipe), at.parts
                own = {stage.name for stage in self._graph}
                reasons = [r for r in facts.get("reasons", ()) if r["stage"] not in own] + reasons
            else:
                facts, parts = self._decided(), self._before["tables"] if self._before else {}
            n_kept += self._n_before
            facts.pop(SUMMARY_KEY, None)
            if at is not None:
                # Its failures are of other captions; the next run tries these clips again.
                facts.pop(ANNOTATED_BY, None)
            facts |= self._marks.facts(corpus.clips, run.store)
            facts |= {"recipe": self._recipe.model_dump(mode="json"), "shards": sharding.summary}
            facts |= {"reasons": reasons, "rules": self._rules(facts["rules"])}
            facts[CANDIDATES] = sorted({*facts[CANDIDATES], *self._rejected_parts})
            summary: dict[str, Any] = commit_run(
                Commit(
                    store=run.fenced,
                    previous=scope.previous,
                    before=self._before,
                    facts=lambda: facts | log.facts() | run.engine.facts(),
                    parts=parts,
                    sources=(run.described(rows, "uri") for rows in self._sources.rows(n_kept)),
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

    def _rules(self, before: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Returns the rules as applied, those on columns last.

        Of a snapshot, `before` counts clips that these rules had rejected already.
        """
        counts = {rule["rule"]: rule for rule in before}
        numbers = ("first", "alone", "any")
        columns = [
            {**rule, **{n: rule[n] + counts.get(rule["rule"], {}).get(n, 0) for n in numbers}}
            if rule["severity"] == "reject"
            else rule
            for rule in self._annotations.rules
        ]
        names = {rule["rule"] for rule in columns}
        return [*(rule for rule in before if rule["rule"] not in names), *columns]

    def _decided(self) -> dict[str, Any]:
        """Returns the fields of the summary that come from the stages before `caption`."""
        corpus, run = self._corpus, self._run
        left = dict(corpus.carried_state)
        rules = left.pop(RULES)
        decided_with = {
            FINGERPRINT: run.decided_with[FINGERPRINT],
            **left,
            GENERATION: self._sources.last_generation(),
        }
        return {
            "fingerprints": {table: run.fingerprint_of(table) for table in FINGERPRINTED},
            "extensions": run.extensions,
            ANNOTATED_BY: self._annotated_by,
            **({} if run.learned is None else {SUITABILITY: run.learned.fingerprint}),
            "rules": rules,
            DECIDED_WITH: decided_with,
            CANDIDATES: sorted(self._candidates.names() | self._left.names("duplicate_pairs")),
        }

    def _tables(self) -> Iterator[tuple[str, Rows]]:
        """Yields the tables of this pass except `sources` and `clips`."""
        corpus, captioning = self._corpus, self._captioning
        if self._scope.snapshot is None:
            tables: dict[str, SortedRows | StoredVectors] = {
                "shots": corpus.shots,
                "embeddings": corpus.stored_vectors["embeddings"],
            }
            if self._recipe.analyze.clip is not None:
                # A separate table, because the length of a vector is part of a column's type.
                tables["clip_embeddings"] = corpus.stored_vectors["clip_embeddings"]
            yield from ((n, (rows.blocks(), rows.schema)) for n, rows in tables.items())
        if captioning is not None:
            if captioning.sidecars is not None:
                yield SIDECARS, ([captioning.sidecars], SIDECARS_SCHEMA)
            yield "annotations", (captioning.tables(), ANNOTATIONS_SCHEMA)
        if self._sharding.members is not None:
            yield MEMBERS, (self._sharding.members(), MEMBERS_SCHEMA)


def _summed(before: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sums of two nested mappings of numbers, key by key."""
    sums = dict(before)
    for name, value in facts.items():
        if isinstance(value, Mapping):
            sums[name] = _summed(before.get(name, {}), value)
        else:
            sums[name] = round(before.get(name, 0) + value, 3)
    return sums


def earlier_results(store: Store, summary: Mapping[str, Any], n_kept: Counter[str]) -> Results:
    """Returns the results of earlier runs, by the newest summary and kept clips by source."""

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

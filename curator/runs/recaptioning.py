"""Captions and annotates the clips of a finished run again: a pass over a snapshot from `caption`.

The snapshot replaces the results of earlier stages, so clips keep their decisions. Frames come from
the written MP4s. The pass packs tars with changed captions again, from the same MP4s. All other
tables and tracks stay.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import UsageError
from curator.executor.cpu_accounting import mark_processes
from curator.executor.end_time import Expected
from curator.executor.engine import FACTS, Engine
from curator.executor.host_resources import default_memory_bytes
from curator.executor.progress import Progress
from curator.extensions import named
from curator.measures.rule_config import CAPTION_CLIP_SCORE
from curator.pipeline import Graph, graph_of
from curator.recipe import Recipe, measures_of, recipe_used, with_changes
from curator.runs.commit_run import kept_by_source, no_lease_check
from curator.runs.corpus import RunCorpus
from curator.runs.marked_clips import MarkedClips
from curator.runs.one_pass import GenerationRun, RunScope
from curator.runs.recipe_changes import log_changes
from curator.runs.repair import repair_objects
from curator.runs.run_context import RunContext, RunLog
from curator.stage import CLIP_EMBEDDING, EMBEDDING
from curator.stages.caption.captioners.captioner_contract import captioner_extensions
from curator.stages.caption.config import NO_MODEL
from curator.stages.cut.cut_driver import cut_facts
from curator.stages.shard.reusable_shards import ReusableShards
from curator.storage import Store
from curator.tables.candidate_store import Candidates, subtract_counts
from curator.tables.checksums import read_parquet
from curator.tables.clip_locations import LOCATION_SCHEMA, Locations
from curator.tables.out_layout import SHARDS, TABLES, VALUES
from curator.tables.output_format import read_current_summary
from curator.tables.parts import as_runs_write, with_column
from curator.tables.removal_records import finished_removals
from curator.tables.sample_members import MEMBERS
from curator.tables.schemas import (
    clips_schema,
    declared_columns,
    metadata_fields,
    with_declared,
)
from curator.tables.source_table import SourceTable

SECTION = "caption"
EXPECTED = Expected(seconds={SECTION: 1.0})
"""Only captions: the time of a captioner says nothing about the time to pack tars."""
UNASKED = frozenset({"captioner", "column", "enabled", "embedding"})
"""Keys of `caption` that have an effect without a model."""
_MADE_AGAIN = frozenset(
    {"caption", "caption_model", "caption_failure", "caption_clip_score"}
    | {"shard", "key", "mp4_offset", "bucket"}
)
"""Columns of `clips` that `caption` and `shard` set."""
_PLACE = ("clip_id", "shard", "mp4_offset", "mp4_bytes")


class Recaption:
    """New captions and annotations for the clips that a finished run kept.

    `changes` are `key=value` each, with keys of the section `caption`. `Run` explains `check` and
    `memory_bytes`.

    Raises:
        UsageError: OUT has no finished run, or a change is outside `caption` or without effect.
        RecipeError: A change is wrong.
    """

    def __init__(
        self,
        store: Store,
        changes: Sequence[str],
        engine: Engine,
        progress: Progress,
        *,
        check: Callable[[], None] = no_lease_check,
        memory_bytes: int | None = None,
    ) -> None:
        for change in changes:
            if change.split("=")[0].strip().split(".")[0] != SECTION:
                raise UsageError(
                    f"--set {change!r}: `curate recaption` takes only keys of {SECTION}; "
                    "`curate run` takes all keys"
                )
        self._store = store
        self._run = partial(
            RunContext,
            store=store,
            engine=engine,
            memory_bytes=memory_bytes or default_memory_bytes(),
            check=check,
            removals=finished_removals(store),
        )
        repair_objects(store, check=check, makes_again=False)
        self._previous = read_current_summary(store)
        self._log = partial(
            RunLog,
            progress=progress,
            listed_ns=self._previous["listed_ns"],
            n_skipped_names=self._previous["counts"]["skipped_names"],
        )
        before = recipe_used(self._previous, store.uri)
        self.recipe = with_changes(before, changes)
        caption = self.recipe.caption
        unasked = [c for c in changes if c.split("=")[0].strip().split(".")[-1] not in UNASKED]
        if caption.enabled and caption.captioner in NO_MODEL and unasked:
            raise UsageError(
                f"--set {unasked[0]!r} would change nothing: caption.captioner is "
                f"{caption.captioner}, which asks no model; set caption.captioner to openai or "
                "local"
            )
        log_changes(store.uri, before, self.recipe)
        progress.expect(EXPECTED, _graph_of(self.recipe).steps())
        mark_processes()

    def execute(self) -> dict[str, Any]:
        """Runs the pass; returns the contents of `summary.json`.

        Raises `UsageError` if a tar is missing or damaged.
        """
        log = self._log(cut=cut_facts((), self.recipe.cut.crf))
        graph = _graph_of(self.recipe)
        run = self._run(recipe=self.recipe, graph=graph, log=log)
        snapshot = Snapshot.of(run, self._previous)
        scope = RunScope(
            sources=snapshot.sources,
            candidates=Candidates.of_snapshot(self._store, self._previous),
            previous=self._previous,
            reuses=self._previous,
            reusable=snapshot.reusable,
            snapshot=snapshot,
        )
        return dict(GenerationRun(run, scope).execute().summary)


def _graph_of(recipe: Recipe) -> Graph:
    """Returns the stages from the captions on."""
    graph = graph_of(recipe)
    return graph.from_stage(graph.writer("annotations").name)


class SnapshotSources(SourceTable):
    """The sources of a snapshot: all are analyzed, and some may lose clips.

    `parts` are the parts of the table `sources`; `n_kept` has the number of kept clips by source.
    """

    def __init__(self, store: Store, parts: Sequence[str], n_kept: Counter[str]) -> None:
        super().__init__()
        self._store, self._parts, self._n_kept = store, parts, n_kept

    def rows(self, n_kept: Mapping[str, int]) -> Iterator[pa.Table]:
        """Yields rows of `sources`, a table for each part."""
        lost = self._n_kept - Counter(n_kept)
        for part in self._parts:
            yield subtract_counts(as_runs_write(read_parquet(self._store, part)), "n_kept", lost)

    def generation_of(self) -> dict[str, int]:
        """Returns the generation of each content."""
        by_source: dict[str, int] = {}
        for part in self._parts:
            rows = read_parquet(self._store, part, ("source_id", "outcome", "generation"))
            rows = rows.filter(pc.equal(rows["outcome"], "done"))
            pairs = zip(rows["source_id"].to_pylist(), rows["generation"].to_pylist(), strict=True)
            by_source.update(pairs)
        return by_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The contents of a snapshot.

    Attributes:
        summary: The summary that the commit wrote.
        reusable: Tars of the snapshot.
        corpus: Clips and vectors of the snapshot.
        locations: Locations of the MP4s of kept clips.
        n_kept: Number of kept clips by source id.
    """

    summary: Mapping[str, Any]
    sources: SnapshotSources
    reusable: ReusableShards
    corpus: RunCorpus
    locations: Locations
    n_kept: Counter[str]

    folders = (*TABLES, SHARDS, "frames", VALUES)
    """Folders in which a pass over a snapshot removes objects that no snapshot names."""

    @classmethod
    def of(cls, run: RunContext, summary: Mapping[str, Any]) -> "Snapshot":
        """Reads the parts of a snapshot that the stages from `caption` on need.

        Raises `UsageError` if a tar is missing or damaged.
        """
        store, graph, tables = run.store, run.graph, summary["tables"]
        columns = [*graph.columns(), *MarkedClips(run.marks).columns()]
        scores = measures_of(run.recipe).specs
        corpus = RunCorpus(lambda clips: clips, run.memory_bytes, scores=scores)
        places = []
        for part in tables["clips"]:
            clips = as_runs_write(read_parquet(store, part))
            places.append(clips.filter(pc.equal(clips["decision"], "kept")).select(_PLACE))
            names = [f.name for f in clips_schema(scores) if f.name in clips.column_names]
            names += [field.name for field in metadata_fields(clips.schema)]
            names = [name for name in names if name not in _MADE_AGAIN]
            corpus.add_decided(_with_values(with_declared(clips.select(names), columns), clips))
        reads = {name for stage in graph.annotators() for name in stage.reads_columns()}
        packed = {"clip": [CLIP_EMBEDDING], "scene": [EMBEDDING], "none": []}
        reads.update(packed[run.recipe.shard.embedding])
        for name, table in ((EMBEDDING, "embeddings"), (CLIP_EMBEDDING, "clip_embeddings")):
            for part in tables.get(table, ()) if name in reads else ():
                corpus.stored_vectors[table].add(read_parquet(store, part))
        n_kept, reusable = kept_by_source(corpus.clips), ReusableShards(store, summary)
        return cls(
            summary=summary,
            sources=SnapshotSources(store, tables["sources"], n_kept),
            reusable=reusable,
            corpus=corpus,
            locations=_locations(pa.concat_tables(places), store, reusable),
            n_kept=n_kept,
        )

    @property
    def parts(self) -> dict[str, list[str]]:
        """Parts of the tables that `caption` and later stages do not write."""
        written = ("sources", "clips", "annotations", MEMBERS)
        return {n: parts for n, parts in self.summary["tables"].items() if n not in written}

    def facts(self, recipe: Recipe) -> dict[str, Any]:
        """Returns the fields of the summary that stay; `extensions` names the new captioner."""
        facts = {name: value for name, value in self.summary.items() if name not in FACTS}
        extensions = [e for e in facts.get("extensions", ()) if e["kind"] != "captioners"]
        extensions += map(named, captioner_extensions(recipe.caption.captioner))
        return facts | {"extensions": extensions}


def _with_values(clips: pa.Table, stored: pa.Table) -> pa.Table:
    """Adds the values of annotators that rejected clips have: a rule on a value may reject a clip.

    Annotators make those of kept clips again.
    """
    for name in (*declared_columns(clips.schema), CAPTION_CLIP_SCORE):
        if name not in stored.column_names:
            continue
        field = stored.schema.field(name)
        if name == CAPTION_CLIP_SCORE or field.equals(
            clips.schema.field(name), check_metadata=True
        ):
            is_kept = pc.equal(stored["decision"], "kept")
            clips = with_column(clips, name, pc.if_else(is_kept, None, stored[name]))
    return clips


def _locations(places: pa.Table, store: Store, reusable: ReusableShards) -> Locations:
    there = pa.array(sorted(reusable.sizes), pa.string())
    gone = places.filter(pc.invert(pc.is_in(places["shard"], value_set=there)))
    for row in gone.slice(0, 1).to_pylist():
        raise UsageError(
            f"{store.uri}/{row['shard']} is missing or damaged, so clip {row['clip_id']} cannot be "
            "read; `curate run` cuts the clip again, and `curate verify` lists all damage"
        )
    return Locations(
        pa.table(
            [places["clip_id"], places["shard"], pa.nulls(places.num_rows, pa.int64()),
             places["mp4_offset"], places["mp4_bytes"]],
            schema=LOCATION_SCHEMA,
        )
    )  # fmt: skip

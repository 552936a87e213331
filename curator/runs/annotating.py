"""Runs annotators on the written clips of a run or of a snapshot, by the scheduler."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.dataset.side_places import PLACES_SCHEMA, SIDE_COLUMNS, side_places
from curator.dataset.tar_reader import declared_families
from curator.errors import DamagedError, ShardError
from curator.measures.filtering import RuleCount
from curator.pipeline import Graph
from curator.records.clips import Clip
from curator.runs.run_context import RunContext
from curator.scheduler import Scheduler, StageValues, find_values
from curator.stage import (
    CAPTION_FIELDS,
    CLIP_EMBEDDING,
    EMBEDDING,
    NOT_IN_CLIPS,
    SHORT_CAPTION,
    AnyAnnotator,
    ClipFacts,
)
from curator.stages.shard.reusable_shards import ReusableShards
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRows, fields_of, reject
from curator.tables.clip_vectors import Vectors
from curator.tables.family_store import FamilyStore, values_in_tars
from curator.tables.json_objects import find_json
from curator.tables.long_columns import take_rows
from curator.tables.out_layout import DATASET, MANIFEST
from curator.tables.output_format import existing
from curator.tables.sample_members import Members, StoredMember
from curator.tables.track_signals import SignalParts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """The outcome of all annotators.

    Attributes:
        members: Returns the members of a clip.
        rejected: Ids of the clips that rules on columns rejected.
        rules: These rules as applied, as in `summary.json`.
    """

    members: Callable[[Clip], Sequence[StoredMember]] = lambda clip: ()
    rejected: Sequence[str] = ()
    rules: Sequence[Mapping[str, Any]] = ()


def annotate(
    run: RunContext,
    clips: ClipRows,
    locations: Mapping[str, Location],
    vectors: Callable[[str], Vectors | None],
    of_answers: Mapping[str, Callable[[Clip], str | None]],
    in_tars: Mapping[str, pa.Table],
    failed_before: Callable[[str], Collection[str]],
    measure: Callable[[Collection[str]], Sequence[str]] | None,
    marked_keep: Callable[[pa.ChunkedArray], NDArray[np.bool_]],
) -> Annotations:
    """Makes missing values of annotators, and applies the rules on their columns.

    Rejects clips for which a required annotator fails, too.

    Args:
        run: The run; its log gets CPU-seconds, and counts of values made and of values lacking.
        clips: Clips of the run. Kept clips get values in columns.
        locations: MP4s of the kept clips, by clip id.
        vectors: Returns vectors of kept clips of a kind, `clip` or `scene`.
        of_answers: Return the short caption, and the structured fields, of a clip, by their names
            in `NOT_IN_CLIPS`; empty without a captioner.
        in_tars: Stored values, from `stored_values`.
        failed_before: Returns the clips that the last run rejected for a reason.
        measure: Measures lost tracks, as `SignalParts` says.
        marked_keep: Returns which clips users marked `keep`, bool [N], by their ids.
    """
    store = FamilyStore(run.store, in_tars)
    signals = SignalParts(run.store, run.graph.track_families, measure)
    scheduler = Scheduler(
        store, run.engine, run.log.progress, signals=signals, failed_before=failed_before
    )
    all_members: list[Members] = []
    column_filter, rejected, rules = run.graph.column_filter(), list[str](), list[RuleCount]()
    ruled: Set[str] = set() if column_filter is None else column_filter.config.columns
    for stages in _rounds(run.graph.annotators(), ruled):
        columns = {name for stage in stages for name in stage.reads_columns()}
        given: dict[str, Callable[[Clip], Any]] = {
            name: _vector_in(vectors(kind))
            for name, kind in ((EMBEDDING, "scene"), (CLIP_EMBEDDING, "clip"))
            if name in columns
        }
        for name in (SHORT_CAPTION, CAPTION_FIELDS):
            given[name] = of_answers.get(name, lambda clip: None)
        written = _ClipsToAnnotate(clips, locations, sorted(columns), given)
        made = scheduler.annotate(stages, written)
        all_members.append(made.members)
        # |= would drop zero counts.
        run.log.counts.update({f"{name}_made": n for name, n in made.n_made.items()})
        run.log.counts.update({f"{name}_lacking": n for name, n in made.lacking.items()})
        run.log.cpu_s.update(made.cpu_s)
        reasons = {stage.name: stage.failed_reason for stage in stages}
        for clip in clips.kept() if made.rejected else ():
            if clip.clip_id in made.rejected:
                name, error = made.rejected[clip.clip_id]
                reject(clip, reasons[name], detail=error)
        for column, of in made.columns:
            # Clips on which a stage of the round failed get no values.
            is_kept = pc.equal(clips.column("decision"), "kept").to_numpy()[written.numbers]
            rows = np.where(is_kept, of, -1)
            values = take_rows(store.rows(column), pa.array(rows, mask=rows < 0))
            clips.scatter(written.numbers, values)
        bounded = ruled & {name for stage in stages for name in stage.writes_columns()}
        if column_filter is not None and bounded:
            numbers = clips.kept_numbers()
            names = fields_of(clips.schema, ("clip_id", "tags", *sorted(bounded)))
            some = take_rows(clips.table(names), pa.array(numbers))
            judged = column_filter.judge(some, bounded, marked_keep(some["clip_id"]))
            rejected += _set_decisions(clips, numbers, judged.clips)
            rules += judged.rules
    return Annotations(
        members=lambda clip: [m for members in all_members for m in members.of(clip.clip_id)],
        rejected=rejected,
        rules=[]
        if column_filter is None
        else [{**rule.facts(column_filter.config.root), "is_column": True} for rule in rules],
    )


def _set_decisions(clips: ClipRows, numbers: NDArray[np.int64], judged: pa.Table) -> list[str]:
    """Sets tags of clips and decisions against clips; returns the ids of rejected clips."""
    clips.scatter(numbers, judged.select(["tags"]))
    is_rejected = pc.equal(judged["decision"], "rejected")
    against = judged.filter(is_rejected)
    decided = ("decision", "reason", "reasons", "reason_score", "reason_threshold")
    clips.scatter(numbers[is_rejected.to_numpy()], against.select(decided))
    ids: list[str] = against["clip_id"].to_pylist()
    return ids


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecisions:
    """What the rules on columns decide about written clips by the values that are stored.

    Attributes:
        n_missing: By annotator, the number of values that are not stored; None if unknown.
        n_kept: Clips that all rules keep.
        reasons: Number of rejected clips, by the first reason.
        n_undecided: Clips that no rule rejects, and of which a rule's value is not stored.
    """

    n_missing: Mapping[str, int | None]
    n_kept: int
    reasons: Mapping[str, int]
    n_undecided: int


def decide_by_stored(
    store: Store,
    graph: Graph,
    previous: Mapping[str, Any],
    written: pa.Table,
    marked_keep: Collection[str],
) -> StoredDecisions:
    """Applies the rules on columns to written clips as a run would, but computes no value.

    Args:
        store: The output.
        graph: The stages of the run.
        previous: Summary of the last run.
        written: Rows of `clips` of the last run; all count as kept.
        marked_keep: Ids of clips that users marked `keep`.
    """
    families = FamilyStore(store, stored_values(store, previous, ReusableShards(store, previous)))
    signals = SignalParts(store, graph.track_families)
    column_filter, marked = graph.column_filter(), pa.array(marked_keep, pa.string())
    rejecting = [] if column_filter is None else list(column_filter.config.rejecting_columns())
    is_undecided = np.zeros(written.num_rows, np.bool_)
    n_missing, reasons = dict[str, int | None](), Counter[str]()
    given: dict[str, Callable[[Clip], Any]] = {}
    reads_fields = any(CAPTION_FIELDS in stage.columns for stage in graph.annotators())
    if reads_fields and not _has_fields(store, previous):
        given[CAPTION_FIELDS] = lambda clip: None
    for stages in _rounds(graph.annotators(), rejecting):
        is_missing: dict[str, NDArray[np.bool_]] = {}
        for stage, values in _stored(stages, families, signals, written, given):
            n_missing[stage.name] = None if values is None else len(values.first_clips)
            lacks = np.ones(written.num_rows, np.bool_) if values is None else values.is_missing()
            is_missing |= dict.fromkeys(stage.writes_columns(), lacks)
            if values is not None and stage.writes_columns():
                written = _with_values(written, families, values)
        is_rejected = np.zeros(written.num_rows, np.bool_)
        for name in filter(is_missing.__contains__, rejecting):
            is_undecided |= is_missing[name]
            if column_filter is None or is_missing[name].all():
                continue
            keep = pc.is_in(written["clip_id"], value_set=marked).to_numpy()
            judged = column_filter.judge(written.select(["clip_id", "tags", name]), {name}, keep)
            is_new = pc.equal(judged.clips["decision"], "rejected").to_numpy()
            is_new = is_new & ~is_missing[name] & ~is_rejected
            reasons.update(judged.clips["reason"].filter(pa.array(is_new)).to_pylist())
            is_rejected |= is_new
        written, is_undecided = written.filter(pa.array(~is_rejected)), is_undecided[~is_rejected]
    n_undecided = int(is_undecided.sum())
    return StoredDecisions(
        n_missing=n_missing,
        n_kept=written.num_rows - n_undecided,
        reasons=reasons,
        n_undecided=n_undecided,
    )


def _with_values(written: pa.Table, families: FamilyStore, values: StageValues) -> pa.Table:
    """Returns clips with the stored columns of an annotator in place of those of the last run."""
    for column in values.columns:
        of = pa.array(values.key_of_clip, mask=values.key_of_clip < 0)
        own = take_rows(families.rows(column), of)
        before = set(written.column_names).intersection(own.column_names)
        written = written.drop_columns(sorted(before))
        for field, rows in zip(own.schema, own.columns, strict=True):
            written = written.append_column(field, rows)
    return written


def _has_fields(store: Store, previous: Mapping[str, Any]) -> bool:
    """Returns whether an answer of the last run has structured fields."""
    return any(
        column.null_count < len(column)
        for name in existing(store, previous, "annotations")
        for column in read_parquet(store, name, ["structured", "extra"]).columns
    )


def _stored(
    stages: Sequence[AnyAnnotator],
    families: FamilyStore,
    signals: SignalParts,
    written: pa.Table,
    given: Mapping[str, Callable[[Clip], Any]],
) -> list[tuple[AnyAnnotator, StageValues | None]]:
    """Returns the stages with their values; None if a stage reads what only a run knows."""
    readable = set(written.column_names) - set(NOT_IN_CLIPS) | given.keys()
    known = [stage for stage in stages if readable.issuperset(stage.reads_columns())]
    columns = sorted({name for stage in known for name in stage.reads_columns()})
    rows = ClipRows(written, written.schema)
    clips = _ClipsToAnnotate(rows, defaultdict(lambda: Location(name="")), columns, given)
    found = find_values(families, signals, known, clips) if known else []
    values = {stage.name: values for stage, values in zip(known, found, strict=True)}
    return [(stage, values.get(stage.name)) for stage in stages]


def rejected_before(store: Store, previous: Mapping[str, Any], reason: str) -> set[str]:
    """Returns the ids of the clips that the last run rejected for a reason."""
    ids: set[str] = set()
    for name in existing(store, previous, "clips"):
        rows = read_parquet(store, name, ["clip_id", "reason"])
        ids.update(rows.filter(pc.equal(rows["reason"], reason))["clip_id"].to_pylist())
    return ids


def stored_values(
    store: Store, previous: Mapping[str, Any], reusable: ReusableShards
) -> dict[str, pa.Table]:
    """Returns the annotators' values in the tars of a finished run; none for an empty summary."""
    if not previous:
        return {}
    try:
        manifest = find_json(store, MANIFEST)
        declared = declared_families(manifest)
        side_members = PLACES_SCHEMA.empty_table()
        if manifest is not None and any("sides" in entry for entry in manifest["shards"]):
            side_members = side_places(read_parquet(store, DATASET, SIDE_COLUMNS), manifest)
    except (DamagedError, ShardError) as error:
        # This run makes the values again, and its commit writes the manifest again.
        logger.warning("this run does not reuse values in tars: %s", error)
        return {}
    return values_in_tars(store, previous, declared, reusable.sizes, side_members)


class _ClipsToAnnotate:
    """The kept clips as annotators see them; `numbers` are the numbers of their rows."""

    def __init__(
        self,
        clips: ClipRows,
        locations: Mapping[str, Location],
        columns: Sequence[str],
        given: Mapping[str, Callable[[Clip], Any]],
    ) -> None:
        self._clips, self._locations = clips, locations
        self._columns, self._given = columns, given
        self.numbers = clips.kept_numbers()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> tuple[ClipFacts, str, Location]:
        clip = self._clips[int(self.numbers[number])]
        facts = ClipFacts(
            clip_id=clip.clip_id,
            source_id=clip.source_id,
            n_frames=clip.n_frames,
            fps=Fraction(clip.fps_fraction),
            width=clip.width,
            height=clip.height,
            columns={
                name: self._given[name](clip) if name in self._given else clip.value(name)
                for name in self._columns
            },
        )
        return facts, clip.mp4_sha256, self._locations[clip.clip_id]

    def ids(self) -> pa.Array:
        return self._clips.kept_ids()


def _vector_in(vectors: Vectors | None) -> Callable[[Clip], Any]:
    return lambda clip: None if vectors is None else vectors.get(clip.clip_id)


def _rounds(stages: Sequence[AnyAnnotator], ruled: Collection[str]) -> Iterator[list[AnyAnnotator]]:
    """Yields groups of stages that run together.

    Readers of a column come after its writer. Stages after the writer of a column that a rule
    bounds do not get the clips that the rule rejects.
    """
    together: list[AnyAnnotator] = []
    for stage in stages:
        before = {*stage.columns, *ruled}
        if any(before.intersection(other.writes_columns()) for other in together):
            yield together
            together = []
        together.append(stage)
    if together:
        yield together

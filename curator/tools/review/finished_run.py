"""Reads a finished run under OUT."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import UsageError
from curator.executor.host_resources import default_memory_bytes
from curator.measures.rules import Sides, reasons_of
from curator.measures.score_list import Measures
from curator.recipe import (
    Recipe,
    column_rules,
    measures_of,
    recipe_used,
    stored_measures_of,
)
from curator.records.clips import REMAINDER, Reason
from curator.runs.corpus import CLIP_ORDER, memory_budget_of
from curator.runs.marked_clips import honoured_marks
from curator.runs.reference_clips import reference_clips_of
from curator.stage import ReferenceClips
from curator.storage import Store, open_store
from curator.storage.metadata_columns import is_metadata
from curator.tables.candidate_store import (
    read_pictures,
    remainders_fingerprint,
    stored_candidates,
)
from curator.tables.checksums import read_parquet
from curator.tables.clip_vectors import StoredVectors
from curator.tables.corpus_tables import CorpusTables
from curator.tables.disk_table import DiskTable, SortedRows, widened
from curator.tables.footage_store import FootageStore
from curator.tables.mark_table import Mark
from curator.tables.output_format import read_current_summary
from curator.tables.removal_records import read_removals
from curator.tables.schemas import (
    SOURCES_SCHEMA,
    candidates_schema,
    clips_schema,
    embeddings_schema,
    further_fields,
    metadata_fields,
)
from curator.tables.snapshot_store import DECIDED_WITH, EARLIER


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A snapshot of an output root."""

    store: Store
    summary: Mapping[str, Any]
    recipe: Recipe
    clips: pa.Table
    """Rows of `clips_schema` in `CLIP_ORDER`, remainders last. Columns that newer versions added
    are null. Tables above the memory budget are in a temporary file."""
    measures: Measures
    """Measures of the recipe."""
    memory_budget_bytes: int
    """Memory for each table."""

    def frozen(self) -> dict[str, Sides] | None:
        """Returns the quantile bounds that a growing run froze, by rule; None for other runs."""
        if self.recipe.run.mode != "growing":
            return None
        bounds = self.summary.get(DECIDED_WITH, {}).get("bounds", {})
        return {rule: (low, high) for rule, (low, high) in bounds.items()}

    def require_clips(self) -> None:
        """Raises `UsageError` if the run made no clips, of which other bounds could keep some."""
        if not self.clips.num_rows:
            counts = self.summary["counts"]
            raise UsageError(
                f"{self.store.uri} has no clips to decide about: of {counts['sources']} sources, "
                f"{counts['failed']} failed, and the others gave no candidate; see error_message "
                "in the table `sources`, or run with other sources"
            )

    def sources(self) -> pa.Table:
        """Returns the rows of `sources`; columns that newer versions added are null."""
        parts = [read_parquet(self.store, name) for name in self.summary["tables"]["sources"]]
        return pa.concat_tables([*parts, SOURCES_SCHEMA.empty_table()], promote_options="default")

    def candidates(self) -> pa.Table:
        """Returns the scored proposals in the order of `clips`; `UsageError` if some are lost."""
        ids, done = self.clips["clip_id"], 0
        stored = candidates_schema(stored_measures_of(self.recipe).specs)
        # Runs add metadata and the learned score to stored candidates.
        schema = candidates_schema(self.measures.specs)
        learned = [field for field in schema if field.name not in stored.names]
        fields = [*learned, *metadata_fields(self.clips.schema)]
        joined = DiskTable(pa.schema([*stored, *fields]), self.memory_budget_bytes)
        for block in self._sorted_candidates(stored):
            # Stored candidates may include those of sources outside the run, which are skipped.
            wanted = ids.slice(done, block.num_rows).combine_chunks()
            place = pc.index_in(block["clip_id"], value_set=wanted).fill_null(-1).to_numpy()
            is_next = np.maximum.accumulate(np.append(-1, place))[:-1] < place
            columns = self.clips.slice(done, int(is_next.sum()))
            rows = block.filter(pa.array(is_next))
            for field in fields:
                rows = rows.append_column(field, columns[field.name])
            joined.add(rows)
            done += columns.num_rows
        if done == self.clips.num_rows:
            return joined.whole()
        raise UsageError(
            f"{self.store.uri}/candidates lacks clips of the snapshot; "
            "`curate run` makes those of the newest again"
        )

    def _sorted_candidates(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yields all stored candidates in the order of `clips`, remainders last."""
        of_parts = remainders_fingerprint(self.summary["fingerprints"]["candidates"])
        for is_last in (False, True):
            stored = SortedRows(schema, CLIP_ORDER, self.memory_budget_bytes)
            for name in self.stored_objects("clips"):
                if name.rpartition("/")[2].startswith(of_parts) == is_last:
                    stored.add(widened(read_parquet(self.store, name), schema))
            yield from stored.blocks()

    def without_remainders(self) -> "Finished":
        """Returns the run without the remainders of divided clips, which come last."""
        n_clips = int(np.sum(~has_tag(self.clips, REMAINDER)))
        return replace(self, clips=self.clips.slice(0, n_clips))

    def vectors(self, name: str) -> StoredVectors:
        """Returns the vectors of all clips from the table `name`."""
        stored = StoredVectors(embeddings_schema(1).empty_table(), self.memory_budget_bytes)
        for part in self.summary["tables"].get(name, ()):
            stored.add(read_parquet(self.store, part))
        return stored

    def pictures(self, clip_ids: Iterable[str]) -> dict[str, bytes]:
        """Returns the thumbnails of clips by id."""
        return read_pictures(self.store, self.stored_objects("pictures"), clip_ids)

    def footage(self) -> FootageStore:
        """Returns the footage by which clips are compared."""
        return FootageStore.of(self.store, self.stored_objects("footage"))

    def reference_clips(self) -> list[ReferenceClips]:
        """Returns clips of other outputs and removed clips, as a run of this recipe reads them."""
        return reference_clips_of(self.store, self.recipe, read_removals(self.store))

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """Marks that the next run of this recipe honours, by clip id."""
        return honoured_marks(self.store, self.recipe)

    @cached_property
    def tables(self) -> "RememberedTables":
        """The tables that stages stored, such as pairs of similar clips; written only in memory."""
        fingerprint = self.summary["fingerprints"]["candidates"]
        return RememberedTables(self.store, fingerprint, earlier=self.summary.get(EARLIER, ()))

    def stored_objects(self, kind: str) -> list[str]:
        """Returns names of candidates' objects; `kind` is `clips`, `pictures` or `footage`."""
        there = {info.key for info in self.store.list(f"candidates/{kind}/")}
        return [name for name in stored_candidates(self.summary, kind) if name in there]


class RememberedTables(CorpusTables):
    """Tables that are written only in memory, so that several decisions search pairs once."""

    def __init__(self, store: Store, fingerprint: str, *, earlier: Collection[str] = ()) -> None:
        super().__init__(store, fingerprint, earlier=earlier)
        self._written: dict[str, pa.Table] = {}

    def read(self, family: str) -> pa.Table | None:
        """Returns the newest table of a family; None if there is none."""
        return self._written[family] if family in self._written else super().read(family)

    def write(self, family: str, table: pa.Table) -> None:
        """Replaces the table of a family in memory."""
        self._written[family] = table


def open_finished(
    out: str, snapshot: int | None = None, *, memory_bytes: int | None = None
) -> Finished:
    """Reads a snapshot of OUT, a folder or `s3://bucket/prefix`; None for the newest.

    `memory_bytes` limits the memory of tables; None for a share of this machine's memory.

    Raises:
        UsageError: OUT has no finished run or no such snapshot, or this version cannot read the
            snapshot.
    """
    store = open_store(out)
    summary = read_current_summary(store, snapshot)
    recipe = recipe_used(summary, store.uri)
    measures = measures_of(recipe)
    memory_budget_bytes = memory_budget_of(memory_bytes or default_memory_bytes())
    tables = (_as_now(read_parquet(store, name), measures) for name in summary["tables"]["clips"])
    first = next(tables)
    rows: Iterator[pa.Table] = itertools.chain([first], tables)
    if recipe.run.mode == "growing":
        # Clips are in order only within a generation; remainders come last.
        sorted_rows = [SortedRows(first.schema, CLIP_ORDER, memory_budget_bytes) for _ in range(2)]
        for table in rows:
            is_part = has_tag(table, REMAINDER)
            sorted_rows[0].add(table.filter(pa.array(~is_part)))
            sorted_rows[1].add(table.filter(pa.array(is_part)))
        rows = itertools.chain(*(some.blocks() for some in sorted_rows))
    clips = DiskTable(first.schema, memory_budget_bytes)
    for block in rows:
        clips.add(block)
    return Finished(
        store=store,
        summary=summary,
        recipe=recipe,
        clips=clips.whole(),
        measures=measures,
        memory_budget_bytes=memory_budget_bytes,
    )


def has_tag(clips: pa.Table, tag: str) -> NDArray[np.bool_]:
    """Returns which clips have a tag, bool [N]."""
    has, start = np.zeros(clips.num_rows, np.bool_), 0
    for tags in clips["tags"].chunks:
        rows = pc.list_parent_indices(tags).filter(pc.equal(pc.list_flatten(tags), tag))
        has[start + rows.to_numpy(zero_copy_only=False)] = True
        start += len(tags)
    return has


def _as_now(table: pa.Table, measures: Measures) -> pa.Table:
    """Returns the rows with this version's columns."""
    schema = pa.schema([*clips_schema(measures.specs), *further_fields(table.schema)])
    return widened(table, schema)


def is_of_stage(reason: str | None, finished: Finished) -> bool:
    """Returns whether a reason comes from a custom stage, which runs after the rules."""
    if reason is None or is_metadata(reason):
        return False
    specs = finished.measures.specs.values()
    of_rules = {name for spec in specs for name in (spec.low, spec.high)}
    of_rules.update(reasons_of(column_rules(finished.recipe).root))
    return reason not in of_rules and reason not in list(Reason)

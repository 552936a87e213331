"""A finished run under OUT, read without changing anything."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import UsageError
from curator.measures.score_list import SCORES
from curator.recipe import Recipe, recipe_used
from curator.records.clips import Reason
from curator.stages.dedup.pair_store import StoredPairs
from curator.stages.propose.candidate_store import read_pictures, stored_candidates
from curator.storage import Store, open_store
from curator.storage.metadata_columns import is_metadata
from curator.tables.checksums import read_parquet
from curator.tables.output_format import read_current_summary
from curator.tables.schemas import clips_schema, metadata_fields
from curator.tables.snapshot_store import EARLIER


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A snapshot of an output root."""

    store: Store
    summary: Mapping[str, Any]
    recipe: Recipe
    clips: pa.Table
    """Rows of `clips_schema`; columns that were added since are null."""

    def candidates(self) -> pa.Table:
        """The clips as proposed and scored, a row for each of `clips`, in its order.

        Raises:
            UsageError: They are no longer stored.
        """
        stored = self._stored("clips")
        if stored:
            table = self._read(stored)
            at = pc.index_in(self.clips["clip_id"], value_set=table["clip_id"].combine_chunks())
            if at.null_count == 0:
                table = table.take(at.combine_chunks())
                for field in metadata_fields(self.clips.schema):
                    table = table.append_column(field, self.clips[field.name])
                return table
        raise UsageError(
            f"{self.store.uri}/candidates lacks clips of the snapshot; "
            "`curate run` makes those of the newest again"
        )

    def vectors(self) -> pa.Table:
        """Rows of `embeddings`."""
        return self._read(self.summary["tables"]["embeddings"])

    def pictures(self, clip_ids: Iterable[str]) -> dict[str, bytes]:
        """Returns thumbnails of clips."""
        return read_pictures(self.store, self._stored("pictures"), clip_ids)

    def pairs(self) -> StoredPairs:
        """Pairs of similar clips."""
        stamp = self.summary["fingerprints"]["candidates"]
        return StoredPairs(self.store, stamp, earlier=self.summary.get(EARLIER, ()))

    def _stored(self, kind: str) -> list[str]:
        there = {info.key for info in self.store.list(f"candidates/{kind}/")}
        return [name for name in stored_candidates(self.store, self.summary, kind) if name in there]

    def _read(self, names: Iterable[str]) -> pa.Table:
        return pa.concat_tables([read_parquet(self.store, name) for name in names])


def open_finished(out: str, snapshot: int | None = None) -> Finished:
    """Reads a snapshot of OUT, a folder or `s3://bucket/prefix`; None for the newest.

    Raises:
        UsageError: OUT has no finished run or no such snapshot, or one that this version cannot
            read.
    """
    store = open_store(out)
    summary = read_current_summary(store, snapshot)
    # First, because it names the scores of the tables.
    recipe = recipe_used(summary, store.uri)
    tables = [read_parquet(store, name) for name in summary["tables"]["clips"]]
    return Finished(
        store=store,
        summary=summary,
        recipe=recipe,
        clips=pa.concat_tables([_as_now(table) for table in tables]).combine_chunks(),
    )


def _as_now(table: pa.Table) -> pa.Table:
    """Gives the rows this version's columns."""
    schema = pa.schema([*clips_schema(), *metadata_fields(table.schema)])
    known = set(table.column_names)
    columns = [
        table[field.name].cast(field.type)
        if field.name in known
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def is_of_stage(reason: str | None) -> bool:
    """Whether a reason comes from a stage of a user's own, which runs after the rules."""
    if reason is None or is_metadata(reason):
        return False
    of_scores = {name for spec in SCORES.values() for name in (spec.low, spec.high)}
    return reason not in of_scores and reason not in list(Reason)

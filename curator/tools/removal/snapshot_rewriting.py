"""Rewrites the tables, indexes, counts and shards of a snapshot without removed footage.

Removal is the only operation that changes a snapshot: removed footage must not be readable from
older snapshots either. Writing the snapshot's own object switches to the new contents atomically.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.dataset.shard_index import (
    DATASET_SCHEMA,
    current_rows,
    described_files,
    described_tars,
)
from curator.dataset.side_places import side_places
from curator.dataset.tar_reader import declared_families
from curator.family import FamilyVersion
from curator.runs.commit_run import table_facts
from curator.storage import Store
from curator.tables.candidate_store import subtract_counts
from curator.tables.checksums import read_parquet
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRows
from curator.tables.json_objects import read_json, sealed_json, to_json
from curator.tables.long_columns import sorted_rows
from curator.tables.named_ids import naming_rows, value_without_ids
from curator.tables.out_layout import DATASET, MANIFEST, SHARDS
from curator.tables.parts import as_runs_write, parquet_by_content, with_column, write_table_part
from curator.tables.removal_records import CAPTION_COLUMNS, Removals
from curator.tables.sample_members import MEMBERS
from curator.tables.schemas import clips_schema, further_fields, scores_in
from curator.tables.snapshot_store import (
    CANDIDATES,
    CENTROIDS,
    DECIDED_WITH,
    EARLIER,
    INDEXES,
    NUMBER,
    REMOVALS,
    index_names,
    named_objects,
    snapshot_name,
)
from curator.tables.source_table import SourceTotals
from curator.tools.removal.cluster_centroids import centroids_without
from curator.tools.removal.state_scrubbing import scrubbed
from curator.tools.removal.tar_rewriting import RewrittenTar, TarRewriting, TarToRewrite

Tars = Mapping[str, RewrittenTar | None]
"""New tars by the name of the old tar under the output root; None if no sample is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenSnapshot:
    """A snapshot without removed footage: its contents, and the files that describe its shards."""

    summary: dict[str, Any]
    shard_files: dict[str, bytes]
    clips: ClipRows
    totals: SourceTotals


class SnapshotRewriting:
    """Rewrites the snapshots of an output root, from the oldest to the newest.

    Snapshots must no longer name the objects `gone`. `records` is the snapshots' entry about the
    records of removals.
    """

    def __init__(
        self, store: Store, removals: Removals, gone: Collection[str], records: Mapping[str, str]
    ) -> None:
        self._store = store
        self._removals = removals
        self._gone = frozenset(gone)
        self._records = dict(records)
        self.tars = TarRewriting(store, removals)
        self._parts: dict[str, str] = {}
        """New names of the table parts rewritten so far, by old name."""
        self._named: set[str] = set()
        """Objects named by the snapshots rewritten so far."""

    def rewrite(self, summary: Mapping[str, Any]) -> RewrittenSnapshot:
        """Writes the missing objects of a snapshot, then the snapshot; deletes nothing."""
        store, tables = self._store, summary["tables"]
        dataset = read_parquet(store, summary[INDEXES]["dataset"])
        tars = {tar.name: self.tars.rewrite(tar) for tar in self._of_tars(summary)}
        new = {
            name: [self._part(part, name, tars) for part in parts]
            for name, parts in tables.items()
            if name != "sources"
        }
        totals = SourceTotals()
        new["sources"] = list(self._sources(tables, totals))
        clips = _clip_rows([read_parquet(store, part) for part in new["clips"]])
        files = self._shard_files(summary, dataset, tars, clips.scores)
        own_indexes = files[MANIFEST], files[DATASET]
        indexes = index_names(*own_indexes)
        for name, data in zip(indexes.values(), own_indexes, strict=True):
            if not store.exists(name):
                store.write(name, data)
        others = [dict(entry) for entry in summary["shards"] if entry["name"] not in tars]
        entries = [*others, *(tar.summary for tar in tars.values() if tar is not None)]
        written = {
            **summary,
            **table_facts(totals, clips, summary["counts"]["skipped_names"], summary.get("recipe")),
            "shards": sorted(entries, key=lambda entry: str(entry["name"])),
            "tables": {name: new[name] for name in tables},
            CANDIDATES: [name for name in summary[CANDIDATES] if name not in self._gone],
            INDEXES: indexes,
            REMOVALS: self._records,
        }
        if DECIDED_WITH in summary:
            # Custom stages may store ids there.
            written[DECIDED_WITH] = value_without_ids(summary[DECIDED_WITH], self._removals.ids)
            centroids = centroids_without(store, summary, self._removals)
            if centroids is not None:
                written[DECIDED_WITH][CENTROIDS] = centroids
        own = named_objects(written)
        written[EARLIER] = sorted(self._named - own)
        self._named |= own
        if written != summary:
            name = snapshot_name(summary[NUMBER])
            store.write(name, sealed_json(written, to_json, name))
        return RewrittenSnapshot(summary=written, shard_files=files, clips=clips, totals=totals)

    def check_tars(self, summary: Mapping[str, Any]) -> None:
        """Reads the tars of a snapshot that hold removed clips; writes nothing.

        Raises:
            ShardError: A tar is damaged, or is not as this version writes it.
        """
        for tar in self._of_tars(summary):
            self.tars.check(tar)

    def _of_tars(self, summary: Mapping[str, Any]) -> Iterator[TarToRewrite]:
        """Yields the tars to rewrite.

        These tars hold removed clips, or clips whose texts name removed footage.
        """
        dataset = read_parquet(self._store, summary[INDEXES]["dataset"])
        is_named = pc.is_in(dataset["clip_id"], value_set=self._naming(summary["tables"]))
        is_gone = pc.or_(pa.array(self._removals.rows(dataset)), is_named)
        gone = dataset.filter(is_gone)
        if not gone.num_rows:
            return
        manifest = read_json(self._store, summary[INDEXES]["manifest"])
        declared = declared_families(manifest).items()
        versions = {suffix: FamilyVersion.from_json(value) for suffix, value in declared}
        tables = [read_parquet(self._store, n) for n in summary["tables"].get(MEMBERS, ())]
        values = {
            (row["clip_id"], row["member"]): (versions[row["member"]], row["key"])
            for table in tables
            for row in table.to_pylist()
            if row["member"] in versions
        }
        shards = gone["shard"].unique()
        side_members: dict[str, dict[tuple[str, str], Location]] = {}
        rows = dataset.filter(pc.is_in(dataset["shard"], value_set=shards))
        for row in side_places(rows, manifest).to_pylist():
            where = Location(name=row["name"], offset=row["offset"], n_bytes=row["bytes"])
            side_members.setdefault(row["shard"], {})[row["clip_id"], row["member"]] = where
        for name in sorted(shards.to_pylist()):
            own = side_members.get(name, {})
            yield TarToRewrite(
                name=f"{SHARDS}/{name}",
                sides=tuple(sorted({where.name for where in own.values()})),
                values=values,
                side_members=own,
            )

    def _naming(self, tables: Mapping[str, Any]) -> pa.Array:
        """Returns the ids of clips whose texts in any table name removed footage."""
        ids: set[str] = set()
        sources: set[str] = set()
        for name in (*CAPTION_COLUMNS, "sidecars"):
            for part in tables.get(name, ()):
                table = read_parquet(self._store, part)
                rows = table.filter(naming_rows(table, self._removals))
                if "clip_id" in table.column_names:
                    ids.update(rows["clip_id"].to_pylist())
                else:
                    sources.update(rows["source_uri"].to_pylist())
        for part in tables["clips"] if sources else ():
            table = read_parquet(self._store, part, ("clip_id", "source_uri"))
            of = pc.is_in(table["source_uri"], value_set=pa.array(sorted(sources), pa.string()))
            ids.update(table.filter(of)["clip_id"].to_pylist())
        return pa.array(sorted(ids), pa.string())

    def _shard_files(
        self, summary: Mapping[str, Any], dataset: pa.Table, tars: Tars, scores: Iterable[str]
    ) -> dict[str, bytes]:
        manifest = read_json(self._store, summary[INDEXES]["manifest"])
        old = pa.array([name.removeprefix(f"{SHARDS}/") for name in tars], pa.string())
        dataset = dataset.filter(pc.invert(pc.is_in(dataset["shard"], value_set=old)))
        new = [tar.rows for tar in tars.values() if tar is not None]
        dataset = sorted_rows(pa.concat_tables([current_rows(dataset), *new]), "shard")
        described = described_tars(manifest, dataset, summary["shards"])
        left = [tar for name, tar in described.items() if f"{SHARDS}/{name}" not in tars]
        left += [tar.described for tar in tars.values() if tar is not None]
        return described_files(
            sorted(left, key=lambda tar: tar.name),
            parquet_by_content([dataset], DATASET_SCHEMA, DATASET)[1],
            declared=declared_families(manifest),
            seed=manifest["seed"],
            fingerprint=manifest["recipe_fingerprint"],
            made_by=manifest["made_by"],
            scores=scores,
        )

    def _sources(self, tables: Mapping[str, Any], totals: SourceTotals) -> Iterator[str]:
        """Writes the parts of `sources` without removed clips in the counts; yields their names."""
        old = [read_parquet(self._store, part, _COUNTED) for part in tables["clips"]]
        gone = [rows.filter(pa.array(self._removals.rows(rows))) for rows in old]
        lost = {"n_clips": Counter[str](), "n_kept": Counter[str]()}
        for rows in gone:
            kept = rows.filter(pc.equal(rows["decision"], "kept"))
            lost["n_clips"].update(rows["source_id"].to_pylist())
            lost["n_kept"].update(kept["source_id"].to_pylist())
        for number, part in enumerate(tables["sources"]):
            rows = read_parquet(self._store, part)
            left = scrubbed(rows, self._removals)
            if left is None and not lost["n_clips"]:
                totals.add(rows)
                yield part
                continue
            left = rows if left is None else left
            for column, counts in lost.items():
                left = subtract_counts(left, column, counts)
            totals.add(left)
            yield self._write(part, number, left)

    def _part(self, part: str, table_name: str, tars: Tars) -> str:
        """Writes a part of a table without removed rows; returns its name."""
        # The tar of a remaining clip may differ between snapshots.
        if part in self._parts and table_name != "clips":
            return self._parts[part]
        table = read_parquet(self._store, part)
        left = scrubbed(table, self._removals)
        if table_name == "clips":
            moved = _moved(table if left is None else left, tars)
            left = moved if moved is not table else None
        number = int(part.rpartition("/")[2].split("-")[1])
        self._parts[part] = part if left is None else self._write(part, number, left)
        return self._parts[part]

    def _write(self, part: str, number: int, rows: pa.Table) -> str:
        folder = part.rpartition("/")[0]
        own = as_runs_write(rows)
        return write_table_part(self._store, folder, number, [own], own.schema)


_COUNTED = ("clip_id", "source_id", "source_uri", "start_s", "end_s", "fps", "decision")


def _moved(table: pa.Table, tars: Tars) -> pa.Table:
    """Returns rows of `clips` that point to the samples in the new tars."""
    places = {
        f"{old}\t{key}": (f"{SHARDS}/{new.described.name}", start)
        for old, new in tars.items()
        if new is not None
        for key, start in zip(*map(new.rows.column, ("clip_id", "offset")), strict=True)
    }
    keys = pc.binary_join_element_wise(table["shard"], table["clip_id"], "\t")
    positions = pc.index_in(keys, value_set=pa.array(list(places), pa.string()))
    if positions.null_count == len(positions):
        return table
    names = pa.array([name for name, _ in places.values()], pa.string()).take(positions)
    starts = pa.array([start for _, start in places.values()], pa.int64()).take(positions)
    for name, values in {"shard": names, "mp4_offset": starts}.items():
        new = pc.coalesce(values.cast(table[name].type), table[name])
        table = with_column(table, name, new)
    return table


def _clip_rows(tables: list[pa.Table]) -> ClipRows:
    table = pa.concat_tables(tables)
    schema = clips_schema(scores_in(table.schema))
    there = [name for name in schema.names if name in table.column_names]
    there += [field.name for field in further_fields(table.schema)]
    return ClipRows(table.select(there), schema)

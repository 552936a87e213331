"""Rewrites a snapshot without removed footage: its tables, indexes, counts and shards.

This is the one exception to snapshots being immutable: what was removed must not be read from an
old one either. A snapshot changes at once, when its own object is written.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.family import FamilyVersion
from curator.removal.part_scrubbing import scrubbed
from curator.removal.tar_rewriting import RewrittenTar, TarRewriting, Values
from curator.runs.excluded_footage import fewer
from curator.stages.commit.commit_run import table_facts
from curator.stages.shard.shard_index import (
    DATASET_SCHEMA,
    DescribedTar,
    described_files,
    described_tars,
    members_by_tar,
)
from curator.stages.shard.tar_reader import declared_families
from curator.storage import Store
from curator.tables.checksums import read_json, read_parquet, sealed_json, to_json
from curator.tables.clip_rows import ClipRows
from curator.tables.out_layout import DATASET, MANIFEST, SHARDS
from curator.tables.parts import as_runs_write, parquet_by_content, with_column, write_table_part
from curator.tables.removal_records import Removals, removal_hash
from curator.tables.sample_members import MEMBERS
from curator.tables.schemas import clips_schema, further_fields, scores_in
from curator.tables.snapshot_store import (
    CANDIDATES,
    EARLIER,
    INDEXES,
    JUDGED,
    NUMBER,
    REMOVALS,
    index_names,
    named_objects,
    snapshot_name,
)
from curator.tables.source_table import SourceTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenSnapshot:
    """A snapshot without removed footage: its contents, and what describes its shards, in order."""

    summary: dict[str, Any]
    shard_files: dict[str, bytes]
    clips: ClipRows
    totals: SourceTotals


class SnapshotRewriting:
    """The snapshots of an output root, rewritten from the oldest on.

    Args:
        store: Output root.
        removals: What goes.
        gone: Objects that no snapshot may name any more.
        records: What snapshots say of the records of removals.
    """

    def __init__(
        self,
        store: Store,
        removals: Removals,
        gone: Collection[str],
        records: Mapping[str, str],
    ) -> None:
        self._store = store
        self._removals = removals
        self._gone = frozenset(gone)
        self._records = dict(records)
        self.tars = TarRewriting(store, removals)
        self._parts: dict[str, str] = {}
        """New name of each part of a table that was looked at."""
        self.named: set[str] = set()
        """Objects that the snapshots rewritten so far name."""

    def rewrite(self, summary: Mapping[str, Any]) -> RewrittenSnapshot:
        """Writes what a snapshot needs and is not there, then the snapshot; removes nothing."""
        dataset = read_parquet(self._store, summary[INDEXES]["dataset"])
        tars = self._tars(summary, dataset)
        lost = _ClipsTaken()
        tables = {
            name: [self._part(part, tars, lost) for part in parts]
            for name, parts in summary["tables"].items()
            if name != "sources"
        }
        totals = SourceTotals()
        sources = []
        for number, part in enumerate(summary["tables"]["sources"]):
            rows = read_parquet(self._store, part)
            left = scrubbed(rows, self._removals)
            if left is not None or lost.clips:
                left = fewer(rows if left is None else left, "n_clips", lost.clips)
                left = fewer(left, "n_kept", lost.kept)
                own = as_runs_write(left)
                folder = part.rpartition("/")[0]
                part = write_table_part(self._store, folder, number, [own], own.schema)
            totals.add(rows if left is None else left)
            sources.append(part)
        clips = _clip_rows([read_parquet(self._store, part) for part in tables["clips"]])
        files = self._shard_files(summary, dataset, tars, clips.scores)
        tables = {name: tables.get(name, sources) for name in summary["tables"]}
        written = {
            **summary,
            **table_facts(totals, clips, summary["counts"]["skipped_names"]),
            "shards": _entries(summary["shards"], tars),
            "tables": tables,
            CANDIDATES: [name for name in summary[CANDIDATES] if name not in self._gone],
            INDEXES: self._indexes(files),
            REMOVALS: self._records,
        }
        if JUDGED in summary:
            # Stages from outside may leave ids in it.
            written[JUDGED] = _without_ids(summary[JUDGED], self._removals.ids)
        own = named_objects(written)
        written[EARLIER] = sorted(self.named - own)
        self.named |= own
        if written != summary:
            name = snapshot_name(summary[NUMBER])
            self._store.write(name, sealed_json(written, to_json, name))
        return RewrittenSnapshot(summary=written, shard_files=files, clips=clips, totals=totals)

    def check_tars(self, summary: Mapping[str, Any]) -> None:
        """Reads the tars of a snapshot that hold removed clips; writes nothing.

        Raises:
            ShardError: One is damaged, or another version wrote it.
        """
        names = self._names(read_parquet(self._store, summary[INDEXES]["dataset"]))
        values = self._values(summary) if names else {}
        for name in names:
            self.tars.check(name, values)

    def _tars(
        self, summary: Mapping[str, Any], dataset: pa.Table
    ) -> dict[str, RewrittenTar | None]:
        """Rewrites the tars that hold removed clips; by old name under the output root."""
        names = self._names(dataset)
        values = self._values(summary) if names else {}
        return {name: self.tars.rewrite(name, values) for name in names}

    def _names(self, dataset: pa.Table) -> list[str]:
        gone = dataset.filter(pa.array(self._removals.rows(dataset)))
        return sorted(f"{SHARDS}/{name}" for name in gone["shard"].unique().to_pylist())

    def _values(self, summary: Mapping[str, Any]) -> Values:
        """Reads what the members of a snapshot's samples were made from."""
        manifest = read_json(self._store, summary[INDEXES]["manifest"])
        versions = {
            suffix: FamilyVersion.from_json(value)
            for suffix, value in declared_families(manifest).items()
        }
        tables = [read_parquet(self._store, n) for n in summary["tables"].get(MEMBERS, ())]
        return {
            (row["clip_id"], row["member"]): (versions[row["member"]], row["key"])
            for table in tables
            for row in table.to_pylist()
            if row["member"] in versions
        }

    def _shard_files(
        self,
        summary: Mapping[str, Any],
        dataset: pa.Table,
        tars: Mapping[str, RewrittenTar | None],
        scores: Iterable[str],
    ) -> dict[str, bytes]:
        manifest = read_json(self._store, summary[INDEXES]["manifest"])
        dataset = dataset.filter(pa.array(~self._removals.rows(dataset)))
        dataset = _moved(dataset, tars, prefix=f"{SHARDS}/").sort_by("shard").cast(DATASET_SCHEMA)
        described: dict[str, DescribedTar] = {}
        for relative, tar in described_tars(manifest, dataset).items():
            name = f"{SHARDS}/{relative}"
            if name not in tars:
                described[name] = tar
            elif (new := tars[name]) is not None:
                described[f"{SHARDS}/{new.described.name}"] = new.described
        members = members_by_tar(summary["shards"])
        members |= {new.described.name: new.members for new in tars.values() if new is not None}
        return described_files(
            sorted(described.values(), key=lambda tar: tar.name),
            parquet_by_content([dataset], DATASET_SCHEMA, DATASET)[1],
            members.__getitem__,
            declared=declared_families(manifest),
            seed=manifest["seed"],
            fingerprint=manifest["recipe_fingerprint"],
            made_by=manifest["made_by"],
            scores=scores,
        )

    def _indexes(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Writes a snapshot's own manifest and table of samples; returns their names."""
        own = files[MANIFEST], files[DATASET]
        names = index_names(*own)
        for name, data in zip(names.values(), own, strict=True):
            if not self._store.exists(name):
                self._store.write(name, data)
        return names

    def _part(self, part: str, tars: Mapping[str, RewrittenTar | None], lost: "_ClipsTaken") -> str:
        """Writes a part of a table without removed rows; returns its name."""
        folder, _, file_name = part.rpartition("/")
        is_clips = folder.endswith("clips")
        if part in self._parts and not is_clips:
            return self._parts[part]
        table = read_parquet(self._store, part)
        left = scrubbed(table, self._removals)
        if is_clips:
            lost.add(table.filter(pa.array(self._removals.rows(table))))
            moved = _moved(table if left is None else left, tars, prefix="")
            left = moved if moved is not table else None
        if left is not None:
            number = int(file_name.split("-")[1])
            own = as_runs_write(left)
            self._parts[part] = write_table_part(self._store, folder, number, [own], own.schema)
        return self._parts.setdefault(part, part)


class _ClipsTaken:
    """Clips that a snapshot loses, by source id."""

    def __init__(self) -> None:
        self.clips: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()

    def add(self, rows: pa.Table) -> None:
        self.clips.update(rows["source_id"].to_pylist())
        self.kept.update(rows.filter(pc.equal(rows["decision"], "kept"))["source_id"].to_pylist())


def _moved(table: pa.Table, tars: Mapping[str, RewrittenTar | None], *, prefix: str) -> pa.Table:
    """Returns rows with `shard` and `clip_id`, with the places of their samples in new tars.

    `tars` has new tars by old name under the output root, before which `shard` lacks `prefix`.
    """
    places = {
        f"{old}\t{key}": (f"{SHARDS}/{new.described.name}".removeprefix(prefix), start)
        for old, new in tars.items()
        if new is not None
        for key, start in new.mp4_starts.items()
    }
    keys = pc.binary_join_element_wise(
        pc.binary_join_element_wise(prefix, table["shard"], ""), table["clip_id"], "\t"
    )
    positions = pc.index_in(keys, value_set=pa.array(list(places), pa.string()))
    if positions.null_count == len(positions):
        return table
    names = pa.array([name for name, _ in places.values()], pa.string()).take(positions)
    starts = pa.array([start for _, start in places.values()], pa.int64()).take(positions)
    paths = pc.binary_join_element_wise(names, table["clip_id"], "#")
    columns = {
        "shard": names,
        "mp4_offset": starts,
        "offset": starts,
        "path": pc.binary_join_element_wise(paths, "mp4", "."),
    }
    for name, column in columns.items():
        if name in table.column_names:
            new = pc.coalesce(column.cast(table[name].type), table[name])
            table = with_column(table, name, new)
    return table


def _entries(
    entries: Collection[Mapping[str, Any]], tars: Mapping[str, RewrittenTar | None]
) -> list[dict[str, Any]]:
    """Returns the shards of a summary with new tars in the place of old ones."""
    listed = []
    for entry in entries:
        if entry["name"] not in tars:
            listed.append(dict(entry))
        elif (new := tars[entry["name"]]) is not None:
            listed.append(new.summary)
    return sorted(listed, key=lambda entry: str(entry["name"]))


def _clip_rows(tables: list[pa.Table]) -> ClipRows:
    table = pa.concat_tables(tables)
    schema = clips_schema(scores_in(table.schema))
    there = [name for name in schema.names if name in table.column_names]
    there += [field.name for field in further_fields(table.schema)]
    return ClipRows(table.select(there), schema)


def _without_ids(value: Any, ids: Collection[str]) -> Any:  # noqa: ANN401 - what JSON can hold
    """Returns a value without keys and texts that are removed ids, given as their hashes."""

    def is_gone(text: object) -> bool:
        return isinstance(text, str) and removal_hash(text) in ids

    if isinstance(value, Mapping):
        return {name: _without_ids(own, ids) for name, own in value.items() if not is_gone(name)}
    if isinstance(value, list):
        return [_without_ids(own, ids) for own in value if not is_gone(own)]
    return None if is_gone(value) else value

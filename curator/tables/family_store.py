"""Stores values of families under an output root, and finds them by key.

    values/<family>/<fingerprint>-<keys>.parquet      until the commit: then the values are in tars
    families/<family>/<fingerprint>-<keys>.parquet    permanently, if the family declares it

A part of a family of members has a row group for each value, or for some small values, so that
readers can read a value alone. Readers read a part of a family of columns whole. Parts never
change.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import RETRIED
from curator.family import FamilyVersion, Lifetime, Row
from curator.stage import ItemStage
from curator.storage import Store
from curator.storage.source_reader import is_racy
from curator.tables.checksums import read_parquet
from curator.tables.clip_locations import KeyIndex, Location
from curator.tables.key_index import KnownKeys, part_versions
from curator.tables.long_columns import joined_chunks, take_rows
from curator.tables.out_layout import FAMILIES, VALUES
from curator.tables.parts import Parts, columns_schema, rows_to_table
from curator.tables.removal_records import Removals
from curator.tables.sample_members import (
    MEMBERS,
    MEMBERS_SCHEMA,
    VALUE,
    MemberColumn,
    StoredMember,
)
from curator.tables.schemas import family_fields

_OF_CLIP = columns_schema(("key clip_id source_id", pa.string()))
_OF_MEMBER = [("n_bytes", pa.int64()), (VALUE, pa.binary())]
_OF_SOURCE = ("uri", "bytes", "version")
"""Columns that the row of a removed source keeps."""
_READERS = 16
FIRST_WINDOW, WINDOW = 512, 16_384
"""First and largest number of items per lookup. Small lookups let work begin soon; large lookups
read a part with many neighbouring items once."""
ItemT = TypeVar("ItemT")
GROUP_BYTES = 64 << 10
"""Target size of a row group of small values: each row group costs 700 bytes of footer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewValue:
    """A value of a clip that is not stored yet; `key` is a digest of the value's inputs."""

    key: str
    clip_id: str
    source_id: str
    data: bytes | Row = field(repr=False)
    """Bytes of a member, or a row of columns."""


class FamilyStore:
    """Families under one output root.

    `in_tars` has the values in tars of the last snapshot, as `values_in_tars` returns them.
    """

    def __init__(self, store: Store, in_tars: Mapping[str, pa.Table] | None = None) -> None:
        self.store = store
        self._in_tars = in_tars or {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles only the root, because workers only write."""
        return FamilyStore, (self.store,)

    def put(self, version: FamilyVersion, values: Sequence[NewValue]) -> list[StoredMember]:
        """Stores values as one part; returns them in order."""
        if not values:
            return []
        fields, rows, sizes = family_fields(version.family), [], []
        for value in values:
            data, row = value.data, {name: getattr(value, name) for name in _OF_CLIP.names}
            sizes.append(len(data) if isinstance(data, bytes) else 0)
            own = {"n_bytes": len(data), VALUE: data} if isinstance(data, bytes) else data
            rows.append({**row, **own})
        part = self._parts(version).write(
            rows_to_table(rows, pa.schema([*_OF_CLIP, *(fields or _OF_MEMBER)])),
            [value.key for value in values],
            one_row_groups=not fields,
            rows_per_group=None if fields else max(1, GROUP_BYTES // max(1, *sizes)),
        )
        return [
            StoredMember(
                version=version,
                key=value.key,
                where=Location(name=part, row=row, n_bytes=n_bytes, column=VALUE),
            )
            for row, (value, n_bytes) in enumerate(zip(values, sizes, strict=True))
        ]

    def find(self, version: FamilyVersion, keys: pa.ChunkedArray) -> MemberColumn:
        """Finds the values of some keys, in tars of the last snapshot or in parts."""
        members, rows = MemberColumn(version, keys), KeyIndex(keys)

        def fill(table: pa.Table) -> None:
            numbers = rows.find_all(table["key"].to_pylist())
            is_wanted = numbers >= 0
            members.places.fill(numbers[is_wanted], table.filter(pa.array(is_wanted)))

        if version.fingerprint in self._in_tars:
            fill(self._in_tars[version.fingerprint])
        parts = self._parts(version)
        sizes = [] if version.family.columns else ["n_bytes"]

        def located(name: str) -> pa.Table:
            table = parts.read_columns(name, ["key", *sizes])
            n = table.num_rows
            table = table.append_column("name", pa.repeat(name, n))
            table = table.append_column("row", pa.array(range(n), pa.int32()))
            return table if sizes else table.append_column("n_bytes", pa.repeat(0, n))

        with ThreadPoolExecutor(_READERS) as pool:
            for table in pool.map(located, parts.names()):
                fill(table)
        return members

    def rows(self, column: MemberColumn) -> pa.Table:
        """Returns a row of a family of columns for each key; null for a key without a value."""
        places, fields = column.places, family_fields(column.version.family)
        parts, columns = self._parts(column.version), [field.name for field in fields]
        with ThreadPoolExecutor(_READERS) as pool:
            tables = list(pool.map(lambda name: parts.read_columns(name, columns), places.names))
        whole = pa.concat_tables([pa.schema(fields).empty_table(), *tables])
        begins = np.cumsum([0, *(table.num_rows for table in tables)])
        rows = pa.array(begins[places.code] + places.row, mask=places.code < 0)
        return take_rows(joined_chunks(whole), rows)

    def _parts(self, version: FamilyVersion) -> Parts:
        folder = VALUES if version.family.lifetime is Lifetime.RUN else FAMILIES
        return Parts(self.store, f"{folder}/{version.family.name}", version.fingerprint)


class FamilyRows(Generic[ItemT]):
    """The rows of a stage about sources, with a part for each unit.

    The folder has the name of the first family that the stage writes. Rows have the columns `uri`,
    `version`, `source_id` and `error_code` of `sources`. Sources in `removals` become failures.
    Only the process of a run `may_write` the index of keys.
    """

    def __init__(
        self,
        stage: ItemStage[Any, ItemT, Any],
        store: Store,
        *,
        removals: Removals | None = None,
        may_write: bool = False,
    ) -> None:
        self.stage, self._may_write = stage, may_write
        self._parts = Parts(store, stage.writes[0], stage.fingerprint({}))
        self._removals = removals or Removals()
        self._since_ns = time.time_ns()

    def put(self, items: Sequence[ItemT], results: Sequence[Any]) -> pa.Table:
        """Stores the rows of a unit; returns the rows, with failures in place of removed sources.

        The next run repeats failures that may be temporary, and items of recently changed files: a
        later write may have left their version as it was.
        """
        table = self.stage.rows(items, results)
        facts = ("uri", "version", "error_code", "source_id")
        uris, versions, codes, ids = (table[name].to_pylist() for name in facts)
        is_sure = (not is_racy(*pair, self._since_ns) for pair in zip(uris, versions, strict=True))
        is_done = (a and b not in RETRIED for a, b in zip(is_sure, codes, strict=True))
        done = list(compress(row_keys(table, self.stage.key).to_pylist(), is_done))
        refusals = list(map(self._removals.refusal, uris, ids))
        if any(refusals):
            rows = [
                row if why is None else {name: row[name] for name in _OF_SOURCE} | why.columns()
                for row, why in zip(table.to_pylist(), refusals, strict=True)
            ]
            table = pa.Table.from_pylist(rows, table.schema)
        if done:
            self._parts.write(table, done)
        return table

    def missing(
        self,
        items: Iterable[ItemT],
        on_stored: Callable[[pa.Table], None],
        columns: Sequence[str] | None = None,
    ) -> Iterator[ItemT]:
        """Yields items without rows, in their order; `on_stored` gets the rows of the others."""
        store, folder = self._parts.store, self._parts.stage
        there = part_versions(store, folder)
        own = self._parts.of(there)
        stored_keys = KnownKeys.of(store, folder, there, own, may_write=self._may_write)
        stream, size = iter(items), FIRST_WINDOW
        while window := list(islice(stream, size)):
            size = min(2 * size, WINDOW)
            keys = ["\t".join(getattr(item, name) for name in self.stage.key) for item in window]
            is_missing = np.ones(len(keys), bool)
            stored: defaultdict[str, list[int]] = defaultdict(list)
            for place, part in enumerate(stored_keys.find(keys)):
                if part is not None:
                    stored[part].append(place)
            with ThreadPoolExecutor(_READERS) as pool:
                tables = pool.map(lambda name: self._parts.read(name, columns), stored)
                for places, table in zip(stored.values(), tables, strict=True):
                    # A part also has rows of keys that it does not complete.
                    wanted = pa.array([keys[place] for place in places], pa.large_string())
                    has = row_keys(table, self.stage.key)
                    on_stored(table.filter(pc.is_in(has, value_set=wanted)))
                    is_missing[places] = pc.invert(pc.is_in(wanted, value_set=has)).to_numpy(False)
            yield from compress(window, is_missing)


def row_keys(table: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    """Returns the key of each row: values of the columns `key`, joined by tabs."""
    columns = (table[name].cast(pa.large_string()) for name in key)
    return pc.binary_join_element_wise(*columns, pa.scalar("\t", pa.large_string()))


def values_in_tars(
    store: Store,
    summary: Mapping[str, Any],
    declared: Mapping[str, Mapping[str, Any]],
    sizes: Mapping[str, int],
    side_members: pa.Table,
) -> dict[str, pa.Table]:
    """Returns `key`, `name`, `offset` and `n_bytes` of values in tars, by fingerprint of a family.

    `summary` is that of a snapshot. `declared` has the declarations of members in its manifest, by
    suffix. `sizes` has the size of each valid tar. `side_members` has `clip_id`, `member`,
    `name` and `offset` of members in side tars.
    """
    names = summary.get("tables", {})
    parts = [read_parquet(store, name) for name in names.get(MEMBERS, ())]
    rows = pa.concat_tables([MEMBERS_SCHEMA.empty_table(), *parts])
    if not rows.num_rows:
        return {}
    there = pa.array([tar for tar in sizes if tar.endswith(".tar")], pa.string())
    columns = ("clip_id", "shard", "mp4_offset")
    clips = pa.concat_tables(
        table.filter(pc.is_in(table["shard"], value_set=there))
        for table in (read_parquet(store, name, columns) for name in names.get("clips", ()))
    )
    own = rows.join(clips.rename_columns({"shard": "name"}), "clip_id", join_type="inner")
    own = own.append_column("offset", pc.add(own["mp4_offset"], own["mp4_distance"]))
    side_members = side_members.filter(pc.is_in(side_members["name"], value_set=there))
    side_members = side_members.select(["clip_id", "member", "name", "offset"])
    others = rows.join(side_members, ["clip_id", "member"], join_type="inner")
    fields = ["member", "fingerprint", "key", "name", "offset", "bytes"]
    found = pa.concat_tables([own.select(fields), others.select(fields)])
    found = found.drop_null().rename_columns({"bytes": "n_bytes"})
    members = {}
    for suffix, value in declared.items():
        fingerprint = FamilyVersion.from_json(value).fingerprint
        is_own = (pc.field("member") == suffix) & (pc.field("fingerprint") == fingerprint)
        members[fingerprint] = found.filter(is_own).drop(["member", "fingerprint"])
    return members

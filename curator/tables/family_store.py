"""Values of families under an output root: stored by key, found again, read one by one.

    values/<family>/<fingerprint>-<keys>.parquet      until the commit: then they are in tars
    families/<family>/<fingerprint>-<keys>.parquet    for good, where the family says so
    families/<family>-<fingerprint>.json              the declaration

A part has a row group for each value, or for some small ones, so that a value is read without all
others. Parts are immutable.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from curator.family import FamilyVersion, Lifetime
from curator.storage import Store
from curator.tables.checksums import read_parquet, sealed_json
from curator.tables.clip_locations import KeyRows, Location
from curator.tables.out_layout import FAMILIES, VALUES
from curator.tables.parts import Parts, rows_to_table
from curator.tables.sample_members import (
    MEMBERS,
    MEMBERS_SCHEMA,
    VALUE,
    MemberColumn,
    StoredMember,
    members_in_tars,
)

_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("clip_id", pa.string()),
        ("source_id", pa.string()),
        ("n_bytes", pa.int64()),
        (VALUE, pa.binary()),
    ]
)
_FACTS = ("key", "n_bytes")
_READERS = 16
GROUP_BYTES = 64 << 10
"""Values that are read together where they are small: each row group costs 700 bytes of footer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewValue:
    """A value that is not stored yet: of a clip, made from what `key` names."""

    key: str
    clip_id: str
    source_id: str
    data: bytes = field(repr=False)


class FamilyStore:
    """Families under one output root.

    Args:
        store: The root.
        in_tars: Values that tars of the last snapshot hold, as `values_in_tars` returns them.
    """

    def __init__(self, store: Store, in_tars: Mapping[str, pa.Table] | None = None) -> None:
        self.store = store
        self._in_tars = in_tars or {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the root alone: workers write."""
        return FamilyStore, (self.store,)

    def declare(self, version: FamilyVersion) -> None:
        """Stores a declaration, so that OUT can be read without the class that made it."""
        name = f"{FAMILIES}/{version.family.name}-{version.fingerprint}.json"
        if not self.store.exists(name):
            self.store.write(name, sealed_json(version.to_json(), _dump, name))

    def put(self, version: FamilyVersion, values: Sequence[NewValue]) -> list[StoredMember]:
        """Stores values as one part; returns them in order."""
        if not values:
            return []
        table = rows_to_table(
            (
                {"key": one.key, "clip_id": one.clip_id, "source_id": one.source_id,
                 "n_bytes": len(one.data), VALUE: one.data}
                for one in values
            ),
            _SCHEMA,
        )  # fmt: skip
        keys = [one.key for one in values]
        most = max(len(one.data) for one in values)
        part = self._parts(version).write(
            table, keys, one_row_groups=True, rows_per_group=max(1, GROUP_BYTES // max(1, most))
        )
        return [
            _member(version, part, row, one.key, len(one.data)) for row, one in enumerate(values)
        ]

    def find(self, version: FamilyVersion, keys: pa.ChunkedArray) -> MemberColumn:
        """Finds the values of some keys: in tars of the last snapshot, or in parts."""
        found, rows = MemberColumn(version, keys), KeyRows(keys)
        in_tars = self._in_tars.get(version.fingerprint)
        if in_tars is not None:
            numbers = rows.find_all(in_tars["key"].to_pylist())
            there = in_tars.filter(pa.array(numbers >= 0))
            found.fill(
                numbers[numbers >= 0],
                there["name"].to_pylist(),
                offset=there["offset"].to_numpy(),
                n_bytes=there["n_bytes"].to_numpy(),
            )
        parts = self._parts(version)
        names = parts.names()
        with ThreadPoolExecutor(_READERS) as pool:
            tables = pool.map(lambda name: parts.read_columns(name, _FACTS), names)
            for name, table in zip(names, tables, strict=True):
                numbers = rows.find_all(table["key"].to_pylist())
                places = np.flatnonzero(numbers >= 0)
                found.fill(
                    numbers[places],
                    [name] * len(places),
                    row=places,
                    n_bytes=table["n_bytes"].to_numpy()[places],
                )
        return found

    def _parts(self, version: FamilyVersion) -> Parts:
        folder = VALUES if version.family.lifetime is Lifetime.RUN else FAMILIES
        return Parts(self.store, f"{folder}/{version.family.name}", version.fingerprint)


def _member(version: FamilyVersion, part: str, row: int, key: str, n_bytes: int) -> StoredMember:
    where = Location(name=part, row=row, n_bytes=n_bytes, column=VALUE)
    return StoredMember(version=version, key=key, where=where)


def _dump(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)


def values_in_tars(
    store: Store,
    summary: Mapping[str, Any],
    declared: Mapping[str, Mapping[str, Any]],
    sizes: Mapping[str, int],
) -> dict[str, pa.Table]:
    """Returns values that tars of a snapshot hold, as `members_in_tars` does.

    Args:
        store: Output root.
        summary: Of the snapshot.
        declared: Members that its manifest declares.
        sizes: Bytes of each tar that is what was written.
    """
    names = summary.get("tables", {})
    parts = [read_parquet(store, name) for name in names.get(MEMBERS, ())]
    members = pa.concat_tables(parts) if parts else MEMBERS_SCHEMA.empty_table()
    if not members.num_rows:
        return {}
    there = pa.array([tar for tar in sizes if tar.endswith(".tar")], pa.string())
    columns = ("clip_id", "shard", "mp4_offset")
    clips = pa.concat_tables(
        table.filter(pc.is_in(table["shard"], value_set=there))
        for table in (read_parquet(store, name, columns) for name in names.get("clips", ()))
    )
    return members_in_tars(members.join(clips, "clip_id", join_type="inner"), declared)

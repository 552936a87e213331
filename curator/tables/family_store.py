"""Values of families under an output root: stored by key, found again, read one by one.

    values/<family>/<fingerprint>-<keys>.parquet      until the commit: then they are in tars
    families/<family>/<fingerprint>-<keys>.parquet    for good, where the family says so
    families/<family>-<fingerprint>.json              the declaration

A part has a row group a value, so that one is read without the others. Parts are immutable.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from curator.family import FamilyVersion, Lifetime
from curator.storage import Store
from curator.tables.checksums import read_parquet, sealed_json
from curator.tables.clip_locations import Location
from curator.tables.out_layout import FAMILIES, VALUES
from curator.tables.parts import Parts, rows_to_table
from curator.tables.sample_members import MEMBERS, EarlierMembers, StoredMember

_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("clip_id", pa.string()),
        ("source_id", pa.string()),
        ("n_bytes", pa.int64()),
        ("value", pa.binary()),
    ]
)
_FACTS = ("key", "n_bytes")
_READERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NewValue:
    """A value that is not stored yet: of a clip, made from what `key` names."""

    key: str
    clip_id: str
    source_id: str
    data: bytes = field(repr=False)


class FamilyStore:
    """Families under one output root."""

    def __init__(self, store: Store) -> None:
        self.store = store

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
                 "n_bytes": len(one.data), "value": one.data}
                for one in values
            ),
            _SCHEMA,
        )  # fmt: skip
        keys = [one.key for one in values]
        part = self._parts(version).write(table, keys, one_row_groups=True)
        return [
            _member(version, part, row, one.key, len(one.data)) for row, one in enumerate(values)
        ]

    def find(self, version: FamilyVersion, keys: Collection[str]) -> dict[str, StoredMember]:
        """Returns those of some values that parts hold, by key."""
        wanted, parts = frozenset(keys), self._parts(version)
        found: dict[str, StoredMember] = {}
        names = parts.names()
        with ThreadPoolExecutor(_READERS) as pool:
            tables = pool.map(lambda name: parts.read_columns(name, _FACTS), names)
            for name, table in zip(names, tables, strict=True):
                for row, facts in enumerate(table.to_pylist()):
                    if facts["key"] in wanted:
                        found[facts["key"]] = _member(
                            version, name, row, facts["key"], facts["n_bytes"]
                        )
        return found

    def in_tars(
        self,
        versions: Iterable[FamilyVersion],
        summary: Mapping[str, Any],
        declared: Mapping[str, Mapping[str, Any]],
        sizes: Mapping[str, int],
    ) -> Iterator[tuple[str, StoredMember]]:
        """Yields clip and member of values that tars of a snapshot hold.

        Args:
            versions: Families as they are wanted now.
            summary: Of the snapshot.
            declared: Members that its manifest declares.
            sizes: Bytes of each tar that is what was written.
        """
        wanted = pa.array([version.fingerprint for version in versions], pa.string())
        names = summary.get("tables", {})
        parts = [read_parquet(self.store, name) for name in names.get(MEMBERS, ())]
        if not parts:
            return
        members = pa.concat_tables(parts)
        members = members.filter(pc.is_in(members["fingerprint"], value_set=wanted))
        if not members.num_rows:
            return
        earlier = EarlierMembers(declared)
        columns = ("clip_id", "shard", "mp4_offset")
        for name in names.get("clips", ()):
            clips = read_parquet(self.store, name, columns)
            there = pa.array([tar for tar in sizes if tar.endswith(".tar")], pa.string())
            clips = clips.filter(pc.is_in(clips["shard"], value_set=there))
            yield from earlier.of(members.join(clips, "clip_id", join_type="inner"))

    def _parts(self, version: FamilyVersion) -> Parts:
        folder = VALUES if version.family.lifetime is Lifetime.RUN else FAMILIES
        return Parts(self.store, f"{folder}/{version.family.name}", version.fingerprint)


def _member(version: FamilyVersion, part: str, row: int, key: str, n_bytes: int) -> StoredMember:
    where = Location(name=part, row=row, n_bytes=n_bytes, column="value")
    return StoredMember(version=version, key=key, where=where)


def _dump(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)

"""Members of samples that families declare: where their bytes are, and the table that says so.

Places are relative to the clip's MP4, so that a tar may be put together anew from whole samples,
and the table still holds. Families of columns have rows in parts instead, and the table `clips`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.family import FamilyVersion
from curator.tables.clip_locations import KeyRows, Location

VALUE = "value"
"""Column of a part that has the values."""
MEMBERS = "members"
"""Name of the table."""
MEMBERS_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("member", pa.string()),
        ("family", pa.string()),
        ("fingerprint", pa.string()),
        ("key", pa.string()),
        ("mp4_distance", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""A row per member that a family declares: `key` names what the value was made from, the value
begins `mp4_distance` bytes behind the first byte of the clip's MP4, in the same tar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member of a sample, or a row of columns: a value that is stored under the output root.

    Attributes:
        version: Its family.
        key: Digest of what it was made from.
        where: Its bytes.
    """

    version: FamilyVersion
    key: str
    where: Location

    @property
    def suffix(self) -> str:
        """Name of the member after the key of its sample."""
        return self.version.family.member

    @property
    def n_bytes(self) -> int:
        """Size of the member."""
        return self.where.n_bytes

    @property
    def digest(self) -> str:
        """Names the value in names of tars, by what it was made from: a stored value stays."""
        return f"{self.version.fingerprint} {self.key}"


class MemberColumn:
    """The values of one family for N distinct keys: 24 bytes each, and the keys.

    Args:
        version: The family.
        keys: What the values are made from.
    """

    def __init__(self, version: FamilyVersion, keys: pa.ChunkedArray) -> None:
        self.version = version
        self._keys = keys
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        n = len(keys)
        self._name = np.full(n, -1, np.int32)
        self._row = np.full(n, -1, np.int32)
        self._offset = np.full(n, -1, np.int64)
        self._n_bytes = np.zeros(n, np.int64)

    def __getitem__(self, number: int) -> StoredMember | None:
        name, row = int(self._name[number]), int(self._row[number])
        if name < 0:
            return None
        where = Location(
            name=self._names[name],
            row=row if row >= 0 else None,
            offset=int(self._offset[number]) if row < 0 else None,
            n_bytes=int(self._n_bytes[number]),
            column=VALUE,
        )
        return StoredMember(version=self.version, key=self._keys[number].as_py(), where=where)

    def places(self) -> tuple[list[str], NDArray[np.int32], NDArray[np.int32]]:
        """Returns names of objects, and of each value the number of its object and its row.

        Numbers are int32 [N], -1 for none.
        """
        return self._names, self._name, self._row

    @property
    def is_there(self) -> NDArray[np.bool_]:
        """Whether each value is stored, bool [N]."""
        return self._name >= 0

    def set(self, number: int, where: Location) -> None:
        """Takes where a value is."""
        self._name[number] = self._number(where.name)
        self._row[number] = -1 if where.row is None else where.row
        self._offset[number] = -1 if where.offset is None else where.offset
        self._n_bytes[number] = where.n_bytes

    def fill(
        self,
        numbers: NDArray[np.int64],
        names: Sequence[str],
        *,
        n_bytes: NDArray[np.int64],
        row: NDArray[np.int64] | None = None,
        offset: NDArray[np.int64] | None = None,
    ) -> None:
        """Takes where the values of some numbers are: a row of a part, or an offset in a tar."""
        self._name[numbers] = list(map(self._number, names))
        self._row[numbers] = -1 if row is None else row
        self._offset[numbers] = -1 if offset is None else offset
        self._n_bytes[numbers] = n_bytes

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self._numbers[name]


class Members:
    """The members of clips, by clip id.

    Args:
        ids: Of the clips.
    """

    def __init__(self, ids: pa.Array) -> None:
        self._rows = KeyRows(pa.chunked_array([ids]))
        self._columns: list[tuple[MemberColumn, NDArray[np.int32]]] = []

    def add(self, column: MemberColumn, of: NDArray[np.int32]) -> None:
        """Takes the values of a family.

        Args:
            column: The values.
            of: Number of each clip's value, int32 [clips], -1 for none.
        """
        self._columns.append((column, of))

    def of(self, clip_id: str) -> list[StoredMember]:
        """Returns the members of a clip."""
        row = self._rows.find(clip_id)
        if row is None:
            return []
        members = (column[int(of[row])] for column, of in self._columns if of[row] >= 0)
        return [member for member in members if member is not None]


def members_in_tars(
    rows: pa.Table, declared: Mapping[str, Mapping[str, Any]]
) -> dict[str, pa.Table]:
    """Returns `key`, `name`, `offset` and `n_bytes` of members in tars, by fingerprint.

    Rows of members that the manifest does not declare under their fingerprint are left out.

    Args:
        rows: Of `members`, joined with `shard` and `mp4_offset` of their clips.
        declared: Declaration of each member, by suffix.
    """
    members = {}
    for suffix, value in declared.items():
        fingerprint = FamilyVersion.from_json(value).fingerprint
        family_rows = rows.filter(
            pc.and_(pc.equal(rows["member"], suffix), pc.equal(rows["fingerprint"], fingerprint))
        )
        members[fingerprint] = pa.table(
            {
                "key": family_rows["key"],
                "name": family_rows["shard"],
                "offset": pc.add(family_rows["mp4_offset"], family_rows["mp4_distance"]),
                "n_bytes": family_rows["bytes"],
            }
        )
    return members

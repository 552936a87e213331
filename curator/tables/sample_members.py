"""Members of samples that families declare: where their bytes are, and the table that says so.

Places are relative to the clip's MP4, so that a tar may be put together anew from whole samples,
and the table still holds. Families of columns have rows in parts instead, and the table `clips`.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.family import FamilyVersion
from curator.tables.clip_locations import KeyRows, Location, LocationColumns
from curator.tables.parts import columns_schema

VALUE = "value"
"""Column of a part that has the values."""
MEMBERS = "members"
"""Name of the table."""
MEMBERS_SCHEMA = columns_schema(
    ("clip_id member family fingerprint key", pa.string()), ("mp4_distance bytes", pa.int64())
)
"""A row per member that a family declares: `key` names what the value was made from, the value
begins `mp4_distance` bytes behind the first byte of the clip's MP4, in the same tar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member of a sample, or a row of columns: a value that is stored under the output root."""

    version: FamilyVersion
    key: str
    """Digest of what it was made from."""
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
    """The values of one family for N distinct keys: their locations, and the keys."""

    def __init__(self, version: FamilyVersion, keys: pa.ChunkedArray) -> None:
        self.version, self._keys = version, keys
        self.places = LocationColumns(len(keys), VALUE)

    def __getitem__(self, number: int) -> StoredMember | None:
        where = self.places[number]
        if where is None:
            return None
        return StoredMember(version=self.version, key=self._keys[number].as_py(), where=where)

    @property
    def is_there(self) -> NDArray[np.bool_]:
        """Whether each value is stored, bool [N]."""
        return self.places.code >= 0


class Members:
    """The members of clips, by clip id."""

    def __init__(self, ids: pa.Array) -> None:
        self._rows = KeyRows(pa.chunked_array([ids]))
        self._columns: list[tuple[MemberColumn, NDArray[np.int32]]] = []

    def add(self, column: MemberColumn, of: NDArray[np.int32]) -> None:
        """Takes the values of a family; `of` is int32 [clips], each clip's value, -1 for none."""
        self._columns.append((column, of))

    def of(self, clip_id: str) -> list[StoredMember]:
        """Returns the members of a clip."""
        row = self._rows.find(clip_id)
        if row is None:
            return []
        members = (column[int(of[row])] for column, of in self._columns if of[row] >= 0)
        return [member for member in members if member is not None]

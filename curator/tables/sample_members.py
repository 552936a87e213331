"""Members of samples that families declare: the locations of their bytes, and a table of them.

Locations are relative to the clip's MP4, so the table stays valid if a run packs whole samples into
a new tar. The values of families of columns are in parts and in the table `clips` instead.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.family import FamilyVersion
from curator.tables.clip_locations import KeyIndex, Location, LocationArray
from curator.tables.parts import columns_schema

VALUE = "value"
"""Column of a part with the values."""
MEMBERS = "members"
"""Name of the table."""
MEMBERS_SCHEMA = columns_schema(
    ("clip_id member family fingerprint key", pa.string()), ("mp4_distance bytes", pa.int64())
)
"""A row per member that a family declares. `key` is a digest of the value's inputs. The value is in
the clip's tar, and begins `mp4_distance` bytes after the first byte of the clip's MP4. If that is
null, the value is in a side tar, and `dataset.parquet` says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A stored value of a family: a member of a sample, or a row of columns."""

    version: FamilyVersion
    key: str
    """Digest of the value's inputs."""
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
        """Identifies the value by its inputs and its size, for the names of tars.

        The same inputs may give another size, and a tar of a snapshot must not change.
        """
        return f"{self.version.fingerprint} {self.key} {self.n_bytes}"


class MemberColumn:
    """Keys and locations of the values of one family, for N distinct keys."""

    def __init__(self, version: FamilyVersion, keys: pa.ChunkedArray) -> None:
        self.version, self._keys = version, keys
        self.places = LocationArray(len(keys), VALUE)

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
        self._rows = KeyIndex(pa.chunked_array([ids]))
        self._columns: list[tuple[MemberColumn, NDArray[np.int32]]] = []

    def add(self, column: MemberColumn, of: NDArray[np.int32]) -> None:
        """Adds the values of a family; `of` is the value number of each clip, int32 [N], or -1."""
        self._columns.append((column, of))

    def of(self, clip_id: str) -> list[StoredMember]:
        """Returns the members of a clip."""
        row = self._rows.find(clip_id)
        if row is None:
            return []
        members = (column[int(of[row])] for column, of in self._columns if of[row] >= 0)
        return [member for member in members if member is not None]

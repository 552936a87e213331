"""Members of samples that families declare: where their bytes are, and the table that says so.

Places are relative to the clip's MP4, so that a tar may be put together anew from whole samples,
and the table still holds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curator.family import FamilyVersion
from curator.tables.clip_locations import Location

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
    """A member of a sample: a value that is stored under the output root.

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


@dataclass(frozen=True, slots=True)
class EarlierMembers:
    """The members of clips in tars, as a snapshot has them.

    Attributes:
        declared: Declaration of each member, by suffix.
    """

    declared: Mapping[str, Mapping[str, Any]]

    def of(self, rows: pa.Table) -> Iterator[tuple[str, StoredMember]]:
        """Yields clip and member of rows of `members`, joined with `shard` and `mp4_offset`.

        Rows of members that the manifest does not declare under their fingerprint are left out.
        """
        versions = {
            suffix: FamilyVersion.from_json(value) for suffix, value in self.declared.items()
        }
        for row in rows.to_pylist():
            version = versions.get(row["member"])
            if version is None or version.fingerprint != row["fingerprint"]:
                continue
            where = Location(
                name=row["shard"],
                offset=row["mp4_offset"] + row["mp4_distance"],
                n_bytes=row["bytes"],
            )
            yield row["clip_id"], StoredMember(version=version, key=row["key"], where=where)

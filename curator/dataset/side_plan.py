"""Plans side tars: tars with the values of one family for a tar of samples.

Such a tar has members of some of the samples, with the same keys and in the same order, and nothing
else, so that a new family writes only its own values. Its name ends in the hash of its contents.
"""

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from curator.dataset.sample import Sample, padded
from curator.dataset.tar_reader import BLOCK, Split, index_name
from curator.family import Place
from curator.tables.out_layout import SHARDS, SIDES
from curator.tables.sample_members import StoredMember

SIDE_VERSION = 1
"""Raise this number when the same values give other bytes."""

END_BYTES = 2 * BLOCK
"""Size of the two empty blocks that end a tar."""


@dataclass(frozen=True, kw_only=True)
class SidePlan:
    """A planned tar with one member of each sample.

    Attributes:
        name: Name under the output root.
        suffix: Name of the member after the key of its sample.
        values: Key of the sample and value of each member, in the order of the samples.
        number_of: Index in `values` by the digest of a value, where samples share values; else by
            the key of the sample.
    """

    name: str
    suffix: str
    values: Sequence[tuple[str, StoredMember]]
    number_of: Mapping[str, int]

    @property
    def objects(self) -> tuple[str, str]:
        """Names of the tar and of its index."""
        return self.name, index_name(self.name)

    @cached_property
    def offsets(self) -> Sequence[int]:
        """Start of the header of each member, and the end of the last member, in bytes."""
        offsets = array("Q", [0])
        for _, value in self.values:
            offsets.append(offsets[-1] + BLOCK + padded(value.n_bytes))
        return offsets

    @property
    def n_bytes(self) -> int:
        """Size of the tar."""
        return self.offsets[-1] + END_BYTES

    def sizes(self) -> dict[str, int]:
        """Returns the size of each of its objects by name."""
        return {self.name: self.n_bytes, index_name(self.name): 8 * len(self.offsets)}

    def place(self, key: str, value: StoredMember) -> dict[str, Any]:
        """Returns where the value of a sample is: an entry of `side_members`."""
        shared = value.version.family.place is Place.SHARED
        begin = self.offsets[self.number_of[value.digest if shared else key]] + BLOCK
        return {"member": self.suffix, "offset": begin, "bytes": value.n_bytes}


def plan_sides(
    bucket: str, split: Split, number: int, samples: Sequence[Sample]
) -> tuple[SidePlan, ...]:
    """Plans the side tars of a tar with some samples; bucket, split and number are those of it.

    The name does not depend on the tar of the samples: if new captions write that again, for
    example, these tars stay.
    """
    return tuple(_plans(bucket, split, number, samples))


def _plans(bucket: str, split: Split, number: int, samples: Sequence[Sample]) -> Iterator[SidePlan]:
    by_suffix: dict[str, list[tuple[str, StoredMember]]] = {}
    for sample in samples:
        for value in sample.side_members:
            by_suffix.setdefault(value.suffix, []).append((sample.key, value))
    for suffix, values in sorted(by_suffix.items()):
        family = values[0][1].version.family
        if family.place is Place.SHARED:
            first: dict[str, tuple[str, StoredMember]] = {}
            for key, value in values:
                first.setdefault(value.digest, (key, value))
            values = list(first.values())
            number_of = {digest: n for n, digest in enumerate(first)}
        else:
            number_of = {key: n for n, (key, _) in enumerate(values)}
        digest = hashlib.sha256(f"side {SIDE_VERSION}\n".encode())
        for key, value in values:
            digest.update(f"{key} {value.digest}\n".encode())
        folder = f"{SHARDS}/{SIDES}/{family.name}/{bucket}"
        yield SidePlan(
            name=f"{folder}/{split}-{number:06d}-{digest.hexdigest()[:8]}.tar",
            suffix=suffix,
            values=values,
            number_of=number_of,
        )

"""Writes planned tars, and the objects next to them, under an output root."""

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from curator.dataset.reader_indexes import members_file
from curator.dataset.sample import Sample
from curator.dataset.shard_index import (
    DescribedTar,
    dataset_table,
    index_bytes,
    members_of,
    meta_lines,
    side_entry,
)
from curator.dataset.shard_plan import (
    ShardPlan,
    holds_shard,
    holds_side,
    write_shard,
    write_side,
)
from curator.dataset.side_plan import SidePlan
from curator.dataset.tar_reader import BESIDE
from curator.errors import DamagedError, ShardError
from curator.storage import Store
from curator.tables.clip_locations import located_bytes
from curator.tables.sample_members import StoredMember

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUnit:
    """A tar to write, or to read for its hashes."""

    plan: ShardPlan
    missing: frozenset[str]
    """Names of the objects to write, out of the tar and the objects next to it."""
    known: DescribedTar | None = None
    """Facts about the tar if it is there and its bytes are known, so that it need not be read."""


class TarWriter:
    """Writes tars and the objects next to them under an output root."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, unit: ShardUnit) -> DescribedTar:
        """Writes the missing objects of a tar; reads an existing tar for its hashes.

        Raises:
            DamagedError: A stored clip has changed, or a member has lost bytes.
            ShardError: A clip in an existing tar has changed.
        """
        plan = unit.plan
        tar = plan.name
        contents = {
            "idx_sha256": index_bytes(plan.layout.offsets),
            "meta_sha256": meta_lines(plan),
            "members_sha256": members_file(dataset_table(plan), plan.layout.n_bytes),
        }
        # Indexes and metadata come before the tar: no reader finds a tar without its index.
        for field, data in contents.items():
            name = BESIDE[field](tar)
            if name in unit.missing or not self._store.holds(self._store.find(name), data):
                self._store.write(name, data)
        hashes: dict[str, Any] = {
            field: hashlib.sha256(data).hexdigest() for field, data in contents.items()
        }
        known = {} if unit.known is None else dict(unit.known.sides)
        sides = {side.suffix: self._side(side, unit.missing, known) for side in plan.sides}
        if unit.known is not None and tar not in unit.missing:
            return replace(unit.known, **DescribedTar.planned(plan), **hashes, sides=sides)
        written = self._written(
            tar,
            tar in unit.missing,
            lambda write: write_shard(plan, write, self.read, self.read_member),
            lambda read: holds_shard(plan, read),
        )
        return DescribedTar.of(plan, **written, **hashes, sides=sides)

    def _side(
        self, side: SidePlan, missing: Collection[str], known: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Writes the missing objects of a side tar; returns its `sides` entry."""
        tar, index = side.objects
        data = index_bytes(side.offsets)
        if index in missing:
            self._store.write(index, data)
        entry = side_entry(side) | {"idx_sha256": hashlib.sha256(data).hexdigest()}
        if tar not in missing and known.get(side.suffix, {}).get("name") == entry["name"]:
            return {**known[side.suffix], **entry}
        written = self._written(
            tar,
            tar in missing,
            lambda write: write_side(side, write, self.read_member),
            lambda read: holds_side(side, read),
        )
        return entry | {name: written[name] for name in ("bytes", "sha256")}

    def _written(
        self,
        tar: str,
        is_missing: bool,
        write: Callable[[Callable[[bytes], None]], None],
        holds: Callable[[Callable[[int], bytes]], bool],
    ) -> dict[str, Any]:
        """Writes a missing or damaged tar, or reads an existing one; returns its size and hashes.

        An existing tar is from a run that did not commit, or only older snapshots name it, so
        nothing says which bytes it had.
        """
        sha256, md5, n_bytes = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0

        def count(data: bytes) -> None:
            nonlocal n_bytes
            n_bytes += len(data)
            sha256.update(data)
            md5.update(data)

        if not is_missing:
            with self._store.open(tar) as reader:

                def read(size: int) -> bytes:
                    data: bytes = reader.read(size)
                    count(data)
                    return data

                if not holds(read):
                    logger.warning(
                        "%s/%s is damaged; this run writes it again", self._store.uri, tar
                    )
                    return self._written(tar, True, write, holds)
        else:
            with self._store.create(tar) as output:

                def add(data: bytes) -> None:
                    count(data)
                    output.write(data)

                write(add)
        return {"bytes": n_bytes, "sha256": sha256.hexdigest(), "md5": md5.hexdigest()}

    def read_member(self, member: StoredMember) -> bytes:
        """Reads a member that a family declares; raises as `write` does."""
        where = member.where
        value = located_bytes(self._store, where)
        if len(value) != where.n_bytes:
            detail = f"{len(value)} bytes of {member.suffix}, not {where.n_bytes}"
            raise DamagedError(self._store.uri, where.name, detail)
        return value

    def read(self, sample: Sample) -> bytes:
        """Reads the MP4 of a sample; raises as `write` does."""
        where = sample.location
        mp4 = located_bytes(self._store, where)
        if len(mp4) != sample.mp4_bytes or hashlib.sha256(mp4).hexdigest() != sample.mp4_sha256:
            if where.row is not None:
                raise DamagedError(self._store.uri, where.name, f"of its clip {sample.key}")
            raise ShardError(
                f"{self._store.uri}/{where.name}: clip {sample.key} has {len(mp4)} bytes that "
                f"differ from the bytes written (sha256 {sample.mp4_sha256}); move the object away "
                "and run again: the run cuts the lost clips again"
            )
        return mp4


def shard_facts(plan: ShardPlan) -> dict[str, Any]:
    """Returns facts about a shard for the summary."""
    side_bytes = {side.suffix: side.n_bytes for side in plan.sides}
    return {
        "name": plan.name,
        "bucket": plan.bucket,
        "split": plan.split,
        "n_samples": len(plan.samples),
        "n_frames": plan.totals[0],
        "bytes": plan.layout.n_bytes,
        "members": members_of(plan.samples[0]),
        **({"side_bytes": side_bytes} if side_bytes else {}),
    }

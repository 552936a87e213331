"""Copies tars without removed samples, under the names that a run would give them."""

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import orjson

from curator.errors import ShardError
from curator.family import Array, Family, FamilyVersion, Kind, Scope
from curator.stages.shard.sample import Sample
from curator.stages.shard.sample_plan import shard_facts
from curator.stages.shard.shard_driver import missing_objects
from curator.stages.shard.shard_index import DescribedTar, SampleMembers, members_of
from curator.stages.shard.shard_plan import ShardPlan, place_of, plan_shard, tar_layout
from curator.stages.shard.tar_reader import Member, Split, TarReader
from curator.stages.shard.tar_writer import ShardUnit, TarWriter, object_names
from curator.storage import Store
from curator.tables.clip_locations import Location
from curator.tables.out_layout import SHARDS
from curator.tables.removal_records import Removals, removal_hash
from curator.tables.sample_members import StoredMember

OWN = frozenset({"json", "mp4", "txt", "npy", "id"})
"""Members that no family declares."""
Values = Mapping[tuple[str, str], tuple[FamilyVersion, str]]
"""Family and key of each member that a family declares, by clip and suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenTar:
    """A tar without its removed samples.

    Attributes:
        described: For the files that describe all shards; its name is relative to `shards/`.
        summary: Its entry in the summary.
        mp4_starts: First byte of each sample's MP4, by key.
        members: Optional members of its samples.
    """

    described: DescribedTar
    summary: dict[str, Any]
    mp4_starts: Mapping[str, int]
    members: SampleMembers


class TarRewriting:
    """The tars of an output root, each rewritten at most once."""

    def __init__(self, store: Store, removals: Removals) -> None:
        self._store = store
        self._removals = removals
        self._tars = TarWriter(store)
        self._sizes = {info.key: info.bytes for info in store.list(f"{SHARDS}/")}
        self._whole: set[str] = set()
        """Old tars that were checked."""
        self.done: dict[str, RewrittenTar | None] = {}
        """By the name of the old tar under the output root; None where nothing is left."""

    def rewrite(self, name: str, values: Values) -> RewrittenTar | None:
        """Writes the tar that replaces one with removed samples; None if no sample is left.

        `name` is the old tar's under the output root, `values` those of a snapshot that names it.

        Raises:
            ShardError: The old tar is damaged, or another version wrote it.
        """
        if name not in self.done:
            self.done[name] = self._rewritten(name, values)
        return self.done[name]

    def check(self, name: str, values: Values) -> None:
        """Reads all that `rewrite` would read of a tar; writes nothing.

        Raises:
            ShardError: The tar is damaged, or another version wrote it.
        """
        if name in self._whole:
            return
        _, split, _ = self._place(name)
        for sample in self._samples(name, split, values):
            if not self._is_gone(sample):
                self._tars.check(sample)
        self._whole.add(name)

    def _place(self, name: str) -> tuple[str, Split, int]:
        place = place_of(name)
        if place is None or name not in self._sizes:
            raise ShardError(
                f"{self._store.uri}/{name} is missing, or was written by an older version; "
                "`curate run` writes it again, after which clips can be removed"
            )
        return place

    def _rewritten(self, name: str, values: Values) -> RewrittenTar | None:
        bucket, split, number = self._place(name)
        samples = [s for s in self._samples(name, split, values) if not self._is_gone(s)]
        if not samples:
            return None
        plan = plan_shard(bucket, split, number, samples)
        layout = tar_layout(plan)
        missing = missing_objects(plan, layout, self._sizes)
        _, facts = self._tars.write(ShardUnit(plan=plan, missing=missing))
        n_frames, seconds = plan.totals
        return RewrittenTar(
            described=DescribedTar(
                name=plan.name.removeprefix(f"{SHARDS}/"),
                bucket=bucket,
                split=split,
                samples=len(samples),
                frames=n_frames,
                seconds=seconds,
                facts=facts,
            ),
            summary=shard_facts(plan, layout.n_bytes) | {"versions": self._versions(plan)},
            mp4_starts=dict(zip(layout.keys, layout.mp4_starts, strict=True)),
            members=members_of(samples[0]),
        )

    def _versions(self, plan: ShardPlan) -> dict[str, str]:
        names = object_names(plan)
        prefix = plan.name.removesuffix(".tar")
        versions = {info.key: info.version for info in self._store.list(prefix)}
        return {name: versions[name] for name in names}

    def _is_gone(self, sample: Sample) -> bool:
        hashes = {removal_hash(sample.key), removal_hash(sample.metadata["source_id"])}
        return not hashes.isdisjoint(self._removals.ids)

    def _samples(self, name: str, split: Split, values: Values) -> Iterator[Sample]:
        """Yields the samples of a tar; their MP4s are not read."""
        with self._store.open(name) as stream:
            reader = TarReader(stream.read, self._sizes[name], seek=stream.seek)
            try:
                for key, members in groupby(reader, key=lambda member: member.key):
                    yield self._sample(name, key, members, reader, split, values)
            except (ShardError, KeyError, ValueError) as error:
                raise ShardError(f"{self._store.uri}/{name}: {error}") from error

    def _sample(
        self,
        name: str,
        key: str,
        members: Iterator[Member],
        reader: TarReader,
        split: Split,
        values: Values,
    ) -> Sample:
        held: dict[str, bytes] = {}
        at: dict[str, Member] = {}
        for member in members:
            at[member.suffix] = member
            if member.suffix != "mp4":
                held[member.suffix] = reader.read(member)
        metadata, caption = orjson.loads(held["json"]), held["txt"].decode()
        stored = []
        for suffix in held.keys() - OWN:
            version, made_from = values.get((key, suffix)) or _undeclared(suffix, held[suffix])
            where = Location(name=name, offset=at[suffix].data_offset, n_bytes=at[suffix].bytes)
            stored.append(StoredMember(version=version, key=made_from, where=where))
        mp4 = at["mp4"]
        sample = Sample(
            key=key,
            metadata=metadata,
            caption=caption,
            mp4_bytes=mp4.bytes,
            mp4_sha256=metadata["mp4_sha256"],
            location=Location(name=name, offset=mp4.data_offset, n_bytes=mp4.bytes),
            split=split,
            embedding=np.load(io.BytesIO(held["npy"])) if "npy" in held else None,
            stored=stored,
            has_id="id" in held,
        )
        if sample.json() != held["json"]:
            raise ShardError(f"the JSON of sample {key} is not as this version writes it")
        return sample


def _undeclared(suffix: str, data: bytes) -> tuple[FamilyVersion, str]:
    """Returns a family for a NumPy file that an older version wrote and declared nowhere.

    Its tar then has another name than a run would give it, and the next run writes it again.
    """
    name, _, ending = suffix.rpartition(".")
    if ending != "npy":
        raise ShardError(f"the manifest declares no member {suffix!r}")
    n_axes = np.load(io.BytesIO(data)).ndim
    kind: Kind = "f32" if n_axes == 1 else "f16"
    content = Array(kind, tuple(f"axis_{number}" for number in range(n_axes)))
    family = Family(name, Scope.CLIP, content, member=suffix)
    return FamilyVersion(family, ""), hashlib.sha256(data).hexdigest()

"""Copies tars without removed samples; the copies have the names that a run would give them."""

import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from curator.dataset.sample import Sample
from curator.dataset.shard_index import DescribedTar, dataset_table
from curator.dataset.shard_plan import place_of, plan_shard
from curator.dataset.tar_reader import Member, Split, TarReader
from curator.dataset.tar_writer import ShardUnit, TarWriter, shard_facts
from curator.errors import ShardError
from curator.family import FamilyVersion
from curator.records.clips import CLIP_FORMATS, ClipFormat
from curator.storage import Store
from curator.tables.clip_locations import Location
from curator.tables.named_ids import names_any, value_without_ids, without_ids
from curator.tables.out_layout import SHARDS, find_unlisted
from curator.tables.removal_records import Removals, removal_hash
from curator.tables.sample_members import StoredMember

OWN = frozenset({"json", "txt", "npy", "id", *CLIP_FORMATS})
"""Suffixes of members that no family declares."""
Values = Mapping[tuple[str, str], tuple[FamilyVersion, str]]
"""Family and key of each declared member, by clip id and suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TarToRewrite:
    """A tar of a snapshot that holds removed footage.

    Attributes:
        name: Name under the output root.
        sides: Names of the tars with members of its samples.
        values: Values of members.
        side_members: Places of the members in `sides`, by clip id and suffix.
    """

    name: str
    sides: tuple[str, ...]
    values: Values
    side_members: Mapping[tuple[str, str], Location]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenTar:
    """A tar without its removed samples.

    Attributes:
        described: Its entry for the files that describe all shards.
        summary: Its entry in the summary.
        rows: Its rows of `dataset.parquet`.
    """

    described: DescribedTar
    summary: dict[str, Any]
    rows: pa.Table


class TarRewriting:
    """Rewrites the tars of an output root, each at most once.

    Methods raise `ShardError` if the tar is damaged, or is not as this version writes it.
    """

    def __init__(self, store: Store, removals: Removals) -> None:
        self._store = store
        self._removals = removals
        self._tars = TarWriter(store)
        self._sizes = {info.key: info.bytes for info in store.list(f"{SHARDS}/")}
        self._whole: set[tuple[str, ...]] = set()
        """Old tars, with their side tars, that passed the check."""
        self.done: dict[tuple[str, tuple[str, ...]], RewrittenTar | None] = {}
        """New tars by the old tar and its side tars; None if no sample is left."""

    def rewrite(self, tar: TarToRewrite) -> RewrittenTar | None:
        """Writes the replacement of a tar with removed samples; None if no sample is left."""
        identity = tar.name, tar.sides
        if identity not in self.done:
            self.done[identity] = self._rewritten(tar)
        return self.done[identity]

    def check(self, tar: TarToRewrite) -> None:
        """Reads the members that `rewrite` would read; writes nothing."""
        if (tar.name, *tar.sides) not in self._whole:
            for sample in self._left(tar):
                self._tars.read(sample)
                for value in sample.side_members:
                    self._tars.read_member(value)
            self._whole.add((tar.name, *tar.sides))

    def _rewritten(self, tar: TarToRewrite) -> RewrittenTar | None:
        samples = list(self._left(tar))
        if not samples:
            return None
        plan = plan_shard(*self._place(tar.name), samples)
        described = self._tars.write(ShardUnit(plan=plan, missing=plan.missing(self._sizes)))
        there = find_unlisted(self._store, plan.objects, ())
        self._sizes |= {name: info.bytes for name, info in there.items()}
        return RewrittenTar(
            described=described,
            summary=shard_facts(plan) | {"versions": {n: there[n].version for n in plan.objects}},
            rows=dataset_table(plan),
        )

    def _place(self, name: str) -> tuple[str, Split, int]:
        place = place_of(name)
        for key, info in find_unlisted(self._store, (name,), self._sizes).items():
            self._sizes[key] = info.bytes
        if place is None or name not in self._sizes:
            raise ShardError(f"{self._store.uri}/{name} is missing, or is no tar of curate")
        return place

    def _left(self, tar: TarToRewrite) -> Iterator[Sample]:
        """Yields the remaining samples of a tar, without reading their MP4s."""
        name = tar.name
        _, split, _ = self._place(name)
        side_members: dict[str, dict[str, Location]] = {}
        for (key, suffix), place in tar.side_members.items():
            side_members.setdefault(key, {})[suffix] = place
        with self._store.open(name) as stream:
            reader = TarReader(stream.read, self._sizes[name], seek=stream.seek)
            try:
                for key, members in groupby(reader, key=lambda member: member.key):
                    ids = self._removals.ids
                    own = side_members.get(key, {})
                    if sample := _sample(tar, key, members, reader, split, own, ids):
                        yield sample
            except (ShardError, KeyError, ValueError) as error:
                raise ShardError(f"{self._store.uri}/{name}: {error}") from error


def _sample(
    tar: TarToRewrite,
    key: str,
    members: Iterator[Member],
    reader: TarReader,
    split: Split,
    side_members: Mapping[str, Location],
    ids: Collection[str],
) -> Sample | None:
    """Returns a sample whose texts do not name removed `ids`; None for removed footage.

    `side_members` has the places of its members in other tars.
    """
    data: dict[str, bytes] = {}
    places = dict(side_members)
    for member in members:
        offset = member.data_offset
        places[member.suffix] = Location(name=tar.name, offset=offset, n_bytes=member.bytes)
        if member.suffix not in CLIP_FORMATS:
            data[member.suffix] = reader.read(member)
    metadata, stored = orjson.loads(data["json"]), []
    clip_format: ClipFormat = metadata.get("format", "mp4")
    for suffix in places.keys() - OWN:
        if (key, suffix) not in tar.values:
            raise ShardError(f"the snapshot declares no member {suffix!r} of sample {key}")
        version, made_from = tar.values[key, suffix]
        stored.append(StoredMember(version=version, key=made_from, where=places[suffix]))
    sample = partial(
        Sample,
        key=key,
        mp4_bytes=places[clip_format].n_bytes,
        mp4_sha256=metadata["mp4_sha256"],
        location=places[clip_format],
        format=clip_format,
        split=split,
        embedding=np.load(io.BytesIO(data["npy"])) if "npy" in data else None,
        stored=stored,
        has_id="id" in data,
    )
    caption = data["txt"].decode()
    whole = sample(metadata=metadata, caption=caption)
    if whole.json() != data["json"]:
        raise ShardError(f"the JSON of sample {key} is not as this version writes it")
    if not {removal_hash(key), removal_hash(metadata["source_id"])}.isdisjoint(ids):
        return None
    if not names_any(data["json"] + b"\n" + data["txt"], ids):
        return whole
    return sample(metadata=value_without_ids(metadata, ids), caption=without_ids(caption, ids))

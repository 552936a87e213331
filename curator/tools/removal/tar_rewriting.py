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
from curator.storage import Store
from curator.tables.clip_locations import Location
from curator.tables.named_ids import names_any, value_without_ids, without_ids
from curator.tables.out_layout import SHARDS, find_unlisted
from curator.tables.removal_records import Removals, removal_hash
from curator.tables.sample_members import StoredMember

OWN = frozenset({"json", "mp4", "txt", "npy", "id"})
"""Suffixes of members that no family declares."""
Values = Mapping[tuple[str, str], tuple[FamilyVersion, str]]
"""Family and key of each declared member, by clip id and suffix."""


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

    Methods take the name of a tar under the root, and the member values of a snapshot that names
    the tar. Methods raise `ShardError` if the tar is damaged, or is not as this version writes it.
    """

    def __init__(self, store: Store, removals: Removals) -> None:
        self._store = store
        self._removals = removals
        self._tars = TarWriter(store)
        self._sizes = {info.key: info.bytes for info in store.list(f"{SHARDS}/")}
        self._whole: set[str] = set()
        """Old tars that passed the check."""
        self.done: dict[str, RewrittenTar | None] = {}
        """New tars by the name of the old tar under the output root; None if no sample is left."""

    def rewrite(self, name: str, values: Values) -> RewrittenTar | None:
        """Writes the replacement of a tar with removed samples; None if no sample is left."""
        if name not in self.done:
            self.done[name] = self._rewritten(name, values)
        return self.done[name]

    def check(self, name: str, values: Values) -> None:
        """Reads the members that `rewrite` would read; writes nothing."""
        if name not in self._whole:
            for sample in self._left(name, values):
                self._tars.read(sample)
            self._whole.add(name)

    def _rewritten(self, name: str, values: Values) -> RewrittenTar | None:
        samples = list(self._left(name, values))
        if not samples:
            return None
        plan = plan_shard(*self._place(name), samples)
        described = self._tars.write(ShardUnit(plan=plan, missing=plan.missing(self._sizes)))
        there = {i.key: i for i in self._store.list(plan.name.removesuffix(".tar"))}
        there |= find_unlisted(self._store, plan.objects, there)
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

    def _left(self, name: str, values: Values) -> Iterator[Sample]:
        """Yields the remaining samples of a tar, without reading their MP4s."""
        _, split, _ = self._place(name)
        with self._store.open(name) as stream:
            reader = TarReader(stream.read, self._sizes[name], seek=stream.seek)
            try:
                for key, members in groupby(reader, key=lambda member: member.key):
                    ids = self._removals.ids
                    if sample := _sample(name, key, members, reader, split, values, ids):
                        yield sample
            except (ShardError, KeyError, ValueError) as error:
                raise ShardError(f"{self._store.uri}/{name}: {error}") from error


def _sample(
    name: str,
    key: str,
    members: Iterator[Member],
    reader: TarReader,
    split: Split,
    values: Values,
    ids: Collection[str],
) -> Sample | None:
    """Returns a sample whose texts do not name removed `ids`; None for removed footage."""
    data: dict[str, bytes] = {}
    places: dict[str, Location] = {}
    for member in members:
        offset = member.data_offset
        places[member.suffix] = Location(name=name, offset=offset, n_bytes=member.bytes)
        if member.suffix != "mp4":
            data[member.suffix] = reader.read(member)
    metadata, stored = orjson.loads(data["json"]), []
    for suffix in data.keys() - OWN:
        if (key, suffix) not in values:
            raise ShardError(f"the snapshot declares no member {suffix!r} of sample {key}")
        version, made_from = values[key, suffix]
        stored.append(StoredMember(version=version, key=made_from, where=places[suffix]))
    sample = partial(
        Sample,
        key=key,
        mp4_bytes=places["mp4"].n_bytes,
        mp4_sha256=metadata["mp4_sha256"],
        location=places["mp4"],
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

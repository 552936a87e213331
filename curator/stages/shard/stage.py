"""Puts written clips into shards: the driver's side, and the step that writes one.

Tars that stand stay, by what the last finished run says is in them. A tar appears under its name
only when it is whole, and after what lies beside it; what describes all of them is written by the
commit, the manifest last.
"""

import hashlib
import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow.parquet as pq

import curator
from curator.errors import ShardError
from curator.executor.engine import Engine
from curator.executor.worker import Step
from curator.fingerprints import fingerprint
from curator.recipe import Recipe
from curator.stage import Resources
from curator.stages.shard.sample_plan import place_samples, plan_samples, shard_facts
from curator.stages.shard.shard_index import (
    MANIFEST,
    Shard,
    ShardFacts,
    index_name,
    known_facts,
    meta_lines,
    meta_name,
    set_files,
    tar_index,
)
from curator.stages.shard.shard_plan import (
    SHARDS,
    Sample,
    ShardPlan,
    TarLayout,
    plan_shards,
    tar_layout,
    write_shard,
)
from curator.storage import Store
from curator.tables.clip_locations import Location, clip_bytes
from curator.tables.clip_rows import Row
from curator.tables.clip_vectors import TextVector, Vectors
from curator.tables.parts import Parts, column_values
from curator.tables.spill_file import Spill

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

COPIED_HERE_BYTES = 256 << 20
"""Clips that the driver puts into tars by itself."""
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUnit:
    """A tar of which something is missing."""

    plan: ShardPlan
    missing: frozenset[str]
    """Names of the objects to write: the tar, its index, its metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWritten:
    """A tar that is whole now, with what lies beside it."""

    name: str
    facts: ShardFacts


class Sharding:
    """Shards of what is kept.

    Args:
        store: Output root.
        recipe: Settings.
        engine: Where work is done.
        previous: Summary of the last finished run.
    """

    def __init__(
        self, store: Store, recipe: Recipe, engine: Engine, *, previous: Mapping[str, Any]
    ) -> None:
        self._store = store
        self._recipe = recipe
        self._engine = engine
        self._previous = previous
        self.n_written = 0
        """Tars that had to be written."""
        self.summary: list[dict[str, Any]] = []
        """Facts of each shard, for the summary."""
        self.files: dict[str, bytes] = {}
        """What describes all shards, in the order in which it is to be written."""
        self.names: set[str] = set()
        """Objects under `shards/` that count."""

    def shard(
        self,
        clips: Sequence[Row],
        locations: Mapping[str, Location],
        vectors: Vectors | None = None,
        text_vectors: Callable[[str], TextVector | None] | None = None,
        annotation_of: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        """Writes the tars that are missing, and what lies beside each.

        Args:
            clips: Rows of `clips`; those that are kept learn where their samples lie.
            locations: Where the written clips are.
            vectors: Embeddings for the samples; None for none.
            text_vectors: Finds the embedding of a caption; None for none.
            annotation_of: What a model said of a clip, by its row; None where none was asked.
        """
        samples = plan_samples(
            clips,
            locations,
            self._recipe,
            vectors,
            text_vectors,
            annotation_of=annotation_of,
            spill=Spill(),
        )
        sizes = {info.key: info.bytes for info in self._store.list(f"{SHARDS}/")}
        plans = plan_shards(samples, self._recipe.shard, self._standing(sizes))
        layouts = {plan.name: tar_layout(plan) for plan in plans}
        known = self._known()
        facts: dict[str, ShardFacts] = {}
        units = []
        for plan in plans:
            missing = _missing(plan, layouts[plan.name], sizes)
            stored = known.get(plan.name)
            if not missing and stored is not None and stored.bytes == layouts[plan.name].n_bytes:
                facts[plan.name] = stored
            else:
                units.append(ShardUnit(plan=plan, missing=missing))
        self.n_written = sum(unit.plan.name in unit.missing for unit in units)
        facts |= {written.name: written.facts for written in self._run(units)}
        shards = [
            Shard(plan=plan, layout=layouts[plan.name], facts=facts[plan.name]) for plan in plans
        ]
        place_samples([(shard.plan, shard.layout) for shard in shards], clips)
        self.summary = [shard_facts(shard.plan, shard.layout.n_bytes) for shard in shards]
        self.files = set_files(
            shards,
            seed=self._recipe.shard.seed,
            stamp=fingerprint(self._recipe.model_dump(mode="json")),
            made_by=f"curate {curator.__version__}",
        )
        self.names = {*self.files} | {name for plan in plans for name in _names(plan)}

    def _run(self, units: Sequence[ShardUnit]) -> list[ShardWritten]:
        step = Step(make=ShardStep, settings={"store": self._store}, resources=Resources(cpus=0.5))
        n_bytes = sum(s.mp4_bytes for u in units if u.missing for s in u.plan.samples)
        # Copying little takes less time than a process that has to load for it.
        is_worth_it = self._engine.is_started and n_bytes > COPIED_HERE_BYTES
        run = self._engine.run if is_worth_it else self._engine.run_here
        return list(run([step], units))

    def _standing(self, sizes: Mapping[str, int]) -> dict[str, Collection[str]]:
        """Keys of the samples in each tar of the last finished run that is still there."""
        standing: dict[str, list[str]] = {}
        for name in self._previous.get("tables", {}).get("clips", []):
            table = Parts(self._store, "clips", "").read(name, ["clip_id", "shard"])
            shards, keys = (column_values(table[column]) for column in ("shard", "clip_id"))
            for shard, key in zip(shards, keys, strict=True):
                if shard in sizes:
                    standing.setdefault(shard, []).append(key)
        return dict(standing)

    def _known(self) -> dict[str, ShardFacts]:
        """Hashes of tars that stand, so that they need not be read for them."""
        if not self._store.exists(MANIFEST):
            return {}
        return known_facts(json.loads(self._store.read(MANIFEST)))


def _names(plan: ShardPlan) -> tuple[str, str, str]:
    return plan.name, index_name(plan.name), meta_name(plan.name)


def _missing(plan: ShardPlan, layout: TarLayout, sizes: Mapping[str, int]) -> frozenset[str]:
    """Objects of a shard that are not there, or not in their size."""
    meta_bytes = sum(sample.json_bytes + 1 for sample in plan.samples)
    wanted = (layout.n_bytes, 8 * (len(plan.samples) + 1), meta_bytes)
    return frozenset(
        name for name, size in zip(_names(plan), wanted, strict=True) if sizes.get(name) != size
    )


class ShardStep:
    """Assembles one tar from clips that are encoded already, with what lies beside it."""

    def __init__(self, *, store: Store) -> None:
        self._store = store

    def __call__(self, unit: ShardUnit) -> ShardWritten:
        """Writes what is missing; a tar that stands is read for its hashes.

        Raises:
            ShardError: A clip is not what was written.
        """
        plan = unit.plan
        tar, index, meta = _names(plan)
        beside = {index: tar_index(tar_layout(plan)), meta: meta_lines(plan)}
        # Before the tar, so that no reader finds a tar without its index.
        for name, data in beside.items():
            if name in unit.missing:
                self._store.write(name, data)
        hashes = _Hashes()
        if tar in unit.missing:
            with self._store.create(tar) as output:
                write_shard(plan, _Hashing(output, hashes), self._read, self._read_vector)
        else:
            with self._store.open(tar) as reader:
                while data := reader.read(_READ_BYTES):
                    hashes.update(data)
        facts = ShardFacts(
            bytes=hashes.n_bytes,
            sha256=hashes.sha256.hexdigest(),
            md5=hashes.md5.hexdigest(),
            idx_sha256=hashlib.sha256(beside[index]).hexdigest(),
            meta_sha256=hashlib.sha256(beside[meta]).hexdigest(),
        )
        return ShardWritten(name=tar, facts=facts)

    def _read_vector(self, vector: TextVector) -> bytes:
        with self._store.open(vector.name) as reader:
            table = pq.ParquetFile(reader).read_row_group(vector.row, columns=["npy"])
        npy: bytes = table["npy"][0].as_py()
        if len(npy) != vector.n_bytes:
            raise ShardError(
                f"{self._store.uri}/{vector.name}: row {vector.row} has {len(npy)} bytes, "
                f"{vector.n_bytes} were written; delete the object and run again"
            )
        return npy

    def _read(self, sample: Sample) -> bytes:
        where = sample.location
        mp4 = clip_bytes(self._store, where)
        if len(mp4) != sample.mp4_bytes or hashlib.sha256(mp4).hexdigest() != sample.mp4_sha256:
            raise ShardError(
                f"{self._store.uri}/{where.name}: clip {sample.key} has {len(mp4)} bytes that are "
                f"not those written (sha256 {sample.mp4_sha256}); delete the object and run again"
            )
        return mp4


class _Hashes:
    """Hashes of a tar, taken as its bytes pass by."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self.sha256 = hashlib.sha256()
        self.md5 = hashlib.md5(usedforsecurity=False)

    def update(self, data: bytes) -> None:
        self.n_bytes += len(data)
        self.sha256.update(data)
        self.md5.update(data)


class _Hashing(io.BufferedIOBase, BinaryIO):
    """Passes writes on and hashes them; closing it leaves the stream below open."""

    def __init__(self, output: BinaryIO, hashes: _Hashes) -> None:
        super().__init__()
        self._output = output
        self._hashes = hashes

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        passed = bytes(data)
        self._hashes.update(passed)
        return self._output.write(passed)

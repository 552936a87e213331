"""The stage that assembles tars from written clips."""

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import pyarrow.parquet as pq

from curator.errors import ShardError
from curator.stage import Resources, Scope, Stage
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.sample import Sample
from curator.stages.shard.shard_index import (
    ShardFacts,
    index_name,
    meta_lines,
    meta_name,
    tar_index,
)
from curator.stages.shard.shard_plan import SHARD_VERSION, ShardPlan, tar_layout, write_shard
from curator.storage import Store
from curator.tables.clip_locations import clip_bytes
from curator.tables.clip_vectors import TextVector

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUnit:
    """A tar with missing objects."""

    plan: ShardPlan
    missing: frozenset[str]
    """Names of the objects to write: the tar, its index, its metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWritten:
    """A finished tar, with its index and metadata."""

    name: str
    facts: ShardFacts


def object_names(plan: ShardPlan) -> tuple[str, str, str]:
    """Returns the names of a tar, of its index and of its metadata."""
    return plan.name, index_name(plan.name), meta_name(plan.name)


class ShardStage(Stage[ShardConfig, ShardUnit, ShardWritten]):
    """Assembles tars from written clips, each with its index and metadata.

    A tar is too large to return: the stage streams it into the output root.
    """

    name = "shard"
    version = SHARD_VERSION
    scope = Scope.CORPUS
    reads = ("clips", "cuts", "embeddings", "annotations")
    writes = ("shards", "clips")
    by_content = frozenset(reads)
    config_type = ShardConfig

    def __init__(self, config: ShardConfig, store: Store | None = None) -> None:
        super().__init__(config)
        self._root = store

    @property
    def resources(self) -> Resources:
        """Half a core: the work is copying bytes."""
        return Resources(cpus=0.5)

    @property
    def _store(self) -> Store:
        assert self._root is not None, "a stage that is only described has no output root"
        return self._root

    def process(self, unit: ShardUnit) -> ShardWritten:
        """Writes the missing objects of a tar; reads an existing tar for its hashes.

        Raises:
            ShardError: A clip's bytes are not those that were written.
        """
        plan = unit.plan
        tar, index, meta = object_names(plan)
        described = {index: tar_index(tar_layout(plan)), meta: meta_lines(plan)}
        # Before the tar, so that no reader finds a tar without its index.
        for name, data in described.items():
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
            idx_sha256=hashlib.sha256(described[index]).hexdigest(),
            meta_sha256=hashlib.sha256(described[meta]).hexdigest(),
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

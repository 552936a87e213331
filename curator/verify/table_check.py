"""Compares the tables for readers with the tars."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curator.errors import CuratorError
from curator.family import FamilyVersion
from curator.stages.shard.shard_index import DATASET_SCHEMA, sample_row
from curator.stages.shard.tar_reader import (
    DATASET,
    FOLDER,
    MAX_TEXT_BYTES,
    ShardSet,
    TarReader,
    declared_families,
)
from curator.tables.parts import SUMMARY
from curator.tables.schemas import declared_columns, declared_fields
from curator.verify.findings import FindingCode, Findings
from curator.verify.tar_check import TarFacts, row_digest

BATCH_ROWS = 4096


class _TableCheck:
    """Compares rows of a table with the samples of all tars, and remembers those it has seen.

    Args:
        shards: The set of the tars.
        tars: Facts of them.
        code: Of what differs.
        findings: Takes what is wrong.
    """

    def __init__(
        self, shards: ShardSet, tars: Sequence[TarFacts], code: FindingCode, findings: Findings
    ) -> None:
        self._shards, self._code, self._findings = shards, code, findings
        self._tars = {tar.shard.name: tar for tar in tars}
        self._order = {name: np.argsort(tar.keys) for name, tar in self._tars.items()}
        self._seen = {name: np.zeros(len(tar.keys), np.bool_) for name, tar in self._tars.items()}

    def differs(self, path: str, actual: str, expected: str) -> None:
        """Adds a finding."""
        self._findings.add(self._code, path, actual, expected)

    def compare(
        self, path: str, actual: Mapping[str, object], expected: Mapping[str, object]
    ) -> None:
        """Adds a finding for each field with another value."""
        self._findings.compare(self._code, path, actual, expected)

    def find(self, path: str, row: Mapping[str, Any], key_column: str) -> tuple[TarFacts, int]:
        """Returns the tar of a row, and the position of its sample in it.

        Raises:
            LookupError: There is none, which is added where it is a fault of the table.
        """
        shard, key = str(row.get("shard")).removeprefix(FOLDER), str(row.get(key_column))
        tar = self._tars.get(shard)
        if tar is None:
            self.differs(path, f"shard {shard!r}", "a shard that is there")
            raise LookupError(shard)
        order, wanted = self._order[shard], np.bytes_(key.encode("utf-8", "replace"))
        at = int(np.searchsorted(tar.keys, wanted, sorter=order)) if len(order) else 0
        if at == len(order) or tar.keys[order[at]] != wanted:
            if tar.is_whole:
                self.differs(path, f"key {key!r}", f"a key of {shard}")
            raise LookupError(key)
        position = int(order[at])
        if self._seen[shard][position]:
            self.differs(path, "a second row", "one row")
        self._seen[shard][position] = True
        return tar, position

    def rows(
        self,
        name: str,
        columns: Sequence[str],
        check: Callable[[str, Mapping[str, Any]], None],
        declared: pa.Schema | None = None,
    ) -> bool:
        """Checks each row of a Parquet object, given its path; returns whether all can be read.

        Columns of families must be those of `declared`, if that is not None.
        """
        path = f"{self._shards.store.uri}/{name}"
        try:
            with self._shards.store.open(name) as stream:
                file = pq.ParquetFile(stream)
                actual = _families(file.schema_arrow)
                if declared is not None and actual != (expected := _families(declared)):
                    words = f"columns of families: {actual or 'none'}"
                    self.differs(path, words, expected or "none, as in the manifest")
                there = [column for column in columns if column in file.schema_arrow.names]
                for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=there):
                    for row in batch.to_pylist():
                        try:
                            check(f"{path}#{row.get('clip_id')}", row)
                        except LookupError:
                            continue
        except (CuratorError, pa.ArrowException, OSError, ValueError, TypeError) as error:
            words = f"it cannot be read ({str(error).splitlines()[0]})"
            self.differs(path, words, "a Parquet object")
            return False
        return True

    def finish(self, table: str) -> None:
        """Adds a finding for each sample that no row of the table names."""
        for name, tar in self._tars.items():
            for key in tar.keys[~self._seen[name]]:
                path = f"{self._shards.uri(name)}#{key.decode('utf-8', 'replace')}"
                self.differs(path, "a sample", f"a row of {table}")


def _families(schema: pa.Schema) -> str:
    """Returns the columns of a table that families declare, for people."""
    return ", ".join(
        f"{name} ({schema.field(name).type}, {family['name']} {family['fingerprint']})"
        for name, family in sorted(declared_columns(schema).items())
    )


def check_dataset(shards: ShardSet, tars: Sequence[TarFacts], findings: Findings) -> None:
    """Compares `dataset.parquet` with the tars."""
    if shards.own_dataset is None and DATASET not in shards.sizes:
        return
    table = _TableCheck(shards, tars, FindingCode.DATASET, findings)

    def check(path: str, row: Mapping[str, Any]) -> None:
        tar, at = table.find(path, row, "clip_id")
        digest = int(tar.digests[at])
        if digest and digest != row_digest(row):
            for name, expected in _of_sample(shards, tar, at).items():
                if name in row and not _is_same(row[name], expected):
                    table.differs(path, f"{name} {row[name]!r}", repr(expected))

    columns = [name for name in DATASET_SCHEMA.names if name != "path"]
    if table.rows(shards.dataset, columns, check):
        table.finish(f"{shards.store.uri}/{shards.dataset}")


def _is_same(actual: object, expected: object) -> bool:
    # A table may hold it in single precision.
    if isinstance(actual, float) and isinstance(expected, int | float):
        return math.isclose(actual, expected, rel_tol=1e-4)
    return actual == expected


def _of_sample(shards: ShardSet, tar: TarFacts, at: int) -> dict[str, Any]:
    """Reads a sample again, and returns its row.

    Raises:
        ValueError: It cannot be read any more, or is of another kind.
    """
    fields: dict[str, Any] = {}
    text: str | None = None
    try:
        with shards.store.open(shards.key(tar.shard.name)) as stream:
            stream.seek(int(tar.offsets[at]))
            reader = TarReader(stream.read, tar.bytes)
            for member in reader:
                if member.bytes > MAX_TEXT_BYTES and member.suffix != "mp4":
                    break
                if member.suffix == "json":
                    fields = orjson.loads(reader.read(member))
                elif member.suffix == "txt":
                    text = reader.read(member).decode("utf-8", "replace")
                if fields and text is not None:
                    break
        key = tar.keys[at].decode("utf-8", "replace")
        places = {"offset": int(tar.mp4_offsets[at]), "bytes": int(tar.mp4_bytes[at])}
        return sample_row(tar.shard.name, key, fields, text or "") | places
    except (CuratorError, OSError, KeyError) as error:
        raise ValueError(str(error)) from error


def check_clips(
    summary: Mapping[str, Any], shards: ShardSet, tars: Sequence[TarFacts], findings: Findings
) -> None:
    """Compares the kept rows of `clips`, whose parts the summary names, with the tars."""
    table = _TableCheck(shards, tars, FindingCode.CLIPS, findings)
    tables = summary.get("tables")
    parts = tables.get("clips") if isinstance(tables, dict) else None
    if not isinstance(parts, list):
        table.differs(f"{shards.store.uri}/{SUMMARY}", "no list of the table `clips`", "one")
        return
    declared = None
    if shards.manifest is not None:
        families = map(FamilyVersion.from_json, declared_families(shards.manifest).values())
        declared = pa.schema(declared_fields(families))
    columns = ["clip_id", "decision", "shard", "key", "mp4_offset", "mp4_bytes"]

    def check(path: str, row: Mapping[str, Any]) -> None:
        if row.get("decision") == "kept":
            tar, at = table.find(path, row, "key")
            places = {"mp4_offset": int(tar.mp4_offsets[at]), "mp4_bytes": int(tar.mp4_bytes[at])}
            table.compare(path, {**dict.fromkeys(columns), **row}, places)

    if all([table.rows(str(part), columns, check, declared) for part in parts]):
        table.finish(f"{shards.store.uri}/clips")

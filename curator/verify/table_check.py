"""Compares the tables for readers with the tars."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curator.errors import CuratorError
from curator.family import FamilyVersion
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
from curator.verify.findings import RERUN, FindingCode, Findings
from curator.verify.tar_check import REPEATED, TarFacts, columns_digest, json_columns

BATCH_ROWS = 4096
DERIVED = ("aspect_ratio", "resolution")


class SampleLookup:
    """Finds samples by shard and key among the facts of all tars, and remembers those found."""

    def __init__(self, tars: Sequence[TarFacts]) -> None:
        self.tars = {tar.shard.name: tar for tar in tars}
        self._order = {name: np.argsort(tar.keys) for name, tar in self.tars.items()}
        self._seen = {name: np.zeros(len(tar.keys), np.bool_) for name, tar in self.tars.items()}

    def find(self, shard: str, key: str) -> tuple[int, bool] | None:
        """Returns the position of a sample in its tar, and whether it was found before."""
        tar, order = self.tars[shard], self._order[shard]
        wanted = np.bytes_(key.encode("utf-8", "replace"))
        at = int(np.searchsorted(tar.keys, wanted, sorter=order)) if len(order) else 0
        if at == len(order) or tar.keys[order[at]] != wanted:
            return None
        position = int(order[at])
        was_seen = bool(self._seen[shard][position])
        self._seen[shard][position] = True
        return position, was_seen

    def unseen(self) -> Iterator[tuple[TarFacts, NDArray[np.bytes_]]]:
        """Yields tars with samples that were not found yet, and their keys."""
        for name, tar in self.tars.items():
            keys = tar.keys[~self._seen[name]]
            if len(keys):
                yield tar, keys


def check_dataset(shards: ShardSet, tars: Sequence[TarFacts], findings: Findings) -> None:
    """Compares `dataset.parquet` with the tars."""
    if shards.own_dataset is None and DATASET not in shards.sizes:
        return
    path = f"{shards.store.uri}/{shards.dataset}"
    lookup = SampleLookup(tars)

    def row(values: Mapping[str, Any]) -> None:
        key = str(values.get("clip_id"))
        shard = str(values.get("shard")).removeprefix(FOLDER)
        tar = lookup.tars.get(shard)
        if tar is None:
            findings.add(
                FindingCode.DATASET, f"{path}#{key}", f"shard {shard!r}", "a shard that is there"
            )
            return
        found_at = lookup.find(shard, key)
        if found_at is None:
            if tar.is_whole:
                findings.add(
                    FindingCode.DATASET, f"{path}#{key}", "a row", f"no row: {shard} lacks it"
                )
            return
        at, was_seen = found_at
        if was_seen:
            findings.add(FindingCode.DATASET, f"{path}#{key}", "a second row", "one row")
        for name, expected in {
            "offset": int(tar.mp4_offsets[at]),
            "bytes": int(tar.mp4_bytes[at]),
            "split": tar.shard.split,
            "bucket": tar.shard.bucket,
        }.items():
            if name in values and values[name] != expected:
                actual = f"{name} {values[name]!r}"
                findings.add(FindingCode.DATASET, f"{path}#{key}", actual, repr(expected))
        for actual, expected in _derived(values):
            findings.add(FindingCode.DATASET, f"{path}#{key}", actual, expected)
        digest = int(tar.digests[at])
        if digest and digest != columns_digest(dict(values)):
            actual, wanted = _other_columns(shards, tar, at, values)
            findings.add(FindingCode.DATASET, f"{path}#{key}", actual, wanted)

    columns = ["clip_id", "shard", "split", "bucket", "offset", "bytes", *REPEATED, *DERIVED]
    if _rows(shards, shards.dataset, columns, row, FindingCode.DATASET, findings):
        _unlisted(shards, lookup, path, FindingCode.DATASET, findings)


def _derived(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Checks columns that follow from height and width."""
    height, width = values.get("height"), values.get("width")
    if not height or not width:
        return
    wanted = {"aspect_ratio": height / width, "resolution": height * width}
    for name, expected in wanted.items():
        actual = values.get(name, expected)
        # A table may hold it in single precision.
        if actual is None or abs(actual - expected) > 1e-4 * expected:
            yield f"{name} {actual!r}", f"{expected:g}"


def _other_columns(
    shards: ShardSet, tar: TarFacts, at: int, values: Mapping[str, Any]
) -> tuple[str, str]:
    """Returns columns that differ from a sample's JSON, which is read again."""
    fields: dict[str, Any] = {}
    text = ""
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
                if fields and (member.suffix == "txt"):
                    break
        expected = json_columns(fields, text)
    except (CuratorError, OSError, ValueError, KeyError):
        return "other columns than the sample's JSON", "the same"
    other = [name for name in REPEATED if values.get(name) != expected[name]]
    shown = {name: (str(values.get(name))[:80], str(expected[name])[:80]) for name in other}
    return (
        ", ".join(f"{name} {actual!r}" for name, (actual, _) in shown.items()),
        ", ".join(repr(wanted) for _, wanted in shown.values()),
    )


def check_clips(
    summary: Mapping[str, Any], shards: ShardSet, tars: Sequence[TarFacts], findings: Findings
) -> None:
    """Compares the kept rows of `clips`, whose parts the summary names, with the tars."""
    tables = summary.get("tables")
    parts = tables.get("clips") if isinstance(tables, dict) else None
    where = f"{shards.store.uri}/{SUMMARY}"
    if not isinstance(parts, list):
        findings.add(FindingCode.CLIPS, where, "no list of the table `clips`", "one", RERUN)
        return
    lookup = SampleLookup(tars)
    is_whole = True
    declared = None
    if shards.manifest is not None:
        families = map(FamilyVersion.from_json, declared_families(shards.manifest).values())
        declared = pa.schema(declared_fields(families))
    for part in map(str, parts):
        path = f"{shards.store.uri}/{part}"

        def row(values: Mapping[str, Any], path: str = path) -> None:
            if values.get("decision") == "kept":
                _check_clip(lookup, values, f"{path}#{values.get('clip_id')}", findings)

        columns = ["clip_id", "decision", "shard", "key", "mp4_offset", "mp4_bytes"]
        is_whole &= _rows(shards, part, columns, row, FindingCode.CLIPS, findings, declared)
    if is_whole:
        _unlisted(shards, lookup, f"{shards.store.uri}/clips", FindingCode.CLIPS, findings)


def _check_clip(
    lookup: SampleLookup, values: Mapping[str, Any], path: str, findings: Findings
) -> None:
    shard, key = str(values.get("shard")).removeprefix(FOLDER), str(values.get("key"))
    tar = lookup.tars.get(shard)
    if tar is None:
        findings.add(FindingCode.CLIPS, path, f"shard {shard!r}", "a shard that is there", RERUN)
        return
    found_at = lookup.find(shard, key)
    if found_at is None:
        if tar.is_whole:
            findings.add(FindingCode.CLIPS, path, f"key {key!r}", f"a key of {shard}", RERUN)
        return
    for name, expected in {
        "mp4_offset": int(tar.mp4_offsets[found_at[0]]),
        "mp4_bytes": int(tar.mp4_bytes[found_at[0]]),
    }.items():
        if values.get(name) != expected:
            findings.add(
                FindingCode.CLIPS, path, f"{name} {values.get(name)!r}", str(expected), RERUN
            )


def _declared(schema: pa.Schema) -> str:
    """Returns the columns of a table that families declare, for people."""
    return ", ".join(
        f"{name} ({schema.field(name).type}, {family['name']} {family['fingerprint']})"
        for name, family in sorted(declared_columns(schema).items())
    )


def _unlisted(
    shards: ShardSet, lookup: SampleLookup, table: str, code: FindingCode, findings: Findings
) -> None:
    for tar, keys in lookup.unseen():
        for key in keys:
            path = f"{shards.uri(tar.shard.name)}#{key.decode('utf-8', 'replace')}"
            findings.add(code, path, "a sample", f"a row of {table}", RERUN)


def _rows(
    shards: ShardSet,
    name: str,
    columns: Sequence[str],
    row: Callable[[Mapping[str, Any]], None],
    code: FindingCode,
    findings: Findings,
    declared: pa.Schema | None = None,
) -> bool:
    """Calls `row` for each row of a Parquet object; returns whether all could be read.

    Columns of families must be those of `declared`, if that is not None.
    """
    path = f"{shards.store.uri}/{name}"
    try:
        with shards.store.open(name) as stream:
            file = pq.ParquetFile(stream)
            if declared is not None:
                actual, expected = _declared(file.schema_arrow), _declared(declared)
                if actual != expected:
                    message = f"columns of families: {actual or 'none'}"
                    findings.add(code, path, message, expected or "none, as in the manifest", RERUN)
            there = [column for column in columns if column in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=there):
                for values in batch.to_pylist():
                    row(values)
    except (CuratorError, pa.ArrowException, OSError, ValueError, TypeError) as error:
        words = f"it cannot be read ({str(error).splitlines()[0]})"
        findings.add(code, path, words, "a Parquet object", RERUN)
        return False
    return True

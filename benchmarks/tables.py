#!/usr/bin/env python3
"""Compares three ways to keep tables with snapshots: Lance, Delta, and manifests of our own.

    tables.py FOLDER [--rows 10000000] [--formats own delta lance] [--cases write race ...] [--s3]

A table has 60 columns, as one of clips has. Workers write parts that are not visible yet, then a
commit names them in a new snapshot. The third way is a JSON object per snapshot,
`snapshots/00000007.json` with the name, rows, bytes and SHA-256 of each part; it is written only if
no such object exists (a link on a folder, `If-None-Match: *` on S3).

Each step is a process of its own, whose wall seconds, CPU-seconds and peak memory are its own. Wall
time starts after the imports. `--s3` also races and counts requests on the server of
AWS_ENDPOINT_URL, in a bucket that must not exist before and is removed at the end. Needs pylance,
deltalake, duckdb, pandas, polars and boto3, of which the package itself needs none.
"""

import argparse
import hashlib
import importlib
import importlib.metadata
import io
import json
import multiprocessing
import os
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tests_path  # noqa: F401
from measure import machine

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

PART_ROWS = 100_000
ROWS_PER_GROUP = 65_536
FAMILY = 5
MIB = 1 << 20
BUCKET = "tables-benchmark"
ROUNDS = 20

Mode = Literal["alone", "merge", "careless"]
"""How two commits on one snapshot end: one fails; both are merged; or the way that a format warns
of, which shows that the race finds damage: no condition on the write, an unsafe rename on S3, or
an overwrite that is tried again."""


def made_part(number: int, rows: int, *, tag: str = "") -> "pa.Table":
    """Rows of 60 columns: 40 float32, 6 strings, 6 integers, 4 flags, 3 of 8 bytes, 1 list.

    Parts share four pools of 100,000 rows, but `score_00`, `start_pts` and ids are each part's own.
    Within 400,000 rows in order nothing repeats, so that no format can gain by it in a row group.
    """
    import numpy as np
    import pyarrow as pa

    first = number * rows
    pool = _pool(first // PART_ROWS % 4)
    columns = {name: values.slice(first % PART_ROWS, rows) for name, values in pool.items()}
    rng = np.random.default_rng(1_000 + number)
    names = [hashlib.md5(f"{tag}{number}-{i}".encode()).hexdigest()[:24] for i in range(rows)]
    columns["clip_id"] = pa.array(names)
    columns["score_00"] = pa.array(rng.beta(2.0, 5.0, rows).astype(np.float32))
    columns["start_pts"] = pa.array(rng.integers(0, 1 << 40, rows))
    return pa.table({name: columns[name] for name in sorted(columns)})


@cache
def _pool(seed: int) -> dict[str, "pa.Array"]:
    import numpy as np
    import pyarrow as pa

    rows = PART_ROWS
    rng = np.random.default_rng(seed)
    empty = pa.array(np.zeros(rows))
    columns: dict[str, Any] = {"clip_id": empty, "score_00": empty, "start_pts": empty}
    for number in range(1, 40):
        columns[f"score_{number:02}"] = pa.array(rng.gamma(2.0, 0.5, rows).astype(np.float32))
    words = np.array([f"word{n}" for n in range(2_000)])
    columns["source_id"] = pa.array([f"{n:032x}" for n in np.sort(rng.integers(0, 5_000, rows))])
    columns["source_uri"] = pa.array(
        [f"s3://bucket/videos/{n:08}.mp4" for n in np.sort(rng.integers(0, 5_000, rows))]
    )
    columns["caption"] = pa.array([" ".join(w) for w in words[rng.integers(0, 2_000, (rows, 12))]])
    columns["reason"] = pa.array(np.array(["kept", "too_short", "dull"])[rng.integers(0, 3, rows)])
    columns["codec"] = pa.array(np.array(["h264", "hevc", "av1"])[rng.integers(0, 3, rows)])
    for number in range(5):
        columns[f"count_{number}"] = pa.array(rng.integers(0, 1_000, rows))
    for number in range(4):
        columns[f"flag_{number}"] = pa.array(rng.random(rows) < 0.2)
    columns["begun_at"] = pa.array(rng.integers(0, 1 << 50, rows), pa.timestamp("us", "UTC"))
    columns["ended_at"] = pa.array(rng.integers(0, 1 << 50, rows), pa.timestamp("us", "UTC"))
    columns["seconds"] = pa.array(rng.gamma(2.0, 2.0, rows))
    flat = pa.array(rng.random(rows * 8).astype(np.float32))
    offsets = pa.array(np.arange(0, rows * 8 + 1, 8, dtype=np.int32))
    columns["strip"] = pa.ListArray.from_arrays(offsets, flat)
    return columns


def family_of(number: int, rows: int) -> dict[str, "np.ndarray[Any, Any]"]:
    """Five more columns for a part's rows, in their order."""
    import numpy as np

    rng = np.random.default_rng(7_000 + number)
    return {f"more_{k}": rng.random(rows).astype(np.float32) for k in range(FAMILY)}


class Place(ABC):
    """Objects under a root, as much of them as manifests need."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Writes an object."""

    @abstractmethod
    def put_new(self, name: str, data: bytes) -> None:
        """Writes an object that must not exist yet.

        Raises:
            FileExistsError: It exists.
        """

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Reads an object."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Removes an object."""


class Folder(Place):
    """A local one. A link fails if its name is taken, and shows whole files only."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def put(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def put_new(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{secrets.token_hex(8)}")
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(scratch, path)
        finally:
            scratch.unlink()

    def get(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def names(self, folder: str) -> list[str]:
        found = (self.root / folder).glob("[!.]*")
        return sorted(str(path.relative_to(self.root)) for path in found)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)


class Bucket(Place):
    """On S3."""

    def __init__(self, root: str) -> None:
        self.bucket, _, self.prefix = root.removeprefix("s3://").partition("/")

    @property
    def client(self) -> Any:  # noqa: ANN401 - boto3's clients are classes made at run time
        return s3_client()

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def put(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=self._key(name), Body=data)

    def put_new(self, name: str, data: bytes) -> None:
        from botocore.exceptions import ClientError

        try:
            self.client.put_object(
                Bucket=self.bucket, Key=self._key(name), Body=data, IfNoneMatch="*"
            )
        except ClientError as error:
            # 409: another conditional write of the same key was under way.
            if error.response["ResponseMetadata"]["HTTPStatusCode"] in (409, 412):
                raise FileExistsError(name) from error
            raise

    def get(self, name: str) -> bytes:
        answer = self.client.get_object(Bucket=self.bucket, Key=self._key(name))
        data: bytes = answer["Body"].read()
        return data

    def names(self, folder: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self._key(folder) + "/"
        )
        skip = len(self.prefix) + 1
        return sorted(one["Key"][skip:] for page in pages for one in page.get("Contents", []))

    def delete(self, name: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=self._key(name))


@cache
def s3_client() -> Any:  # noqa: ANN401 - boto3's clients are classes made at run time
    """Returns the client of this process."""
    import boto3
    from botocore.config import Config

    config = Config(
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"mode": "standard", "total_max_attempts": 3},
    )
    return boto3.client("s3", config=config, region_name="us-east-1")


def is_s3(root: str) -> bool:
    return root.startswith("s3://")


Receipt = dict[str, Any]
"""What a worker reports of a part that it wrote; the commit needs nothing else."""


class Tables(ABC):
    """A table with snapshots.

    Args:
        root: Folder, or s3:// address.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    @abstractmethod
    def write_part(self, table: "pa.Table", number: int) -> Receipt:
        """Writes a part that no snapshot names yet."""

    @abstractmethod
    def create(self, schema: "pa.Schema", receipts: list[Receipt]) -> int:
        """Commits the first snapshot; returns its number."""

    @abstractmethod
    def newest(self) -> int:
        """Returns the number of the newest snapshot."""

    @abstractmethod
    def append(self, schema: "pa.Schema", receipts: list[Receipt], seen: int, *, mode: Mode) -> int:
        """Commits parts on top of snapshot `seen`.

        Args:
            schema: Of the table.
            receipts: Of parts.
            seen: Snapshot that the writer knows.
            mode: What becomes of another commit since `seen`.
        """

    @abstractmethod
    def compact(self) -> int:
        """Joins small parts to parts of 100,000 rows."""

    @abstractmethod
    def add_family(self, rows: int) -> None:
        """Adds five columns to all rows."""

    @abstractmethod
    def vacuum(self, *, force: bool, keep: int | None = None) -> int:
        """Removes what only old snapshots name, by the default policy or at once.

        Args:
            force: At once, and with it what no snapshot names.
            keep: An old snapshot that is to stay.

        Returns:
            Number of objects removed, as far as the format says.
        """

    @abstractmethod
    def batches(self, snapshot: int | None, columns: list[str]) -> Iterator["pa.RecordBatch"]:
        """Reads a snapshot."""

    @abstractmethod
    def relation(self) -> tuple[str, dict[str, Any]]:
        """SQL by which DuckDB reads the newest snapshot, and the Python objects that it names."""


def written_parquet(table: "pa.Table", **options: Any) -> bytes:  # noqa: ANN401 - as pyarrow's
    """A part as the package writes its tables, or with other options of `write_table`."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    options = {"compression": "zstd", "row_group_size": ROWS_PER_GROUP} | options
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def encodings(table: "pa.Table") -> dict[str, dict[str, Any]]:
    """Ways to write Parquet, by name."""
    import pyarrow.types as types

    floats = [field.name for field in table.schema if types.is_floating(field.type)]
    lists = [f"{field.name}.list.element" for field in table.schema if types.is_list(field.type)]
    others = [f.name for f in table.schema if f.name not in floats and not types.is_list(f.type)]
    return {
        "as the package did": {},
        "no dictionary for floats": {"use_dictionary": others},
        "floats split by byte": {
            "use_dictionary": others, "use_byte_stream_split": floats + lists,
        },
        "snappy": {"compression": "snappy"},
    }  # fmt: skip


class OwnTables(Tables):
    """Parquet parts and a JSON manifest per snapshot."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.place: Place = Bucket(root) if is_s3(root) else Folder(root)

    def _bytes(self, table: "pa.Table") -> bytes:
        return written_parquet(table)

    def _put(self, table: "pa.Table", folder: str) -> Receipt:
        data = self._bytes(table)
        sha256 = hashlib.sha256(data).hexdigest()
        name = f"{folder}/{sha256[:24]}.parquet"
        self.place.put(name, data)
        return {"name": name, "rows": table.num_rows, "bytes": len(data), "sha256": sha256}

    def write_part(self, table: "pa.Table", number: int) -> Receipt:
        return self._put(table, "clips")

    def create(self, schema: "pa.Schema", receipts: list[Receipt]) -> int:
        return self._commit(1, receipts)

    def _commit(self, snapshot: int, parts: list[Receipt], *, mode: Mode = "alone") -> int:
        body = json.dumps({"snapshot": snapshot, "parts": parts}, indent=0).encode()
        put = self.place.put if mode == "careless" else self.place.put_new
        put(f"snapshots/{snapshot:08}.json", body)
        return snapshot

    def newest(self) -> int:
        return int(Path(self.place.names("snapshots")[-1]).stem)

    def parts(self, snapshot: int | None = None) -> list[Receipt]:
        number = self.newest() if snapshot is None else snapshot
        found: list[Receipt] = json.loads(self.place.get(f"snapshots/{number:08}.json"))["parts"]
        return found

    def append(self, schema: "pa.Schema", receipts: list[Receipt], seen: int, *, mode: Mode) -> int:
        while True:
            try:
                return self._commit(seen + 1, self.parts(seen) + receipts, mode=mode)
            except FileExistsError:
                if mode == "alone":
                    raise
                seen = self.newest()

    def compact(self) -> int:
        import pyarrow as pa
        import pyarrow.parquet as pq

        snapshot, done, held, n_held = self.newest(), [], [], 0
        parts = self.parts(snapshot)
        for number, part in enumerate(parts):
            held.append(pq.read_table(io.BytesIO(self.place.get(part["name"]))))
            n_held += part["rows"]
            if n_held >= PART_ROWS or number == len(parts) - 1:
                done.append(self._put(pa.concat_tables(held).combine_chunks(), "clips"))
                held, n_held = [], 0
        return self._commit(snapshot + 1, done)

    def add_family(self, rows: int) -> None:
        import pyarrow as pa

        snapshot = self.newest()
        parts = self.parts(snapshot)
        for number, part in enumerate(parts):
            more = pa.table(family_of(number, part["rows"]))
            part["more"] = [self._put(more, "more")]
        self._commit(snapshot + 1, parts)

    def vacuum(self, *, force: bool, keep: int | None = None) -> int:
        snapshots = self.place.names("snapshots")
        # By default all snapshots stay; at once means that the newest alone does.
        kept = snapshots[-1:] if force else snapshots
        kept = kept + [name for name in snapshots if keep is not None and f"{keep:08}" in name]
        named = set()
        for name in kept:
            for part in json.loads(self.place.get(name))["parts"]:
                named |= {one["name"] for one in [part, *part.get("more", [])]}
        old = sorted(set(snapshots) - set(kept))
        unnamed = set(self.place.names("clips")) | set(self.place.names("more"))
        gone = old + (sorted(unnamed - named) if force else [])
        for name in gone:
            self.place.delete(name)
        return len(gone)

    def batches(self, snapshot: int | None, columns: list[str]) -> Iterator["pa.RecordBatch"]:
        import pyarrow.parquet as pq

        for part in self.parts(snapshot):
            file = pq.ParquetFile(io.BytesIO(self.place.get(part["name"])))
            yield from file.iter_batches(columns=columns)

    def files(self) -> list[str]:
        return [f"{self.root}/{part['name']}" for part in self.parts()]

    def relation(self) -> tuple[str, dict[str, Any]]:
        return f"read_parquet({self.files()!r})", {}

    def wide_relation(self) -> str:
        """With the columns that were added, joined by position."""
        more = [f"{self.root}/{part['more'][0]['name']}" for part in self.parts()]
        return f"read_parquet({self.files()!r}) POSITIONAL JOIN read_parquet({more!r})"


class SplitTables(OwnTables):
    """The same, with the bytes of floats split into streams."""

    def _bytes(self, table: "pa.Table") -> bytes:
        return written_parquet(table, **encodings(table)["floats split by byte"])


class DeltaTables(Tables):
    """Delta: workers write Parquet as above, the log names it."""

    def _options(self) -> dict[str, str]:
        return {"allow_http": "true"} if is_s3(self.root) else {}

    def _table(self, version: int | None = None, **more: str) -> Any:  # noqa: ANN401 - not in each venv
        from deltalake import DeltaTable

        return DeltaTable(self.root, version=version, storage_options=self._options() | more)

    def write_part(self, table: "pa.Table", number: int) -> Receipt:
        place: Place = Bucket(self.root) if is_s3(self.root) else Folder(self.root)
        data = written_parquet(table)
        name = f"clips/{hashlib.sha256(data).hexdigest()[:24]}.parquet"
        place.put(name, data)
        return {"name": name, "rows": table.num_rows, "bytes": len(data)}

    @staticmethod
    def _actions(receipts: list[Receipt]) -> list[Any]:
        from deltalake.transaction import AddAction

        now_ms = int(time.time() * 1000)
        return [
            AddAction(
                path=one["name"],
                size=one["bytes"],
                partition_values={},
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps({"numRecords": one["rows"]}),
            )
            for one in receipts
        ]

    def create(self, schema: "pa.Schema", receipts: list[Receipt]) -> int:
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        create_table_with_add_actions(
            self.root,
            Schema.from_arrow(schema),
            self._actions(receipts),
            storage_options=self._options(),
        )
        return self.newest()

    def newest(self) -> int:
        version: int = self._table().version()
        return version

    def append(self, schema: "pa.Schema", receipts: list[Receipt], seen: int, *, mode: Mode) -> int:
        from deltalake import CommitProperties, Schema

        properties = CommitProperties(max_commit_retries=0) if mode == "alone" else None
        careless = {"aws_conditional_put": "disabled", "aws_s3_allow_unsafe_rename": "true"}
        table = self._table(seen, **(careless if mode == "careless" else {}))
        table.create_write_transaction(
            self._actions(receipts),
            "append",
            Schema.from_arrow(schema),
            [],
            commit_properties=properties,
        )
        return seen + 1

    def compact(self) -> int:
        table = self._table()
        first = table.get_add_actions(flatten=True)
        rows = sum(_column(first, "num_records"))
        size = sum(_column(first, "size_bytes"))
        table.optimize.compact(target_size=int(size * PART_ROWS / rows))
        return self.newest()

    def add_family(self, rows: int) -> None:
        """Delta has no way to add values without rewriting the rows: this rewrites them."""
        import pyarrow as pa
        import pyarrow.parquet as pq
        from deltalake import write_deltalake

        table = self._table()
        files = [uri.removeprefix("file://") for uri in table.file_uris()]

        def tables() -> Iterator["pa.RecordBatch"]:
            for number, name in enumerate(files):
                part = pq.read_table(name)
                for column, values in family_of(number, part.num_rows).items():
                    part = part.append_column(column, pa.array(values))
                yield from part.to_batches()

        stream = tables()
        head = next(stream)

        def all_batches() -> Iterator["pa.RecordBatch"]:
            yield head
            yield from stream

        reader = pa.RecordBatchReader.from_batches(head.schema, all_batches())
        write_deltalake(table, reader, mode="overwrite", schema_mode="overwrite")

    def vacuum(self, *, force: bool, keep: int | None = None) -> int:
        hours: dict[str, Any] = {"retention_hours": 0, "enforce_retention_duration": False}
        hours = hours if force else {}
        if keep is not None:
            hours["keep_versions"] = [keep]
        return len(self._table().vacuum(dry_run=False, full=force, **hours))

    def batches(self, snapshot: int | None, columns: list[str]) -> Iterator["pa.RecordBatch"]:
        dataset = self._table(snapshot).to_pyarrow_dataset()
        yield from dataset.to_batches(columns=columns, batch_readahead=1, fragment_readahead=1)

    def relation(self) -> tuple[str, dict[str, Any]]:
        return "held", {"held": self._table().to_pyarrow_dataset()}


def _column(table: Any, name: str) -> list[int]:  # noqa: ANN401 - of any of three libraries
    import pyarrow as pa

    values: list[int] = pa.table(table)[name].to_pylist()
    return values


class LanceTables(Tables):
    """Lance: workers write fragments, the manifest names them."""

    def _options(self) -> dict[str, str] | None:
        if not is_s3(self.root):
            return None
        return {"allow_http": "true", "aws_endpoint": os.environ["AWS_ENDPOINT_URL"]}

    def _dataset(self, version: int | None = None) -> Any:  # noqa: ANN401 - not in each venv
        import lance

        return lance.dataset(self.root, version=version, storage_options=self._options())

    def write_part(self, table: "pa.Table", number: int) -> Receipt:
        from lance.fragment import write_fragments

        fragments = write_fragments(
            table, self.root, schema=table.schema, storage_options=self._options()
        )
        return {"fragments": [json.dumps(one.to_json()) for one in fragments]}

    @staticmethod
    def _fragments(receipts: list[Receipt]) -> list[Any]:
        from lance import FragmentMetadata

        return [FragmentMetadata.from_json(one) for r in receipts for one in r["fragments"]]

    def _commit(self, operation: Any, seen: int, **options: int) -> int:  # noqa: ANN401 - Lance's
        from lance import LanceDataset

        done = LanceDataset.commit(
            self.root,
            operation,
            read_version=seen,
            storage_options=self._options(),
            **options,
        )
        version: int = done.version
        return version

    def create(self, schema: "pa.Schema", receipts: list[Receipt]) -> int:
        from lance import LanceOperation

        return self._commit(LanceOperation.Overwrite(schema, self._fragments(receipts)), 0)

    def newest(self) -> int:
        version: int = self._dataset().version
        return version

    def append(self, schema: "pa.Schema", receipts: list[Receipt], seen: int, *, mode: Mode) -> int:
        from lance import LanceOperation

        new = self._fragments(receipts)
        if mode == "merge":
            return self._commit(LanceOperation.Append(new), seen)
        # An append never conflicts with another, even without retries; an overwrite does.
        old = [one.metadata for one in self._dataset(seen).get_fragments()]
        options = {"max_retries": 0} if mode == "alone" else {}
        return self._commit(LanceOperation.Overwrite(schema, old + new), seen, **options)

    def compact(self) -> int:
        dataset = self._dataset()
        dataset.optimize.compact_files(target_rows_per_fragment=PART_ROWS)
        version: int = dataset.version
        return version

    def add_family(self, rows: int) -> None:
        import pyarrow as pa

        dataset = self._dataset()
        counts = [one.count_rows() for one in dataset.get_fragments()]
        schema = pa.schema([(f"more_{k}", pa.float32()) for k in range(FAMILY)])
        made = (
            pa.record_batch([pa.array(v) for v in family_of(number, n).values()], schema=schema)
            for number, n in enumerate(counts)
        )
        dataset.add_columns(pa.RecordBatchReader.from_batches(schema, made))

    def vacuum(self, *, force: bool, keep: int | None = None) -> int:
        dataset = self._dataset()
        if keep is not None:
            dataset.tags.create("kept", keep)
        options = (
            {
                "error_if_tagged_old_versions": False,
                "older_than": timedelta(0),
                "retain_versions": 1,
                "delete_unverified": True,
            }
            if force
            else {}
        )
        done = dataset.cleanup_old_versions(**options)
        removed: int = done.data_files_removed + done.old_versions
        return removed

    def batches(self, snapshot: int | None, columns: list[str]) -> Iterator["pa.RecordBatch"]:
        scanner = self._dataset(snapshot).scanner(
            columns=columns, batch_readahead=1, fragment_readahead=1
        )
        yield from scanner.to_batches()

    def relation(self) -> tuple[str, dict[str, Any]]:
        return "held", {"held": self._dataset()}


FORMATS: dict[str, Callable[[str], Tables]] = {
    "own": OwnTables,
    "split": SplitTables,
    "delta": DeltaTables,
    "lance": LanceTables,
}
LIBRARIES = {
    "own": ["pyarrow.parquet"],
    "split": ["pyarrow.parquet"],
    "delta": ["deltalake", "pyarrow"],
    "lance": ["lance"],
}


def step_write(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    """Writes all parts as workers do; their receipts go to a file."""
    receipts = []
    made_s = 0.0
    for number in range(options.parts):
        begun = time.process_time()
        part = made_part(number, options.part_rows)
        made_s += time.process_time() - begun
        receipts.append(table.write_part(part, number))
    options.receipts.write_text(json.dumps(receipts))
    return {"of_cpu_s_made": round(made_s, 1)}


def step_commit(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    receipts = json.loads(options.receipts.read_text())
    return {"snapshot": table.create(made_part(0, 10).schema, receipts)}


def step_append(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    """Adds a part to the newest snapshot."""
    seen = table.newest()
    part = made_part(options.parts + seen, options.part_rows, tag="more")
    receipt = table.write_part(part, options.parts + seen)
    return {"snapshot": table.append(part.schema, [receipt], seen, mode="alone")}


def step_many(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    """Adds small parts, each by a commit of its own."""
    part = made_part(0, 10)
    for number in range(options.parts):
        receipt = table.write_part(made_part(number, 10, tag="many"), number)
        table.append(part.schema, [receipt], table.newest(), mode="alone")
    return {"snapshot": table.newest()}


def step_names(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    """Commits names of many parts, all but one of which do not exist; no format looks."""
    part = made_part(0, 1_000)
    first = json.dumps(table.write_part(part, 0))
    name = re.findall(r"(\w+)\.(?:parquet|lance)", first)[0]
    receipts = [json.loads(first)]
    for number in range(1, options.parts):
        receipts.append(json.loads(first.replace(name, f"{number:0{len(name)}}")))
    return {"snapshot": table.create(part.schema, receipts)}


def step_compact(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    return {"snapshot": table.compact()}


def step_family(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    table.add_family(options.parts * options.part_rows)
    return {}


def step_open(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    """Opens the newest snapshot, and counts its rows by what the format knows of them."""
    if isinstance(table, OwnTables):
        return {"rows": sum(part["rows"] for part in table.parts())}
    if isinstance(table, LanceTables):
        return {"rows": table._dataset().count_rows()}
    assert isinstance(table, DeltaTables)
    return {"rows": sum(_column(table._table().get_add_actions(flatten=True), "num_records"))}


def step_checkpoint(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    """Writes the state of a Delta log as one object."""
    assert isinstance(table, DeltaTables)
    table._table().create_checkpoint()
    return {}


QUANTILE = """
with bound as (select quantile_cont(score_00, 0.02) as q from {rows})
select count(*), any_value(q), avg(seconds) from {rows}, bound
where score_00 >= q and score_01 < 2 and flag_0
"""


def step_query(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    """An exact quantile and a filter by it, with 1 GB for DuckDB."""
    import duckdb

    rows, held = table.relation()
    connection = duckdb.connect(config={"memory_limit": "1GB", "threads": 2})
    connection.execute(f"set temp_directory = '{options.receipts.parent}/duckdb'")
    for name, value in held.items():
        connection.register(name, value)
    begun = time.monotonic()
    found = connection.execute(QUANTILE.format(rows=rows)).fetchall()
    return {"query_s": round(time.monotonic() - begun, 2), "found": found}


def step_query_files(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    """The same for Delta, by the list of its files."""
    assert isinstance(table, DeltaTables)
    files = [uri.removeprefix("file://") for uri in table._table().file_uris()]
    table.relation = lambda: (f"read_parquet({files!r})", {})  # type: ignore[method-assign]
    return step_query(table, options)


def step_query_family(table: Tables, options: argparse.Namespace) -> dict[str, Any]:
    """Sums a product of an old column and an added one; checks that rows fit."""
    import duckdb
    import numpy as np

    rows, held = table.relation()
    if isinstance(table, OwnTables):
        rows = table.wide_relation()
    connection = duckdb.connect(config={"memory_limit": "1GB", "threads": 2})
    for name, value in held.items():
        connection.register(name, value)
    begun = time.monotonic()
    query = f"select count(*), sum(score_00::double * more_0::double) from {rows}"
    n, total = connection.execute(query).fetchall()[0]
    query_s = time.monotonic() - begun
    expected = 0.0
    for number in range(options.parts):
        rng = np.random.default_rng(1_000 + number)
        score = rng.beta(2.0, 5.0, options.part_rows).astype(np.float32).astype(float)
        more = family_of(number, options.part_rows)["more_0"].astype(float)
        expected += float(score @ more)
    return {
        "query_s": round(query_s, 2),
        "rows": n,
        "as_expected": bool(abs(total - expected) < 1e-6 * expected),
    }


STEPS: dict[str, Callable[[Tables, argparse.Namespace], dict[str, Any]]] = {
    name.removeprefix("step_"): value
    for name, value in globals().items()
    if name.startswith("step_")
}


def run_step(options: argparse.Namespace) -> None:
    """The child: imports, does one step, prints its costs."""
    for name in LIBRARIES[options.format]:
        importlib.import_module(name)
    if is_s3(options.root):
        s3_client()
    if options.step in ("write", "commit", "append", "many", "names"):
        made_part(0, 10)
    table = FORMATS[options.format](options.root)
    before, cpu, begun = peak_bytes(), time.process_time(), time.monotonic()
    found = STEPS[options.step](table, options)
    print(
        json.dumps(
            {
                "wall_s": round(time.monotonic() - begun, 2),
                "cpu_s": round(time.process_time() - cpu, 2),
                "peak_mib": peak_bytes() >> 20,
                "before_mib": before >> 20,
            }
            | found
        )
    )


def peak_bytes() -> int:
    """The most memory that this process has held."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def step(
    name: str,
    kind: str,
    root: str,
    receipts: Path,
    *,
    parts: int,
    part_rows: int = PART_ROWS,
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Runs one step in a process of its own."""
    command = [
        sys.executable, __file__, str(receipts.parent), "--step", name, "--format", kind,
        "--root", root, "--receipts", str(receipts), "--parts", str(parts),
        "--part-rows", str(part_rows),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | (environment or {}), check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        result: dict[str, Any] = {"error": last[:500]}
    else:
        result = json.loads(done.stdout.splitlines()[-1])
    print(f"  {kind:6} {name:13} {json.dumps(result)}", flush=True)
    return result


def size_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def case_write(kind: str, folder: Path, rows: int) -> dict[str, Any]:
    """A large table: parts, commit, queries, a family of columns."""
    root, receipts = folder / f"{kind}-large", folder / f"{kind}-receipts.json"
    shutil.rmtree(root, ignore_errors=True)
    parts = rows // PART_ROWS
    found: dict[str, Any] = {"rows": rows}
    for name in ("write", "commit"):
        found[name] = step(name, kind, str(root), receipts, parts=parts)
    found["bytes"] = size_bytes(root)
    queries = ["query"] * 3 + (["query_files"] * 3 if kind == "delta" else [])
    for name in queries:
        found.setdefault(name, []).append(step(name, kind, str(root), receipts, parts=parts))
    found["family"] = step("family", kind, str(root), receipts, parts=parts)
    found["family"]["bytes"] = size_bytes(root) - found["bytes"]
    found["query_family"] = step("query_family", kind, str(root), receipts, parts=parts)
    shutil.rmtree(root)
    return found


def case_compact(kind: str, folder: Path, rows: int) -> dict[str, Any]:
    """A thousand parts of a thousand rows are made parts of 100,000."""
    root, receipts = folder / f"{kind}-small", folder / f"{kind}-receipts.json"
    shutil.rmtree(root, ignore_errors=True)
    found: dict[str, Any] = {}
    for name in ("write", "commit", "append", "compact", "open"):
        found[name] = step(name, kind, str(root), receipts, parts=1_000, part_rows=1_000)
        found[name]["bytes"] = size_bytes(root)
    shutil.rmtree(root)
    return found


def case_names(kind: str, folder: Path, rows: int, *, root: str | None = None) -> dict[str, Any]:
    """A commit on top of 20,000 parts, and opening it."""
    where, receipts = root or str(folder / f"{kind}-names"), folder / f"{kind}-receipts.json"
    found: dict[str, Any] = {}
    for name in ("names", "append", "open"):
        with counted() if root else nullcontext(({}, [])) as (environment, requests):
            found[name] = step(
                name, kind, where, receipts, parts=20_000, part_rows=1_000, environment=environment
            )
        if root:
            found[name]["requests"] = dict(sorted(Counter(requests).items()))
            print(f"  {kind:6} {name}: {json.dumps(found[name]['requests'])}", flush=True)
        else:
            found[name]["bytes"] = size_bytes(Path(where))
    if not root:
        shutil.rmtree(where)
    return found


def case_encodings(kind: str, folder: Path, rows: int) -> dict[str, Any]:
    """Bytes of a part and CPU-seconds to write and read it, by encoding; for our own parts."""
    if kind != "own":
        return {}
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    part = made_part(0, PART_ROWS)
    found = {}
    for name, options in encodings(part).items():
        spent: dict[str, list[float]] = {"write": [], "read": []}
        for _ in range(6):
            begun = time.process_time()
            data = written_parquet(part, **options)
            spent["write"].append(time.process_time() - begun)
            begun = time.process_time()
            again = pq.read_table(io.BytesIO(data))
            spent["read"].append(time.process_time() - begun)
        assert again.equals(part)
        medians = {what: round(statistics.median(all_s[1:]), 3) for what, all_s in spent.items()}
        found[name] = {"bytes": len(data), "cpu_s": medians}
        print(f"  {name:26} {json.dumps(found[name])}", flush=True)
    return found


def case_startup(kind: str, folder: Path, rows: int) -> dict[str, Any]:
    """CPU-seconds of imports, and bytes that are installed for them."""
    code = ";".join(f"import {name}" for name in LIBRARIES[kind])
    spent = []
    for _ in range(6):
        done = subprocess.run(
            [sys.executable, "-c", f"{code};import time;print(time.process_time())"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        spent.append(float(done.stdout))
    wheel = {"own": "pyarrow", "split": "pyarrow", "delta": "deltalake", "lance": "pylance"}[kind]
    names = sorted(needed(wheel))
    return {
        "cpu_s": round(statistics.median(spent[1:]), 2),
        "cpu_s_spread": [round(min(spent[1:]), 2), round(max(spent[1:]), 2)],
        "packages": {name: installed_bytes(name) for name in names},
    }


def needed(wheel: str) -> set[str]:
    """A distribution and all that it requires without extras."""
    found: set[str] = set()
    waiting = [wheel]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        waiting += [
            re.split(r"[\s;<>=!~(\[]", one, maxsplit=1)[0]
            for one in requires
            if "extra ==" not in one
        ]
    return found


def installed_bytes(name: str) -> int:
    files = importlib.metadata.files(name) or []
    paths = [Path(str(one.locate())) for one in files]
    return sum(path.stat().st_size for path in paths if path.is_file())


def case_race(kind: str, folder: Path, rows: int, *, remote: bool = False) -> dict[str, Any]:
    """Two processes commit onto the same snapshot, 20 times."""
    found: dict[str, Any] = {}
    modes: list[Mode] = ["alone", "merge", "careless"]
    for mode in modes:
        name = f"{kind}-race-{mode}"
        root = f"s3://{BUCKET}/{name}" if remote else str(folder / name)
        found[mode] = race(kind, root, mode=mode)
        place = "S3" if remote else "folder"
        print(f"  {kind:6} race, {place}, {mode}: {json.dumps(found[mode])}", flush=True)
        if not remote:
            shutil.rmtree(root)
    return found


def race(kind: str, root: str, *, mode: Mode) -> dict[str, Any]:
    """Lets two processes commit on one snapshot, and compares what is there with what each said.

    A round is corrupt if the newest snapshot lacks an id of a commit that succeeded, has one of a
    commit that failed, or has another number than the commits that succeeded make. A damaged round
    is not held against the next ones.
    """
    context = multiprocessing.get_context("spawn")
    barrier, told = context.Barrier(3), context.Queue()
    table = FORMATS[kind](root)
    part = made_part(0, 10, tag="first")
    table.create(part.schema, [table.write_part(part, 0)])
    expected = set(part["clip_id"].to_pylist())
    racers = [
        context.Process(target=racer, args=(kind, root, who, mode, barrier, told))
        for who in range(2)
    ]
    for one in racers:
        one.start()
    winners: Counter[int] = Counter()
    errors: Counter[str] = Counter()
    seconds: dict[str, list[float]] = {}
    corrupt = 0
    for _ in range(ROUNDS):
        before = table.newest()
        barrier.wait(120)
        barrier.wait(120)
        outcomes = [told.get(timeout=120) for _ in range(2)]
        won = [ids for ids, error, _ in outcomes if error is None]
        errors.update(error for _, error, _ in outcomes if error is not None)
        for _, error, spent_s in outcomes:
            seconds.setdefault("won" if error is None else "lost", []).append(spent_s)
        winners[len(won)] += 1
        expected.update(*won)
        found = [row for batch in table.batches(None, ["clip_id"]) for row in batch["clip_id"]]
        names = [str(row) for row in found]
        right = len(names) == len(set(names)) and set(names) == expected
        corrupt += not (right and table.newest() == before + len(won))
        expected = set(names)
        barrier.wait(120)
    for one in racers:
        one.join()
    return {
        "rounds": ROUNDS,
        "winners_per_round": dict(sorted(winners.items())),
        "corrupt": corrupt,
        "errors": dict(errors),
        "median_s": {name: round(statistics.median(all_s), 3) for name, all_s in seconds.items()},
    }


def racer(
    kind: str,
    root: str,
    who: int,
    mode: Mode,
    barrier: Any,  # noqa: ANN401 - of a multiprocessing context
    told: Any,  # noqa: ANN401 - of a multiprocessing context
) -> None:
    """One of two writers; it has written its part and knows the snapshot before both start."""
    for number in range(ROUNDS):
        table = FORMATS[kind](root)
        part = made_part(number, 1_000, tag=f"{who}-")
        receipt, seen = table.write_part(part, number), table.newest()
        barrier.wait(120)
        begun = time.monotonic()
        error = None
        try:
            table.append(part.schema, [receipt], seen, mode=mode)
        except Exception as failure:  # noqa: BLE001 - whatever a library raises is the finding
            text = re.sub(r"/\S+|[0-9a-f]{8,}|\d+", "…", str(failure))[:100]
            error = f"{type(failure).__name__}: {text}"
        told.put((part["clip_id"].to_pylist(), error, time.monotonic() - begun))
        barrier.wait(120)
        barrier.wait(120)


def case_reader(kind: str, folder: Path, rows: int) -> dict[str, Any]:
    """A reader of an old snapshot, while new ones come and old ones are removed."""
    found = {}
    for name in (
        "commits",
        "default vacuum",
        "vacuum at once",
        "vacuum at once, old one kept",
        "vacuum at once, uncommitted part",
    ):
        root = folder / f"{kind}-reader"
        shutil.rmtree(root, ignore_errors=True)
        table = FORMATS[kind](str(root))
        parts = [made_part(number, 10_000, tag="r") for number in range(60)]
        table.create(parts[0].schema, [table.write_part(p, n) for n, p in enumerate(parts)])
        expected = [one for part in parts for one in part["clip_id"].to_pylist()]
        old = table.newest()
        pending = table.write_part(made_part(77, 100, tag="pending"), 77)
        stream = table.batches(old, ["clip_id", "caption"])
        seen = list(next(stream)["clip_id"].to_pylist())
        result: dict[str, Any] = {}
        table.compact()
        late = made_part(50, 100, tag="late")
        table.append(late.schema, [table.write_part(late, 50)], table.newest(), mode="alone")
        if name != "commits":
            result["removed"] = table.vacuum(
                force="at once" in name, keep=old if "kept" in name else None
            )
        try:
            for batch in stream:
                seen += batch["clip_id"].to_pylist()
            result["open reader"] = "all rows" if sorted(seen) == sorted(expected) else "WRONG"
        except Exception as failure:  # noqa: BLE001
            result["open reader"] = f"{type(failure).__name__}: {str(failure)[:120]}"
        result["opened later"] = _read_again(table, old, expected)
        if "uncommitted" in name:
            try:
                table.append(late.schema, [pending], table.newest(), mode="alone")
                result["commit of pending part"] = "accepted"
            except Exception as failure:  # noqa: BLE001
                result["commit of pending part"] = f"{type(failure).__name__}"
            result["newest after it"] = _read_again(table, None, None)
        shutil.rmtree(root)
        found[name] = result
        print(f"  {kind:6} reader, {name}: {json.dumps(result)}", flush=True)
    return found


def _read_again(table: Tables, snapshot: int | None, expected: list[str] | None) -> str:
    try:
        rows = [
            one for b in table.batches(snapshot, ["clip_id"]) for one in b["clip_id"].to_pylist()
        ]
    except Exception as failure:  # noqa: BLE001
        return f"{type(failure).__name__}: {str(failure)[:120]}"
    if expected is None:
        return f"{len(rows)} rows"
    return "all rows" if sorted(rows) == sorted(expected) else f"WRONG: {len(rows)} rows"


OPENERS: dict[str, dict[str, str]] = {
    "own": {
        "pandas": "pandas.read_parquet(files)",
        "polars": "polars.scan_parquet(files).collect()",
        "duckdb": "duckdb.sql('select * from read_parquet($files)', params={'files': files}).df()",
        "duckdb, SQL alone": "(duckdb.execute(\"set variable f = (select list('{root}/' || p.name) "
        "from (select unnest(parts) as p from (from read_json('{root}/snapshots/*.json') "
        'order by snapshot desc limit 1)))"), '
        "duckdb.sql(\"from read_parquet(getvariable('f'))\").df())[1]",
        "pandas, folder": "pandas.read_parquet('{root}/clips')",
        "polars, folder": "polars.read_parquet('{root}/clips/*.parquet')",
    },
    "delta": {
        "pandas": "deltalake.DeltaTable('{root}').to_pandas()",
        "polars": "polars.read_delta('{root}')",
        "duckdb, delta_scan": "duckdb.sql(\"from delta_scan('{root}')\").df()",
        "duckdb, Arrow": "(d := deltalake.DeltaTable('{root}').to_pyarrow_dataset(), "
        "duckdb.sql('from d').df())[1]",
        "duckdb, QueryBuilder": "deltalake.QueryBuilder().register('t', "
        "deltalake.DeltaTable('{root}')).execute('select * from t').read_all()",
        "pandas, folder": "pandas.read_parquet('{root}')",
    },
    "lance": {
        "pandas": "lance.dataset('{root}').to_table().to_pandas()",
        "polars": "polars.from_arrow(lance.dataset('{root}').to_table())",
        "polars, scan": "polars.scan_pyarrow_dataset(lance.dataset('{root}')).collect()",
        "duckdb, Arrow": "(d := lance.dataset('{root}'), duckdb.sql('from d').df())[1]",
        "duckdb, extension": "duckdb.execute('install lance from community')",
        "pandas, folder": "pandas.read_parquet('{root}')",
    },
}


def case_openers(kind: str, folder: Path, rows: int) -> dict[str, Any]:
    """What opens a table without us, in a process of its own with its imports."""
    root = folder / f"{kind}-open"
    shutil.rmtree(root, ignore_errors=True)
    table = FORMATS[kind](str(root))
    parts = [made_part(number, 1_000) for number in range(10)]
    table.create(parts[0].schema, [table.write_part(p, n) for n, p in enumerate(parts)])
    table.compact()
    files = table.files() if isinstance(table, OwnTables) else []
    found = {}
    for name, line in OPENERS[kind.replace("split", "own")].items():
        line = line.replace("{root}", str(root))
        library = name.split(",")[0]
        code = f"import {library}\nfiles = {files!r}\n"
        for other in ("deltalake", "lance", "duckdb"):
            code += f"import {other}\n" if f"{other}." in line else ""
        code += f"x = {line}\nprint(getattr(x, 'shape', x))"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        text = done.stdout if done.returncode == 0 else done.stderr
        found[name] = (text.strip().splitlines() or [""])[-1][:200]
        print(f"  {kind:6} {name:22} {found[name]}", flush=True)
    shutil.rmtree(root)
    return found


def case_requests(kind: str, folder: Path, rows: int) -> dict[str, Any]:
    """Requests of one percent more rows, and of opening, after one commit and after sixty."""
    root, receipts = f"s3://{BUCKET}/{kind}", folder / f"{kind}-s3-receipts.json"
    found: dict[str, Any] = {}
    after: list[str] = []
    for name, parts, part_rows in (
        ("write", 10, PART_ROWS),
        ("commit", 10, PART_ROWS),
        ("append", 10, PART_ROWS // 10),
        ("open", 10, PART_ROWS),
        ("many", 58, 10),
        ("append", 10, PART_ROWS // 10),
        ("open", 10, PART_ROWS),
        *([("checkpoint", 10, PART_ROWS), ("open", 10, PART_ROWS)] if kind == "delta" else []),
    ):
        with counted() as (environment, requests):
            label = " after ".join([name, *(after[-1:] if name in found else [])])
            result = step(
                name, kind, root, receipts, parts=parts, part_rows=part_rows,
                environment=environment,
            )  # fmt: skip
        if name in ("many", "checkpoint"):
            after.append("60 commits" if name == "many" else name)
        found[label] = result | {"requests": dict(sorted(Counter(requests).items()))}
        print(f"  {kind:6} {label}: {json.dumps(found[label]['requests'])}", flush=True)
    return found


class counted:  # noqa: N801 - a context manager
    """Counts requests to S3 by method, kind of object and whether they are conditional."""

    def __init__(self) -> None:
        from fault_proxy import FaultProxy

        self.seen: list[str] = []
        self.proxy = FaultProxy(server=os.environ["AWS_ENDPOINT_URL"], share=0.0, refuse=self._note)

    def _note(self, number: int, method: str, path: str) -> None:
        self.seen.append(kind_of_request(method, path))

    def __enter__(self) -> tuple[dict[str, str], list[str]]:
        self.proxy.__enter__()
        return {"AWS_ENDPOINT_URL": self.proxy.url}, self.seen

    def __exit__(self, *_: object) -> None:
        self.proxy.__exit__()


def kind_of_request(method: str, path: str) -> str:
    """Such as `GET log`: the method, or what its query makes of it, and the object's folder."""
    query = path.partition("?")[2]
    if "list-type" in query:
        method = "LIST"
    elif "uploads" in query or "uploadId" in query:
        method = "MULTIPART " + method
    elif "delete" in query:
        method = "DELETE many"
    for part in ("_delta_log", "_versions", "_transactions", "snapshots", "_checkpoint"):
        if part in path:
            return f"{method} {part}"
    return f"{method} data"


CASES = {
    "encodings": case_encodings,
    "startup": case_startup,
    "openers": case_openers,
    "race": case_race,
    "reader": case_reader,
    "compact": case_compact,
    "names": case_names,
    "write": case_write,
}


def main() -> None:
    """Runs cases; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for tables; about 8 GB at 10^7 rows")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["own", "delta", "lance"])
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--s3", action="store_true", help="race and count requests on S3 too")
    for name in ("--step", "--format", "--root"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--receipts", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--part-rows", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        run_step(options)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("LANCE_LOG", "error")
    found: dict[str, Any] = {}
    for name in options.cases:
        print(name, flush=True)
        for kind in options.formats:
            found.setdefault(name, {})[kind] = CASES[name](kind, options.folder, options.rows)
    if options.s3:
        found |= on_s3(options)
    versions = {
        name: importlib.metadata.version(name)
        for name in ("pylance", "deltalake", "pyarrow", "duckdb", "polars", "pandas")
    }
    print(json.dumps(found | {"versions": versions} | machine()))


def on_s3(options: argparse.Namespace) -> dict[str, Any]:
    """The cases that need a server, in a bucket of their own."""
    found: dict[str, Any] = {"race on S3": {}, "requests": {}}
    s3_client().create_bucket(Bucket=BUCKET)
    try:
        for kind in options.formats:
            print(f"S3, {kind}", flush=True)
            race_found = case_race(kind, options.folder, options.rows, remote=True)
            found["race on S3"][kind] = race_found
            found["requests"][kind] = case_requests(kind, options.folder, options.rows)
            names_root = f"s3://{BUCKET}/{kind}-names"
            found["requests"][kind]["20,000 parts"] = case_names(
                kind, options.folder, options.rows, root=names_root
            )
    finally:
        pages = s3_client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        for key in [one["Key"] for page in pages for one in page.get("Contents", [])]:
            s3_client().delete_object(Bucket=BUCKET, Key=key)
        s3_client().delete_bucket(Bucket=BUCKET)
    return found


if __name__ == "__main__":
    main()

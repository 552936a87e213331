"""Parquet objects under the output root: parts that make a run resumable, and tables for readers.

A part holds the results of one unit of work, which may be many sources. Its name carries the
fingerprint it was made with, its footer the keys that are done, so that a listing and the footers
tell what is left to do. A table is what readers see: rewritten whole by each finished run.
"""

import gc
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.errors import StorageError
from curator.storage import Store

SUMMARY = "summary.json"
"""Written last: it makes a run a finished one."""
KEYS = b"curate.keys"
FAILED = b"curate.failed"
FINGERPRINT = b"curate.fingerprint"
ROWS_PER_TABLE_PART = 200_000
MANY_ROWS = 10_000
_ROWS_PER_GROUP = 65_536


def leave_pandas_out() -> None:
    """Lets pyarrow make arrays without pandas in this process, which is one of our own.

    It imports pandas, where there is one, for the first list that it makes an array of, and asks
    once. `to_pandas` and its like still import it.
    """
    if "pandas" in sys.modules:
        return
    finder: Any = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas:
    """Finds no pandas, and leaves the rest to others."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Says so as the import system wants to hear it."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


class Parts:
    """The parts of one stage under one fingerprint.

    Args:
        store: Output root.
        stage: Folder of the parts, such as `tracks`.
        stamp: Fingerprint of what makes them.
    """

    def __init__(self, store: Store, stage: str, stamp: str) -> None:
        self.store = store
        self.stage = stage
        self.stamp = stamp

    def names(self) -> list[str]:
        """Object names of this fingerprint's parts, sorted."""
        return [info.key for info in self.store.list(f"{self.stage}/{self.stamp}-")]

    def done(self) -> dict[str, str]:
        """Keys that are done, and the part that holds each."""
        names = self.names()
        with ThreadPoolExecutor(max_workers=16) as pool:
            keys = list(pool.map(self.keys, names))
        return {key: name for name, part in zip(names, keys, strict=True) for key in part}

    def write(
        self,
        table: pa.Table,
        keys: Sequence[str],
        *,
        failed: Sequence[str] = (),
        one_row_groups: bool = False,
    ) -> str:
        """Writes one part, whole.

        Args:
            table: Rows.
            keys: What it makes done; rows of other keys are for this run's reader only.
            failed: Those of the keys that have a failure for good.
            one_row_groups: Make each row readable by itself, and compress nothing: for rows that
                hold encoded video.

        Returns:
            The object's name, which follows from fingerprint and keys.
        """
        named = hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]
        name = f"{self.stage}/{self.stamp}-{named}.parquet"
        meta = {KEYS: json.dumps(list(keys)), FINGERPRINT: self.stamp}
        if failed:
            meta[FAILED] = json.dumps(list(failed))
        stamped = table.replace_schema_metadata(meta)
        self.store.write(name, to_parquet(stamped, one_row_groups=one_row_groups))
        return name

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads a part's rows.

        Raises:
            StorageError: It is damaged.
        """
        with self._readable(name):
            return read_parquet(self.store, name, columns)

    def keys(self, name: str) -> list[str]:
        """What a part makes done, from its footer."""
        return self.footer(name)[0]

    def footer(self, name: str) -> tuple[list[str], list[str]]:
        """What a part makes done, and what of it failed for good.

        Raises:
            StorageError: It is damaged.
        """
        with self._readable(name), self.store.open(name) as reader:
            metadata = pq.read_metadata(reader).metadata or {}
        keys, failed = (json.loads(metadata.get(key, b"[]")) for key in (KEYS, FAILED))
        return keys, failed

    @contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowInvalid, OSError) as error:
            raise StorageError(
                f"{self.store.uri}/{name} is no readable Parquet object ({error}); delete it "
                "and run again, its sources will be redone"
            ) from error


def to_parquet(
    table: pa.Table, *, one_row_groups: bool = False, rows_per_group: int | None = None
) -> bytes:
    """Parquet bytes of a table; the same table gives the same bytes.

    Args:
        table: Rows.
        one_row_groups: See `Parts.write`.
        rows_per_group: Rows that can be read without the others; by default a whole object's.
    """
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="none" if one_row_groups else "zstd",
        row_group_size=1 if one_row_groups else rows_per_group or _ROWS_PER_GROUP,
        use_dictionary=not one_row_groups,
        write_statistics=not one_row_groups,
    )
    return sink.getvalue()


def tables_to_parquet(tables: Iterable[pa.Table], schema: pa.Schema) -> bytes:
    """Parquet bytes of tables one after the other, as `to_parquet` gives them for all together.

    Args:
        tables: Rows; few of them are held at a time.
        schema: Of each of them.
    """
    sink = io.BytesIO()
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(
        sink, schema, compression="zstd", use_dictionary=True, write_statistics=True
    ) as writer:
        n_written = 0
        for table in tables:
            waiting.append(table)
            while sum(one.num_rows for one in waiting) >= _ROWS_PER_GROUP:
                whole = pa.concat_tables(waiting)
                waiting = [whole.slice(_ROWS_PER_GROUP)]
                group = whole.slice(0, _ROWS_PER_GROUP).combine_chunks()
                writer.write_table(group, row_group_size=_ROWS_PER_GROUP)
                n_written += 1
        rest = pa.concat_tables([schema.empty_table(), *waiting]).combine_chunks()
        if rest.num_rows or not n_written:
            writer.write_table(rest, row_group_size=_ROWS_PER_GROUP)
    return sink.getvalue()


def read_parquet(store: Store, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a Parquet object under a root."""
    with store.open(name) as reader:
        return pq.read_table(reader, columns=list(columns) if columns is not None else None)


def write_table(store: Store, name: str, table: pa.Table) -> list[str]:
    """Writes a table for readers as parts of bounded size, beside what an earlier run wrote.

    Args:
        store: Output root.
        name: Table and folder name.
        table: All rows, in their final order.

    Returns:
        Names of the objects that make up the table: deterministic, by content.
    """
    starts = range(0, max(1, table.num_rows), ROWS_PER_TABLE_PART)
    # In one chunk each: pages of a Parquet object end where chunks do.
    parts = (table.slice(start, ROWS_PER_TABLE_PART).combine_chunks() for start in starts)
    return [write_table_part(store, name, number, part) for number, part in enumerate(parts)]


def write_tables(
    store: Store, name: str, tables: Iterable[pa.Table], schema: pa.Schema
) -> list[str]:
    """Writes a table for readers as `write_table` does, of which only a part is held at a time.

    Args:
        store: Output root.
        name: Table and folder name.
        tables: Rows, in their final order.
        schema: Of each of them.
    """
    names: list[str] = []
    waiting = schema.empty_table()
    for table in tables:
        waiting = pa.concat_tables([waiting, table])
        while waiting.num_rows >= ROWS_PER_TABLE_PART:
            part = waiting.slice(0, ROWS_PER_TABLE_PART).combine_chunks()
            names.append(write_table_part(store, name, len(names), part))
            waiting = waiting.slice(ROWS_PER_TABLE_PART)
    if waiting.num_rows or not names:
        names.append(write_table_part(store, name, len(names), waiting.combine_chunks()))
    return names


def write_table_part(store: Store, name: str, number: int, rows: pa.Table) -> str:
    """Writes the next rows of a table for readers; returns the object's name.

    Args:
        store: Output root.
        name: Table and folder name.
        number: Position of the part in the table, from 0.
        rows: At most `ROWS_PER_TABLE_PART`.
    """
    data = to_parquet(rows)
    part = f"{name}/part-{number:05d}-{hashlib.sha256(data).hexdigest()[:12]}.parquet"
    if not store.exists(part):
        store.write(part, data)
    return part


def rows_to_table(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Table of rows; a missing key is null, an unknown key an error."""
    listed = list(rows)
    unknown = set().union(*listed) - set(schema.names)
    if unknown:
        raise KeyError(f"columns {sorted(unknown)} are not in the schema {schema.names}")
    return pa.Table.from_pylist(listed, schema=schema)


def columns_to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows of a table as dictionaries, all at once: several times as fast as `to_pylist`.

    They hold no cycles, so that the search for cycles is stopped while many are made, and passes
    over them later: it took two of three seconds for 100,000 rows.
    """
    names = table.column_names
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        columns = [column_values(table[name]) for name in names]
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        if len(rows) >= MANY_ROWS:
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
    return rows


def column_values(column: pa.ChunkedArray) -> list[Any]:
    """A column as Python values, as `to_pylist` gives them but several times as fast."""
    if column.null_count == 0 and pa.types.is_primitive(column.type):
        values: list[Any] = column.to_numpy().tolist()
        return values
    if pa.types.is_floating(column.type):
        held = column.to_numpy()
        listed: list[Any] = held.astype(object).tolist()
        for row in pc.indices_nonzero(pc.is_null(column)).to_pylist():
            listed[row] = None
        return listed
    if pa.types.is_string(column.type):
        held = column.dictionary_encode() if len(column) else column
        if len(column) and len(column.unique()) * 4 < len(column):
            coded = held.combine_chunks()
            words = [*coded.dictionary.to_pylist(), None]
            return [words[code] for code in coded.indices.fill_null(len(words) - 1).to_pylist()]
    return list(column.to_pylist())


def table_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows of a table as dictionaries, a batch at a time."""
    for batch in table.to_batches(max_chunksize=1024):
        yield from batch.to_pylist()

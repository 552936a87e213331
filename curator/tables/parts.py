"""Parquet objects under the output root: parts that make a run resumable, and tables for readers.

A part has the results of one unit of work, which may be many sources. Its name has a fingerprint,
and its footer has the keys that are done. So a listing and the footers show the remaining work. A
finished run writes tables for readers.
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curator.storage import Store
from curator.tables.checksums import read_footer, read_parquet, read_rows, sealed_parquet
from curator.tables.long_columns import joined_chunks

KEYS = b"curate.keys"
FAILED = b"curate.failed"
FINGERPRINT = b"curate.fingerprint"
ROWS_PER_TABLE_PART = 200_000
VECTOR_BYTES = 64 << 20
"""Most bytes of vectors in a part of a table."""
GROUP_VECTOR_BYTES = 8 << 20
"""Most bytes of vectors in a row group. Encoding a row group takes some four times as much."""
_ROWS_PER_GROUP = 65_536
_SAMPLED_VALUES = 16_384
"""First values of a column that decide how the column is encoded."""


def leave_pandas_out() -> None:
    """Stops pyarrow from importing pandas for arrays; call it only in a process of this package.

    When pyarrow makes the first array of a list, it imports pandas if it is installed. pyarrow
    tries this import once. `to_pandas` and similar methods still import pandas.
    """

    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)

    if "pandas" in sys.modules:
        return
    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class Parts:
    """The parts of one stage, such as `tracks`, under the fingerprint of inputs and settings."""

    def __init__(self, store: Store, stage: str, fingerprint: str) -> None:
        self.store, self.stage, self.fingerprint = store, stage, fingerprint
        self._prefix = f"{stage}/{fingerprint}-"

    def names(self) -> list[str]:
        """Returns the names of the parts with this fingerprint, sorted."""
        return [info.key for info in self.store.list(self._prefix)]

    def of(self, names: Iterable[str]) -> list[str]:
        """Returns those of `names` that are parts with this fingerprint."""
        return [name for name in names if name.startswith(self._prefix)]

    def name_of(self, keys: Iterable[str]) -> str:
        """Returns the name of the part that completes these keys."""
        digits = hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]
        return f"{self._prefix}{digits}.parquet"

    def write(
        self,
        table: pa.Table,
        keys: Sequence[str],
        *,
        failed: Sequence[str] = (),
        one_row_groups: bool = False,
        rows_per_group: int | None = None,
    ) -> str:
        """Writes one part; returns its name, which follows from fingerprint and keys.

        The part completes `keys`; those in `failed` failed permanently. Only this run reads rows of
        other keys. `one_row_groups` is for encoded video: readers can read each row alone, or
        `rows_per_group` rows together, and nothing is compressed.
        """
        name = self.name_of(keys)
        meta = {KEYS: json.dumps(list(keys)), FINGERPRINT: self.fingerprint}
        if failed:
            meta[FAILED] = json.dumps(list(failed))
        table = table.replace_schema_metadata(meta)
        data = to_parquet(table, name, one_row_groups=one_row_groups, rows_per_group=rows_per_group)
        self.store.write(name, data)
        return name

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads the rows of a part as `read_parquet` does."""
        return read_parquet(self.store, name, columns)

    def read_columns(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Reads some columns like `read`, but without the bytes of the other columns."""
        return read_rows(self.store, name, lambda file: file.read(list(columns)))

    def keys(self, name: str) -> list[str]:
        """Returns the keys that a part completes, from its footer."""
        return self.footer(name)[0]

    def footer(self, name: str) -> tuple[list[str], list[str]]:
        """Returns the keys that a part completes, and the keys that failed permanently."""
        values = read_footer(self.store, name)
        keys, failed = (json.loads(values.get(key, b"[]")) for key in (KEYS, FAILED))
        return keys, failed


def to_parquet(
    table: pa.Table, name: str, *, one_row_groups: bool = False, rows_per_group: int | None = None
) -> bytes:
    """Returns Parquet bytes of a table, to store as `name`; equal tables give equal bytes.

    `Parts.write` explains `one_row_groups` and `rows_per_group`.
    """
    rows = rows_per_group or (1 if one_row_groups else _rows_per_group(table.schema))
    options: dict[str, Any] = (
        {"compression": "none", "use_dictionary": False, "write_statistics": False}
        if one_row_groups
        else {"compression": "zstd", **_encodings(table)}
    )
    _, data = sealed_parquet(
        lambda writer: writer.write_table(table, row_group_size=rows), table.schema, name, **options
    )
    return data


def parquet_by_content(
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    name: str,
    rows_per_group: int | None = None,
) -> tuple[str, bytes]:
    """Returns a name with digits of the content for `~`, and Parquet bytes of concatenated tables.

    The bytes equal those of `to_parquet`, with one row group in memory at a time.
    """
    n_rows = rows_per_group or _rows_per_group(schema)
    groups = _row_groups(tables, schema, n_rows)
    first = [next(groups)]
    encodings = _encodings(first[0])

    def write(writer: pq.ParquetWriter) -> None:
        # `pop` drops the only reference, so the group is freed when it is written.
        writer.write_table(first.pop(), row_group_size=n_rows)
        for group in groups:
            writer.write_table(group, row_group_size=n_rows)

    return sealed_parquet(write, schema, name, compression="zstd", **encodings)


def _row_groups(tables: Iterable[pa.Table], schema: pa.Schema, n_rows: int) -> Iterator[pa.Table]:
    """Yields the rows of tables as row groups; one empty group without rows."""
    waiting = [schema.empty_table()]
    is_first = True
    for table in tables:
        waiting.append(table)
        while sum(table.num_rows for table in waiting) >= n_rows:
            whole = pa.concat_tables(waiting)
            waiting = [whole.slice(n_rows)]
            yield joined_chunks(whole.slice(0, n_rows))
            is_first = False
    if is_first or any(table.num_rows for table in waiting):
        yield joined_chunks(pa.concat_tables(waiting))


def _encodings(table: pa.Table) -> dict[str, list[str]]:
    """Returns options of the writer: dictionaries for all columns except mostly distinct floats.

    A dictionary of distinct floats would hold each value, plus its key. Byte-stream split instead
    compresses the exponents, which repeat. The first values of a column decide.
    """
    repeating: list[str] = []
    differing: list[str] = []
    for name in table.column_names:
        path, values = name, table[name].slice(0, _SAMPLED_VALUES)
        while pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):
            path, values = f"{path}.list.element", pc.list_flatten(values).slice(0, _SAMPLED_VALUES)
        n_distinct = pc.count_distinct(values).as_py() if pa.types.is_floating(values.type) else 0
        differs = 2 * n_distinct > len(values) - values.null_count
        (differing if differs else repeating).append(path)
    return {"use_dictionary": repeating, "use_byte_stream_split": differing}


def write_tables(
    store: Store,
    name: str,
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    before: Sequence[str] = (),
) -> list[str]:
    """Writes tables of one schema, in their final order, in parts of bounded size.

    Holds a row group at a time. Returns the names of all parts of the table: the unchanged parts in
    `before`, then the new parts.
    """
    names = list(before)
    for at, pieces in itertools.groupby(_pieces(tables, rows_per_part(schema)), itemgetter(0)):
        rows = (piece for _, piece in pieces)
        names.append(write_table_part(store, name, len(before) + at, rows, schema))
    return names or [write_table_part(store, name, 0, (), schema)]


def rows_per_part(schema: pa.Schema) -> int:
    """Returns the most rows in a part: fewer than `ROWS_PER_TABLE_PART` if rows have vectors."""
    return _rows_of_vectors(schema, VECTOR_BYTES, ROWS_PER_TABLE_PART)


def _rows_per_group(schema: pa.Schema) -> int:
    return _rows_of_vectors(schema, GROUP_VECTOR_BYTES, _ROWS_PER_GROUP)


def _rows_of_vectors(schema: pa.Schema, most_bytes: int, most_rows: int) -> int:
    """Returns how many rows have vectors of `most_bytes`, at most `most_rows`."""
    kinds = [field.type for field in schema if pa.types.is_fixed_size_list(field.type)]
    n_bytes: int = sum(kind.list_size * kind.value_type.bit_width // 8 for kind in kinds)
    return min(most_rows, most_bytes // n_bytes) if n_bytes else most_rows


def _pieces(tables: Iterable[pa.Table], n_each: int) -> Iterator[tuple[int, pa.Table]]:
    """Yields rows with the number of their part, in parts of `n_each` rows."""
    n_rows = 0
    for table in tables:
        start = 0
        while start < table.num_rows:
            piece = table.slice(start, n_each - n_rows % n_each)
            yield n_rows // n_each, piece
            start += piece.num_rows
            n_rows += piece.num_rows


def write_table_part(
    store: Store, name: str, number: int, tables: Iterable[pa.Table], schema: pa.Schema
) -> str:
    """Writes part `number` (from 0), of at most `rows_per_part` rows; returns its name."""
    digits = "~" * 12
    part, data = parquet_by_content(tables, schema, f"{name}/part-{number:05d}-{digits}.parquet")
    if not store.holds(store.find(part), data):
        store.write(part, data)
    return part


def as_runs_write(table: pa.Table) -> pa.Table:
    """Returns a table from Parquet with list types as runs write them.

    Parquet renames the elements of lists, so equal rows would give other bytes.
    """
    fields = []
    for field in table.schema:
        if pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type):
            size = getattr(field.type, "list_size", -1)
            field = field.with_type(pa.list_(field.type.value_type, size))
        fields.append(field)
    return table.cast(pa.schema(fields))


def columns_schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    """Returns a schema; a string may name several columns of one type, separated by spaces."""
    return pa.schema([(name, kind) for names, kind in columns for name in names.split()])


def rows_to_table(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Returns a table of rows; a missing key is null, and an unknown key raises `KeyError`."""
    listed = list(rows)
    unknown = set().union(*listed) - set(schema.names)
    if unknown:
        raise KeyError(f"columns {sorted(unknown)} are not in the schema {schema.names}")
    return pa.Table.from_pylist(listed, schema=schema)


def with_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Returns a table with new values in a column, which keeps its place and type, or is new."""
    at = table.schema.get_field_index(name)
    if at < 0:
        return table.append_column(name, values)
    return table.set_column(at, table.schema.field(at), values)

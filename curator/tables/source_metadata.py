"""Metadata of sources from manifests and sidecars, as typed columns `meta.*`.

Values arrive row by row, and are text in memory until the type of their column is known. A column
is bool, int64, float64, string or list of string. If the types of values differ, the column is
string; integers and fractions together make a float64 column.
"""

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import UsageError, unknown_key
from curator.records.clips import SPANNED
from curator.records.time_spans import TimeSpan
from curator.storage.metadata_columns import GROUP, MAX_COLUMNS, MAX_VALUE_BYTES, CsvText

_TYPES = {
    "bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "text": pa.string(),
    "list": pa.list_(pa.string()),
}  # fmt: skip
_LISTS = pa.large_list(pa.large_string())  # in memory: all values may exceed 2 GiB
_PACK_ROWS = 4096
_JOIN_ROWS = 1 << 16
"""Number of rows to join at a time: an Arrow array of strings holds at most 2 GiB."""
_INT = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INT64_END = 1 << 63

logger = logging.getLogger(__name__)


def span_name(uri: str, span: TimeSpan) -> str:
    """Returns the name under which the metadata of a span is added; it is no URI."""
    return f"{uri}\0{span.start_s!r}\0{span.end_s!r}"


class SourceMetadata:
    """Metadata of the sources of a run, and of spans of sources."""

    def __init__(self) -> None:
        self._kinds: dict[str, set[str]] = {}
        """Kinds of values by column, in the order of arrival."""
        self._rows: list[dict[str, str]] = []
        self._packed: list[pa.Table] = []
        self._whole: pa.Table | None = None
        self._left_out: dict[str, str] = {}
        self._n_cut = 0

    def add(self, uri: str, values: Mapping[str, Any]) -> None:
        """Adds bools, numbers, texts and lists of texts of a source, or of a `span_name`.

        Of a name that is added twice, the first values count.
        """
        row = {"uri": uri}
        for name, value in values.items():
            typed = _as_text(value)
            if typed is None:
                continue
            if name not in self._kinds and len(self._kinds) >= MAX_COLUMNS:
                self._left_out.setdefault(name, uri)
                continue
            kind, text = typed
            if len(text) * 4 > MAX_VALUE_BYTES and len(text.encode()) > MAX_VALUE_BYTES:
                self._n_cut += 1
                if kind == "list":
                    continue
                text = text.encode()[:MAX_VALUE_BYTES].decode("utf-8", "ignore")
            self._kinds.setdefault(name, set()).add(kind)
            row[name] = text
        self._rows.append(row)
        self._whole = None
        if len(self._rows) >= _PACK_ROWS:
            self._pack()

    def schema(self) -> pa.Schema:
        """Returns the columns in the order of arrival."""
        return pa.schema([(name, _TYPES[_kind(kinds)]) for name, kinds in self._kinds.items()])

    def joined(self, table: pa.Table, key: str) -> pa.Table:
        """Appends the columns of metadata to a table with the URIs of sources in column `key`.

        A row with the columns `SPANNED` gets values of its span first.
        """
        if not self._kinds:
            return table
        whole = self._table()
        places = [pc.index_in(table[key], value_set=whole["uri"])]
        if (names := _span_names(table, key)) is not None:
            places.insert(0, pa.chunked_array([pc.index_in(names, value_set=whole["uri"])]))
        for field in self.schema():
            chunks: list[pa.Array] = []
            for start in range(0, table.num_rows, _JOIN_ROWS):
                parts = [whole[field.name].take(at.slice(start, _JOIN_ROWS)) for at in places]
                part = parts[0] if len(parts) == 1 else pc.coalesce(*parts)
                chunks += part.cast(field.type).chunks
            table = table.append_column(field, pa.chunked_array(chunks, field.type))
        return table

    def check(
        self, numbers: Iterable[str], others: Iterable[str], singles: Iterable[str] = ()
    ) -> None:
        """Raises `UsageError` if a column is missing, or a column of `numbers` has other values.

        So do a group and a column of `singles` that are lists.
        """
        schema, numbers, singles = self.schema(), list(numbers), list(singles)
        for name in (GROUP, *singles):
            if name in schema.names and pa.types.is_list(schema.field(name).type):
                raise UsageError(
                    f"{name} is a list; expected one value for each source or span: give one "
                    "value, or rename the column if it is other metadata"
                )
        for name in (*numbers, *others, *singles):
            if name not in schema.names:
                hint = unknown_key(name, schema.names or ["none"], "column of metadata")
                raise UsageError(
                    f"no source has {name!r}; {hint}; with scan.sidecar_meta=true, files next to "
                    "sources give columns too"
                )
        for name in numbers:
            if schema.field(name).type not in (pa.int64(), pa.float64()):
                raise UsageError(
                    f"{name} is of type {schema.field(name).type}, and bounds need numbers; use "
                    f"filters.{name}.one_of or none_of"
                )

    def warn(self) -> None:
        """Logs metadata that was changed or left out."""
        for name, kinds in self._kinds.items():
            if len(kinds) > 1 and _kind(kinds) == "text":
                logger.warning("%s has values of types %s: it is text", name, sorted(kinds))
        if self._n_cut:
            logger.warning(
                "%d values of metadata are longer than %d bytes: texts are truncated, and lists "
                "are left out", self._n_cut, MAX_VALUE_BYTES,
            )  # fmt: skip
        for name, uri in list(self._left_out.items())[:1]:
            logger.warning(
                "sources have more than %d columns of metadata; %d are left out, such as %s of %s",
                MAX_COLUMNS, len(self._left_out), name, uri,
            )  # fmt: skip

    def _pack(self) -> None:
        names = dict.fromkeys(name for row in self._rows for name in row)
        columns = {n: pa.array([r.get(n) for r in self._rows], pa.large_string()) for n in names}
        self._packed.append(pa.table(columns))
        self._rows = []

    def _table(self) -> pa.Table:
        if self._whole is None:
            if self._rows:
                self._pack()
            whole = pa.concat_tables(self._packed, promote_options="default").combine_chunks()
            columns = {name: _typed(whole[name], _kind(of)) for name, of in self._kinds.items()}
            self._whole = pa.table({"uri": whole["uri"].combine_chunks(), **columns})
        return self._whole


def _span_names(table: pa.Table, key: str) -> pa.Array | None:
    """Returns the span's name of each row, null for clips of whole sources; None for no spans."""
    starts, ends = (table[n] if n in table.column_names else None for n in SPANNED)
    if starts is None or ends is None or starts.null_count == len(starts):
        return None
    rows = zip(*(column.to_pylist() for column in (table[key], starts, ends)), strict=True)
    names = [
        None if a is None else span_name(uri, TimeSpan(a, math.inf if b is None else b))
        for uri, a, b in rows
    ]
    return pa.array(names, pa.large_string())


def _as_text(value: object) -> tuple[str, str] | None:
    """Returns the kind and the text of a value; None for a missing or unsupported value."""
    if isinstance(value, CsvText):
        return _of_csv(value)
    if isinstance(value, bool):
        return "bool", str(value).lower()
    if isinstance(value, int):
        return ("int" if -_INT64_END <= value < _INT64_END else "text"), str(value)
    if isinstance(value, float):
        return ("float", repr(value)) if math.isfinite(value) else None
    if isinstance(value, str):
        # JSON can hold lone surrogates, but tables cannot.
        return "text", value.encode("utf-8", "replace").decode()
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return "list", json.dumps(value)
    return None


def _of_csv(text: str) -> tuple[str, str] | None:
    plain = text.strip()
    if not plain or plain.lower() == "nan":
        return None
    if plain.lower() in ("true", "false"):
        return "bool", plain.lower()
    if _INT.fullmatch(plain) and -_INT64_END <= int(plain) < _INT64_END:
        return "int", plain
    if _FLOAT.fullmatch(plain) and not re.match(r"[+-]?0[0-9]", plain):
        return ("float", plain) if math.isfinite(float(plain)) else ("text", plain)
    return "text", str(text)


def _kind(kinds: set[str]) -> str:
    """Returns the kind of a column, by the kinds of its values."""
    if len(kinds) > 1:
        return "float" if kinds == {"int", "float"} else "text"
    (kind,) = kinds
    return kind


def _typed(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray | pa.Array:
    if kind == "bool":
        return pc.equal(column, "true")
    if kind == "int":
        return column.cast(pa.int64())
    if kind == "text":
        return column
    read = float if kind == "float" else json.loads
    values = [None if text is None else read(text) for text in column.to_pylist()]
    return pa.array(values, _LISTS if kind == "list" else _TYPES[kind])

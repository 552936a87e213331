"""Reads a user's rows with timestamps: CSV, TSV, Parquet or MCAP.

Shape letters: N rows, D values of a row, F frames.
"""

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from curator.errors import ErrorCode, SourceError
from curator.storage.base import has_scheme
from curator.storage.mcap_topics import MESSAGE_TIMES, McapFileError, read_topic
from curator.storage.source_manifests import absolute_path, resolve
from curator.storage.source_reader import open_source

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
TimeUnit = Literal["s", "ms", "us", "ns"]
_PER_SECOND: dict[TimeUnit, int] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FIELDS = ("{stem}", "{name}", "{folder}")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_PARQUET, MCAP = ".parquet", ".mcap"


class RowsError(ValueError):
    """A table of rows is not as declared; the message names the table, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class TimedRows:
    """Rows of one source, by time.

    Attributes:
        times: int64 or float64 [N], ascending, in the unit of the table.
        values: float64 [N, D]; NaN for empty cells.
        digest: SHA-256 of times and values, which another form of the table has too.
    """

    times: NDArray[np.int64] | NDArray[np.float64]
    values: NDArray[np.float64]
    digest: str

    @classmethod
    def of(cls, times: NDArray[Any], values: NDArray[np.float64]) -> "TimedRows":
        """Returns rows in any order by time; rows of equal time keep their order."""
        order = np.argsort(times, kind="stable")
        times, values = times[order], np.ascontiguousarray(values[order])
        head = f"{times.dtype} {values.shape}".encode()
        digest = hashlib.sha256(head + times.tobytes() + values.tobytes()).hexdigest()
        return cls(times, values, digest)

    def seconds(self, first_frame: float, unit: TimeUnit) -> NDArray[np.float64]:
        """Returns the times in seconds from the source's first frame, float64 [N].

        `first_frame` is the time of this frame in the unit of the table.
        """
        # Whole numbers are subtracted exactly: float64 has no nanoseconds since 1970.
        whole = self.times.dtype == np.int64 and float(first_frame).is_integer()
        zero = int(first_frame) if whole else first_frame
        since: NDArray[np.float64] = (self.times - zero) / _PER_SECOND[unit]
        return since

    def nearest(
        self,
        times_s: NDArray[np.float64],
        frame_s: NDArray[np.float64],
        most_s: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Returns the values of the row nearest to each frame, float64 [F, D].

        NaN for a frame without a row within its `most_s`. Arguments are the `seconds` of the rows,
        and time and greatest distance of each frame, [F].
        """
        values = np.full((len(frame_s), self.values.shape[1]), np.nan)
        if not len(times_s):
            return values
        after = np.clip(np.searchsorted(times_s, frame_s), 1, max(1, len(times_s) - 1))
        ends = np.stack([after - 1, np.minimum(after, len(times_s) - 1)])
        away = np.abs(times_s[ends] - frame_s)
        nearest = np.where(away[0] <= away[1], ends[0], ends[1])
        is_near = away.min(axis=0) <= most_s
        values[is_near] = self.values[nearest[is_near]]
        return values


class RowsReader:
    """Finds the rows of each source. Reads a table once for all calls that need it in a row.

    Args:
        table: Address or path of a table. With `{stem}`, `{name}` or `{folder}`, of which each
            source has its own value, a relative path begins at the folder of the source, otherwise
            at the working directory.
        time: Column with the times.
        columns: Columns with the values.
        unit: Unit of the times.
        topic: Of an MCAP, the topic whose messages are the rows; time and columns are its fields.
        source: In one table of all sources, the column that says whose a row is.
        has_addresses: Whether this column has addresses of sources, or paths relative to the
            table's folder; if not, values that the caller knows.

    Raises:
        RowsError: The table has another suffix, or `source` is missing or superfluous.
    """

    def __init__(
        self,
        table: str,
        *,
        time: str,
        columns: Sequence[str],
        unit: TimeUnit = "s",
        topic: str | None = None,
        source: str | None = None,
        has_addresses: bool = True,
    ) -> None:
        self._is_shared = not any(field in table for field in _FIELDS)
        suffix = os.path.splitext(table)[1].lower()
        if suffix not in (*_DELIMITERS, _PARQUET, MCAP):
            raise RowsError(
                f"table {table!r}; expected a name that ends in .csv, .tsv, .parquet or .mcap"
            )
        if (suffix == MCAP) != (topic is not None):
            raise RowsError(
                f"table {table!r} with topic: {topic!r}; expected a topic for .mcap, and no topic "
                "for other tables"
            )
        if suffix == MCAP and time in MESSAGE_TIMES and unit != "ns":
            raise RowsError(f"time: {time} of an MCAP is in nanoseconds; expected unit: ns")
        if suffix == MCAP and source is not None:
            raise RowsError(
                f"table {table!r} with source: {source!r}; an MCAP has no rows of several sources: "
                "expected an MCAP for each source or folder, such as '{folder}/log.mcap'"
            )
        if self._is_shared and source is None:
            raise RowsError(
                f"table {table!r} is the same for all sources; expected `source`, the column that "
                "names the source of each row, or a table for each source, such as "
                f"'{{stem}}{suffix}' or '{{folder}}/rows{suffix}'"
            )
        if not self._is_shared and source is not None:
            raise RowsError(
                f"table {table!r} belongs to one source, and source: {source!r} names a column of "
                "one table of all sources; leave out one of them"
            )
        own = self._is_shared and not has_scheme(table)
        self._table = absolute_path(table) if own else table
        self._time, self._columns, self._source = time, tuple(columns), source
        self._topic, self._unit = topic, unit
        self._has_addresses = has_addresses
        self._last: tuple[str, dict[str, TimedRows]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the rows that were read last: a worker reads its own."""
        return vars(self) | {"_last": None}

    def table_of(self, source_uri: str) -> str:
        """Returns the address of the table that has the rows of a source."""
        if self._is_shared:
            return self._table
        folder, _, name = source_uri.rpartition("/")
        path = self._table.replace("{name}", name).replace("{stem}", os.path.splitext(name)[0])
        path = path.replace("{folder}", folder)
        if has_scheme(path) or os.path.isabs(path):
            return path
        try:
            return resolve(path, source_uri)
        except ValueError as error:
            raise RowsError(f"table {self._table!r} of {source_uri!r} {error}") from error

    def rows(self, source_uri: str, value: object = None) -> TimedRows | None:
        """Returns the rows of a source; None if it has no table, or no rows in it.

        `value` is what the column `source` has for the source, if it has no addresses.

        Raises:
            RowsError: The table is not as declared.
            SourceError: The table cannot be read.
        """
        uri = self.table_of(source_uri)
        if self._last is None or self._last[0] != uri:
            self._last = uri, self._opened(uri)
        whose = source_uri if self._has_addresses else str(value)
        return self._last[1].get(whose if self._is_shared else "")

    def _opened(self, uri: str) -> dict[str, TimedRows]:
        try:
            with open_source(uri) as stream:
                return self._read(stream, uri)
        except SourceError as error:
            if error.code is ErrorCode.VANISHED and not self._is_shared:
                return {}
            raise

    def _read(self, stream: BinaryIO, uri: str) -> dict[str, TimedRows]:
        """Returns the rows by source; under an empty name if all are of one source."""
        more = () if self._source is None else (self._source,)
        if self._topic is not None:
            table = self._messages(stream, uri)
        else:
            table = _table(stream, uri, list(dict.fromkeys((self._time, *self._columns, *more))))
        times = _times(table, self._time, uri)
        values = np.concatenate([_values(table, name, uri) for name in self._columns], axis=1)
        if self._source is None:
            return {"": TimedRows.of(times, values)} if len(times) else {}
        numbers: dict[str, list[int]] = {}
        for number, source in enumerate(table[self._source].to_pylist()):
            numbers.setdefault(str(source), []).append(number)
        try:
            return {
                resolve(source, uri) if self._has_addresses else source: TimedRows.of(
                    times[own], values[own]
                )
                for source, own in numbers.items()
            }
        except ValueError as error:
            raise RowsError(f"table {uri!r}, column {self._source!r}: a source {error}") from error

    def _messages(self, stream: BinaryIO, uri: str) -> "pa.Table":
        assert self._topic is not None
        try:
            return read_topic(stream, self._topic, self._time, self._columns, unit=self._unit)
        except McapFileError as error:
            raise RowsError(f"table {uri!r}: {error}") from error


def _table(stream: BinaryIO, uri: str, names: Sequence[str]) -> "pa.Table":
    """Returns the columns with these names."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    suffix = os.path.splitext(uri)[1].lower()
    try:
        if suffix == _PARQUET:
            file = pq.ParquetFile(stream)
            _check_names(file.schema_arrow.names, names, uri)
            return file.read(columns=list(names))
        data = stream.read()
        options = pa_csv.ParseOptions(delimiter=_DELIMITERS[suffix])
        header = pa_csv.open_csv(io.BytesIO(data), parse_options=options).schema.names
        _check_names(header, names, uri)
        only = pa_csv.ConvertOptions(include_columns=list(names))
        return pa_csv.read_csv(io.BytesIO(data), parse_options=options, convert_options=only)
    except pa.ArrowException as error:
        raise RowsError(f"table {uri!r} cannot be read: {error}") from error


def _check_names(found: Sequence[str], names: Sequence[str], uri: str) -> None:
    if missing := [name for name in names if name not in found]:
        raise RowsError(f"table {uri!r} has no column {missing[0]!r}; it has {', '.join(found)}")


def _times(table: "pa.Table", name: str, uri: str) -> NDArray[Any]:
    import pyarrow as pa

    column = table[name].combine_chunks()
    if pa.types.is_temporal(column.type):
        raise RowsError(
            f"table {uri!r}: column {name!r} has type {column.type}; expected numbers, in the unit "
            "that the recipe names: convert dates, for example to nanoseconds since 1970"
        )
    if pa.types.is_null(column.type) and not len(column):
        return np.zeros(0, np.float64)
    values = _numbers(column, name, uri)
    is_missing = ~np.isfinite(values) if values.dtype == np.float64 else np.zeros(len(values), bool)
    if is_missing.any():
        row = int(np.flatnonzero(is_missing)[0])
        raise RowsError(
            f"table {uri!r}: row {row + 1} has no time in column {name!r}; expected a finite "
            "number in each row"
        )
    return values


def _values(table: "pa.Table", name: str, uri: str) -> NDArray[np.float64]:
    """Returns a column, or the elements of a column of lists, float64 [N, D]."""
    import pyarrow as pa

    column = table[name].combine_chunks()
    kind = column.type
    if not (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        return _numbers(column, name, uri).astype(np.float64)[:, None]
    lengths = {len(value) for value in column.to_pylist() if value is not None}
    if len(lengths) > 1 or column.null_count:
        raise RowsError(
            f"table {uri!r}: lists of column {name!r} have lengths {sorted(lengths)}"
            f"{' and some are missing' if column.null_count else ''}; expected one length"
        )
    flat = _numbers(column.flatten(), name, uri).astype(np.float64)
    return flat.reshape(len(column), -1) if len(column) else flat.reshape(0, 1)


def _numbers(column: "pa.Array", name: str, uri: str) -> NDArray[Any]:
    """Returns numbers as int64 if all are whole numbers, else as float64 with NaN for none."""
    import pyarrow as pa

    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (is_number or pa.types.is_null(kind)):
        raise RowsError(
            f"table {uri!r}: column {name!r} has type {kind}; expected numbers, or lists of numbers"
        )
    is_whole = pa.types.is_integer(kind) and not column.null_count
    try:
        values = column.cast(pa.int64() if is_whole else pa.float64())
    except pa.ArrowInvalid as error:
        raise RowsError(f"table {uri!r}: column {name!r}: {error}") from error
    return np.asarray(values.to_numpy(zero_copy_only=False))

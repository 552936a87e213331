"""Reads a manifest, which is a text or a table of URIs, as a stream.

- `.txt`, `.lst`, `.list`: a URI per line, verbatim; blank lines and lines that start with `# ` are
  skipped.
- `.csv` or `.tsv` with a header, or `.parquet`: the column `uri` has the URIs. Empty and missing
  values are skipped. Other columns are metadata of the sources.
- `.jsonl`, `.ndjson`: an object per line, with the URI under the key `uri` and metadata under
  others, or a text with the URI.

The columns `start_s` and `end_s`, in seconds from the source's first frame, make a row a span of
its source, and other columns metadata of the span. An empty `start_s` is 0, an empty `end_s` the
end of the source.

A relative path starts at the manifest's folder. Text is UTF-8, with or without a byte order
mark, or UTF-16 with one, as PowerShell writes.

A manifest in a bucket is untrusted: it may name objects, but no files of this machine; relative
paths stay in its bucket. A manifest on this machine may name files and objects.
"""

import csv
import io
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from curator.errors import UsageError, raised_as
from curator.json_bounds import load_bounded
from curator.media.file_kinds import CONCAT_LIST, PLAYLIST, file_kind
from curator.records.time_spans import TimeSpan
from curator.storage.base import has_scheme
from curator.storage.metadata_columns import PREFIX, CsvText, column_names
from curator.storage.object_service import ADDRESSES, scheme_of
from curator.storage.source_reader import open_source

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


logger = logging.getLogger(__name__)


class ManifestRow(NamedTuple):
    """A URI, and metadata by column: of the source, or of a span of the source."""

    uri: str
    metadata: Mapping[str, Any]
    span: TimeSpan | None = None


_Entry = tuple[str, str, Mapping[str, Any]]
"""Place in the manifest (such as `line 3`), URI as written, and metadata."""
FORMS = ".txt or .lst with a URI per line; .csv, .tsv, .jsonl or .parquet with a column `uri`"
"""Supported manifests, for messages."""
COLUMN = "uri"
SPAN_COLUMNS = ("start_s", "end_s")
_SPANS = frozenset(PREFIX + name for name in SPAN_COLUMNS)
_LINE_BYTES, _JSON_LINE_BYTES = 64 << 10, 1 << 20
_BATCH_ROWS = 8192
_MOST_SHOWN, _MOST_NAMED = 100, 20
"""Characters of an entry, and columns, in a message."""
_ROWS_PER_BYTE = 100
"""Maximum number of rows per byte of a Parquet file. A million numbered names in Parquet's densest
encoding and compression have 20 rows per byte; with more, most rows repeat others."""
_MOST_ROWS = 100_000_000
"""Maximum number of rows of a Parquet file: five minutes of reading."""
_MARK = b"\xef\xbb\xbf"
_HEAD_BYTES = 4096
_MOST_UTF_16 = 256 << 20
"""Largest manifest in UTF-16 in bytes; it is decoded as a whole."""


def is_manifest(uri: str) -> bool:
    """Returns whether a name has the suffix of a manifest."""
    return _suffix(uri) in _READERS


def manifest_rows(manifest: str) -> Iterator[ManifestRow]:
    """Yields the absolute URIs of a manifest with metadata, in order, including repeated URIs.

    Raises:
        UsageError: The manifest has no column `uri`, its content does not match its suffix, or it
            is in a bucket and an entry leads out of the bucket, or a span is not valid.
        SourceError: The manifest cannot be read.
    """
    left_out = _LeftOut(manifest)
    has_spans, n_rows = False, 0
    with open_source(manifest) as stream:
        if _suffix(manifest) != "parquet":
            stream = _utf_8(stream, manifest)
        for place, written, metadata in _READERS[_suffix(manifest)](stream, manifest, left_out):
            if left_out.has_spans and not has_spans and n_rows:
                raise UsageError(
                    f"manifest {manifest!r}, {place} is the first with times; expected the keys "
                    f"{' and '.join(SPAN_COLUMNS)} in the first line too: write null for none"
                )
            has_spans, n_rows = left_out.has_spans, n_rows + 1
            values = dict(metadata)
            times = [values.pop(PREFIX + name, None) for name in SPAN_COLUMNS]
            span = _span(times, manifest, place, written) if left_out.has_spans else None
            try:
                yield ManifestRow(resolve(written, manifest), values, span)
            except ValueError as error:
                raise UsageError(
                    f"manifest {manifest!r}, {place}: {written!r} {error}; expected "
                    f"{ADDRESSES}, or a path relative to the manifest. A manifest on this machine "
                    "may name files and objects"
                ) from error
    left_out.warn()


def _span(times: Sequence[object], manifest: str, place: str, uri: str) -> TimeSpan:
    """Returns the span of a row; refuses values that are no times, and spans without length."""
    numbers = []
    for name, value, otherwise in zip(SPAN_COLUMNS, times, (0.0, math.inf), strict=True):
        try:
            number = otherwise if value is None else float(cast(Any, value))
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, bool) or not number >= 0 or (value is not None and math.isinf(number)):
            raise UsageError(
                f"manifest {manifest!r}, {place}: {name} is {value!r}; expected seconds from the "
                "source's first frame, a number from 0, or nothing: correct it, or rename the "
                "column if it is metadata"
            )
        numbers.append(number)
    span = TimeSpan(*numbers)
    if span.start_s >= span.end_s:
        raise UsageError(
            f"manifest {manifest!r}, {place}: the span of {uri!r} from {span} has no length; "
            "expected start_s below end_s"
        )
    return span


def _utf_8(stream: BinaryIO, manifest: str) -> BinaryIO:
    """Returns a text as UTF-8; refuses bytes that are no list, and a list of another program."""
    head = stream.read(_HEAD_BYTES)
    stream.seek(0)
    kind = file_kind(head)
    if kind in (PLAYLIST, CONCAT_LIST):
        raise UsageError(f"manifest {manifest!r} is {kind.what}; {kind.remedy}")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        data = stream.read(_MOST_UTF_16 + 1)
        if len(data) > _MOST_UTF_16:
            raise UsageError(
                f"manifest {manifest!r} is in UTF-16, and larger than {_MOST_UTF_16} bytes; save "
                "it as UTF-8"
            )
        with raised_as(UsageError, ValueError, of=f"manifest {manifest!r}: "):
            return io.BytesIO(data.decode("utf-16").encode())
    if len(_CONTROLS.findall(head)) * _LEAST_TEXT > len(head):
        raise UsageError(
            f"manifest {manifest!r} is no text in UTF-8: it is binary, or in UTF-16 without a byte "
            f"order mark; save it as UTF-8. Manifests: {FORMS}"
        )
    return stream


_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_LEAST_TEXT = 20
"""A text has less than one control character in so many bytes; one wrong name fails alone."""


def _brief(text: str) -> str:
    """Returns a text for a message, without characters that no terminal shows."""
    return ascii(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


class _LeftOut:
    """Counts rows that are left out of a manifest, and says so once at its end."""

    def __init__(self, manifest: str) -> None:
        self._manifest = manifest
        self._first: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self.has_spans = False
        """Whether rows are spans: a column of `SPAN_COLUMNS` exists."""

    def note(self, columns: Iterable[str]) -> None:
        """Notes columns of metadata of the manifest, or of its next row."""
        self.has_spans = self.has_spans or not _SPANS.isdisjoint(columns)

    def add(self, what: str, place: str) -> None:
        """Counts a row or column; `place` names it."""
        self._first.setdefault(what, place)
        self._counts[what] += 1

    def warn(self) -> None:
        """Logs the counts."""
        for what, n in self._counts.items():
            logger.warning(
                "manifest %r: %s: %d, such as %s", self._manifest, what, n, self._first[what]
            )


def _suffix(uri: str) -> str:
    return os.path.splitext(uri)[1].lower().removeprefix(".")


_NO_URI = "rows without a URI, which are left out"
_BLANK = "blank lines, which are left out"
_OTHER_LENGTH = "rows with more or fewer cells than the header, whose cells may be of other columns"
_NESTED = "columns whose type no metadata can have, which are left out"


def resolve(written: str, manifest: str) -> str:
    """Returns the absolute URI of a manifest's entry.

    Raises:
        ValueError: The manifest is in a bucket, and the entry is a file or leads out of the bucket.
    """
    if has_scheme(written):
        return written
    if scheme_of(manifest) is None:
        return absolute_path(os.path.join(os.path.dirname(manifest), written))
    if written.startswith("/"):
        raise ValueError("is a path on this machine, which a manifest in a bucket must not name")
    folder = manifest.rpartition("/")[0].split("/")
    for segment in written.split("/"):
        if segment != "..":
            folder += [segment] if segment != "." else []
        elif len(folder) == len(["scheme:", "", "bucket"]):
            raise ValueError("leads out of the manifest's bucket")
        else:
            folder.pop()
    return "/".join(folder)


def absolute_path(path: str) -> str:
    """Returns an absolute path without `.`, `..` and doubled slashes; keeps links."""
    path = os.path.abspath(path)
    # In POSIX, exactly two slashes at the start may have another meaning, but not here.
    return path[1:] if path.startswith("//") else path


def _numbered_lines(
    stream: BinaryIO, manifest: str, expected: str = "a URI", most_bytes: int = _LINE_BYTES
) -> Iterator[tuple[int, str]]:
    number = 0
    while line := stream.readline(most_bytes):
        number += 1
        if len(line) == most_bytes and not line.endswith(b"\n"):
            raise UsageError(
                f"manifest {manifest!r}, line {number} is longer than {most_bytes} bytes; "
                f"expected {expected} per line"
            )
        if number == 1:
            line = line.removeprefix(_MARK)
        yield (
            number,
            line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape"),
        )


def _lines(stream: BinaryIO, manifest: str, left_out: _LeftOut) -> Iterator[_Entry]:
    blank = list[int]()
    for number, text in _numbered_lines(stream, manifest):
        if not text.strip():
            blank.append(number)
        else:
            # Blank lines at the end are no mistake.
            while blank:
                left_out.add(_BLANK, f"line {blank.pop(0)}")
            if not text.startswith("# "):
                yield f"line {number}", text, {}


def _json_rows(stream: BinaryIO, manifest: str, left_out: _LeftOut) -> Iterator[_Entry]:
    lines = _numbered_lines(stream, manifest, "a JSON object", _JSON_LINE_BYTES)
    for number, text in lines:
        place = f"line {number}"
        if not text.strip():
            left_out.add(_BLANK, place)
            continue
        with raised_as(
            UsageError, ValueError, of=f"manifest {manifest!r}, {place}: not valid JSON: "
        ):
            row = load_bounded(text.encode("utf-8", "surrogateescape"))
        row = {COLUMN: row} if isinstance(row, str) else row
        if not isinstance(row, dict) or not isinstance(row.get(COLUMN, ""), str | None):
            raise UsageError(
                f"manifest {manifest!r}, {place}: expected a JSON object with a text under the key "
                f"{COLUMN!r}, or a text"
            )
        if number == 1 and COLUMN not in row:
            raise _no_column(manifest, list(row))
        if not (uri := row.pop(COLUMN, None)) or not uri.strip():
            left_out.add(_NO_URI, place)
            continue
        for name, value in row.items():
            if isinstance(value, dict) or (
                isinstance(value, list) and not all(isinstance(item, str) for item in value)
            ):
                left_out.add(_NESTED, f"{name!r} ({place})")
        names = column_names(row, manifest)
        left_out.note(names.values())
        yield place, uri, {new: row[name] for name, new in names.items() if row[name] is not None}


def _tsv_rows(stream: BinaryIO, manifest: str, left_out: _LeftOut) -> Iterator[_Entry]:
    return _csv_rows(stream, manifest, left_out, delimiter="\t")


def _csv_rows(
    stream: BinaryIO, manifest: str, left_out: _LeftOut, delimiter: str = ","
) -> Iterator[_Entry]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(text, strict=True, delimiter=delimiter)
    try:
        header = next(rows, [])
        if COLUMN not in header:
            raise _no_column(manifest, header)
        column = header.index(COLUMN)
        names = column_names((*header[:column], *header[column + 1 :]), manifest)
        left_out.note(names.values())
        own = [(at, names[name]) for at, name in enumerate(header) if name in names]
        for row in rows:
            place = f"line {rows.line_num}"
            if row and len(row) != len(header):
                left_out.add(_OTHER_LENGTH, place)
            if len(row) > column and row[column].strip():
                cells = {name: row[at] for at, name in own if at < len(row) and row[at].strip()}
                metadata = {name: CsvText(_shown(text)) for name, text in cells.items()}
                yield place, row[column], metadata
            elif any(cell.strip() for cell in row):
                left_out.add(_NO_URI, place)
            else:
                left_out.add(_BLANK, place)
    except csv.Error as error:
        raise UsageError(
            f"manifest {manifest!r}, line {rows.line_num}: not valid CSV: {error}"
        ) from error


def _shown(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _parquet_rows(stream: BinaryIO, manifest: str, left_out: _LeftOut) -> Iterator[_Entry]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with raised_as(UsageError, pa.ArrowException, of=f"manifest {manifest!r}: not valid Parquet: "):
        table = pq.ParquetFile(stream)
        _check_rows(table.metadata, stream.seek(0, os.SEEK_END), manifest)
        schema = table.schema_arrow
        if COLUMN not in schema.names:
            raise _no_column(manifest, schema.names)
        kind = _plain_type(schema.field(COLUMN).type)
        if kind != pa.string():
            raise UsageError(
                f"manifest {manifest!r}: column {COLUMN!r} has type {kind}; expected string"
            )
        types = {name: _plain_type(schema.field(name).type) for name in schema.names}
        for name in schema.names:
            if types[name] is None:
                left_out.add(_NESTED, f"{name!r} ({schema.field(name).type})")
        names = column_names((n for n in schema.names if n != COLUMN and types[n]), manifest)
        left_out.note(names.values())
        first = 1
        for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=[COLUMN, *names]):
            # As bytes, because Arrow does not guarantee that a string is valid UTF-8.
            uris = batch[COLUMN].cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
            columns = {new: _values(batch[name], types[name]) for name, new in names.items()}
            for at, value in enumerate(uris):
                if value and value.strip():
                    row = {n: v for n, values in columns.items() if (v := values[at]) is not None}
                    yield f"row {first + at}", value.decode("utf-8", "surrogateescape"), row
                else:
                    left_out.add(_NO_URI, f"row {first + at}")
            first += len(uris)


_READERS: dict[str, Callable[[BinaryIO, str, _LeftOut], Iterator[_Entry]]] = {
    **dict.fromkeys(("txt", "lst", "list"), _lines),
    **dict.fromkeys(("jsonl", "ndjson"), _json_rows),
    "csv": _csv_rows, "tsv": _tsv_rows, "parquet": _parquet_rows,
}  # fmt: skip
"""Readers of manifests, by suffix."""


def _check_rows(footer: "pq.FileMetaData", n_bytes: int, manifest: str) -> None:
    # The footer also names a total, but readers do not use it.
    n_rows = sum(footer.row_group(at).num_rows for at in range(footer.num_row_groups))
    if n_rows > min(_ROWS_PER_BYTE * n_bytes, _MOST_ROWS):
        raise UsageError(
            f"manifest {manifest!r} promises {n_rows} rows in {n_bytes} bytes; expected at most "
            f"{_MOST_ROWS} rows, and {_ROWS_PER_BYTE} for each byte, because more rows must repeat "
            "others: write a manifest that names each source once, or several manifests"
        )


def _plain_type(kind: "pa.DataType") -> "pa.DataType | None":
    """Returns the type to read a column as; None for a type that metadata cannot have."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text or kind == pa.string_view() or pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        is_list_of_text = _plain_type(kind.value_type) == pa.string()
        return pa.list_(pa.string()) if is_list_of_text else None
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.float64()
    return kind if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else None


def _values(column: "pa.Array", kind: "pa.DataType") -> list[Any]:
    import pyarrow as pa

    if kind != pa.string():
        values: list[Any] = column.cast(kind).to_pylist()
        return values
    texts = column.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
    return [None if text is None else text.decode("utf-8", "replace") for text in texts]


def _no_column(manifest: str, columns: list[str]) -> UsageError:
    found = [name if name.isprintable() else _brief(name) for name in columns[:_MOST_NAMED]]
    more = ["..."] if len(columns) > _MOST_NAMED else []
    return UsageError(
        f"manifest {manifest!r} has no column {COLUMN!r}; found "
        f"{', '.join(found + more) or 'none'}. "
        f"Name the column with the paths and addresses {COLUMN!r}"
    )

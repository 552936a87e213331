"""Reads the URIs of a manifest: a `.txt`, `.csv` or `.parquet` file, as a stream.

- `.txt`: a URI per line, verbatim but for the line end; blank lines and those that start with
  `# ` are no URIs.
- `.csv`: with a header, the column `uri`; `.parquet`: the column `uri`. Empty and missing values
  are no URIs.

A relative path is meant from the manifest's folder. Text is UTF-8, with or without a mark.
"""

import csv
import io
import os
from collections.abc import Iterator
from typing import BinaryIO

from curator.errors import UsageError
from curator.storage.base import has_scheme
from curator.storage.object_service import scheme_of
from curator.storage.source_reader import open_source

SUFFIXES = (".txt", ".csv", ".parquet")
COLUMN = "uri"
_LINE_BYTES = 64 << 10
_BATCH_ROWS = 8192
_MARK = b"\xef\xbb\xbf"


def is_manifest(uri: str) -> bool:
    """Says whether a name is that of a manifest."""
    return uri.lower().endswith(SUFFIXES)


def manifest_uris(manifest: str) -> Iterator[str]:
    """Yields the URIs in a manifest, in its order, absolute; one of them may occur again.

    Raises:
        UsageError: It has no column `uri`, or is not what its suffix says.
        SourceError: It cannot be read.
    """
    suffix = manifest.lower().rpartition(".")[2]
    read = {"txt": _lines, "csv": _csv_column, "parquet": _parquet_column}[suffix]
    with open_source(manifest) as stream:
        for written in read(stream, manifest):
            yield resolve(written, manifest)


def resolve(written: str, manifest: str) -> str:
    """Makes an absolute URI of what is written in a manifest."""
    if has_scheme(written):
        return written
    if written.startswith("/") or scheme_of(manifest) is None:
        return absolute_path(os.path.join(os.path.dirname(manifest), written))
    folder = manifest.rpartition("/")[0].split("/")
    for segment in written.split("/"):
        if segment == ".." and len(folder) > len(["scheme:", "", "bucket"]):
            folder.pop()
        elif segment not in (".", ".."):
            folder.append(segment)
    return "/".join(folder)


def absolute_path(path: str) -> str:
    """Returns a path from the root, without `.`, `..` and doubled slashes; links stay."""
    path = os.path.abspath(path)
    # POSIX lets exactly two slashes at the start mean something else; here they never do.
    return path[1:] if path.startswith("//") else path


def _lines(stream: BinaryIO, manifest: str) -> Iterator[str]:
    number = 0
    while line := stream.readline(_LINE_BYTES):
        number += 1
        if len(line) == _LINE_BYTES and not line.endswith(b"\n"):
            raise UsageError(
                f"manifest {manifest!r}, line {number}: longer than {_LINE_BYTES} bytes; expected "
                "a URI per line"
            )
        if number == 1:
            line = line.removeprefix(_MARK)
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
        if text.strip() and not text.startswith("# "):
            yield text


def _csv_column(stream: BinaryIO, manifest: str) -> Iterator[str]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(text, strict=True)
    try:
        header = next(rows, [])
        if COLUMN not in header:
            raise _no_column(manifest, header)
        column = header.index(COLUMN)
        for row in rows:
            if len(row) > column and row[column].strip():
                yield row[column]
    except csv.Error as error:
        raise UsageError(
            f"manifest {manifest!r}, line {rows.line_num}: not valid CSV: {error}"
        ) from error


def _parquet_column(stream: BinaryIO, manifest: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(stream)
        if COLUMN not in table.schema_arrow.names:
            raise _no_column(manifest, table.schema_arrow.names)
        kind = table.schema_arrow.field(COLUMN).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind not in (pa.string(), pa.large_string(), pa.string_view()):
            raise UsageError(
                f"manifest {manifest!r}: column {COLUMN!r} has type {kind}; expected string"
            )
        for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=[COLUMN]):
            # As bytes, because Arrow does not promise that a string is valid UTF-8.
            column = batch.column(0).cast(pa.large_string()).cast(pa.large_binary())
            for value in column.to_pylist():
                if value and value.strip():
                    yield value.decode("utf-8", "surrogateescape")
    except pa.ArrowException as error:
        raise UsageError(f"manifest {manifest!r}: not valid Parquet: {error}") from error


def _no_column(manifest: str, found: list[str]) -> UsageError:
    return UsageError(
        f"manifest {manifest!r} has no column {COLUMN!r}; found {', '.join(found) or 'none'}. "
        f"Name the column with the paths and addresses {COLUMN!r}"
    )

"""Writes objects with checksums, and finds damage when it reads them.

A Parquet object has SHA-256 of its body and of its footer as a value in the footer. A JSON object
has SHA-256 of its bytes in the field `checksum`. A digest covers the bytes with zeros in its own
place, so all readers of Parquet and JSON can open these objects. Objects without a checksum, such
as those of other programs, are read without a check.

The checksum also covers the object's name, so readers notice two objects that changed places. A
copy has the name of its original: `snapshots/clips/…` that of `clips/…`, and the manifest of a
snapshot that of `shards/manifest.json`.

Checksums of Parquet pages cover rows that are read alone, such as encoded video.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from curator.errors import DamagedError, raised_as
from curator.storage import Store
from curator.tables.json_objects import (
    FIELD,
    NOT_YET,
    check_digest,
    check_name,
    found,
    opened_json,
    original_name,
    read_json,
    tried,
    with_digest,
)

T = TypeVar("T")


CHECKSUM = b"curate.checksum"
"""Key of the value in a Parquet footer."""
NAME = b"curate.object"
"""Key of the object's own name in a Parquet footer."""
_BY_CONTENT = re.compile("~+")
"""Part of a name that `sealed_parquet` replaces by as many digits of a digest."""
_READERS = 8
_ARROW = raised_as(ValueError, pa.ArrowException)
"""For functions that read: what Arrow finds wrong with an object is damage, as in JSON."""
_MAGIC = b"PAR1"
_END = 8
"""Number of bytes after a Parquet footer: its length, and `_MAGIC`."""


def sealed_parquet(
    write: Callable[[pq.ParquetWriter], object], schema: pa.Schema, name: str, **options: object
) -> tuple[str, bytes]:
    """Returns a name, and Parquet bytes with a checksum to store under this name.

    The name is `name` with hexadecimal digits of a digest of the content in place of each `~`.
    `options` are options of `ParquetWriter`.
    """
    # A part of a table may have a gigabyte, so nothing copies it: a footer is changed in place.
    sink = io.BytesIO()
    # The schema of rows from another object has the name and checksum of that object.
    schema = schema.with_metadata(_without_seal(schema) or None)
    with pq.ParquetWriter(sink, schema, write_page_checksum=True, **options) as writer:
        write(writer)
        writer.add_key_value_metadata({NAME: original_name(name), CHECKSUM: NOT_YET})
    data = sink.getbuffer()
    start = len(data) - _footer_bytes(bytes(data[-_END:]))
    body, footer = hashlib.sha256(data[:start]), bytes(data[start:])
    named = _BY_CONTENT.sub(lambda match: _of_both(body, footer)[: len(match[0])], name)
    footer = footer.replace(original_name(name).encode(), original_name(named).encode())
    data[start:] = with_digest(footer, body)
    data.release()
    return named, sink.getvalue()


def read_parquet(
    store: Store,
    name: str,
    columns: Sequence[str] | None = None,
    *,
    optional: Sequence[str] = (),
) -> pa.Table:
    """Reads all bytes of a Parquet object, and returns some columns; raises as `read_json`.

    Columns of `optional` may be missing.
    """
    return tried(store, name, lambda: _opened_parquet(store.read(name), name, columns, optional))


def find_parquet(store: Store, name: str, columns: Sequence[str]) -> pa.Table | None:
    """Reads a Parquet object as `read_parquet` does, by one request; None if it is missing."""
    return found(store, name, lambda data: _opened_parquet(data, name, columns))


def read_rows(store: Store, name: str, read: Callable[[pq.ParquetFile], T]) -> T:
    """Reads rows or columns of a Parquet object, and checks their pages; raises as `read_json`."""

    @_ARROW
    def opened() -> T:
        with store.open(name) as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _END))
            n_bytes = _footer_bytes(stream.read(_END))
            if n_bytes > size - len(_MAGIC):
                raise ValueError("its footer is cut off")
            stream.seek(size - n_bytes)
            metadata = _metadata(stream.read(n_bytes), name)
            stream.seek(0)
            file = pq.ParquetFile(stream, metadata=metadata, page_checksum_verification=True)
            return read(file)

    return tried(store, name, opened)


def read_footer(store: Store, name: str) -> dict[bytes, bytes]:
    """Reads the values in the footer of a Parquet object; raises as `read_rows`."""
    return read_rows(store, name, lambda file: dict(file.metadata.metadata or {}))


def read_sealed(store: Store, key: str, name: str) -> tuple[bytes, bool]:
    """Reads all bytes of the object `name` or of a copy, stored as `key`; raises as `read_json`.

    Returns the bytes, and whether they have a checksum.
    """

    @_ARROW
    def read() -> tuple[bytes, bool]:
        data = store.read(key)
        if name.endswith(".json"):
            opened_json(data, name)
            return data, FIELD in json.loads(data)
        is_sealed = CHECKSUM in (pq.read_metadata(pa.BufferReader(data)).metadata or {})
        # A checksum covers all bytes; without one, only reading all columns finds damage.
        _opened_parquet(data, name, () if is_sealed else None)
        return data, is_sealed

    return tried(store, key, read)


def is_damaged(store: Store, name: str) -> bool:
    """Returns whether an object of Parquet or JSON is missing, truncated or changed."""
    try:
        if name.endswith(".json"):
            read_json(store, name)
        else:
            read_parquet(store, name, ())
    except DamagedError:
        return True
    return False


def filter_in_threads(is_so: Callable[[str], bool], names: Iterable[str]) -> list[str]:
    """Returns the names for which a function returns True; calls it in threads."""
    names = list(names)
    with ThreadPoolExecutor(_READERS) as pool:
        return [name for name, yes in zip(names, pool.map(is_so, names), strict=True) if yes]


@_ARROW
def _opened_parquet(
    data: bytes, name: str, columns: Sequence[str] | None, optional: Sequence[str] = ()
) -> pa.Table:
    start = len(data) - _footer_bytes(data[-_END:])
    if start < len(_MAGIC):
        raise ValueError("its footer is cut off")
    metadata = _metadata(data[start:], name, hashlib.sha256(memoryview(data)[:start]))
    # `pq.read_table` would make a dataset of the file, and take twice as long for a small file.
    file = pq.ParquetFile(pa.BufferReader(data), metadata=metadata)
    if columns is not None:
        columns = [*columns, *(n for n in optional if n in file.schema_arrow.names)]
    table = file.read(columns=columns)
    table = table if columns is None else table.select(columns)
    return table.replace_schema_metadata(_without_seal(table.schema))


def _without_seal(schema: pa.Schema) -> dict[bytes, bytes]:
    return {k: v for k, v in (schema.metadata or {}).items() if k not in (CHECKSUM, NAME)}


def _metadata(footer: bytes, name: str, body: Any = None) -> pq.FileMetaData:  # noqa: ANN401
    """Parses and checks a footer with the 8 bytes after it; `body` is None for an unread body."""
    metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
    values = metadata.metadata or {}
    checksum = values.get(CHECKSUM, NOT_YET.encode())
    if checksum != NOT_YET.encode():
        check_digest(footer, checksum, body)
    own = values.get(NAME)
    digest = partial(_of_both, body, footer) if body else None
    check_name(name, own.decode() if own is not None else None, digest)
    return metadata


def _of_both(body: Any, footer: bytes) -> str:  # noqa: ANN401
    """Returns the digest of a body, given by its hash, and the footer after it."""
    whole = body.copy()
    whole.update(footer)
    return str(whole.hexdigest())


def _footer_bytes(end: bytes) -> int:
    """Returns the length of a footer, plus the 8 bytes `end` after it."""
    if len(end) < _END or end[4:] != _MAGIC:
        raise ValueError("it does not end like Parquet")
    return int.from_bytes(end[:4], "little") + _END

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from curator.errors import DamagedError, StorageError
from curator.storage import Store

T = TypeVar("T")

CHECKSUM = b"curate.checksum"
"""Key of the value in a Parquet footer."""
FIELD = "checksum"
"""Field of an object of JSON."""
NAME, NAME_FIELD = b"curate.object", "object"
"""Places of the object's own name: key of the value in a footer, and field of JSON."""
_BY_CONTENT = re.compile("~+")
"""Part of a name that `sealed_parquet` replaces by as many digits of a digest."""
TRIES = 3
"""Attempts to read an object before it counts as damaged. Plain HTTP may flip bits."""
_READERS = 8
_HALF = 32
_NOT_YET = "0" * 2 * _HALF
_MAGIC = b"PAR1"
_END = 8
"""Number of bytes after a Parquet footer: its length, and `_MAGIC`."""
_COPIES = re.compile(r"snapshots/(manifest|dataset|removed)-([0-9a-f]{16})(\.json|\.parquet)")
"""Copies in snapshots; a hash of their bytes names them."""
_OF_SHARDS = {
    "shards/manifest.next.json": "shards/manifest.json",
    "manifest.next.json": "shards/manifest.json",
    "manifest.json": "shards/manifest.json",
    "dataset.parquet": "shards/dataset.parquet",
}


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
        writer.add_key_value_metadata({NAME: _original(name), CHECKSUM: _NOT_YET})
    data = sink.getbuffer()
    start = len(data) - _footer_bytes(bytes(data[-_END:]))
    body, footer = hashlib.sha256(data[:start]), bytes(data[start:])
    named = _BY_CONTENT.sub(lambda match: _of_both(body, footer)[: len(match[0])], name)
    footer = footer.replace(_original(name).encode(), _original(named).encode())
    data[start:] = _sealed(footer, body)
    data.release()
    return named, sink.getvalue()


def sealed_json(
    value: Mapping[str, Any], dump: Callable[[dict[str, Any]], bytes], name: str
) -> bytes:
    """Returns the bytes of a JSON object with a checksum, encoded by `dump`, to store as `name`."""
    sealed = {**value, NAME_FIELD: _original(name), FIELD: _NOT_YET}
    return _sealed(dump(sealed), hashlib.sha256())


def to_json(value: object) -> bytes:
    """Returns indented JSON, as this package writes it."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_json(store: Store, name: str) -> dict[str, Any]:
    """Reads a JSON object; raises `DamagedError` if it is missing, truncated or changed."""
    return read_json_bytes(store, name)[0]


def read_json_bytes(store: Store, name: str) -> tuple[dict[str, Any], bytes]:
    """Reads a JSON object as `read_json` does; returns the object and its stored bytes."""

    def read() -> tuple[dict[str, Any], bytes]:
        data = store.read(name)
        return opened_json(data, name), data

    return _tried(store, name, read)


def find_json(store: Store, name: str) -> dict[str, Any] | None:
    """Reads a JSON object as `read_json` does, by one request; None if it is missing."""
    return _find(store, name, lambda data: opened_json(data, name))


def opened_json(data: bytes, name: str) -> dict[str, Any]:
    """Parses and checks a JSON object that was read as `name`; raises `ValueError` for damage."""
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    checksum = value.pop(FIELD, _NOT_YET)
    if checksum != _NOT_YET:
        _check(data, str(checksum).encode(), hashlib.sha256())
    _check_name(name, value.pop(NAME_FIELD, None), lambda: hashlib.sha256(data).hexdigest())
    return value


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
    return _tried(store, name, lambda: _opened_parquet(store.read(name), name, columns, optional))


def find_parquet(store: Store, name: str, columns: Sequence[str]) -> pa.Table | None:
    """Reads a Parquet object as `read_parquet` does, by one request; None if it is missing."""
    return _find(store, name, lambda data: _opened_parquet(data, name, columns))


def read_rows(store: Store, name: str, read: Callable[[pq.ParquetFile], T]) -> T:
    """Reads rows or columns of a Parquet object, and checks their pages; raises as `read_json`."""

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

    return _tried(store, name, opened)


def read_footer(store: Store, name: str) -> dict[bytes, bytes]:
    """Reads the values in the footer of a Parquet object; raises as `read_rows`."""
    return read_rows(store, name, lambda file: dict(file.metadata.metadata or {}))


def read_sealed(store: Store, key: str, name: str) -> tuple[bytes, bool]:
    """Reads all bytes of the object `name` or of a copy, stored as `key`; raises as `read_json`.

    Returns the bytes, and whether they have a checksum.
    """

    def read() -> tuple[bytes, bool]:
        data = store.read(key)
        if name.endswith(".json"):
            opened_json(data, name)
            return data, FIELD in json.loads(data)
        is_sealed = CHECKSUM in (pq.read_metadata(pa.BufferReader(data)).metadata or {})
        # A checksum covers all bytes; without one, only reading all columns finds damage.
        _opened_parquet(data, name, () if is_sealed else None)
        return data, is_sealed

    return _tried(store, key, read)


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


def _find(store: Store, name: str, opened: Callable[[bytes], T]) -> T | None:
    def read() -> T | None:
        entry = store.read_versioned(name)
        if entry is None:
            return None
        info, data = entry
        # The first request returns only the first bytes of a large object.
        return opened(data if len(data) == info.bytes else store.read(name))

    return _tried(store, name, read)


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


def _tried(store: Store, name: str, read: Callable[[], T]) -> T:
    """Calls `read` until the object is valid, at most `TRIES` times."""
    for _ in range(TRIES):
        try:
            return read()
        except StorageError as error:
            if isinstance(error, DamagedError) or store.exists(name):
                raise
            raise DamagedError(store.uri, name, "it is missing") from error
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            why = " ".join(str(error).split()) or type(error).__name__
    raise DamagedError(store.uri, name, why)


def _sealed(part: bytes, body: Any) -> bytes:  # noqa: ANN401 - a hash of hashlib
    """Returns `part`, which is a footer or JSON, with the digests of body and part."""
    empty = _NOT_YET.encode()
    if part.count(empty) != 1:
        # A value looks like the placeholder. No checksum is better than a wrong one.
        return part
    at = part.index(empty)
    part = part[:at] + body.hexdigest()[:_HALF].encode() + part[at + _HALF :]
    at, digest = at + _HALF, hashlib.sha256(part).hexdigest()[:_HALF].encode()
    return part[:at] + digest + part[at + _HALF :]


def _check(part: bytes, checksum: bytes, body: Any) -> None:  # noqa: ANN401
    """Checks a footer or JSON, and the hash of the body before it; None for an unread body."""
    at = part.find(checksum) + _HALF
    zeros = b"0" * _HALF
    digest = hashlib.sha256(part[:at] + zeros + part[at + _HALF :]).hexdigest()[:_HALF].encode()
    is_whole = at >= _HALF and len(checksum) == 2 * _HALF and checksum[_HALF:] == digest
    if not is_whole or (body is not None and checksum[:_HALF] != body.hexdigest()[:_HALF].encode()):
        raise ValueError("its checksum does not match")


def _metadata(footer: bytes, name: str, body: Any = None) -> pq.FileMetaData:  # noqa: ANN401
    """Parses and checks a footer with the 8 bytes after it; `body` is None for an unread body."""
    metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
    values = metadata.metadata or {}
    checksum = values.get(CHECKSUM, _NOT_YET.encode())
    if checksum != _NOT_YET.encode():
        _check(footer, checksum, body)
    own = values.get(NAME)
    digest = partial(_of_both, body, footer) if body else None
    _check_name(name, own.decode() if own is not None else None, digest)
    return metadata


def _of_both(body: Any, footer: bytes) -> str:  # noqa: ANN401
    """Returns the digest of a body, given by its hash, and the footer after it."""
    whole = body.copy()
    whole.update(footer)
    return str(whole.hexdigest())


def _original(name: str) -> str:
    """Returns the name that an object and its copies contain."""
    if name in _OF_SHARDS:
        # Users may copy the folder of the shards alone.
        return _OF_SHARDS[name]
    if (copied := _COPIES.fullmatch(name)) is not None:
        return f"shards/{copied[1]}{copied[3]}"
    return name.removeprefix("snapshots/") if name.count("/") > 1 else name


def _check_name(name: str, stored_name: object, digest: Callable[[], str] | None) -> None:
    """Checks that an object belongs to a name; `digest` is None if only a part was read."""
    if stored_name is None:
        return
    copied = _COPIES.fullmatch(name)
    is_of_bytes = copied is None or digest is None or digest().startswith(copied[2])
    # The name of a record's copy follows from its bytes alone.
    is_record = (
        copied is not None and copied[1] == "removed" and str(stored_name).startswith("removed/")
    )
    if not (is_record or stored_name == _original(name)) or not is_of_bytes:
        raise ValueError(f"it is another object: {str(stored_name)[:100]}")


def _footer_bytes(end: bytes) -> int:
    """Returns the length of a footer, plus the 8 bytes `end` after it."""
    if len(end) < _END or end[4:] != _MAGIC:
        raise ValueError("it does not end like Parquet")
    return int.from_bytes(end[:4], "little") + _END

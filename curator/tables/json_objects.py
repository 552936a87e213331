"""Writes JSON objects with checksums, and finds damage when it reads them.

A JSON object has SHA-256 of its bytes in the field `checksum`, and its own name in `object`;
`checksums` says what the digest covers, and shares its functions with Parquet objects. This module
imports no Arrow, so a command that only reads settings starts sooner.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson

from curator.errors import DamagedError, StorageError
from curator.storage import Store

T = TypeVar("T")

FIELD, NAME_FIELD = "checksum", "object"
"""Fields of an object of JSON: the checksum, and the object's own name."""
TRIES = 3
"""Attempts to read an object before it counts as damaged. Plain HTTP may flip bits."""

HALF = 32
"""Digits of a digest that a checksum has of the body, and of the footer or JSON."""
NOT_YET = "0" * 2 * HALF
"""In place of a checksum while it is computed."""
_COPIES = re.compile(r"snapshots/(manifest|dataset|removed)-([0-9a-f]{16})(\.json|\.parquet)")
"""Copies in snapshots; a hash of their bytes names them."""

_OF_SHARDS = {
    "shards/manifest.next.json": "shards/manifest.json",
    "manifest.next.json": "shards/manifest.json",
    "manifest.json": "shards/manifest.json",
    "dataset.parquet": "shards/dataset.parquet",
}


def sealed_json(
    value: Mapping[str, Any], dump: Callable[[dict[str, Any]], bytes], name: str
) -> bytes:
    """Returns the bytes of a JSON object with a checksum, encoded by `dump`, to store as `name`."""
    sealed = {**value, NAME_FIELD: original_name(name), FIELD: NOT_YET}
    return with_digest(dump(sealed), hashlib.sha256())


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

    return tried(store, name, read)


def find_json(store: Store, name: str) -> dict[str, Any] | None:
    """Reads a JSON object as `read_json` does, by one request; None if it is missing."""
    return found(store, name, lambda data: opened_json(data, name))


def opened_json(data: bytes, name: str) -> dict[str, Any]:
    """Parses and checks a JSON object that was read as `name`; raises `ValueError` for damage."""
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {type(value).__name__}")
    checksum = value.pop(FIELD, NOT_YET)
    if checksum != NOT_YET:
        check_digest(data, str(checksum).encode(), hashlib.sha256())
    check_name(name, value.pop(NAME_FIELD, None), lambda: hashlib.sha256(data).hexdigest())
    return value


def found(store: Store, name: str, opened: Callable[[bytes], T]) -> T | None:
    """Reads an object by one request, as `tried` does; None if it is missing."""

    def read() -> T | None:
        entry = store.read_versioned(name)
        if entry is None:
            return None
        info, data = entry
        # The first request returns only the first bytes of a large object.
        return opened(data if len(data) == info.bytes else store.read(name))

    return tried(store, name, read)


def tried(store: Store, name: str, read: Callable[[], T]) -> T:
    """Calls `read` until the object is valid, at most `TRIES` times."""
    for _ in range(TRIES):
        try:
            return read()
        except StorageError as error:
            if isinstance(error, DamagedError) or store.exists(name):
                raise
            raise DamagedError(store.uri, name, "it is missing") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            why = " ".join(str(error).split()) or type(error).__name__
    raise DamagedError(store.uri, name, why)


def with_digest(part: bytes, body: Any) -> bytes:  # noqa: ANN401 - a hash of hashlib
    """Returns `part`, which is a footer or JSON, with the digests of body and part."""
    empty = NOT_YET.encode()
    if part.count(empty) != 1:
        # A value looks like the placeholder. No checksum is better than a wrong one.
        return part
    at = part.index(empty)
    part = part[:at] + body.hexdigest()[:HALF].encode() + part[at + HALF :]
    at, digest = at + HALF, hashlib.sha256(part).hexdigest()[:HALF].encode()
    return part[:at] + digest + part[at + HALF :]


def check_digest(part: bytes, checksum: bytes, body: Any) -> None:  # noqa: ANN401
    """Checks a footer or JSON, and the hash of the body before it; None for an unread body."""
    at = part.find(checksum) + HALF
    zeros = b"0" * HALF
    digest = hashlib.sha256(part[:at] + zeros + part[at + HALF :]).hexdigest()[:HALF].encode()
    is_whole = at >= HALF and len(checksum) == 2 * HALF and checksum[HALF:] == digest
    if not is_whole or (body is not None and checksum[:HALF] != body.hexdigest()[:HALF].encode()):
        raise ValueError("its checksum does not match")


def original_name(name: str) -> str:
    """Returns the name that an object and its copies contain."""
    if name in _OF_SHARDS:
        # Users may copy the folder of the shards alone.
        return _OF_SHARDS[name]
    if (copied := _COPIES.fullmatch(name)) is not None:
        return f"shards/{copied[1]}{copied[3]}"
    return name.removeprefix("snapshots/") if name.count("/") > 1 else name


def check_name(name: str, stored_name: object, digest: Callable[[], str] | None) -> None:
    """Checks that an object belongs to a name; `digest` is None if only a part was read."""
    if stored_name is None:
        return
    copied = _COPIES.fullmatch(name)
    is_of_bytes = copied is None or digest is None or digest().startswith(copied[2])
    # The name of a record's copy follows from its bytes alone.
    is_record = (
        copied is not None and copied[1] == "removed" and str(stored_name).startswith("removed/")
    )
    if not (is_record or stored_name == original_name(name)) or not is_of_bytes:
        raise ValueError(f"it is another object: {str(stored_name)[:100]}")

"""The base of all object stores: a store under a prefix of a bucket."""

import io
import secrets
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import BinaryIO, Literal

from curator.errors import StorageError
from curator.storage.base import (
    TEMPORARY_PREFIX,
    Entry,
    ObjectInfo,
    Store,
    checked_key,
    is_temporary,
)
from curator.storage.object_service import Cause, NoRangeError, ObjectService, service_named
from curator.storage.range_reader import BUFFER_BYTES, FIRST_BYTES, RangeReader

SINGLE_REQUEST_BYTES = 64 << 20
"""Largest object that `write` and `read` transfer in one request."""


@dataclass(frozen=True, slots=True)
class BucketStore(Store):
    """Objects below `scheme://bucket/prefix`; readers see only complete objects."""

    is_local = False
    bucket: str
    prefix: str = ""
    scheme: str = "s3"

    @property
    def service(self) -> ObjectService:
        """The client of this process."""
        return service_named(self.scheme)

    @property
    def uri(self) -> str:
        """`scheme://bucket/prefix`, or `scheme://bucket`."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yields the objects with keys that start with `prefix`, sorted by key."""
        root = len(self._full(""))
        with self._explained("list", prefix):
            for item in self.service.list(self.bucket, self._full(prefix)):
                if (key := item.key[root:]) and not is_temporary(key):
                    yield replace(item, key=key)

    def entries(self) -> Iterator[Entry]:
        """Yields all objects, also those whose keys no store writes."""
        root = len(self._full(""))
        with self._explained("list", ""):
            for item in self.service.list(self.bucket, self._full("")):
                if key := item.key[root:]:
                    yield Entry(key=key, bytes=item.bytes, version=item.version)

    def open_entry(self, entry: Entry) -> BinaryIO:
        """Opens an object with any key, from its beginning."""
        return self._open(entry.key, probe="head", first_bytes=FIRST_BYTES)

    def has_changed(self, entry: Entry) -> bool:
        """Returns whether an object was replaced or deleted."""
        with suppress(Exception):
            found = self.service.head(self.bucket, self._full(entry.key))
            return found.version != entry.version
        return True

    def read(self, key: str) -> bytes:
        """Returns the whole object."""
        with self._open(checked_key(key), probe="head", first_bytes=SINGLE_REQUEST_BYTES) as stream:
            return stream.read()

    def open(self, key: str) -> BinaryIO:
        """Opens an object; the first request fetches its end, which is the footer of Parquet."""
        return self._open(checked_key(key), probe="tail", first_bytes=FIRST_BYTES)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Returns bytes `[start, end)` of an object with one request."""
        full = self._full(checked_key(key))
        with self._explained("read", key):
            return self.service.get_range(self.bucket, full, start, end).data

    def read_versioned(self, key: str) -> tuple[ObjectInfo, bytes] | None:
        """Returns a small object and its version with one request; None if it is missing."""
        full = self._full(checked_key(key))
        try:
            answer = self.service.get_range(self.bucket, full, 0, SINGLE_REQUEST_BYTES)
        except NoRangeError:
            # Another program left an empty object.
            return replace(self.service.head(self.bucket, full), key=key, bytes=0), b""
        except self.service.errors as error:
            if self.service.explain(error, self.bucket)[0] is Cause.MISSING:
                return None
            raise self._failure("read", key, error) from error
        return ObjectInfo(key=key, bytes=answer.size, version=answer.version), answer.data

    def find(self, key: str) -> ObjectInfo | None:
        """Returns size and version of an object with one request; None if it does not exist."""
        try:
            info = self.service.head(self.bucket, self._full(checked_key(key)))
        except self.service.errors as error:
            if self.service.explain(error, self.bucket)[0] is Cause.MISSING:
                return None
            raise self._failure("look up", key, error) from error
        return replace(info, key=key)

    def check_writable(self) -> None:
        """Checks access: lists the prefix, then writes and removes a small object."""
        for _ in islice(self.list(), 1):
            pass
        probe = f"{TEMPORARY_PREFIX}check-{secrets.token_hex(8)}"
        self._put(probe, b"written to see whether this prefix can be written\n")
        with self._explained("delete", probe):
            self._remove(probe)

    def _own(self, key: str, data: bytes) -> ObjectInfo | None:
        """Returns the object if an earlier attempt of a refused request wrote it; else None."""
        entry = self.read_versioned(key)
        return entry[0] if entry is not None and entry[1] == data else None

    @abstractmethod
    def _put(self, key: str, data: bytes) -> None:
        """Puts a whole object with one request."""

    @abstractmethod
    def _remove(self, key: str) -> None:
        """Removes one object with one request; does not catch errors."""

    def _open(self, key: str, *, probe: Literal["head", "tail"], first_bytes: int) -> BinaryIO:
        def failure(error: Exception, uri: str) -> StorageError:
            return self._failure("read", key, error)

        uri = self._uri(key)
        raw = RangeReader(uri, failure=failure, probe=probe, first_bytes=first_bytes)
        return io.BufferedReader(raw, BUFFER_BYTES)

    def _full(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def _uri(self, key: str) -> str:
        return f"{self.scheme}://{self.bucket}/{self._full(key)}"

    @contextmanager
    def _explained(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except self.service.errors as error:
            raise self._failure(action, key, error) from error

    def _failure(self, action: str, key: str, error: Exception) -> StorageError:
        _, words = self.service.explain(error, self.bucket)
        return StorageError(f"cannot {action} {self._uri(key)!r}: {words}")

"""The table of object stores, by the scheme of their addresses.

To add an object store, add a line to `_MODULES`, and a module with a function `service` that
returns an `ObjectService`. Stores, sources, listings, sidecars and models use this table.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from curator.storage.base import ObjectInfo, Store

_MODULES = {
    "s3": "curator.storage.s3_client",
    "gs": "curator.storage.cloud_service",
    "az": "curator.storage.cloud_service",
}
ADDRESSES = "s3://bucket/prefix (or gs://, az://)"
"""Supported addresses, for messages."""
UNSIGNED_READS, PAYER = "AWS_NO_SIGN_REQUEST", "AWS_REQUEST_PAYER"
READ_SETTINGS = (UNSIGNED_READS, PAYER)
"""Variables that say how buckets of others are read; the driver sends them to workers of Ray."""


class Cause(StrEnum):
    """Why a request failed."""

    MISSING = "missing"
    NO_BUCKET = "no_bucket"
    FORBIDDEN = "forbidden"
    CREDENTIALS = "credentials"
    CHANGED = "changed"
    UNREACHABLE = "unreachable"
    BUSY = "busy"
    OTHER = "other"


class ObjectChangedError(OSError):
    """The object was replaced during reading."""


class ShortBodyError(OSError):
    """The response does not have the requested number of bytes."""


class NoRangeError(ValueError):
    """The object is empty or ends before the range."""


class ObjectRange(NamedTuple):
    """Bytes of an object from `start` on, and the object's size and version."""

    start: int
    data: bytes
    size: int
    version: str


class ObjectService(ABC):
    """Requests to one kind of object store, thread-safe; methods may raise `errors`."""

    scheme: str
    errors: tuple[type[Exception], ...]

    @abstractmethod
    def store(self, bucket: str, prefix: str) -> Store:
        """Returns the store below a prefix; creates and checks nothing."""

    @abstractmethod
    def head(self, bucket: str, key: str) -> ObjectInfo:
        """Returns the size and version of one object."""

    @abstractmethod
    def list(self, bucket: str, prefix: str) -> Iterator[ObjectInfo]:
        """Yields the objects with keys that start with `prefix`, sorted by the UTF-8 of keys.

        Leaves out empty objects that represent folders in consoles.
        """

    @abstractmethod
    def page(self, bucket: str, prefix: str, after: str) -> tuple[dict[str, int], bool] | None:
        """Returns sizes by key of the next keys, and whether more follow; None if unsupported."""

    @abstractmethod
    def get_range(
        self, bucket: str, key: str, start: int, end: int, version: str = ""
    ) -> ObjectRange:
        """Fetches bytes [`start`, `end`), or fewer at the end of the object.

        A negative `start` counts from the end of the object, and ignores `end`. An empty `version`
        accepts any version.

        Raises:
            NoRangeError: The object has no such bytes.
            ObjectChangedError: The object has another version.
        """

    @abstractmethod
    def explain(self, error: Exception, bucket: str) -> tuple[Cause, str]:
        """Returns the cause of a failed request, and a message with its remedy."""


def scheme_of(place: str) -> str | None:
    """Returns the scheme of a known object store; None for a path and for other addresses."""
    scheme, mark, _ = place.partition("://")
    return scheme if mark and scheme in _MODULES else None


def service_of(place: str) -> ObjectService | None:
    """Returns the service of an address; None for a path and for other addresses.

    Raises:
        UsageError: A package is missing.
    """
    scheme = scheme_of(place)
    return None if scheme is None else service_named(scheme)


@cache
def service_named(scheme: str) -> ObjectService:
    """Returns the service of a scheme; raises as `service_of`."""
    module = importlib.import_module(_MODULES[scheme])
    service: ObjectService = module.service(scheme)
    return service


def bare(etag: str | None) -> str:
    """Returns an ETag without quotes, which some responses have."""
    return (etag or "").strip('"')


def split_uri(uri: str) -> tuple[str, str]:
    """Splits `scheme://bucket/key` at the first slash after the bucket; keeps the key verbatim."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key

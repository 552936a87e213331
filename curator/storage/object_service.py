"""Object stores by the scheme of their addresses: one table says which there are.

To add one: a line of `_MODULES`, and a module with a function `service` that gives an
`ObjectService`. Stores, sources, listings, sidecars and models all come here.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from curator.storage.base import Store

_MODULES = {
    "s3": "curator.storage.s3_service",
    "gs": "curator.storage.cloud_service",
    "az": "curator.storage.cloud_service",
}
ADDRESSES = "s3://bucket/prefix (or gs://, az://)"
"""For messages."""


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
    """The object was replaced while it was read."""


class ShortBodyError(OSError):
    """The answer has other bytes than were asked for."""


class NoRangeError(ValueError):
    """The object ends before the range: it is empty, or another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object of a bucket; `version` is the ETag without its quotes."""

    key: str
    bytes: int
    version: str


class ObjectRange(NamedTuple):
    """Bytes of an object from `start`, and its whole size and version."""

    start: int
    data: bytes
    size: int
    version: str


class ObjectService(ABC):
    """Requests to one kind of object store; threads may share it.

    Attributes:
        scheme: Of its addresses.
        errors: What its requests may raise.
    """

    scheme: str
    errors: tuple[type[Exception], ...]

    @abstractmethod
    def store(self, bucket: str, prefix: str) -> Store:
        """The store below a prefix; nothing is made or checked."""

    @abstractmethod
    def head(self, bucket: str, key: str) -> StoredObject:
        """Asks for the size and version of one object."""

    @abstractmethod
    def list(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        """Yields the objects whose key starts with `prefix`, sorted by the keys' UTF-8.

        The empty objects by which consoles show folders are left out.
        """

    @abstractmethod
    def page(self, bucket: str, prefix: str, after: str) -> tuple[dict[str, int], bool] | None:
        """Sizes by key of the first keys after one, and whether more follow.

        None where a listing cannot begin at a key.
        """

    @abstractmethod
    def get_range(
        self, bucket: str, key: str, start: int, end: int, version: str = ""
    ) -> ObjectRange:
        """Fetches bytes from `start` to before `end`, or to the end of the object.

        Args:
            bucket: Its name.
            key: Of the object.
            start: First byte; negative for so many bytes before the end of the object.
            end: Ignored where `start` is negative.
            version: That the object must have; empty for any.

        Raises:
            NoRangeError: The object has no such bytes.
            ObjectChangedError: It is another one.
        """

    @abstractmethod
    def explain(self, error: Exception, bucket: str) -> tuple[Cause, str]:
        """Gives the cause of a failed request, and what happened with its remedy in words."""


def scheme_of(place: str) -> str | None:
    """Scheme of an address on a known object store; None for a path and for other addresses."""
    scheme, mark, _ = place.partition("://")
    return scheme if mark and scheme in _MODULES else None


def service_of(place: str) -> ObjectService | None:
    """Requests to the object store of an address; None for a path and for other addresses.

    Raises:
        UsageError: A package is missing.
    """
    scheme = scheme_of(place)
    return None if scheme is None else service_named(scheme)


@cache
def service_named(scheme: str) -> ObjectService:
    """Requests to the object stores of a scheme, as `service_of`."""
    module = importlib.import_module(_MODULES[scheme])
    service: ObjectService = module.service(scheme)
    return service


def split_uri(uri: str) -> tuple[str, str]:
    """Splits `scheme://bucket/key` at the first slash; everything after it is the key, verbatim."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key

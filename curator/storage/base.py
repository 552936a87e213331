"""The interface of output stores: whole objects under one root, addressed by relative keys."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

from curator.errors import StorageError

TEMPORARY_PREFIX = ".tmp-"
"""Last key segments with this prefix are unfinished objects: never listed, never valid keys."""

STALE_AFTER_S = 24 * 3600.0
"""Age from which an unfinished object counts as left over; longer than any one object takes."""

TRAFFIC = Counter[str]()
"""Requests to S3 by this process and those sent again; bytes received from it, and sent to it or to
a folder."""

IsOwn = Callable[[str], bool]
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object of a store or a bucket.

    `key` is relative to the root of the store or the bucket, with `/` between its segments.
    `version` changes whenever the content is replaced: the ETag on S3, without its quotes; size,
    times and inode on a file system.
    """

    key: str
    bytes: int
    version: str


def is_md5(etag: str) -> bool:
    """Returns whether an ETag may be the MD5 of the object; that of parts has a dash."""
    return re.fullmatch("[0-9a-f]{32}", etag) is not None


class Store(ABC):
    """Whole objects under one root.

    A store holds only its address, so that it can be pickled; each process makes its own client.
    Every method raises `StorageError` with the object, the cause and the remedy.
    """

    is_local: ClassVar[bool]
    """Whether the root is a folder of this machine."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """The root: an absolute path, or `s3://bucket/prefix`; without a slash at the end."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yields the finished objects whose key starts with `prefix`, sorted by key.

        `prefix` is a plain string prefix: `clips` also matches `clips-old/x`. A root that does not
        exist has no objects.
        """

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Returns the whole object."""

    @abstractmethod
    def open(self, key: str) -> BinaryIO:
        """Opens an object for seeking and reading; S3 fetches only the parts that are read."""

    @abstractmethod
    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Returns bytes [`start`, `end`), at least one; fewer at the end; thread-safe."""

    def write(self, key: str, data: bytes) -> None:
        """Writes a whole object; a reader sees the old or the new one."""
        with self.create(key) as stream:
            stream.write(data)

    @abstractmethod
    def read_versioned(self, key: str) -> tuple[ObjectInfo, bytes] | None:
        """Returns a whole small object with the version of these bytes; None if it is missing."""

    @abstractmethod
    def write_new(self, key: str, data: bytes) -> ObjectInfo | None:
        """Writes and returns a whole small object; None if there is one already, left unchanged.

        Of several writers at once, in any processes on any machines, one succeeds. A power failure
        may undo this, and `replace`, in a folder. No other writer may write the same data: when a
        response was lost, the content is how a writer finds out that the object is its own.

        Raises:
            UnconditionalStoreError: The store cannot do this.
        """

    @abstractmethod
    def replace(self, key: str, data: bytes, version: str) -> ObjectInfo | None:
        """Writes over a small object, and returns it; None if it is gone or has another version.

        `version` is from `read_versioned`, `write_new` or `replace`; for `data` see `write_new`.

        Raises:
            UnconditionalStoreError: The store cannot do this.
        """

    @abstractmethod
    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """Opens an append-only stream whose object appears when the block ends without error."""

    def copy(self, source: str, target: str) -> None:
        """Makes an independent copy of an object under another key; on S3 the server does it."""
        self.write(target, self.read(source))

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects; ignores keys that do not exist."""

    @abstractmethod
    def find(self, key: str) -> ObjectInfo | None:
        """Returns size and version of a finished object; None if it does not exist."""

    def exists(self, key: str) -> bool:
        """Returns whether there is a finished object under the key."""
        return self.find(key) is not None

    def holds(self, info: ObjectInfo | None, data: bytes) -> bool:
        """Returns whether an object, None for a missing one, has these bytes.

        It is read only where its version does not say so: on S3, the ETag of what was written by
        one request is the MD5 of its bytes.
        """
        if info is None or info.bytes != len(data):
            return False
        md5 = hashlib.md5(data, usedforsecurity=False) if is_md5(info.version) else None
        is_same = md5 is not None and md5.hexdigest() == info.version
        return is_same or self.read(info.key) == data

    @abstractmethod
    def check_writable(self) -> None:
        """Writes and removes a small object, so that a run fails before its work."""

    def clean_temporary(
        self, folders: Iterable[str], is_own: IsOwn, *, older_than_s: float = STALE_AFTER_S
    ) -> int:
        """Removes objects that killed writers left unfinished, and returns their number.

        None where the service itself does: Azure after a week, Google by a rule of the bucket.

        Args:
            folders: Where to look, without subfolders for the root (an empty string).
            is_own: Whether a key is the caller's: on S3 the key of the object that was to be
                written, in a folder that of the unfinished file.
            older_than_s: Younger ones stay, because their writer may be alive. 0 removes all.
        """
        return 0


def checked_key(key: str) -> str:
    """Returns the key, if it names an object below a root on every kind of store.

    Raises:
        StorageError: It is absolute, has an empty, `.`, `..` or temporary segment, or a NUL.
    """
    segments = key.split("/")
    if "\0" in key or any(segment in ("", ".", "..") for segment in segments) or is_temporary(key):
        raise StorageError(
            f"{key!r} is not a valid object key: expected relative segments joined by '/', none "
            f"of them empty, '.', '..' or starting with {TEMPORARY_PREFIX!r}"
        )
    return key


def is_temporary(key: str) -> bool:
    """Returns whether any segment of the key is that of an unfinished object."""
    return any(segment.startswith(TEMPORARY_PREFIX) for segment in key.split("/"))


def has_scheme(uri: str) -> bool:
    """Returns whether this is an address such as `https://…`, and so no path."""
    return _SCHEME.match(uri) is not None

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
"""Prefix of the last key segment of unfinished objects, which are never listed or valid keys."""

STALE_AFTER_S = 24 * 3600.0
"""Age at which an unfinished object counts as abandoned; writing an object takes less time."""

TRAFFIC = Counter[str]()
"""Counts of this process: `requests` to S3, `retries`, `received_bytes` from S3, and `sent_bytes`
to S3 or a folder."""

IsOwn = Callable[[str], bool]
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object of a store or a bucket.

    `key` is relative to the root of the store or the bucket, with `/` between its segments.
    `version` changes with each replacement of the content. It is the ETag without quotes on object
    stores; size, times and inode on a file system.
    """

    key: str
    bytes: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Anything under a root: also folders, unfinished objects, links and special files.

    `problem` says why its content cannot be read. Folders, and links to what is under the root
    itself, have no content of their own.
    """

    key: str
    bytes: int = 0
    version: str = ""
    is_object: bool = True
    problem: str | None = None


def is_md5(etag: str) -> bool:
    """Returns whether an ETag may be the MD5 of the object; not so after an upload in parts."""
    return re.fullmatch("[0-9a-f]{32}", etag) is not None


class Store(ABC):
    """Whole objects under one root.

    A store holds only its address, so it can be pickled; each process makes its own client. All
    methods raise `StorageError`, which names the object, the cause and the remedy.
    """

    is_local: ClassVar[bool]
    """Whether the root is a folder of this machine."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """The root, without a slash at the end: an absolute path, or `s3://bucket/prefix`."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yields the finished objects with keys that start with `prefix`, sorted by key.

        `prefix` is a plain string prefix: `clips` also matches `clips-old/x`. A root that does not
        exist has no objects.
        """

    def entries(self) -> "Iterator[Entry]":
        """Yields all that is under the root, finished or not, without following links."""
        for info in self.list():
            yield Entry(key=info.key, bytes=info.bytes, version=info.version)

    def open_entry(self, entry: Entry) -> BinaryIO:
        """Opens an object of `entries`; never waits for another process."""
        return self.open(entry.key)

    def has_changed(self, entry: Entry) -> bool:
        """Returns whether an object of `entries` was replaced, changed or deleted since."""
        info = self.find(entry.key)
        return info is None or info.version != entry.version

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Returns the whole object."""

    @abstractmethod
    def open(self, key: str) -> BinaryIO:
        """Opens an object as a seekable stream; object stores send only the parts that are read."""

    @abstractmethod
    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Returns bytes [`start`, `end`), or fewer at the end of the object; thread-safe."""

    def write(self, key: str, data: bytes) -> None:
        """Writes a whole object; readers see the old or the new object."""
        with self.create(key) as stream:
            stream.write(data)

    @abstractmethod
    def read_versioned(self, key: str) -> tuple[ObjectInfo, bytes] | None:
        """Returns a small object with the version of its bytes; None if it is missing."""

    @abstractmethod
    def write_new(self, key: str, data: bytes) -> ObjectInfo | None:
        """Creates and returns a small object; returns None if the object exists, and keeps it.

        If several processes on any machines call this at once, only one succeeds. In a folder, a
        power failure may undo this and `replace`. Each writer must write different data: if a
        response is lost, a writer recognises its object by the content.

        Raises:
            UnconditionalStoreError: The store cannot do this.
        """

    @abstractmethod
    def replace(self, key: str, data: bytes, version: str) -> ObjectInfo | None:
        """Overwrites and returns a small object; None if it is gone or has another version.

        `version` is from `read_versioned`, `write_new` or `replace`. `write_new` explains `data`.

        Raises:
            UnconditionalStoreError: The store cannot do this.
        """

    @abstractmethod
    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """Opens an append-only stream; the object appears when the block ends without error."""

    def copy(self, source: str, target: str) -> None:
        """Copies an object to another key; S3 copies on the server."""
        self.write(target, self.read(source))

    def copy_from(self, other: "Store", source: str, target: str) -> bool:
        """Makes an object of another store's object without a transfer, if this store can.

        A folder makes a hard link, and S3 copies on the server. Returns False if nothing was made.
        """
        return False

    def copy_range(
        self, other: "Store", source: str, span: tuple[int, int], target: str, sha256: str
    ) -> bool:
        """Makes an object of the bytes `span` of another store's object without a transfer.

        S3 copies on the server, and compares the bytes with `sha256`, in hex. Returns False if the
        store cannot do either, or the bytes differ; then nothing was made.
        """
        return False

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects; ignores keys that do not exist."""

    @abstractmethod
    def find(self, key: str) -> ObjectInfo | None:
        """Returns size and version of a finished object; None if it does not exist."""

    def exists(self, key: str) -> bool:
        """Returns whether a finished object has this key."""
        return self.find(key) is not None

    def holds(self, info: ObjectInfo | None, data: bytes) -> bool:
        """Returns whether an object has these bytes; `info` is None for a missing object.

        The method reads the object only if its version does not prove the bytes. On S3, the ETag of
        an object that one request wrote is the MD5 of its bytes.
        """
        if info is None or info.bytes != len(data):
            return False
        md5 = hashlib.md5(data, usedforsecurity=False) if is_md5(info.version) else None
        is_same = md5 is not None and md5.hexdigest() == info.version
        return is_same or self.read(info.key) == data

    @abstractmethod
    def check_writable(self) -> None:
        """Writes and removes a small object, so that a run without access fails before its work."""

    def clean_temporary(
        self,
        folders: Iterable[str],
        is_own: IsOwn,
        *,
        older_than_s: float = STALE_AFTER_S,
        strict: bool = False,
    ) -> int:
        """Removes unfinished objects of killed writers; returns their number.

        The number is 0 if the service removes them: Azure after a week, Google by a bucket rule.

        Args:
            folders: Folders to search; an empty string is the root without its subfolders.
            is_own: Returns whether a key belongs to the caller. On S3 it gets the key of the
                object, in a folder the key of the unfinished file.
            older_than_s: Younger objects stay, because their writer may be alive. 0 removes all.
            strict: Whether a refusal of the service raises `StorageError`; else it is logged,
                because leftovers only take space.
        """
        return 0


def checked_key(key: str) -> str:
    """Returns the key if it is valid on every kind of store.

    Raises:
        StorageError: The key is absolute, or has an empty, `.`, `..` or temporary segment, or NUL.
    """
    segments = key.split("/")
    if "\0" in key or any(segment in ("", ".", "..") for segment in segments) or is_temporary(key):
        raise StorageError(
            f"{key!r} is not a valid object key: expected relative segments joined by '/'; a "
            f"segment must not be empty, '.' or '..', or start with {TEMPORARY_PREFIX!r}"
        )
    return key


def is_temporary(key: str) -> bool:
    """Returns whether a segment of the key has the prefix of unfinished objects."""
    return any(segment.startswith(TEMPORARY_PREFIX) for segment in key.split("/"))


def has_scheme(uri: str) -> bool:
    """Returns whether this is an address such as `https://…`, and not a path."""
    return _SCHEME.match(uri) is not None

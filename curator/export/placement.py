"""Puts objects at the destination, and passes over those that stand with the same bytes."""

import hashlib
import threading
from collections.abc import Iterable
from contextlib import suppress

from curator.errors import StorageError
from curator.export.export_options import Exported
from curator.storage import Store


class Place:
    """The destination of an export.

    An object is written whole, so that one that is there is none that was broken off; whether it
    is the one meant is seen from its size and, where that agrees, from its SHA-256.

    Args:
        store: Destination.
        exported: Where it counts.
        folders: Keys begin with one of these; what is there already is listed once, which takes
            about 200 bytes of memory for each object.
    """

    def __init__(self, store: Store, exported: Exported, folders: Iterable[str]) -> None:
        self.store = store
        self._exported = exported
        self._lock = threading.Lock()
        self._there: dict[str, int] = {}
        for folder in folders:
            self._there |= {info.key: info.bytes for info in store.list(folder)}
        self._mine: set[str] = set()

    def stands(self, key: str, n_bytes: int, sha256: str) -> bool:
        """Whether the object is there with these bytes, and counts it if so."""
        if self._there.get(key) != n_bytes:
            return False
        digest = hashlib.sha256()
        # What cannot be read is written anew.
        with suppress(StorageError, OSError), self.store.open(key) as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        if digest.hexdigest() != sha256:
            return False
        self.keep(key)
        self._exported.add(standing=1)
        return True

    def size(self, key: str) -> int | None:
        """Bytes of an object that was there at the beginning, or None."""
        return self._there.get(key)

    def keep(self, key: str) -> None:
        """Notes that an object is one of this export."""
        with self._lock:
            self._mine.add(key)

    def put(self, key: str, data: bytes) -> None:
        """Writes an object, unless it is there with these bytes."""
        if key in self._there and self.stands(key, len(data), hashlib.sha256(data).hexdigest()):
            return
        self.keep(key)
        self.store.write(key, data)
        self._exported.add(objects=1, n_bytes=len(data))

    def others(self, suffixes: tuple[str, ...]) -> list[str]:
        """Objects that were there at the beginning and are not of this export."""
        return sorted(k for k in self._there if k not in self._mine and k.endswith(suffixes))

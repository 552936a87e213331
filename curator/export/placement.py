"""Writes objects to the destination, and skips those that exist with the same bytes."""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from curator.errors import StorageError
from curator.storage import Store
from curator.tables.out_layout import is_unfinished


@dataclass(slots=True)
class Exported:
    """Counts of an export; thread-safe."""

    n_clips: int = 0
    n_objects: int = 0
    """Written."""
    n_reused: int = 0
    """Objects that were there already, with the same bytes."""
    n_bytes: int = 0
    """Written."""
    n_without_text: int = 0
    """Clips whose caption is empty."""
    n_measured: int = 0
    """Clips whose caption was composed of measurements: no model wrote it."""
    n_records: int = 0
    n_short: int = 0
    """Clips that were left out because they have too few frames."""
    n_left_out: int = 0
    """Preference pairs about frames that the written clip has not."""
    n_others: int = 0
    """Objects at the destination, among those that a loader would take, that this export did not
    write: left by another one."""
    manifest_problem: str | None = None
    """Why all tars were taken that are there, and not those of a manifest; None where one is."""
    left_members: tuple[str, ...] = ()
    """Members of samples, such as tensors, for which the format has no place."""
    records: str | None = None
    """What `n_records` counts, in words; None where it counts nothing."""
    origin: Mapping[str, str | None] | None = None
    """Class, distribution and versions of a format from outside this package."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **counts: int) -> None:
        """Counts; `clips=2` adds 2 to `n_clips`."""
        with self._lock:
            for name, n in counts.items():
                setattr(self, f"n_{name}", getattr(self, f"n_{name}") + n)


class Destination:
    """The destination of an export.

    Objects are written whole, so an existing one is complete; size and, if that agrees, SHA-256
    show whether it is the right one.

    Args:
        folders: Prefixes of the keys. Existing objects there are listed once, which takes about 200
            bytes of memory for each.
    """

    def __init__(self, store: Store, exported: Exported, folders: Iterable[str]) -> None:
        self._store = store
        self._exported = exported
        self._lock = threading.Lock()
        self._there: dict[str, int] = {}
        for folder in folders:
            self._there |= {info.key: info.bytes for info in store.list(folder)}
        # What a killed export did not finish.
        store.clean_temporary({"", *(key.rpartition("/")[0] for key in self._there)}, is_unfinished)
        self._mine: set[str] = set()

    def stands(self, key: str, n_bytes: int, sha256: str) -> bool:
        """Returns whether the object exists with these bytes, and counts it if so."""
        if self._there.get(key) != n_bytes:
            return False
        digest = hashlib.sha256()
        # An unreadable object is written anew.
        with suppress(StorageError, OSError), self._store.open(key) as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        if digest.hexdigest() != sha256:
            return False
        self.keep(key)
        self._exported.add(reused=1)
        return True

    def size(self, key: str) -> int | None:
        """Returns the size of an object that existed at the beginning, or None."""
        return self._there.get(key)

    def keep(self, key: str) -> None:
        """Marks an object as one of this export."""
        with self._lock:
            self._mine.add(key)

    def put(self, key: str, data: bytes) -> None:
        """Writes an object, unless it exists with these bytes."""
        if key in self._there and self.stands(key, len(data), hashlib.sha256(data).hexdigest()):
            return
        self.keep(key)
        self._store.write(key, data)
        self._exported.add(objects=1, bytes=len(data))

    @contextmanager
    def create(self, key: str) -> Iterator[BinaryIO]:
        """Opens a stream to an object, which appears when the block ends without error."""
        self.keep(key)
        with self._store.create(key) as output:
            yield output
        self._exported.add(objects=1)

    def others(self, suffixes: tuple[str, ...]) -> list[str]:
        """Returns objects that existed at the beginning and are not of this export."""
        return sorted(k for k in self._there if k not in self._mine and k.endswith(suffixes))

"""An output root that checks the lease before each write and removal, and records its writes.

An object with a fixed path is overwritten only if it has not changed since the last check of the
lease. So a writer that stalls in the middle of a write, and loses the lease, cannot overwrite
objects of the next holder.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy as copy_of
from dataclasses import dataclass
from typing import Any, BinaryIO

from curator.errors import StorageError, UnconditionalStoreError
from curator.storage import Store
from curator.tables.out_layout import has_fixed_path

_TRIES = 4
"""Attempts to write an object. After these, another program writes it all the time."""
_CONDITIONAL_BYTES = 64 << 20
"""Maximum size of a conditional write; larger objects need several requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Size and SHA-256, in hex, of an object."""

    n_bytes: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "Digest":
        """Returns the digest of bytes."""
        return cls(n_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    @classmethod
    def of_object(cls, store: Store, name: str) -> "Digest":
        """Reads an object, and returns its digest."""
        with store.open(name) as stream:
            digest = hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]
            return cls(n_bytes=stream.tell(), sha256=digest.hexdigest())

    def as_dict(self) -> dict[str, Any]:
        """Returns the form of a digest in a snapshot."""
        return {"bytes": self.n_bytes, "sha256": self.sha256}


def _passed_on(name: str, *, checks: bool = False) -> Callable[..., Any]:
    """Returns a method that calls the store's own method; `checks` the lease before."""

    def call(self: "FencedStore", *args: Any, **options: Any) -> Any:  # noqa: ANN401 - of any method
        if checks:
            self._check()
        return getattr(self._store, name)(*args, **options)

    return call


class FencedStore(Store):
    """A store that calls `check` before writes; `check` raises if this process may not write.

    Pickling gives the plain store, for workers.
    """

    def __init__(self, store: Store, check: Callable[[], None]) -> None:
        self._store, self._check = store, check
        self._has_conditions = True
        self.written: dict[str, Digest] = {}
        """Digests of the objects that `write` wrote, by name."""

    def __reduce__(self) -> tuple[Callable[[Store], Store], tuple[Store]]:
        """Returns the plain store, because the lease belongs to this process."""
        return copy_of, (self._store,)

    @property
    def is_local(self) -> bool:  # type: ignore[override]
        """Whether the root is a folder of this machine."""
        return self._store.is_local

    @property
    def uri(self) -> str:
        """The root."""
        return self._store.uri

    # Reads need no lease.
    list, read, open = _passed_on("list"), _passed_on("read"), _passed_on("open")
    read_range, read_versioned = _passed_on("read_range"), _passed_on("read_versioned")
    find, check_writable = _passed_on("find"), _passed_on("check_writable")
    # An atomic operation needs one check before.
    write_new, replace = _passed_on("write_new", checks=True), _passed_on("replace", checks=True)
    copy = _passed_on("copy", checks=True)
    clean_temporary = _passed_on("clean_temporary", checks=True)

    def write(self, key: str, data: bytes) -> None:
        """Writes a whole object if this process has the lease."""
        is_small = len(data) <= _CONDITIONAL_BYTES
        if not (has_fixed_path(key) and is_small and self._written_if_same(key, data)):
            self._check()
            self._store.write(key, data)
        self.written[key] = Digest.of(data)

    def _written_if_same(self, key: str, data: bytes) -> bool:
        """Overwrites the object from before the check; returns False without conditional writes."""
        for _ in range(_TRIES if self._has_conditions else 0):
            # Look up before the check: a later writer gives the object another version.
            info = self._store.find(key)
            self._check()
            try:
                if info is None:
                    done = self._store.write_new(key, data)
                else:
                    done = self._store.replace(key, data, info.version)
            except UnconditionalStoreError:
                self._has_conditions = False
                return False
            if done is not None:
                return True
        if not self._has_conditions:
            return False
        self._check()
        raise StorageError(
            f"another program changed {self.uri}/{key} during a write; run again when no other "
            "program writes there"
        )

    @contextmanager
    def create(self, key: str) -> Iterator[BinaryIO]:
        """Opens a stream; the object appears at the end if this process still has the lease."""
        self._check()
        with self._store.create(key) as stream:
            yield stream
            self._check()

    def delete(self, keys: Iterable[str]) -> None:
        """Removes objects; checks the lease before each object."""

        def checked() -> Iterator[str]:
            for key in keys:
                self._check()
                yield key

        self._store.delete(checked())

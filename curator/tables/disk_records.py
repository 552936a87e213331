"""Records on the local disk, found by key: memory holds 28 bytes for each, whatever its size.

The place of a record may be known before the record is read: the place is then a number of the
owner's, who reads the object behind it on demand.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from curator.tables.key_index import hashes
from curator.tables.spill_file import Spill

_MERGE_FROM = 65_536
"""Records whose places are in a dictionary until they are sorted among the others."""


class Keyed:
    """Records by key; the latest of a key counts.

    Keys are held as 64 bits of their hash: callers must check that a record is the right one.
    `fetch` reads the object behind an owner's number, and returns its records with their keys.
    """

    def __init__(self, fetch: Callable[[int], Iterator[tuple[str, bytes]]]) -> None:
        self._fetch = fetch
        self._spill = Spill()
        self._lock = threading.RLock()
        self._hashes = np.zeros(0, np.uint64)
        self._begin = np.zeros(0, np.int64)
        self._n_bytes = np.zeros(0, np.int32)
        self._new: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        with self._lock:
            self._merge()
            return len(self._hashes)

    def __contains__(self, key: str) -> bool:
        """Returns whether a key almost surely has a record."""
        (wanted,) = hashes([key]).tolist()
        with self._lock:
            return wanted in self._new or self._at(wanted) is not None

    def expect_all(self, keys: Sequence[Sequence[str]], begin: int = 0) -> None:
        """Notes the places of records: each number's object has some keys."""
        hash_lists = [hashes(some) for some in keys]
        numbers = np.repeat(np.arange(len(hash_lists)) + begin, [len(some) for some in hash_lists])
        with self._lock:
            self._merge()
            self._put(
                np.concatenate([np.zeros(0, np.uint64), *hash_lists]),
                -1 - numbers.astype(np.int64),
                np.zeros(len(numbers), np.int32),
            )

    def expect(self, keys: Sequence[str], number: int) -> None:
        """Notes that a number's object has some keys; for few keys at a time."""
        with self._lock:
            self._new |= dict.fromkeys(hashes(keys).tolist(), (-1 - number, 0))
            if len(self._new) >= _MERGE_FROM:
                self._merge()

    def add(self, key: str, record: bytes) -> None:
        """Adds a record."""
        (at,) = hashes([key]).tolist()
        with self._lock:
            self._new[at] = self._spill.add(record), len(record)
            if len(self._new) >= _MERGE_FROM:
                self._merge()

    def get(self, key: str) -> bytes | None:
        """Returns the record that is almost surely of a key, or None."""
        (wanted,) = hashes([key]).tolist()
        with self._lock:
            place = self._new.get(wanted)
            if place is not None and place[0] < 0:
                self._merge()
                place = None
            if place is None:
                at = self._at(wanted)
                if at is None:
                    return None
                if self._begin[at] < 0:
                    self._read(-1 - int(self._begin[at]))
                    if self._begin[at] < 0:
                        return None
                place = int(self._begin[at]), int(self._n_bytes[at])
            return self._spill.read(*place)

    def records(self) -> Iterator[bytes]:
        """Yields all records, in no order."""
        with self._lock:
            self._merge()
            for number in np.unique(self._begin[self._begin < 0]).tolist():
                self._read(-1 - number)
            places = list(zip(self._begin.tolist(), self._n_bytes.tolist(), strict=True))
        return (self._spill.read(*place) for place in places if place[0] >= 0)

    def _read(self, number: int) -> None:
        """Takes over the whole object behind an owner's number, which is read once."""
        for key, record in self._fetch(number):
            (wanted,) = hashes([key]).tolist()
            at = self._at(wanted)
            if at is not None and self._begin[at] == -1 - number:
                self._begin[at] = self._spill.add(record)
                self._n_bytes[at] = len(record)

    def _at(self, wanted: int) -> int | None:
        at = int(np.searchsorted(self._hashes, np.uint64(wanted)))
        return at if at < len(self._hashes) and int(self._hashes[at]) == wanted else None

    def _merge(self) -> None:
        if self._new:
            new, self._new = self._new, {}
            places = list(new.values())
            self._put(
                np.fromiter(new, np.uint64, len(new)),
                np.array([begin for begin, _ in places], np.int64),
                np.array([n_bytes for _, n_bytes in places], np.int32),
            )

    def _put(
        self, key_hashes: NDArray[np.uint64], begin: NDArray[np.int64], n_bytes: NDArray[np.int32]
    ) -> None:
        every = np.concatenate([self._hashes, key_hashes])
        order = np.argsort(every, kind="stable")
        every = every[order]
        # Stable, so that the last of several with a key is the latest.
        is_last = np.ones(len(every), np.bool_)
        is_last[:-1] = every[1:] != every[:-1]
        kept = order[is_last]
        self._hashes = every[is_last]
        self._begin = np.concatenate([self._begin, begin])[kept]
        self._n_bytes = np.concatenate([self._n_bytes, n_bytes])[kept]

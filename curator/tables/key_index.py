"""Keys that earlier runs stored: 12 bytes per key in memory."""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from curator.tables.parts import Parts

_THREADS = 16
_AT_ONCE = 256


class KnownKeys:
    """Finds the part that probably has a key.

    Keys are held as 64 bits of their hash. Among a billion keys, one look-up in twenty billion
    finds a part without the key: readers of the part must check.
    """

    def __init__(self, parts: Mapping[str, Sequence[str]]) -> None:
        self._names = list(parts)
        self._hashes = np.concatenate(
            [np.zeros(0, np.uint64), *(hashes(keys) for keys in parts.values())]
        )
        lengths = [len(keys) for keys in parts.values()]
        self._part = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        self._sort()

    @classmethod
    def of(cls, parts: Parts) -> "KnownKeys":
        """Reads the keys in the footers of some parts."""
        known = cls({})
        names = iter(parts.names())
        found, number = [known._hashes], [known._part]
        with ThreadPoolExecutor(max_workers=_THREADS) as pool:
            # In batches: the keys of all parts are too many for a queue.
            while some := list(islice(names, _AT_ONCE)):
                for name, hashed in zip(
                    some, pool.map(lambda name: hashes(parts.keys(name)), some), strict=True
                ):
                    found.append(hashed)
                    number.append(np.full(len(hashed), len(known._names), np.int32))
                    known._names.append(name)
        known._hashes, known._part = np.concatenate(found), np.concatenate(number)
        known._sort()
        return known

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, keys: Sequence[str]) -> list[str | None]:
        """Returns the part of each key; None for those that no part has."""
        if not len(self):
            return [None] * len(keys)
        wanted = hashes(keys)
        at = np.minimum(np.searchsorted(self._hashes, wanted), len(self) - 1)
        part = np.where(self._hashes[at] == wanted, self._part[at], -1)
        return [self._names[number] if number >= 0 else None for number in part.tolist()]

    def _sort(self) -> None:
        # Stable, so that of several parts with a key the first by name counts.
        order = np.argsort(self._hashes, kind="stable")
        self._hashes, self._part = self._hashes[order], self._part[order]


def hashes(keys: Sequence[str]) -> NDArray[np.uint64]:
    """Returns 64 bits of each key's hash."""
    digests = (hashlib.blake2b(key.encode(), digest_size=8).digest() for key in keys)
    return np.frombuffer(b"".join(digests), np.uint64)

"""Finds the part that has a key, without reading the footers of all stored parts.

    index/<fingerprint>-<hash of a folder>.parquet    a row per part: version, and hashes of keys

The index repeats the footers, and results do not depend on it. A run lists the parts of a folder.
It uses the index for parts with the version in the index, and reads the footers of all others.
`curate remove` overwrites parts, and so changes their versions. If OUT was copied to another
folder, all versions differ, and a run reads all footers once more.

A run that had to read more than `FEW_FOOTERS` footers writes the index before its work. So each
part costs one request, in the first run after its own. Only the index grows with history, by 17
bytes per key; a run reads and writes it in one piece.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.errors import StorageError
from curator.fingerprints import fingerprint
from curator.storage import Store
from curator.tables.checksums import find_parquet
from curator.tables.long_columns import joined_chunks
from curator.tables.out_layout import INDEX
from curator.tables.parts import Parts, columns_schema, to_parquet

logger = logging.getLogger(__name__)

FEW_FOOTERS = 8
"""Up to this number, reading footers is faster than reading or writing an index."""
_STAMP = fingerprint("keys of parts", 1)
_SCHEMA = columns_schema(("part version", pa.string()), ("keys failed", pa.large_binary()))
"""Row of an index: `_HASH_BYTES` per key of the part, and a byte that is 1 for a failed key."""
_HASH_BYTES = 16
_THREADS = 16


class KnownKeys:
    """Finds the parts that have a key, by rows of an index: 21 bytes per key in memory.

    Each key is 128 bits of its hash, as many as a source id has.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._names: list[str] = rows["part"].to_pylist()
        hash_N2 = _halves(b"".join(rows["keys"].to_pylist()))  # noqa: N806
        n_keys = pc.binary_length(rows["failed"]).to_numpy()
        part = np.repeat(np.arange(len(n_keys), dtype=np.int32), n_keys)
        # A stable sort keeps parts with the same key in the order of their names.
        order = np.argsort(hash_N2[:, 0], kind="stable")
        self._first_half, self._second_half = hash_N2[order, 0], hash_N2[order, 1]
        self._part = part[order]
        self._failed = np.frombuffer(b"".join(rows["failed"].to_pylist()), np.bool_)[order]

    @classmethod
    def of(
        cls,
        store: Store,
        folder: str,
        listed: Mapping[str, str],
        wanted: Collection[str],
        *,
        may_write: bool = False,
    ) -> "KnownKeys":
        """Finds the keys of `wanted` parts in a folder, by the folder's index and by footers.

        `listed` are all parts in the folder, as `part_versions` returns them. Only the process of a
        run, which has the lease, `may_write` the index.
        """
        name = f"{INDEX}/{_STAMP}-{fingerprint(folder)}.parquet"
        index, is_damaged = None, False
        if len(wanted) > FEW_FOOTERS:
            try:
                index = find_parquet(store, name, _SCHEMA.names)
            except StorageError as error:
                is_damaged = True
                logger.warning("%s; the run reads footers instead, which takes more time", error)
        index = _SCHEMA.empty_table() if index is None else index
        pairs = zip(index["part"].to_pylist(), index["version"].to_pylist(), strict=True)
        index = index.filter(pa.array([listed.get(p) == v for p, v in pairs], pa.bool_()))
        new = sorted(set(wanted).difference(index["part"].to_pylist()))

        def row(part: str) -> dict[str, Any]:
            keys, failed = Parts(store, folder, "").footer(part)
            marks = bytes(map(frozenset(failed).__contains__, keys))
            return {"part": part, "version": listed[part], "keys": _digests(keys), "failed": marks}

        with ThreadPoolExecutor(_THREADS) as pool:
            rows = pa.Table.from_pylist(list(pool.map(row, new)), _SCHEMA)
        rows = pa.concat_tables([index, rows]).sort_by("part")
        if may_write and (len(new) > FEW_FOOTERS or is_damaged):
            store.write(name, to_parquet(joined_chunks(rows), name))
        return cls(rows.filter(pc.is_in(rows["part"], value_set=pa.array([*wanted], pa.string()))))

    def __len__(self) -> int:
        return len(self._part)

    def find(self, keys: Sequence[str]) -> list[str | None]:
        """Returns the first part, by name, of each key; None for a key in no part."""
        parts: list[str | None] = [None] * len(keys)
        for row, part, _ in self.matches(keys):
            parts[row] = parts[row] or part
        return parts

    def matches(self, keys: Sequence[str]) -> Iterable[tuple[int, str, bool]]:
        """Finds all parts of each key, in the order of keys and then of parts.

        Returns the position in `keys`, the part, and whether the key failed permanently.
        """
        sought_N2 = _halves(_digests(keys))  # noqa: N806
        row, at = equal_hashes(self._first_half, sought_N2[:, 0])
        is_same = self._second_half[at] == sought_N2[row, 1]
        row, at = row[is_same], at[is_same]
        parts = (self._names[number] for number in self._part[at].tolist())
        return zip(row.tolist(), parts, self._failed[at].tolist(), strict=True)


def part_versions(store: Store, folder: str) -> dict[str, str]:
    """Returns the version of each object in a folder, by name, sorted."""
    return {info.key: info.version for info in store.list(f"{folder}/")}


def equal_hashes(
    stored: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns positions of equal hashes in `wanted` and in the sorted `stored`, int64 [N] each."""
    first = np.searchsorted(stored, wanted, "left")
    n_equal = np.searchsorted(stored, wanted, "right") - first
    places = np.repeat(np.arange(len(wanted)), n_equal)
    return places, np.arange(len(places)) + np.repeat(first - np.cumsum(n_equal) + n_equal, n_equal)


def hashes(keys: Sequence[str]) -> NDArray[np.uint64]:
    """Returns 64 bits of each key's hash."""
    return np.frombuffer(_digests(keys, 8), np.uint64)


def _digests(keys: Sequence[str], n_bytes: int = _HASH_BYTES) -> bytes:
    """Returns the concatenated hashes of keys, `n_bytes` each."""
    return b"".join(hashlib.blake2b(key.encode(), digest_size=n_bytes).digest() for key in keys)


def _halves(hashes: bytes) -> NDArray[np.uint64]:
    """Returns the halves of N hashes, uint64 [N, 2]."""
    return np.frombuffer(hashes, np.uint64).reshape(-1, 2)

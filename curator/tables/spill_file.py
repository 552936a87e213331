"""Temporary files on the local disk: bytes by offset, and records by key."""

import mmap
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from curator.errors import StorageError
from curator.tables.key_index import hashes

_BUFFER_BYTES = 1 << 20
_CACHE_KB = 65_536
"""Memory for cached pages of the file of records."""
_RECORDS_AT_ONCE = 256


class Spill:
    """A temporary file without a name; all threads can read what one thread added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._n_bytes = self._n_flushed = 0
        self._mapped: mmap.mmap | None = None

    def add(self, data: bytes) -> int:
        """Adds bytes; returns their offset. Raises `StorageError` if the local disk is full."""
        with self._lock:
            begin = self._n_bytes
            try:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(buffering=_BUFFER_BYTES)  # noqa: SIM115
                self._file.write(data)
            except OSError as error:
                raise _explained(error.strerror) from error
            self._n_bytes += len(data)
            return begin

    def read(self, begin: int, n_bytes: int) -> bytes:
        """Reads bytes at an offset."""
        with self._lock:
            file = self._flushed(begin + n_bytes)
        return os.pread(file, n_bytes, begin)

    def view(self, begin: int, n_bytes: int) -> memoryview:
        """Returns a view of bytes at an offset; the system reads them on use."""
        with self._lock:
            file = self._flushed(begin + n_bytes)
            if self._mapped is None or begin + n_bytes > len(self._mapped):
                # Views of an older map keep that map alive.
                self._mapped = mmap.mmap(file, self._n_flushed, access=mmap.ACCESS_READ)
            return memoryview(self._mapped)[begin : begin + n_bytes]

    def forget(self) -> None:
        """Frees the memory of pages that views have read; the system reads them again on use."""
        with self._lock:
            if self._mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                self._mapped.madvise(mmap.MADV_DONTNEED)

    def _flushed(self, end: int) -> int:
        """Flushes all bytes up to `end` to the file; returns its descriptor."""
        assert self._file is not None, "bytes were added"
        if end > self._n_flushed:
            try:
                self._file.flush()
            except OSError as error:
                raise _explained(error.strerror) from error
            self._n_flushed = self._n_bytes
        return self._file.fileno()


def _explained(why: object) -> StorageError:
    return StorageError(
        f"{tempfile.gettempdir()}: {why}; a run needs some KB for each clip in a temporary file "
        "there; free some space, or set TMPDIR to another folder"
    )


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Explains errors of SQLite. Reads can fail too, because they may write cached pages."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(error) from error


class SpilledRecords:
    """Records on the local disk by key; the latest record of a key counts.

    `expect_all` names the object of a record by a number, before the record is read. `fetch` reads
    the object with a number, and yields keys and records. Each key is 64 bits of its hash, so
    callers must check that a record belongs to their key.
    """

    def __init__(self, fetch: Callable[[int], Iterator[tuple[str, bytes]]]) -> None:
        self._fetch, self._lock = fetch, threading.RLock()
        try:
            # The file stays open without a name, so it vanishes when the process ends.
            with tempfile.NamedTemporaryFile() as file:
                # No locks, because only this process opens it, and some file systems lack locks.
                address = f"{Path(file.name).as_uri()}?nolock=1"
                self._rows = sqlite3.connect(
                    address, uri=True, isolation_level=None, check_same_thread=False
                )
                for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KB}"):
                    self._rows.execute(f"PRAGMA {setting}")
                self._rows.execute("BEGIN")
                self._rows.execute(
                    "CREATE TABLE records (key INTEGER PRIMARY KEY, number INT, record BLOB)"
                )
        except (OSError, sqlite3.Error) as error:
            raise _explained(error) from error

    def __len__(self) -> int:
        with self._lock, _disk_errors():
            (n_records,) = self._rows.execute("SELECT count(*) FROM records").fetchone()
            return int(n_records)

    def __contains__(self, key: str) -> bool:
        return self._row(key) is not None

    def expect_all(self, keys: Sequence[Sequence[str]], begin: int = 0) -> None:
        """Notes which objects have which keys; their numbers ascend from `begin`."""
        rows = ((key, number) for number, some in enumerate(keys, begin) for key in _numbers(some))
        self._change("REPLACE INTO records VALUES (?, ?, NULL)", rows)

    def add(self, key: str, record: bytes) -> None:
        """Adds a record."""
        self._change("REPLACE INTO records VALUES (?, NULL, ?)", [(*_numbers([key]), record)])

    def get(self, key: str) -> bytes | None:
        """Returns the record of a key, or of another key with the same hash; None for none."""
        with self._lock:
            number, record = self._row(key) or (None, None)
            if number is not None and record is None:
                self._read(number)
                _, record = self._row(key) or (None, None)
            return record

    def records(self) -> Iterator[bytes]:
        """Yields all records, in no order."""
        with self._lock, _disk_errors():
            numbers = "SELECT DISTINCT number FROM records WHERE record IS NULL"
            for (number,) in self._rows.execute(numbers).fetchall():
                self._read(number)
            rows = self._rows.execute("SELECT record FROM records WHERE record IS NOT NULL")
        while True:
            with self._lock, _disk_errors():
                some = rows.fetchmany(_RECORDS_AT_ONCE)
            if not some:
                return
            yield from (record for (record,) in some)

    def _row(self, key: str) -> tuple[int | None, bytes | None] | None:
        query = "SELECT number, record FROM records WHERE key = ?"
        with self._lock, _disk_errors():
            row: tuple[int | None, bytes | None] | None = self._rows.execute(
                query, _numbers([key])
            ).fetchone()
            return row

    def _read(self, number: int) -> None:
        """Stores all records of the object with a number, so that it is read once."""
        rows = ((record, *_numbers([key]), number) for key, record in self._fetch(number))
        self._change("UPDATE records SET record = ? WHERE key = ? AND number = ?", rows)

    def _change(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        with self._lock, _disk_errors():
            self._rows.executemany(statement, rows)


def _numbers(keys: Sequence[str]) -> list[int]:
    return list(hashes(keys).astype(np.int64).tolist())

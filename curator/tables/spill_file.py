"""A temporary file on the local disk for bytes that are needed again."""

import mmap
import os
import tempfile
import threading
from typing import IO

from curator.errors import StorageError

_BUFFER_BYTES = 1 << 20


class Spill:
    """A temporary file without a name; all threads can read what one thread added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._written = 0
        self._file: IO[bytes] | None = None
        self._mapped: mmap.mmap | None = None

    def add(self, data: bytes) -> int:
        """Adds bytes; returns their offset.

        Raises:
            StorageError: Writing to the local disk failed.
        """
        with self._lock:
            begin = self._written + len(self._buffer)
            self._buffer += data
            if len(self._buffer) >= _BUFFER_BYTES:
                self._flush()
            return begin

    def read(self, begin: int, n_bytes: int) -> bytes:
        """Reads bytes at an offset."""
        with self._lock:
            if begin >= self._written:
                at = begin - self._written
                return bytes(self._buffer[at : at + n_bytes])
            if begin + n_bytes > self._written:
                self._flush()
        assert self._file is not None
        return os.pread(self._file.fileno(), n_bytes, begin)

    def view(self, begin: int, n_bytes: int) -> memoryview:
        """Returns bytes at an offset without reading them: the system does when they are used."""
        with self._lock:
            if begin + n_bytes > self._written:
                self._flush()
            assert self._file is not None
            if self._mapped is None or begin + n_bytes > len(self._mapped):
                # Views of an older map keep it.
                self._mapped = mmap.mmap(
                    self._file.fileno(), self._written, access=mmap.ACCESS_READ
                )
            return memoryview(self._mapped)[begin : begin + n_bytes]

    def forget(self) -> None:
        """Gives back the memory of what views have read; it is read again when it is used."""
        with self._lock:
            if self._mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                self._mapped.madvise(mmap.MADV_DONTNEED)

    def _flush(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - as long as this
            at = 0
            while at < len(self._buffer):
                at += os.pwrite(self._file.fileno(), self._buffer[at:], self._written + at)
        except OSError as error:
            raise StorageError(
                f"{tempfile.gettempdir()}: {error.strerror}; a run keeps some KB for each clip in "
                "a temporary file there; make room, or set TMPDIR to another folder"
            ) from error
        self._written += at
        self._buffer.clear()

"""Reads a source in whole blocks, and compares each block with its hash from analysis."""

import io
from collections import OrderedDict
from collections.abc import Callable
from typing import BinaryIO

from curator.errors import ErrorCode, SourceError
from curator.storage.content_id import BLOCK_BYTES, BLOCK_HASH_BYTES, block_hash
from curator.storage.range_reader import BUFFER_BYTES, SeekableReader
from curator.storage.source_reader import expect_end

_CACHED_BLOCKS = 4
"""A demuxer may read video, audio and index in turn."""


def open_blocks(
    reopen: Callable[[], BinaryIO], uri: str, *, n_bytes: int, hashes: bytes
) -> BinaryIO:
    """Opens a source as a buffered, seekable stream, and checks it by `ContentHashes.blocks`.

    `reopen` opens the source. It is called again after a block that differs, so that no buffer on
    the way returns the same bytes again.

    Raises:
        SourceError: CHANGED, from a read of the stream: a block differs twice.
    """
    # A reader whose constructor raised would be closed before it has attributes.
    opened = reopen()
    reader = _BlockReader(reopen, uri, n_bytes, hashes, opened=opened)
    return io.BufferedReader(reader, BUFFER_BYTES)


class _BlockReader(SeekableReader):
    def __init__(
        self,
        reopen: Callable[[], BinaryIO],
        uri: str,
        n_bytes: int,
        hashes: bytes,
        *,
        opened: BinaryIO,
    ) -> None:
        super().__init__(uri, n_bytes)
        self._hashes = hashes
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()
        self._reopen = reopen
        self._reader = opened

    @property
    def expected_end(self) -> int | None:
        """Write-only: see `expect_end`."""
        return None

    @expected_end.setter
    def expected_end(self, end: int) -> None:
        # Blocks are read whole.
        expect_end(self._reader, min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, self.size))

    def _at_position(self, most: int) -> memoryview:
        if self._position >= self.size or not most:
            return memoryview(b"")
        number, offset = divmod(self._position, BLOCK_BYTES)
        return self._block(number)[offset : offset + most]

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
            self._blocks.clear()
        super().close()

    def _block(self, number: int) -> memoryview:
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        begin = number * BLOCK_HASH_BYTES
        expected = self._hashes[begin : begin + BLOCK_HASH_BYTES]
        data = self._load(number)
        if block_hash(data) != expected:
            self._reader.close()
            self._reader = self._reopen()
            data = self._load(number)
        if block_hash(data) != expected:
            raise SourceError(
                ErrorCode.CHANGED,
                f"{self.name!r} differs from the analyzed bytes from byte {number * BLOCK_BYTES} "
                "on; restore it from a copy, or `touch` it (write an object again) for a new "
                "analysis, and run again",
            )
        self._blocks[number] = memoryview(data)
        if len(self._blocks) > _CACHED_BLOCKS:
            self._blocks.popitem(last=False)
        return self._blocks[number]

    def _load(self, number: int) -> bytes:
        self._reader.seek(number * BLOCK_BYTES)
        return self._reader.read(min(BLOCK_BYTES, self.size - number * BLOCK_BYTES))

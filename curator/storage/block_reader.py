"""Reads a source by whole blocks, each of which must have the hash that the analysis took of it."""

import io
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from curator.errors import ErrorCode, SourceError
from curator.storage.content_id import BLOCK_BYTES, BLOCK_HASH_BYTES, block_hash
from curator.storage.range_reader import BUFFER_BYTES, SeekableReader

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CACHED_BLOCKS = 4
"""Video, audio and index may be read in turn."""


def open_blocks(
    reopen: Callable[[], BinaryIO], uri: str, *, n_bytes: int, hashes: bytes
) -> BinaryIO:
    """Opens a source as a buffered, seekable stream, checked by `ContentHashes.blocks`.

    `reopen` opens it, and is called again for a block that differs, so that nothing between here
    and the storage gives the same bytes from a buffer.

    Raises:
        SourceError: CHANGED, from a read of the stream: a block differs twice.
    """
    return io.BufferedReader(_BlockReader(reopen, uri, n_bytes, hashes), BUFFER_BYTES)


class _BlockReader(SeekableReader):
    def __init__(
        self, reopen: Callable[[], BinaryIO], uri: str, n_bytes: int, hashes: bytes
    ) -> None:
        super().__init__(uri, n_bytes)
        self._hashes = hashes
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()
        self._reopen = reopen
        self._reader = reopen()

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        target = memoryview(buffer).cast("B")
        if self._position >= self.size or not len(target):
            return 0
        number, offset = divmod(self._position, BLOCK_BYTES)
        block = self._block(number)[offset : offset + len(target)]
        target[: len(block)] = block
        self._position += len(block)
        return len(block)

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
                f"{self.name!r} has other bytes from {number * BLOCK_BYTES} on than those that "
                "were analyzed; restore it from a copy, or `touch` it (write an object anew) so "
                "that it is analyzed again, and run again",
            )
        self._blocks[number] = memoryview(data)
        if len(self._blocks) > _CACHED_BLOCKS:
            self._blocks.popitem(last=False)
        return self._blocks[number]

    def _load(self, number: int) -> bytes:
        self._reader.seek(number * BLOCK_BYTES)
        return self._reader.read(min(BLOCK_BYTES, self.size - number * BLOCK_BYTES))

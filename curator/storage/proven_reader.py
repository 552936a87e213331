"""Readers that verify bytes, by hashes of the analysis or by the MD5 of the storage.

`open_blocks` reads a source in whole blocks, and compares each block with its hash from analysis.

`read_proven` reads all of a source, and verifies its bytes over plain HTTP. It hashes bytes that
are read in order, and compares the hash with the MD5 of the stored object at the end, so these
bytes cross the network once. It reads other bytes, such as an index at the end of a file, until two
reads agree. If the MD5 differs or is unknown, it reads all bytes until two reads agree.
"""

import hashlib
import io
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import BinaryIO, TypeVar

from curator.errors import ErrorCode, SourceError
from curator.storage.content_id import BLOCK_BYTES, BLOCK_HASH_BYTES, block_hash
from curator.storage.range_reader import BUFFER_BYTES, SeekableReader
from curator.storage.source_reader import open_source, stored_md5

_CACHED_BLOCKS = 4
"""A demuxer may read video, audio and index in turn."""
_CHUNK_BYTES = 1 << 20

logger = logging.getLogger(__name__)

_Made = TypeVar("_Made")


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


def read_proven(uri: str, version: str, use: Callable[[BinaryIO], _Made]) -> _Made:
    """Calls `use` with a reader of a source; returns its result for verified bytes.

    `use` must read all bytes. It is called again if the first bytes cannot be verified.

    Raises:
        SourceError: As `open_source` and `use` do.
    """
    with open_source(uri, expected_version=version, checks=True) as reader:
        md5 = stored_md5(reader)
        if md5 is None:
            return use(reader)
        if md5:
            try:
                whole = open_source(uri, expected_version=version)
                with _ProvenReader(reader, whole, uri) as raw:
                    made = use(io.BufferedReader(raw, BUFFER_BYTES))
                    if raw.md5() == md5:
                        return made
            except SourceError as error:
                logger.warning("%s; its bytes cannot be verified, and are read again", error)
            else:
                logger.warning("the network changed %r over http://; it is read again", uri)
    with open_source(uri, expected_version=version) as agreeing:
        return use(agreeing)


class _ProvenReader(SeekableReader):
    def __init__(self, in_order: BinaryIO, agreeing: BinaryIO, uri: str) -> None:
        self._agreeing = agreeing
        super().__init__(uri, self._agreeing.seek(0, io.SEEK_END))
        self._in_order = in_order
        self._digest = hashlib.md5(usedforsecurity=False)
        self._hashed_bytes = 0

    def _at_position(self, most: int) -> bytes:
        if self._position == self._hashed_bytes:
            return self._next(most)
        # A read stops at the end of the hashed bytes, so that the later bytes stay in order.
        ahead = self._hashed_bytes - self._position
        self._agreeing.seek(self._position)
        return self._agreeing.read(min(most, ahead) if ahead > 0 else most)

    def md5(self) -> str:
        """Reads the rest, and returns the MD5 of all bytes."""
        while self._next(_CHUNK_BYTES):
            pass
        return self._digest.hexdigest()

    def close(self) -> None:
        if not self.closed:
            self._agreeing.close()
        super().close()

    def _next(self, n_bytes: int) -> bytes:
        data = self._in_order.read(n_bytes)
        self._digest.update(data)
        self._hashed_bytes += len(data)
        return data

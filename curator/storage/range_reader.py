"""Reads an object by ranges, and ahead, as a seekable stream.

The first request also returns size and version, so opening an object takes one round trip. A fetch
after a jump is small (256 KiB). Each fetch that continues the previous fetch is four times as
large, up to 8 MiB. From the third fetch in a row on, a thread fetches the next block ahead. So the
probe of a header transfers little, and sequential reads run at the connection's speed. Two
positions that are read in turn (an MP4 with separate audio) keep their own blocks and growth.
"""

import io
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from curator.errors import CuratorError
from curator.storage.content_id import Positioned
from curator.storage.object_service import (
    NoRangeError,
    ObjectChangedError,
    ObjectRange,
    service_of,
    split_uri,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

FIRST_BYTES = 256 << 10
BLOCK_BYTES = 8 << 20
CACHED_BLOCKS = 3
_GROWTH = 4
_AHEAD_RUN = 2
BUFFER_BYTES = 64 << 10
"""Size of a buffer around a reader."""


class SeekableReader(Positioned, io.RawIOBase):
    """A raw stream of `size` bytes; a subclass returns the bytes at the position."""

    def __init__(self, name: str, size: int = 0) -> None:
        super().__init__()
        self.name = name
        self.size = size
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves without reading.

        Raises:
            ValueError: The position would be before the start.
        """
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}: before the start of {self.name!r}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Copies the bytes at the position."""
        target = memoryview(buffer).cast("B")
        data = self._at_position(len(target))
        target[: len(data)] = data
        self._position += len(data)
        return len(data)

    @abstractmethod
    def _at_position(self, most: int) -> bytes | memoryview:
        """Returns at most `most` bytes at the position; none at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FetchedBlock:
    start: int
    data: bytes
    run: int
    """Number of fetched blocks in a row before this block."""

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class RangeReader(SeekableReader):
    """An object as a raw stream, for a buffer around it.

    Args:
        uri: Address in an object store, such as `s3://bucket/key`.
        failure: Makes the error for a failed request, here and in reads.
        expected_version: ETag that the object must have; None for the ETag of the first response.
        expected_bytes: Size that the object must have; None for any.
        probe: Which end of the object the first request fetches.
        first_at: Byte at which the first request begins, in place of 0.
        first_bytes: Size of the first fetch, and of a fetch after a jump.
        block_bytes: Size of the largest fetch; the reader holds at most `CACHED_BLOCKS` of these.
    """

    def __init__(
        self,
        uri: str,
        *,
        failure: Callable[[Exception, str], CuratorError],
        expected_version: str | None = None,
        expected_bytes: int | None = None,
        probe: Literal["head", "tail"] = "head",
        first_at: int = 0,
        first_bytes: int = FIRST_BYTES,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(uri)
        self.version = expected_version or ""
        self._failure = failure
        self._bucket, self._key = split_uri(uri)
        service = service_of(uri)
        assert service is not None, uri
        self._service = service
        self._first_bytes = first_bytes
        self._block_bytes = block_bytes
        self._blocks: OrderedDict[int, _FetchedBlock] = OrderedDict()
        self._ahead: tuple[int, int, Future[_FetchedBlock]] | None = None
        self.expected_end: int | None = None
        """Expected end of the caller's reads: large fetches end there, later ones are small."""
        self._pool: ThreadPoolExecutor | None = None
        try:
            self._probe(-first_bytes if probe == "tail" else first_at)
            if expected_bytes not in (None, self.size):
                raise ObjectChangedError(
                    f"the object has {self.size} bytes, but had {expected_bytes} when it was listed"
                )
        except self._service.errors as error:
            raise failure(error, uri) from error

    def _at_position(self, most: int) -> memoryview:
        """Returns bytes of the block at the position, and fetches it if necessary."""
        if self.closed:
            raise ValueError("read of a closed object")
        if self._position >= self.size or not most:
            return memoryview(b"")
        try:
            block = self._block_at(self._position)
        except self._service.errors as error:
            raise self._failure(error, self.name) from error
        offset = self._position - block.start
        return memoryview(block.data)[offset : offset + most]

    def close(self) -> None:
        """Drops the blocks and the fetch under way."""
        if not self.closed:
            pool = getattr(self, "_pool", None)
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
            self._ahead = None
            self._blocks = OrderedDict()
        super().close()

    def _probe(self, start: int) -> None:
        try:
            answer = self._get(start, max(start, 0) + self._first_bytes)
        except NoRangeError as error:
            # An empty object satisfies no range.
            object_head = self._service.head(self._bucket, self._key)
            if object_head.bytes or self.version not in ("", object_head.version):
                raise ObjectChangedError("the object was replaced while it was opened") from error
            self.version = object_head.version
            return
        self.size, self.version = answer.size, answer.version
        if answer.data:
            self._keep(_FetchedBlock(start=answer.start, data=answer.data, run=0))

    def _block_at(self, position: int) -> _FetchedBlock:
        block = self._cached(position)
        if block is None:
            block = self._load(position)
        if block.run >= _AHEAD_RUN:
            self._fetch_ahead(block)
        return block

    def _cached(self, position: int) -> _FetchedBlock | None:
        for block in reversed(self._blocks.values()):
            if block.start <= position < block.end:
                self._blocks.move_to_end(block.start)
                return block
        return None

    def _load(self, position: int) -> _FetchedBlock:
        if self._ahead is not None:
            start, end, underway = self._ahead
            if underway.done() or start <= position < end:
                self._collect()
                cached = self._cached(position)
                if cached is not None:
                    return cached
        before = next((block for block in self._blocks.values() if block.end == position), None)
        block = self._fetch(*self._plan(position, before))
        self._keep(block)
        return block

    def _plan(self, position: int, before: _FetchedBlock | None) -> tuple[int, int, int]:
        size = self._first_bytes
        if before is not None:
            size = max(size, min(self._block_bytes, _GROWTH * len(before.data)))
        following = (block.start for block in self._blocks.values() if block.start > position)
        if self.expected_end is not None and position + size > self.expected_end:
            size = max(self._first_bytes, self.expected_end - position)
        end = min(position + size, self.size, min(following, default=self.size))
        return position, end, before.run + 1 if before is not None else 0

    def _fetch_ahead(self, block: _FetchedBlock) -> None:
        position = block.end
        last = self.size if self.expected_end is None else min(self.size, self.expected_end)
        if position >= last or position in self._blocks:
            return
        if self._ahead is not None:
            if self._ahead[0] == position or not self._ahead[2].done():
                return
            self._collect()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        start, end, run = self._plan(position, block)
        self._ahead = start, end, self._pool.submit(self._fetch, start, end, run)

    def _collect(self) -> None:
        """Stores the block fetched ahead; after an error, the next read fetches it again."""
        assert self._ahead is not None
        underway = self._ahead[2]
        self._ahead = None
        with suppress(*self._service.errors):
            self._keep(underway.result())

    def _keep(self, block: _FetchedBlock) -> None:
        self._blocks[block.start] = block
        cached_bytes = sum(len(other.data) for other in self._blocks.values())
        while cached_bytes > CACHED_BLOCKS * self._block_bytes and len(self._blocks) > 1:
            _, dropped = self._blocks.popitem(last=False)
            cached_bytes -= len(dropped.data)

    def _fetch(self, start: int, end: int, run: int) -> _FetchedBlock:
        answer = self._get(start, end)
        if (answer.start, len(answer.data), answer.size) != (start, end - start, self.size):
            raise ObjectChangedError(f"bytes {start}-{end - 1} of {self.size} are no longer there")
        return _FetchedBlock(start=start, data=answer.data, run=run)

    def _get(self, start: int, end: int) -> ObjectRange:
        return self._service.get_range(self._bucket, self._key, start, end, self.version)

"""Identifies sources by their bytes: by a quick id for the scan, and by hashes of all bytes."""

import hashlib
import io
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from curator.errors import ErrorCode, SourceError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

WHOLE_BYTES = 8 << 20
"""Up to this size, `content_id` reads every byte."""

BLOCK_BYTES = 1 << 20
"""Size of a hashed block; the last block may be shorter."""
BLOCK_HASH_BYTES = 16

SAMPLES = 16
SAMPLE_BYTES = 64 << 10

_TAG_WHOLE = b"curate content 1 whole\n"
_TAG_SAMPLED = b"curate content 1 sampled\n"
_TAG_FULL = b"curate content 1 full\n"
_ID_DIGITS = 32
_BUFFER_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20
_GAP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentHashes:
    """Hashes of all bytes of an object: `sha256` in hex, and BLAKE2b of its blocks, in order.

    `blocks` has `BLOCK_HASH_BYTES` per block of `BLOCK_BYTES`.
    """

    sha256: str
    blocks: bytes


NO_HASHES = ContentHashes(sha256="", blocks=b"")
"""Hashes of a source that is not read as a whole."""


def content_id(reader: BinaryIO, size: int) -> str:
    r"""Identifies content by 32 hexadecimal digits; reads at most 8 MiB.

    The digits are the first 32 of a SHA-256 over these bytes, with size = `size` in bytes:

    - size ≤ 8 MiB: the 23 bytes `curate content 1 whole\n`, then all bytes;
    - above: the 25 bytes `curate content 1 sampled\n`, then the size as 8 bytes little-endian,
      then 16 blocks of 65,536 bytes; block i begins at floor(i x (size - 65,536) / 15), so the
      first block is the beginning and the last is the end.

    Raises:
        SourceError: CHANGED, if the content does not have `size` bytes.
    """
    if size <= WHOLE_BYTES:
        reader.seek(0)
        content = reader.read(size + 1)
        if len(content) != size:
            raise _other_size(reader, size)
        digest = hashlib.sha256(_TAG_WHOLE + content)
    else:
        digest = hashlib.sha256(_TAG_SAMPLED + size.to_bytes(8, "little"))
        for index in range(SAMPLES):
            reader.seek(index * (size - SAMPLE_BYTES) // (SAMPLES - 1))
            block = reader.read(SAMPLE_BYTES)
            if len(block) != SAMPLE_BYTES:
                raise _other_size(reader, size)
            digest.update(block)
        if reader.read(1):
            raise _other_size(reader, size)
    return digest.hexdigest()[:_ID_DIGITS]


class WholeContentId:
    """Computes `content_id` of at most `WHOLE_BYTES` that arrive in order, without another read."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(_TAG_WHOLE)
        self.update = self._digest.update

    def id(self) -> str:
        """Returns the id of the bytes so far."""
        return self._digest.hexdigest()[:_ID_DIGITS]


def block_hash(data: bytes) -> bytes:
    """Returns the hash of one block."""
    return hashlib.blake2b(data, digest_size=BLOCK_HASH_BYTES).digest()


class _BlockHashes:
    """Hashes blocks of bytes that arrive in order, in pieces of any size."""

    def __init__(self) -> None:
        self._done = bytearray()
        self._begin()

    def update(self, data: memoryview) -> None:
        while len(data):
            piece = data[: BLOCK_BYTES - self._n_bytes]
            self._block.update(piece)
            self._n_bytes += len(piece)
            data = data[len(piece) :]
            if self._n_bytes == BLOCK_BYTES:
                self._done += self._block.digest()
                self._begin()

    def digest(self) -> bytes:
        return bytes(self._done) + (self._block.digest() if self._n_bytes else b"")

    def _begin(self) -> None:
        self._block = hashlib.blake2b(digest_size=BLOCK_HASH_BYTES)
        self._n_bytes = 0


def full_content_id(sha256: str) -> str:
    r"""Identifies content by all of its bytes, if samples do not distinguish it from other content.

    The id is the first 32 digits of a SHA-256 over the 22 bytes `curate content 1 full\n`, and the
    SHA-256 of the content as 64 hexadecimal digits.
    """
    return hashlib.sha256(_TAG_FULL + sha256.encode()).hexdigest()[:_ID_DIGITS]


class Positioned:
    """The methods of a seekable reader that return its abilities and its position."""

    _position: int

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the position."""
        return self._position


class HashingReader(Positioned, io.BufferedIOBase, BinaryIO):
    """Reads from another reader, and hashes bytes that follow the hashed part; not thread-safe.

    Before a read at most `gap_bytes` ahead of the hashed part, such as after skipped audio, the
    reader reads the gap. Otherwise one skip would leave all later bytes to `finish`. With `closes`,
    closing or deleting this object closes the other reader too.
    """

    def __init__(
        self, reader: BinaryIO, *, gap_bytes: int = _GAP_BYTES, closes: bool = True
    ) -> None:
        super().__init__()
        self._reader = reader
        self._closes = closes
        self._gap_bytes = gap_bytes
        self._digest = hashlib.sha256()
        self._blocks = _BlockHashes()
        self._hashed_bytes = 0
        self._position = reader.tell()

    @property
    def name(self) -> str:
        """The wrapped stream's name."""
        return str(getattr(self._reader, "name", ""))

    @property
    def hashed_bytes(self) -> int:
        """Number of hashed bytes from the start."""
        return self._hashed_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves the wrapped stream."""
        self._position = self._reader.seek(offset, whence)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads and hashes."""
        self._fill_gap()
        data = self._reader.read(-1 if size is None else size)
        self._passed(memoryview(data))
        return data

    def read1(self, size: int = -1, /) -> bytes:
        """Reads like `read`, but at most one buffer without a size."""
        return self.read(_BUFFER_BYTES if size < 0 else size)

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Reads into the buffer and hashes."""
        self._fill_gap()
        target = memoryview(buffer).cast("B")
        count: int = self._reader.readinto(target)  # type: ignore[attr-defined]
        self._passed(target[:count])
        return count

    def finish(self) -> ContentHashes:
        """Hashes the rest, restores the position, and returns the hashes of the whole object."""
        position = self._position
        self._hash_up_to(None)
        self.seek(position)
        return ContentHashes(sha256=self._digest.hexdigest(), blocks=self._blocks.digest())

    def close(self) -> None:
        """Closes the wrapped stream too if `closes` is set."""
        if not self.closed and self._closes:
            self._reader.close()
        super().close()

    def _passed(self, data: memoryview) -> None:
        end = self._position + len(data)
        if self._position <= self._hashed_bytes < end:
            new = data[self._hashed_bytes - self._position :]
            self._digest.update(new)
            self._blocks.update(new)
            self._hashed_bytes = end
        self._position = end

    def _fill_gap(self) -> None:
        if 0 < self._position - self._hashed_bytes <= self._gap_bytes:
            position = self._position
            self._hash_up_to(position)
            if self._position != position:
                self.seek(position)

    def _hash_up_to(self, end: int | None) -> None:
        self.seek(self._hashed_bytes)
        while end is None or self._hashed_bytes < end:
            left = _CHUNK_BYTES if end is None else min(_CHUNK_BYTES, end - self._hashed_bytes)
            data = self._reader.read(left)
            if not data:
                return
            self._passed(memoryview(data))


def _other_size(reader: BinaryIO, size: int) -> SourceError:
    n_bytes: int | None = None
    with suppress(OSError):
        n_bytes = reader.seek(0, io.SEEK_END)
    return SourceError(
        ErrorCode.CHANGED,
        f"{str(getattr(reader, 'name', 'the object'))!r} has {n_bytes} bytes, but had {size} when "
        "it was listed; wait until it is complete and run again",
    )

"""The id of content is what its documentation says, and SHA-256 is right however one reads."""

import hashlib
import io
import random
from collections.abc import Callable
from typing import BinaryIO

import pytest

from curator.errors import ErrorCode, SourceError
from curator.storage import ContentHashes, HashingReader, content_id
from curator.storage.content_id import WHOLE_BYTES

KIB = 1 << 10
DATA = random.Random(3).randbytes(2000 * KIB)
HASHES = ContentHashes(
    sha256=hashlib.sha256(DATA).hexdigest(),
    blocks=b"".join(
        hashlib.blake2b(DATA[start : start + 1024 * KIB], digest_size=16).digest()
        for start in (0, 1024 * KIB)
    ),
)


class CountingBytes(io.BytesIO):
    """Counts the bytes that are read."""

    read_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.read_bytes += len(data)
        return data


@pytest.mark.parametrize("size", [0, 1, 65536, len(DATA), WHOLE_BYTES])
def test_small_content_is_hashed_whole(size: int) -> None:
    data = DATA[:size] if size <= len(DATA) else bytes(size)
    expected = hashlib.sha256(b"curate content 1 whole\n" + data).hexdigest()[:32]
    assert content_id(io.BytesIO(data), size) == expected


def test_large_content_is_sampled_as_documented_and_ids_stay() -> None:
    data = random.Random(4).randbytes(WHOLE_BYTES + 12_345)
    size = len(data)
    digest = hashlib.sha256(b"curate content 1 sampled\n" + size.to_bytes(8, "little"))
    for index in range(16):
        start = index * (size - 65536) // 15
        digest.update(data[start : start + 65536])
    reader = CountingBytes(data)
    assert content_id(reader, size) == digest.hexdigest()[:32]
    assert reader.read_bytes == 16 * 65536
    # Ids stay what they are.
    assert content_id(io.BytesIO(b"abc"), 3) == "4888efbd93d118f6c4217bcce8ec22c5"
    assert content_id(io.BytesIO(bytes(9 << 20)), 9 << 20) == "29d74962e97da6eb2990546b7f98ca92"
    # First and last byte of large content count.
    size = WHOLE_BYTES + 1000
    ids = set()
    for changed in (None, 0, size - 1):
        data = bytearray(size)
        if changed is not None:
            data[changed] = 1
        ids.add(content_id(io.BytesIO(data), size))
    ids.add(content_id(io.BytesIO(bytes(size + 1)), size + 1))
    assert len(ids) == 4


@pytest.mark.parametrize("size", [100, WHOLE_BYTES + 100])
@pytest.mark.parametrize("difference", [-1, 1])
def test_another_size_than_listed_is_a_change(size: int, difference: int) -> None:
    with pytest.raises(
        SourceError, match=f"has {size + difference} bytes, but had {size} when"
    ) as caught:
        content_id(io.BytesIO(bytes(size + difference)), size)
    assert caught.value.code is ErrorCode.CHANGED


def read_in_order(reader: BinaryIO) -> None:
    while reader.read(30_000):
        pass


def read_backwards(reader: BinaryIO) -> None:
    for start in range(len(DATA) - 50_000, 0, -50_000):
        reader.seek(start)
        assert reader.read(50_000) == DATA[start : start + 50_000]


def read_nothing(reader: BinaryIO) -> None:
    reader.seek(100)


def read_over_the_frontier(reader: BinaryIO) -> None:
    reader.read(1000)
    reader.seek(500)
    assert reader.read(1000) == DATA[500:1500]
    reader.seek(1200)
    assert reader.read(100) == DATA[1200:1300]


def read_at_random(reader: BinaryIO) -> None:
    chance = random.Random(5)
    for _ in range(200):
        start = chance.randrange(len(DATA) + 1000)
        reader.seek(start)
        count = chance.randrange(100_000)
        if chance.random() < 0.5:
            assert reader.read(count) == DATA[start : start + count]
        else:
            target = bytearray(count)
            found = reader.readinto(target)  # type: ignore[attr-defined]
            assert target[:found] == DATA[start : start + count]


@pytest.mark.parametrize(
    "use", [read_in_order, read_backwards, read_nothing, read_over_the_frontier, read_at_random]
)
@pytest.mark.parametrize("gap_bytes", [0, 10_000, 1 << 30])
def test_the_hash_is_right_however_one_reads(
    use: Callable[[BinaryIO], None], gap_bytes: int
) -> None:
    with HashingReader(io.BytesIO(DATA), gap_bytes=gap_bytes) as reader:
        use(reader)
        position = reader.tell()
        assert reader.finish() == HASHES
        assert reader.tell() == position
        assert reader.finish() == HASHES
        reader.seek(7)
        assert reader.read(7) == DATA[7:14]


@pytest.mark.parametrize("skip_bytes", [0, 5000])
def test_reading_in_order_reads_every_byte_once(skip_bytes: int) -> None:
    """One that skips too."""
    inner = CountingBytes(DATA)
    reader = HashingReader(inner)
    for start in range(0, len(DATA), 20_000):
        reader.seek(start)
        reader.read(20_000 - skip_bytes)
    assert reader.hashed_bytes > len(DATA) - 20_000
    reader.finish()
    assert inner.read_bytes == len(DATA)


def test_a_far_jump_reads_nothing_in_between_and_an_empty_object_has_its_hash() -> None:
    inner = CountingBytes(DATA)
    reader = HashingReader(inner, gap_bytes=1000)
    reader.seek(500_000)
    reader.read(10)
    assert inner.read_bytes == 10
    assert reader.hashed_bytes == 0
    # An empty object has its hash.
    found = HashingReader(io.BytesIO()).finish()
    assert (found.sha256, found.blocks) == (hashlib.sha256().hexdigest(), b"")


@pytest.mark.parametrize("closes", [True, False])
def test_closing_closes_what_is_wrapped_unless_it_is_the_callers(closes: bool) -> None:
    inner = io.BytesIO(DATA)
    with HashingReader(inner, closes=closes) as reader:
        assert reader.readable()
        assert reader.seekable()
        assert not reader.writable()
    assert reader.closed
    del reader
    assert inner.closed == closes

"""A source is read by whole blocks, and a block of other bytes reaches nobody."""

import io
import random

import pytest

from curator.errors import ErrorCode, SourceError
from curator.storage import HashingReader, expect_end, open_blocks
from curator.storage.content_id import BLOCK_BYTES

DATA = random.Random(6).randbytes(3 * BLOCK_BYTES + 12_345)
HASHES = HashingReader(io.BytesIO(DATA)).finish().blocks


class Opener:
    """Opens one content after the other, the last one again and again; counts."""

    def __init__(self, *contents: bytes) -> None:
        self._contents = list(contents)
        self.n_opened = 0

    def __call__(self) -> io.BytesIO:
        self.n_opened += 1
        content = self._contents[0]
        if len(self._contents) > 1:
            del self._contents[0]
        return io.BytesIO(content)


def flipped(position: int) -> bytes:
    data = bytearray(DATA)
    data[position] ^= 1
    return bytes(data)


def test_bytes_come_as_they_are_in_any_order_or_are_read_once_more() -> None:
    chance = random.Random(7)
    with open_blocks(Opener(DATA), "film", n_bytes=len(DATA), hashes=HASHES) as reader:
        assert reader.read() == DATA
        for _ in range(100):
            start, count = chance.randrange(len(DATA) + 100), chance.randrange(2 * BLOCK_BYTES)
            assert reader.seek(start) == start
            assert reader.read(count) == DATA[start : start + count]
        assert reader.seek(-5, io.SEEK_END) == len(DATA) - 5
        assert reader.read() == DATA[-5:]
    # A block that was damaged on the way is read once more.
    opener = Opener(flipped(BLOCK_BYTES + 7), DATA)
    with open_blocks(opener, "film", n_bytes=len(DATA), hashes=HASHES) as reader:
        assert reader.read() == DATA
    assert opener.n_opened == 2


@pytest.mark.parametrize("position", [0, 2 * BLOCK_BYTES - 1, len(DATA) - 1])
def test_a_block_of_other_bytes_is_an_error(position: int) -> None:
    block = position // BLOCK_BYTES
    with open_blocks(Opener(flipped(position)), "film", n_bytes=len(DATA), hashes=HASHES) as reader:
        other = 0 if block else 2
        reader.seek(other * BLOCK_BYTES)
        assert reader.read(100) == DATA[other * BLOCK_BYTES :][:100]
        reader.seek(block * BLOCK_BYTES)
        with pytest.raises(
            SourceError, match=f"from byte {block * BLOCK_BYTES} on.* `touch`"
        ) as caught:
            reader.read(1)
    assert caught.value.code is ErrorCode.CHANGED


@pytest.mark.parametrize("n_bytes", [BLOCK_BYTES, len(DATA) - 1])
def test_a_source_that_became_shorter_is_an_error(n_bytes: int) -> None:
    opener = Opener(DATA[:n_bytes])
    with (
        open_blocks(opener, "film", n_bytes=len(DATA), hashes=HASHES) as reader,
        pytest.raises(SourceError, match="differs from the analyzed bytes"),
    ):
        reader.read()


def test_the_end_of_reads_is_announced_in_whole_blocks() -> None:
    class Source(io.BytesIO):
        expected_end = 0

    source = Source(DATA)
    opened = io.BufferedReader(source)  # type: ignore[type-var]
    with open_blocks(lambda: opened, "film", n_bytes=len(DATA), hashes=HASHES) as reader:
        for end, expected in (
            (1, BLOCK_BYTES), (BLOCK_BYTES, BLOCK_BYTES), (len(DATA) - 1, len(DATA))
        ):  # fmt: skip
            expect_end(reader, end)
            assert source.expected_end == expected

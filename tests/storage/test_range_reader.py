"""How an object is read: which ranges, what is kept, and what happens when it changes."""

import io
import random
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import IncompleteReadError

from curator.errors import CuratorError, StorageError
from curator.storage import range_reader, s3_client
from curator.storage.range_reader import RangeReader

KIB = 1 << 10
DATA = random.Random(1).randbytes(3000 * KIB)


class WatchedClient:
    """Passes requests on; notes the ranges, and breaks off as many bodies as it is told."""

    def __init__(self) -> None:
        self.client = s3_client.client()
        self.ranges: list[str] = []
        self.breaks = 0

    def get_object(self, **arguments: str) -> dict[str, object]:
        self.ranges.append(arguments["Range"].removeprefix("bytes="))
        answer: dict[str, object] = self.client.get_object(**arguments)
        if self.breaks:
            self.breaks -= 1
            answer["Body"] = _BrokenBody()
        return answer

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.client, name)

    @property
    def fetched_bytes(self) -> int:
        bounds = [tuple(map(int, wanted.split("-"))) for wanted in self.ranges]
        return sum(end + 1 - start for start, end in bounds)


class _BrokenBody(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise IncompleteReadError(actual_bytes=1, expected_bytes=2)


def failure(error: Exception, uri: str) -> CuratorError:
    return StorageError(f"{uri}: {s3_client.S3Service().explain(error, 'bucket')}")


@pytest.fixture
def watched(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> WatchedClient:
    client = WatchedClient()
    monkeypatch.setattr(s3_client, "client", lambda: client)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return client


@pytest.fixture
def uri(s3_bucket: str) -> str:
    s3_client.client().put_object(Bucket=s3_bucket, Key="videos/a b.bin", Body=DATA)
    return f"s3://{s3_bucket}/videos/a b.bin"


@pytest.fixture
def open_small(uri: str) -> Callable[..., RangeReader]:
    def opened(**options: object) -> RangeReader:
        sizes: dict[str, Any] = {"first_bytes": 16 * KIB, "block_bytes": 256 * KIB}
        return RangeReader(uri, failure=failure, **(sizes | options))

    return opened


def test_a_header_a_jump_and_a_tail_cost_small_requests(
    watched: WatchedClient, open_small: Callable[..., RangeReader]
) -> None:
    with open_small() as reader:
        assert reader.size == len(DATA)
        assert reader.read(100) == DATA[:100]
        assert reader.read(1000) == DATA[100:1100]
        assert watched.ranges == [f"0-{16 * KIB - 1}"]
        for position in (1000 * KIB, 2000 * KIB, 500 * KIB):
            reader.seek(position)
            assert reader.read(KIB) == DATA[position : position + KIB]
    assert watched.fetched_bytes == 4 * 16 * KIB
    watched.ranges.clear()
    with open_small(probe="tail") as reader:
        reader.seek(-1000, io.SEEK_END)
        assert reader.read(2000) == DATA[-1000:]
    assert watched.ranges == [f"-{16 * KIB}"]


def test_reading_through_grows_the_fetches_and_fetches_nothing_twice(
    watched: WatchedClient, open_small: Callable[..., RangeReader]
) -> None:
    with io.BufferedReader(open_small(), 4096) as stream:
        assert stream.read() == DATA
    assert watched.fetched_bytes == len(DATA)
    sizes = [int(r.split("-")[1]) + 1 - int(r.split("-")[0]) for r in watched.ranges]
    assert [size // KIB for size in sizes[:4]] == [16, 64, 256, 256]
    assert len(sizes) == 14


def test_two_positions_read_in_turn_both_stay_cached(
    watched: WatchedClient, open_small: Callable[..., RangeReader]
) -> None:
    half = 1500 * KIB
    with io.BufferedReader(open_small(), 1024) as stream:
        for offset in range(0, 640 * KIB, 4 * KIB):
            for base in (0, half):
                stream.seek(base + offset)
                assert stream.read(4 * KIB) == DATA[base + offset : base + offset + 4 * KIB]
    # Each position may have been read ahead by two blocks, and no byte came twice.
    assert watched.fetched_bytes <= 2 * 640 * KIB + 4 * 256 * KIB
    assert len(watched.ranges) < 20


def test_random_reads_equal_the_object_in_bounded_memory_at_its_version(
    open_small: Callable[..., RangeReader],
) -> None:
    chance = random.Random(2)
    with io.BufferedReader(open_small(), 1000) as stream:
        for _ in range(100):
            start = chance.randrange(len(DATA) + 10)
            count = chance.choice([1, 100, 5000, 100_000, 400_000])
            stream.seek(start)
            assert stream.read(count) == DATA[start : start + count]
    # Memory is bounded.
    with open_small(block_bytes=64 * KIB) as reader:
        while reader.read(10 * KIB):
            held = sum(len(block.data) for block in reader._blocks.values())
            assert held <= range_reader.CACHED_BLOCKS * 64 * KIB
    # A version that is expected is checked.
    with open_small() as reader:
        version = reader.version
    open_small(expected_version=version).close()
    with pytest.raises(StorageError, match="changed"):
        open_small(expected_version="0" * 32)


def test_bodies_that_break_off_are_fetched_again_and_at_last_end_in_an_error(
    watched: WatchedClient, open_small: Callable[..., RangeReader]
) -> None:
    watched.breaks = 3
    with open_small() as reader:
        assert reader.read(10) == DATA[:10]
    assert len(watched.ranges) == 4
    watched.breaks = 1000
    with pytest.raises(StorageError, match="unreachable"):
        open_small()
    assert len(watched.ranges) == 4 + s3_client.ATTEMPTS


def test_a_failed_read_ahead_is_tried_again_by_the_read(
    watched: WatchedClient, open_small: Callable[..., RangeReader]
) -> None:
    with open_small() as reader:
        for position in (16 * KIB, 80 * KIB):
            assert reader._ahead is None
            reader.seek(position)
            reader.read(1)
        assert reader._ahead is not None
        reader._ahead[2].result()
        reader.seek(336 * KIB)
        watched.breaks = s3_client.ATTEMPTS
        reader.read(1)
        assert reader._ahead is not None
        assert isinstance(reader._ahead[2].exception(), IncompleteReadError)
        position = reader._ahead[0]
        reader.seek(position)
        assert reader.read(10) == DATA[position : position + 10]


def test_an_object_that_is_replaced_or_removed_is_noticed(
    uri: str, s3_bucket: str, open_small: Callable[..., RangeReader]
) -> None:
    place = {"Bucket": s3_bucket, "Key": "videos/a b.bin"}
    with open_small() as reader:
        s3_client.client().put_object(**place, Body=DATA[::-1])
        assert reader.read(10) == DATA[:10]
        reader.seek(1 << 20)
        with pytest.raises(StorageError, match="changed"):
            reader.read(10)
        s3_client.client().delete_object(**place)
        with pytest.raises(StorageError, match="missing"):
            reader.read(10)


@pytest.mark.parametrize(
    ("ignored", "said"), [("IfMatch", "changed"), ("Range", "does not answer range requests")]
)
def test_a_server_that_ignores_conditions_or_ranges_is_noticed(
    watched: WatchedClient,
    open_small: Callable[..., RangeReader],
    monkeypatch: pytest.MonkeyPatch,
    ignored: str,
    said: str,
) -> None:
    requests = []

    def get(**arguments: str) -> object:
        requests.append(arguments.pop(ignored))
        return watched.client.get_object(**arguments)

    monkeypatch.setattr(watched, "get_object", get)
    with pytest.raises(StorageError, match=said):
        open_small(expected_version="0" * 32 if ignored == "IfMatch" else None)
    assert len(requests) == 1


def test_seeking_is_like_that_of_a_file(open_small: Callable[..., RangeReader]) -> None:
    with open_small() as reader:
        assert reader.seek(0, io.SEEK_END) == len(DATA)
        assert reader.read(1) == b""
        assert reader.seek(-5, io.SEEK_CUR) == len(DATA) - 5
        assert reader.read() == DATA[-5:]
        assert reader.seek(len(DATA) + 100) == len(DATA) + 100
        assert reader.read(1) == b""
        with pytest.raises(ValueError, match="before the start"):
            reader.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        reader.read(1)

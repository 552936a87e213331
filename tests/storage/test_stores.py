"""What every store promises, on a folder, on S3, Google Cloud Storage and Azure."""

import io
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator.errors import StorageError, UsageError
from curator.storage import Store, open_store
from curator.storage.base import checked_key

NASTY_KEYS = [
    "plain.bin",
    "with space.bin",
    "quote'\".bin",
    "hash#and%percent%20.bin",
    "question?mark&amp;.bin",
    "line\nbreak.bin",
    "ünïcödé/日本/🎬.bin",
    "plus+equals=.bin",
    "back\\slash.bin",
    "deep/er/and/deeper.bin",
]


@pytest.fixture(
    params=["local", "s3", "s3_prefix", "gs", "az",
            pytest.param("real_s3", marks=pytest.mark.needs_s3)]
)  # fmt: skip
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "local":
            return open_store(str(tmp_path / "out"))
        case "gs":
            return open_store(f"gs://{request.getfixturevalue('gs_bucket')}/a prefix/x")
        case "az":
            return open_store(f"az://{request.getfixturevalue('az_container')}/a prefix/x")
        case "real_s3":
            bucket = request.getfixturevalue("real_s3_bucket")
        case _:
            bucket = request.getfixturevalue("s3_bucket")
    return open_store(f"s3://{bucket}" + ("/a prefix/x" if request.param == "s3_prefix" else ""))


@pytest.fixture
def nasty_keys(request: pytest.FixtureRequest) -> list[str]:
    """The keys to try; moto and obstore take no line break, and Azure takes no backslash."""
    is_strict = any(mark in request.node.name for mark in ("[s3", "[gs", "[az"))
    refused = ("\n" if is_strict else "") + ("\\" if "[az" in request.node.name else "")
    return sorted(key for key in NASTY_KEYS if not set(key) & set(refused))


def test_what_is_written_is_read_and_listed(store: Store, nasty_keys: list[str]) -> None:
    for key in nasty_keys:
        store.write(key, key.encode())
    assert [info.key for info in store.list()] == nasty_keys
    for key in nasty_keys:
        assert store.read(key) == key.encode()
        assert store.exists(key)


def test_what_a_store_holds_is_known_by_size_bytes_and_a_version_that_changes(store: Store) -> None:
    store.write("a", b"some bytes")
    found, (listed,) = store.find("a"), store.list()
    assert found == listed
    assert store.find("b") is None
    for data in (b"some bytes", b"more bytes", b"some"):
        assert store.holds(found, data) == (data == b"some bytes")
    assert not store.holds(None, b"")
    store.write("a", b"123456")
    (after,) = store.list()
    assert (listed.bytes, after.bytes) == (10, 6)
    assert listed.version != after.version


def test_an_object_in_a_bucket_is_not_read_if_its_version_is_its_md5(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"s3://{s3_bucket}")
    store.write("a", b"some bytes")
    found = store.find("a")
    monkeypatch.setattr(type(store), "read", lambda *_: pytest.fail("it was read"))
    assert store.holds(found, b"some bytes")


def test_list_sorts_as_s3_does_across_folders_and_its_prefix_is_a_plain_string(
    store: Store,
) -> None:
    keys = ["a-b", "a.c", "a/x", "a/y/z", "a0", "b", "clip", "clips-old/0", "clips/0", "clips/1/a"]
    for key in reversed(keys):
        store.write(key, b"")
    assert [info.key for info in store.list()] == keys
    assert [info.key for info in store.list("clips")] == keys[-3:]
    assert [info.key for info in store.list("clips/")] == ["clips/0", "clips/1/a"]
    assert [info.key for info in store.list("clips/1/")] == ["clips/1/a"]
    assert list(store.list("none/")) == []


def test_a_root_that_is_not_there_yet_is_empty(store: Store) -> None:
    assert list(store.list()) == []
    assert not store.exists("a")
    assert store.clean_temporary(("",), bool) == 0
    store.check_writable()
    assert list(store.list()) == []


def test_open_seeks_and_reads_ranges_as_parquet_needs(store: Store) -> None:
    """Ranges are half-open, and end with the object."""
    data = bytes(range(256)) * 5000
    store.write("a", data)
    with store.open("a") as stream:
        assert stream.seek(-10, io.SEEK_END) == len(data) - 10
        assert stream.read() == data[-10:]
        stream.seek(1000)
        assert stream.read(300_000) == data[1000:301_000]
        assert stream.tell() == 301_000
    for start, end in ((0, 1), (3, 7), (len(data) - 2, len(data) + 20)):
        assert store.read_range("a", start, end) == data[start:end]
    with pytest.raises(StorageError, match="nothing_here"):
        store.read_range("nothing_here", 0, 1)
    with pytest.raises(StorageError, match=r"cannot read .*not there.*;"):
        store.read("not there")
    # Parquet is written to and read from a store.
    table = pa.table({"x": list(range(100_000)), "y": ["text"] * 100_000})
    with store.create("t.parquet") as stream:
        pq.write_table(table, stream, row_group_size=10_000)
    with store.open("t.parquet") as stream:
        assert pq.read_table(stream).equals(table)
    with store.open("t.parquet") as stream:
        assert pq.ParquetFile(stream).read_row_group(3, columns=["x"])["x"][0].as_py() == 30_000


def test_an_empty_object_is_read_and_has_a_version(store: Store) -> None:
    store.write("empty", b"")
    assert store.read("empty") == b""
    with store.open("empty") as stream:
        assert stream.seek(0, io.SEEK_END) == 0
        assert stream.read(10) == b""
    found = store.read_versioned("empty")
    assert found is not None
    assert found[1] == b""
    assert store.replace("empty", b"x", found[0].version) is not None


def test_create_is_append_only_and_may_be_closed_by_a_writer(store: Store) -> None:
    with store.create("a") as stream:
        stream.write(b"abc")
        assert stream.tell() == 3
        assert not stream.seekable()
        with pytest.raises(io.UnsupportedOperation):
            stream.seek(0)
        stream.close()
    assert store.read("a") == b"abc"


def test_create_shows_nothing_before_its_end_and_nothing_after_an_exception(store: Store) -> None:
    store.write("old", b"old")

    def interrupt(key: str, error: BaseException) -> None:
        with store.create(key) as stream:
            stream.write(b"new")
            stream.flush()
            assert store.read("old") == b"old"
            assert [info.key for info in store.list()] == ["old"]
            raise error

    with pytest.raises(KeyError, match="inside"):
        interrupt("old", KeyError("inside"))
    with pytest.raises(KeyboardInterrupt):
        interrupt("never", KeyboardInterrupt())
    assert store.read("old") == b"old"
    assert [info.key for info in store.list()] == ["old"]
    assert store.clean_temporary(("", "a"), bool, older_than_s=0) == 0


def test_delete_takes_keys_that_are_not_there(store: Store) -> None:
    keys = [f"k{number:04}" for number in range(1003)]
    for key in keys[:3] + keys[-3:]:
        store.write(key, b"x")
    store.write("stays", b"x")
    store.delete(keys)
    assert [info.key for info in store.list()] == ["stays"]


def test_write_new_writes_once_and_changes_nothing_after(store: Store) -> None:
    assert store.read_versioned("a/lease") is None
    mine = store.write_new("a/lease", b"mine")
    assert mine is not None
    assert store.read_versioned("a/lease") == (mine, b"mine")
    assert list(store.list()) == [mine]
    assert store.write_new("a/lease", b"theirs") is None
    assert store.read_versioned("a/lease") == (mine, b"mine")
    store.delete(["a/lease"])
    assert store.write_new("a/lease", b"again") is not None
    assert [info.key for info in store.list()] == ["a/lease"]


def test_replace_needs_the_version_that_was_read(store: Store) -> None:
    first = store.write_new("lease", b"first")
    assert first is not None
    second = store.replace("lease", b"second", first.version)
    assert second is not None
    assert second.version != first.version
    assert store.read_versioned("lease") == (second, b"second")
    assert store.replace("lease", b"third", first.version) is None
    assert store.read("lease") == b"second"
    store.delete(["lease"])
    assert store.replace("lease", b"fourth", second.version) is None
    assert list(store.list()) == []


def test_stores_are_pickled(store: Store) -> None:
    store.write("a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert copy.read("a") == b"1"


RACERS = """
import sys, time
from curator.storage import open_store
store = open_store(sys.argv[1])
me = sys.argv[2]
for number in range(20):
    start = f"start-{number}"
    store.write(f"{start}/{me}", b"")
    while len(list(store.list(start))) < 2:
        pass
    if store.write_new(f"new/{number}", f"{me} {number}".encode()):
        print("new", number, flush=True)
    info, _ = store.read_versioned("swapped/" + str(number))
    store.write(f"read-{number}/{me}", b"")
    while len(list(store.list(f"read-{number}"))) < 2:
        pass
    if store.replace(f"swapped/{number}", f"{me} {number}".encode(), info.version):
        print("swapped", number, flush=True)
"""


@pytest.mark.parametrize("kind", ["local", pytest.param("real_s3", marks=pytest.mark.needs_s3)])
def test_of_two_writers_at_once_one_wins(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "local":
        root = str(tmp_path)
    else:
        root = f"s3://{request.getfixturevalue('real_s3_bucket')}/x"
    store = open_store(root)
    for number in range(20):
        store.write(f"swapped/{number}", b"before")
    command = [sys.executable, "-c", RACERS, root]
    racers = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in "ab"
    ]
    outputs = [racer.communicate()[0].splitlines() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    for what in ("new", "swapped"):
        for number in range(20):
            winners = [
                name for name, lines in zip("ab", outputs, strict=True)
                if f"{what} {number}" in lines
            ]  # fmt: skip
            assert len(winners) == 1, (what, number)
            assert store.read(f"{what}/{number}").decode() == f"{winners[0]} {number}"


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../../b", "./a", "a\0b", ".tmp-x", "a/.tmp-1/b"]
)
def test_keys_that_could_leave_the_root_are_refused(store: Store, key: str) -> None:
    with pytest.raises(StorageError, match="not a valid object key"):
        checked_key(key)
    with pytest.raises(StorageError, match="not a valid object key"):
        store.write(key, b"")


@pytest.mark.parametrize(
    "uri", ["", "ftp://bucket/x", "https://host/x", "file:///x", "s3://", "s3:///x"]
)
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(UsageError, match="s3://bucket/prefix"):
        open_store(uri)


def test_uris_are_normal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("out/").uri == str(tmp_path / "out")
    assert open_store("out").is_local
    assert open_store("s3://b").uri == "s3://b"
    assert open_store("s3://b/p/q/").uri == "s3://b/p/q"
    assert not open_store("s3://b").is_local

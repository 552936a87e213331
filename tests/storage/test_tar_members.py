"""Members of tars are found by headers, opened by their place, and hostile tars are only named."""

import io
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from curator.errors import ErrorCode, SourceError
from curator.storage import s3_client, source_reader
from curator.storage.sidecar_files import Sidecar, SidecarProblem, read_sidecars
from curator.storage.source_reader import expect_end, open_source, stat_source, tar_index
from curator.storage.tar_members import (
    BLOCK,
    TarIndex,
    member_version,
    read_index,
    split_member,
    split_version,
)

LONG = "films/" + "n" * 200 + "/é.mp4"


def tar_of(members: dict[str, bytes], form: int = tarfile.GNU_FORMAT, *, end: bool = True) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        n_bytes = tar.offset
    return stream.getvalue() if end else stream.getvalue()[:n_bytes]


def index_of(data: bytes, most_unwanted: int | None = None) -> TarIndex:
    index = read_index(
        lambda at, n: data[at : at + n], len(data), is_wanted=lambda name: name.endswith("mp4"),
        most_unwanted=most_unwanted,
    )  # fmt: skip
    assert index is not None
    return index


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_and_places_of_all_formats(form: int) -> None:
    members = {"./a.mp4": b"a" * 700, "b/c.json": b"{}", "empty.mp4": b""}
    if form != tarfile.USTAR_FORMAT:
        members[LONG] = b"long"
    data = tar_of(members, form)
    index = index_of(data)
    found = {name: data[p.start : p.start + p.bytes] for name, p in index.places.items()}
    assert found == {name.removeprefix("./"): content for name, content in members.items()}
    assert (index.problems, index.faults) == ({}, [])


def test_members_that_cannot_be_read_have_a_reason() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("/etc/a.mp4", "../b.mp4", "x//c.mp4", "twice.mp4", "./twice.mp4", "ok.mp4"):
            tar.addfile(tarfile.TarInfo(name))
        kinds = {"soft": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "pipe": tarfile.FIFOTYPE,
                 "dir": tarfile.DIRTYPE}  # fmt: skip
        for name, kind in kinds.items():
            info = tarfile.TarInfo(f"{name}.mp4")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        sparse = tarfile.TarInfo("sparse.mp4")
        sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.realsize": "99"}
        tar.addfile(sparse)
        zero = tarfile.TarInfo("zero")
        zero.pax_headers = {"path": "a\0.mp4"}
        tar.addfile(zero)
    index = index_of(stream.getvalue())
    assert list(index.places) == ["ok.mp4"]
    words = {
        "/etc/a.mp4": "absolute", "../b.mp4": "'..'", "x//c.mp4": "empty", "twice.mp4": "several",
        "soft.mp4": "link", "hard.mp4": "link", "pipe.mp4": "no regular", "sparse.mp4": "sparse",
        "a\0.mp4": "zero byte",
    }  # fmt: skip
    assert index.problems.keys() == words.keys()
    assert all(word in index.problems[name] for name, word in words.items())


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


FIRST = tar_of({"a.mp4": b"a" * 600}, end=False)
END = bytes(1024)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\x1f\x8b\x08" + bytes(700), "is compressed"),
        (b"text" * 200, "is no tar"),
        (FIRST, "is cut off: .* no end after the 1 members"),
        (FIRST[:-513], "is cut off"),
        (FIRST + header("b.mp4", 5000) + bytes(600), "is cut off"),
        (FIRST + header("b.mp4", 1 << 60) + END, "is cut off"),
        (FIRST + header("b.mp4", -700) + END, "is damaged at byte 1536 .*-700"),
        (FIRST + b"\xff" * 512 + END, "is damaged at byte 1536"),
        (FIRST + header("x", 1 << 40, b"x") + END, "with 1099511627776 bytes of names"),
        (FIRST + header("x", 1 << 40, b"L") + END, "with 1099511627776 bytes of names"),
        (FIRST + header("x", 0, b"x") + END, "with 0 bytes of names"),
        (FIRST + header("x", 512, b"x") + b"9" * 512 + END, "record of PAX"),
        (FIRST + header("x", 512, b"x") + b"0 size=1\n".ljust(512, b"\0") + END, "record of PAX"),
        (FIRST + header("x", 512, b"x") + b"99999 size=1\n".ljust(512, b"\0") + END, "record of"),
        (FIRST + header("x", 512, b"x") + b"11 size=-1\n".ljust(512, b"\0") + header("b", 0) + END,
         "no number"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_tar(data: bytes, words: str) -> None:
    """Pins that members before the damage count, and that no lie about a size is believed."""
    (fault,) = index_of(data).faults
    assert re.search(words, fault)
    if data.startswith(FIRST):
        assert list(index_of(data).places) == ["a.mp4"]


def test_a_tar_without_a_wanted_member_is_given_up_early() -> None:
    data = tar_of({f"{n}.py": b"x" for n in range(20)} | {"late.mp4": b"x"})
    read: list[int] = []

    def read_at(at: int, n_bytes: int) -> bytes:
        read.append(at)
        return data[at : at + n_bytes]

    def wanted(name: str) -> bool:
        return name.endswith("mp4")

    assert read_index(read_at, len(data), is_wanted=wanted, most_unwanted=5) is None
    assert len(read) == 5
    assert "late.mp4" in index_of(data, most_unwanted=21).places


def test_addresses_and_versions() -> None:
    assert split_member("s3://b/x.TAR::y/z.jpg") == ("s3://b/x.TAR", "y/z.jpg")
    assert split_member("/a/x.tar") is None
    assert split_member("/a/x.tar::b.tar::c") == ("/a/x.tar", "b.tar::c")
    place = index_of(FIRST + END).places["a.mp4"]
    assert split_version(member_version(place, "3-4-5-6")) == (place, "3-4-5-6")
    assert split_version("3-4-5-6") is None
    assert split_version("3-etag@1") is None


Write = Callable[[bytes], str]


@pytest.fixture(params=["folder", "bucket"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Write:
    """Writes `x.tar` into a folder or a bucket, and returns its address."""
    if request.param == "folder":

        def to_folder(data: bytes) -> str:
            (tmp_path / "x.tar").write_bytes(data)
            return str(tmp_path / "x.tar")

        return to_folder
    bucket = request.getfixturevalue("s3_bucket")

    def to_bucket(data: bytes) -> str:
        s3_client.client().put_object(Bucket=bucket, Key="x.tar", Body=data)
        return f"s3://{bucket}/x.tar"

    return to_bucket


def test_members_open_like_files(write: Write) -> None:
    big = os.urandom(700_000)
    tar = write(tar_of({"a.mp4": b"first", "b/c.mp4": big, "d.mp4": b"", "e.mp4": b"last"}))
    for name, data in (("a.mp4", b"first"), ("b/c.mp4", big), ("d.mp4", b""), ("e.mp4", b"last")):
        n_bytes, version = stat_source(f"{tar}::{name}")
        assert n_bytes == len(data)
        for expected in (version, None):
            with open_source(f"{tar}::{name}", expected_version=expected) as stream:
                assert stream.read() == data
                assert stream.seek(0, io.SEEK_END) == len(data)
                assert stream.read() == b""
                stream.seek(len(data) // 2)
                expect_end(stream, len(data))
                assert stream.read(100) == data[len(data) // 2 :][:100]
    with pytest.raises(SourceError, match=r"none.mp4' is not there; list the tar again") as error:
        stat_source(f"{tar}::none.mp4")
    assert error.value.code is ErrorCode.VANISHED
    with pytest.raises(SourceError, match=r"y\.tar::a\.mp4"):
        open_source(tar.replace("x.tar", "y.tar") + "::a.mp4")


def test_a_replaced_tar_is_noticed(write: Write) -> None:
    tar = write(tar_of({"a.mp4": b"first"}))
    version = stat_source(f"{tar}::a.mp4")[1]
    write(tar_of({"a.mp4": b"other", "b.mp4": b""}))
    with pytest.raises(SourceError) as error:
        open_source(f"{tar}::a.mp4", expected_version=version).read()
    assert error.value.code is ErrorCode.CHANGED
    assert open_source(f"{tar}::a.mp4").read() == b"other"


def test_a_file_with_the_name_of_a_member_keeps_it(tmp_path: Path) -> None:
    tar = tmp_path / "x.tar"
    tar.write_bytes(tar_of({"a.mp4": b"member"}))
    member = stat_source(f"{tar}::a.mp4")[1]
    (tmp_path / "x.tar::a.mp4").write_bytes(b"file")
    assert open_source(f"{tar}::a.mp4").read() == b"file"
    file = stat_source(f"{tar}::a.mp4")[1]
    assert open_source(f"{tar}::a.mp4", expected_version=file).read() == b"file"
    assert open_source(f"{tar}::a.mp4", expected_version=member).read() == b"member"


def test_listing_reads_headers_alone(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins what a listing costs: a header block per local member, few bytes of large objects."""
    n_bytes = 2_500_000
    tar = write(tar_of({f"{n}.mp4": bytes(n_bytes) for n in range(6)}))
    read: list[int] = []
    if tar.startswith("s3:"):
        service = type(source_reader._service(tar))
        get = service.get_range

        def counted(*arguments: object) -> object:
            answer = get(*arguments)  # type: ignore[arg-type]
            read.append(len(answer.data))
            return answer

        monkeypatch.setattr(service, "get_range", counted)
        limit = 8 * (64 << 10) + (1 << 20)
    else:
        readinto = source_reader._LocalFile.readinto

        def counted_file(self: source_reader._LocalFile, buffer: bytearray) -> int:
            read.append(readinto(self, buffer))
            return read[-1]

        monkeypatch.setattr(source_reader._LocalFile, "readinto", counted_file)
        limit = 7 * BLOCK
    version = stat_source(tar)[1]
    assert len(tar_index(tar, version).places) == 6
    assert 0 < sum(read) <= limit
    # The index is kept: no further reads.
    n_read = len(read)
    assert stat_source(f"{tar}::3.mp4")[0] == n_bytes
    assert len(read) == n_read


def test_sidecars_are_members_of_the_same_key(write: Write) -> None:
    members = {
        "1.jpg": b"", "1.json": b'{"a": 1, "txt": "own"}', "1.txt": b"text\n",
        "2.jpg": b"", "2.txt": b"\xef\xbb\xbfa cat\n",
        "3.jpg": b"", "3.jpg.json": b'{"a": 3}', "4.x.jpg": b"", "4.json": b'{"a": 4}',
        "5.jpg": b"", "5.json": b"[", "6.jpg": b"", "7.jpg": b"", "7.json": b" " * (300 << 10),
    }  # fmt: skip
    tar = write(tar_of(members))
    names = ("1.jpg", "2.jpg", "3.jpg", "4.x.jpg", "5.jpg", "6.jpg", "7.jpg")
    found = read_sidecars(f"{tar}::{name}" for name in names)
    data = {
        uri.partition("::")[2]: s.data if isinstance(s, Sidecar) else s.code
        for uri, s in found.items()
    }
    assert data == {
        "1.jpg": {"a": 1, "txt": "own"}, "2.jpg": {"txt": "a cat"}, "3.jpg": {"a": 3},
        "4.x.jpg": {"a": 4}, "5.jpg": "not_json", "7.jpg": "too_large",
    }  # fmt: skip
    assert isinstance(found[f"{tar}::5.jpg"], SidecarProblem)

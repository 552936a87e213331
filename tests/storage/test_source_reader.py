"""Sources are opened under any name, and fail under the public codes."""

import io
import os
import pickle
import socket
from pathlib import Path

import pytest

from curator.errors import ErrorCode, SourceError
from curator.storage import open_source, s3_client, source_reader, stat_source
from curator.storage.source_reader import RACY_NS, file_version, is_racy

NASTY_NAMES = [
    "plain.mp4", "with space.mp4", " leading and trailing ", "quotes'\".mp4", "hash#fragment.mp4",
    "percent%20%zz.mp4", "query?a=b&c.mp4", "brackets[1]*.mp4", "line\nbreak.mp4",
    "tab\tand\rreturn.mp4", "ünïcödé 日本 🎬.mp4", "back\\slash.mp4", "-dash.mp4",
    "colon:file.mp4", "concat:a|b", "%",
]  # fmt: skip

not_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")


def code_of(uri: str) -> ErrorCode:
    with pytest.raises(SourceError) as caught:
        open_source(uri)
    with pytest.raises(SourceError) as caught_by_stat:
        stat_source(uri)
    assert caught.value.code == caught_by_stat.value.code
    return caught.value.code


def test_any_file_name_works(tmp_path: Path) -> None:
    for name in NASTY_NAMES:
        path = tmp_path / name
        path.write_bytes(name.encode())
        with open_source(str(path)) as stream:
            assert stream.read() == name.encode()
        assert stat_source(str(path)) == (len(name.encode()), file_version(path.stat()))


@pytest.mark.parametrize(
    "bucket", ["s3_bucket", pytest.param("real_s3_bucket", marks=pytest.mark.needs_s3)]
)
def test_any_key_works(bucket: str, request: pytest.FixtureRequest) -> None:
    place, is_real = request.getfixturevalue(bucket), bucket != "s3_bucket"
    # moto takes no line break, and joins segments.
    more = ["a//b", "/a", "a/../b", "a/./b"] if is_real else []
    for name in [name for name in NASTY_NAMES if is_real or "\n" not in name] + more:
        answer = s3_client.client().put_object(Bucket=place, Key=name, Body=b"12345")
        uri = f"s3://{place}/{name}"
        assert stat_source(uri) == (5, f"5-{answer['ETag'].strip(chr(34))}")
        with open_source(uri, expected_version=stat_source(uri)[1]) as stream:
            assert stream.read() == b"12345"
            assert stream.seek(-2, io.SEEK_END) == 3
            assert stream.read() == b"45"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert code_of(str(tmp_path / "none")) is ErrorCode.VANISHED
    (tmp_path / "file").write_bytes(b"")
    assert code_of(str(tmp_path / "file" / "below")) is ErrorCode.VANISHED
    assert code_of(str(tmp_path / ("x" * 300))) is ErrorCode.VANISHED
    (tmp_path / "link").symlink_to(tmp_path / "none")
    assert code_of(str(tmp_path / "link")) is ErrorCode.VANISHED
    with pytest.raises(SourceError, match="is a link to a file that does not exist"):
        open_source(str(tmp_path / "link"))


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name in (".", "pipe", "loop", "nul\0", "socket", "/dev/zero"):
            assert code_of(str(tmp_path / name)) is ErrorCode.UNREADABLE
    with pytest.raises(SourceError, match="is a pipe; expected a file"):
        open_source(str(tmp_path / "pipe"))


def test_other_schemes_are_told() -> None:
    with pytest.raises(SourceError, match=r"https:// is not supported; expected a path") as caught:
        open_source("https://example.org/v.mp4")
    assert caught.value.code is ErrorCode.UNREADABLE


@not_root
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(SourceError, match="grant this user the permission") as caught:
        open_source(str(path))
    assert caught.value.code is ErrorCode.UNREADABLE


def test_a_file_that_changed_since_it_was_listed_even_with_its_old_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    _, version = stat_source(str(path))
    open_source(str(path), expected_version=version).close()
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match=r"modification time was .* and is 1970-01-01") as caught:
        open_source(str(path), expected_version=version)
    assert caught.value.code is ErrorCode.CHANGED
    # What `rsync -t` and `tar` do: they restore the modification time, no other.
    path = tmp_path / "a"
    path.write_bytes(b"old")
    os.utime(path, ns=(1, 1))
    _, version = stat_source(str(path))
    path.write_bytes(b"new")
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match="last change of status") as caught:
        open_source(str(path), expected_version=version)
    assert caught.value.code is ErrorCode.CHANGED
    (tmp_path / "b").write_bytes(b"new")
    os.utime(tmp_path / "b", ns=(1, 1))
    (tmp_path / "b").rename(path)
    with pytest.raises(SourceError, match="inode was"):
        open_source(str(path), expected_version=version)


def test_a_file_is_racy_until_its_times_are_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_reader, "RACY_NS", RACY_NS)
    path = tmp_path / "a"
    path.write_bytes(b"x")
    info = path.stat()
    version = file_version(info)
    assert is_racy(str(path), version, info.st_ctime_ns)
    assert is_racy(str(path), version, info.st_ctime_ns + RACY_NS - 1)
    assert not is_racy(str(path), version, info.st_ctime_ns + RACY_NS)
    assert not is_racy("s3://bucket/a", "1-abc-2", info.st_ctime_ns)
    # A time in the future is one that somebody set: a write would change it.
    later = info.st_ctime_ns + RACY_NS
    os.utime(path, ns=(later + 10**15, later + 10**15))
    version = file_version(path.stat())
    assert not is_racy(str(path), version, path.stat().st_ctime_ns + RACY_NS)


@pytest.mark.parametrize("read_to_end", [lambda stream: stream.read(), lambda stream: list(stream)])
def test_a_file_that_grows_while_it_is_read(tmp_path: Path, read_to_end: object) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 1_000_000)
    assert callable(read_to_end)
    with open_source(str(path)) as stream:
        stream.read(10)
        with path.open("ab") as other:
            other.write(b"more")
        with pytest.raises(SourceError, match="size was 1000000 and is 1000004") as caught:
            read_to_end(stream)
    assert caught.value.code is ErrorCode.CHANGED


def test_objects_that_are_missing_or_changed(s3_bucket: str) -> None:
    assert code_of(f"s3://{s3_bucket}/none") is ErrorCode.VANISHED
    assert code_of(f"s3://{s3_bucket}-none/a") is ErrorCode.VANISHED
    assert code_of(f"s3://{s3_bucket}/lone\udcffsurrogate") is ErrorCode.UNREADABLE
    assert code_of(f"s3://{s3_bucket}") is ErrorCode.UNREADABLE
    s3_client.client().put_object(Bucket=s3_bucket, Key="a", Body=b"old")
    _, version = stat_source(f"s3://{s3_bucket}/a")
    s3_client.client().put_object(Bucket=s3_bucket, Key="a", Body=b"new")
    with pytest.raises(SourceError, match="replaced") as caught:
        open_source(f"s3://{s3_bucket}/a", expected_version=version)
    assert caught.value.code is ErrorCode.CHANGED


@pytest.mark.parametrize(
    "bucket", ["s3_bucket", pytest.param("real_s3_bucket", marks=pytest.mark.needs_s3)]
)
def test_an_empty_object_is_opened_and_its_version_checked(
    bucket: str, request: pytest.FixtureRequest
) -> None:
    name = request.getfixturevalue(bucket)
    s3_client.client().put_object(Bucket=name, Key="a", Body=b"")
    _, version = stat_source(f"s3://{name}/a")
    with open_source(f"s3://{name}/a", expected_version=version) as stream:
        assert stream.read() == b""
    with pytest.raises(SourceError) as caught:
        open_source(f"s3://{name}/a", expected_version=f"0-{'0' * 32}")
    assert caught.value.code is ErrorCode.CHANGED


@pytest.mark.needs_s3
def test_a_change_is_noticed_on_a_real_server(real_s3_bucket: str) -> None:
    client = s3_client.client()
    client.put_object(Bucket=real_s3_bucket, Key="a", Body=bytes(1 << 20))
    with open_source(f"s3://{real_s3_bucket}/a") as stream:
        stream.read(10)
        client.put_object(Bucket=real_s3_bucket, Key="a", Body=b"\1" * (1 << 20))
        stream.seek(1 << 19)
        with pytest.raises(SourceError) as caught:
            stream.read(10)
    assert caught.value.code is ErrorCode.CHANGED


def test_errors_cross_processes(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        open_source(str(tmp_path / "none"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.code, copy.message) == (caught.value.code, caught.value.message)

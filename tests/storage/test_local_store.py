"""What holds for folders alone: temporary files, modes, links and the words of errors."""

import errno
import fcntl
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from curator.errors import StorageError, UnconditionalStoreError
from curator.storage import local_store, open_store

not_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")


def test_left_over_temporary_files_are_unlisted_and_removed_by_age(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write("a/b", b"x")
    old = tmp_path / "a" / ".tmp-0123"
    young = tmp_path / ".tmp-4567"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    assert [info.key for info in store.list()] == ["a/b"]
    assert list(store.list(".tmp")) == []
    assert store.clean_temporary(("", "a"), bool) == 1
    assert young.exists()
    assert not old.exists()
    assert store.clean_temporary(("", "a"), bool, older_than_s=0) == 1
    assert not young.exists()


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not listed; at first it may be a file that is not locked yet."""
    code = (
        "import os, sys\n"
        "from curator.storage import open_store\n"
        "with open_store(sys.argv[1]).create('a/b') as stream:\n"
        "    stream.write(bytes(1 << 20))\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -9
    store = open_store(str(tmp_path))
    assert list(store.list()) == []
    assert len(list((tmp_path / "a").iterdir())) == 1
    assert store.clean_temporary(("", "a"), bool) == 0
    monkeypatch.setattr(local_store, "_UNLOCKED_S", 0.0)
    with store.create("a/c") as stream:
        stream.write(b"x")
        assert len(list((tmp_path / "a").iterdir())) == 2
        assert store.clean_temporary(("", "a"), bool) == 1
    assert [info.key for info in store.list()] == ["a/c"]
    assert len(list((tmp_path / "a").iterdir())) == 1


def test_without_hard_links_the_name_is_taken_by_exclusive_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link whose answer was lost counts as made."""
    link, store = os.link, open_store(str(tmp_path))

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def repeated(*paths: str) -> None:
        link(*paths)
        link(*paths)

    monkeypatch.setattr(os, "link", refused)
    first = store.write_new("a", b"first")
    assert store.read_versioned("a") == (first, b"first")
    assert store.write_new("a", b"second") is None
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    monkeypatch.setattr(os, "link", repeated)
    assert store.write_new("b", b"x") is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_without_locks_nothing_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    first = store.write_new("a", b"first")
    assert first is not None

    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(UnconditionalStoreError, match="-o flock"):
        store.replace("a", b"second", first.version)
    assert store.read("a") == b"first"


def test_objects_are_written_where_nothing_can_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", sync)
    store = open_store(str(tmp_path))
    store.check_writable()
    store.write("a/b", b"x")
    assert store.read("a/b") == b"x"


def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    before = os.umask(0o027)
    try:
        store.write("a", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_linked_folders_are_listed_and_loops_end(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "x").write_bytes(b"1")
    root = tmp_path / "out"
    root.mkdir()
    (root / "shards").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "loop").symlink_to(root)
    assert [info.key for info in open_store(str(root)).list()] == ["shards/x"]


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot write .*choose another output folder"):
        open_store(str(tmp_path / "out")).check_writable()
    store = open_store(str(tmp_path / "in"))
    store.write("a/b", b"")
    with pytest.raises(StorageError, match="a folder is in the place of an object"):
        store.write("a", b"")
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["a"]
    assert not store.exists("a")
    with pytest.raises(StorageError, match="shorter path"):
        store.write("x" * 300, b"")
    with (
        local_store.AppendFile("/dev/full", "wb") as raw,
        pytest.raises(StorageError, match="free some space"),
    ):
        raw.write(b"x")


@not_root
def test_a_folder_without_permission_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="grant this user the permission"):
            open_store(str(tmp_path)).check_writable()
    finally:
        tmp_path.chmod(0o700)


def test_a_lookup_of_a_missing_object_keeps_nothing_of_its_caller(tmp_path: Path) -> None:
    """Pins that no part of a table stays in memory until Python looks for cycles."""

    class Part:
        pass

    def looked_up() -> weakref.ref[Part]:
        part = Part()
        assert open_store(str(tmp_path)).find("missing") is None
        return weakref.ref(part)

    gc.disable()
    try:
        assert looked_up()() is None
    finally:
        gc.enable()

"""Stored replies: all are found, whoever makes parts of them meanwhile."""

import time
from pathlib import Path
from typing import Any

import pytest

from curator.errors import StorageError
from curator.stages.caption import reply_store as module
from curator.stages.caption.caption_records import Reply
from curator.stages.caption.reply_store import PACK_FROM, Replies, WorkerReplies
from curator.storage import open_store


def test_replies_that_become_a_part_while_they_are_read_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the driver makes parts while a worker starts again."""
    store = open_store(str(tmp_path))
    driver = Replies(store, "stamp")
    wanted = {f"key{i}": Reply(text=str(i)) for i in range(40)}
    for key, reply in wanted.items():
        driver.keep(key, reply)
    worker = Replies(store, "stamp")
    read = type(store).read

    def read_late(self: Any, name: str) -> bytes:  # noqa: ANN401
        if name.endswith("key20.json"):
            driver.pack()
        return read(self, name)

    monkeypatch.setattr(type(store), "read", read_late)
    worker.load()
    assert dict(worker) == wanted
    assert not list(tmp_path.glob("replies/*.json"))


def test_a_worker_stores_each_second_what_came_and_a_part_at_the_end_of_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins what a kill loses, what the next worker of a unit finds, and the objects that stay."""
    monkeypatch.setattr(module, "STORE_S", 0.02)
    store = open_store(str(tmp_path))
    stored = tmp_path / "replies"
    dead, other = WorkerReplies(store, "stamp"), WorkerReplies(store, "stamp")
    dead.begin("unit", {"known": Reply(text="?")})
    for n in range(3):
        dead.keep(f"key{n}", Reply(text=str(n)))
        until = time.monotonic() + 10
        while len(list(stored.glob("*.parquet"))) < n + 1:
            assert time.monotonic() < until
            time.sleep(0.005)
    dead._ended.set()
    later = Replies(store, "stamp")
    later.load()
    assert {key: reply.text for key, reply in later.items()} == {
        f"key{n}": str(n) for n in range(3)
    }
    # Its unit was divided, or given to another worker as it was.
    other.begin("unit-0", {}, ["unit"])
    assert dict(other).keys() == {"key0", "key1", "key2"}
    assert other.end() is None
    other.begin("unit", {})
    assert other["key2"] == Reply(text="2")
    other.keep("key3", Reply(text="3"))
    part = other.end()
    assert part is not None
    assert [one.name for one in stored.iterdir()] == [Path(part.name).name]
    assert sorted(part.keys) == ["key0", "key1", "key2", "key3"]
    driver = Replies(store, "stamp")
    driver.add_part(part)
    assert {key: reply.text for key, reply in driver.items()} == {
        f"key{n}": str(n) for n in range(4)
    }


def test_small_objects_become_parts_before_the_run_ends(tmp_path: Path) -> None:
    """Pins that a killed run leaves few objects to read, whoever answered."""
    store = open_store(str(tmp_path))
    driver, worker = Replies(store, "stamp"), WorkerReplies(store, "stamp")
    for i in range(PACK_FROM // 100 + 3):
        worker.begin(f"unit{i}", {})
        for n in range(100):
            worker.keep(f"key{i}-{n}", Reply(text=f"{i} {n}"))
        part = worker.end()
        assert part is not None
        driver.add_part(part)
    driver.keep("loose", Reply(text="alone"))
    assert len(list(tmp_path.glob("replies/*.parquet"))) == 3
    driver.pack()
    assert len(list(tmp_path.iterdir())) == 1
    assert len(list(tmp_path.glob("replies/*"))) == 2
    later = Replies(store, "stamp")
    later.load()
    assert dict(later) == dict(driver)
    assert len(later) == 100 * (PACK_FROM // 100 + 3) + 1
    assert later["key7-99"] == Reply(text="7 99")


def test_a_worker_that_cannot_store_ends_its_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STORE_S", 0.01)
    store = open_store(str(tmp_path))

    def full(self: object, name: str, data: bytes) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(type(store), "write", full)
    worker = WorkerReplies(store, "stamp")
    worker.begin("unit", {})
    worker.keep("key", Reply(text="1"))
    time.sleep(0.1)
    with pytest.raises(StorageError, match="full"):
        worker.keep("key2", Reply(text="2"))
    with pytest.raises(StorageError, match="full"):
        worker.end()


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_a_broken_object_is_named_with_the_remedy(tmp_path: Path, suffix: str) -> None:
    store = open_store(str(tmp_path))
    store.write(f"{module.REPLIES}/stamp-x.{suffix}", b"torn")
    with pytest.raises(StorageError, match=rf"stamp-x\.{suffix} is damaged .* makes it again"):
        Replies(store, "stamp").load()

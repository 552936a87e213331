"""Stored replies are all found, even while another process merges their parts."""

import time
from pathlib import Path
from typing import Any

import pytest

from curator.errors import StorageError
from curator.stages.caption import reply_store as module
from curator.stages.caption.caption_records import Reply
from curator.stages.caption.reply_store import PACK_FROM, Replies
from curator.storage import open_store

UNIT = "0badcafe"


def _parts(folder: Path) -> list[Path]:
    return sorted((folder / "replies").glob("[!.]*"))


def test_replies_that_become_a_part_while_they_are_read_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the case in which the driver merges parts while a worker starts again."""
    store = open_store(str(tmp_path))
    driver = Replies(store, "stamp")
    wanted = {f"key{i}": Reply(text=str(i)) for i in range(40)}
    for key, reply in wanted.items():
        with Replies(store, "stamp", f"{int(key[3:]):08x}") as unit:
            unit.keep(key, reply)
        driver.add(unit.parts)
    assert len(_parts(tmp_path)) == 40
    other = Replies(store, "stamp")
    read, n_read = type(store).read, iter(range(1000))

    def read_late(self: Any, name: str) -> bytes:  # noqa: ANN401
        if next(n_read) == 20:
            driver.pack()
        return read(self, name)

    monkeypatch.setattr(type(store), "read", read_late)
    assert dict(other.load()) == wanted
    assert len(_parts(tmp_path)) == 1


def test_a_unit_stores_each_second_what_came_and_a_part_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the replies that a kill loses and that the next worker finds, and the objects left."""
    monkeypatch.setattr(module, "STORE_S", 0.02)
    store = open_store(str(tmp_path))
    dead = Replies(store, "stamp", UNIT, {"known": Reply(text="?")})
    dead.__enter__()
    for n in range(3):
        dead.keep(f"key{n}", Reply(text=str(n)))
        until = time.monotonic() + 10
        while len(_parts(tmp_path)) < n + 1:
            assert time.monotonic() < until
            time.sleep(0.005)
    dead._ended.set()
    wanted = {f"key{n}": str(n) for n in range(3)}
    later = Replies(store, "stamp").load()
    assert {key: reply.text for key, reply in later.items()} == wanted
    # The unit was divided, or went to another worker whole: both keep its name.
    other = Replies(store, "stamp", UNIT, {"known": Reply(text="?")}).load()
    assert dict(other).keys() == {"known", *wanted}
    assert Replies(store, "stamp", "0badcaff").load().get("key0") is None
    with other:
        for n in (3, 4):
            other.keep(f"key{n}", Reply(text=str(n)))
            time.sleep(0.1)
    (name,) = other.parts
    assert sorted(other.parts[name]) == ["key3", "key4"]
    assert len(_parts(tmp_path)) == 4, "a sibling may be reading what the dead one left"
    driver = Replies(store, "stamp").load()
    driver.add(other.parts)
    driver.pack()
    assert len(_parts(tmp_path)) == 1
    assert {key: reply.text for key, reply in driver.items()} == {
        f"key{n}": str(n) for n in range(5)
    }


def test_small_objects_become_parts_before_the_run_ends(tmp_path: Path) -> None:
    """Pins that a killed run leaves few objects to read, whatever the number of workers."""
    store = open_store(str(tmp_path))
    driver = Replies(store, "stamp")
    n_units = PACK_FROM // 100 + 3
    for i in range(n_units):
        with Replies(store, "stamp", f"{i:08x}") as unit:
            for n in range(100):
                unit.keep(f"key{i}-{n}", Reply(text=f"{i} {n}"))
        driver.add(unit.parts)
    driver.keep("own", Reply(text="alone"))
    assert len(_parts(tmp_path)) == 3
    driver.pack()
    assert len(_parts(tmp_path)) == 2
    later = Replies(store, "stamp").load()
    assert dict(later) == dict(driver)
    assert len(later) == 100 * n_units + 1
    assert later["key7-99"] == Reply(text="7 99")


def test_a_unit_that_cannot_store_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORE_S", 0.01)
    store = open_store(str(tmp_path))

    def full(self: object, name: str, data: bytes) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(type(store), "write", full)
    unit = Replies(store, "stamp", UNIT)
    unit.__enter__()
    unit.keep("key", Reply(text="1"))
    time.sleep(0.2)
    with pytest.raises(StorageError, match="full"):
        unit.keep("key2", Reply(text="2"))
    with pytest.raises(StorageError, match="full"):
        unit.__exit__()


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_a_broken_object_is_named_with_the_remedy(tmp_path: Path, suffix: str) -> None:
    store = open_store(str(tmp_path))
    store.write(f"{module.REPLIES}/stamp-x.{suffix}", b"torn")
    with pytest.raises(StorageError, match=rf"stamp-x\.{suffix} is damaged .* writes it again"):
        Replies(store, "stamp").load()

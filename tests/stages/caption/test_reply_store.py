"""Stored replies: all are found, whoever makes parts of them meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from curator.errors import StorageError
from curator.stages.caption import reply_store as module
from curator.stages.caption.caption_records import Reply
from curator.stages.caption.reply_store import PACK_FROM, Replies, UnitReplies
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


def test_replies_of_workers_become_parts_before_the_run_ends(tmp_path: Path) -> None:
    """Pins that a killed run leaves few objects to read, whoever answered."""
    store = open_store(str(tmp_path))
    driver, worker = Replies(store, "stamp"), UnitReplies(store, "stamp", {}, rereads=False)
    for i in range(PACK_FROM + 3):
        worker.keep(f"key{i}", Reply(text=str(i)))
        driver.added_elsewhere(f"key{i}", Reply(text=str(i)))
    assert len(list(tmp_path.glob("replies/*.json"))) == 3
    later = Replies(store, "stamp")
    later.load()
    assert {key: reply.text for key, reply in later.items()} == {
        f"key{i}": str(i) for i in range(PACK_FROM + 3)
    }


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_a_broken_object_is_named_with_the_remedy(tmp_path: Path, suffix: str) -> None:
    store = open_store(str(tmp_path))
    store.write(f"{module.REPLIES}/stamp-x.{suffix}", b"torn")
    with pytest.raises(StorageError, match=rf"stamp-x\.{suffix} is damaged .* makes it again"):
        Replies(store, "stamp").load()

"""Which part has a key: by the index and by footers, and the same whatever the index says."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest
from damages import DAMAGES, damage

from curator.errors import ErrorCode
from curator.records.sources import Failure, SourceRef
from curator.storage import ObjectInfo
from curator.storage.local_store import LocalStore
from curator.tables.key_index import FEW_FOOTERS, KnownKeys, part_versions
from curator.tables.parts import FAILED, FINGERPRINT, Parts, to_parquet
from curator.tables.parts import KEYS as KEY_VALUE
from curator.tables.track_items import FRAMES, StoredFamily
from curator.tables.track_parts import TrackParts, track_origins

N_PARTS = FEW_FOOTERS + 4
KEYS = [f"{number} ü\t{letter}" for number in range(N_PARTS) for letter in "ab"]


@dataclass(frozen=True, slots=True)
class LoggingStore(LocalStore):
    """Notes what is read."""

    log: list[str] = field(default_factory=list)

    def open(self, key: str) -> BinaryIO:
        self.log.append(key)
        return LocalStore.open(self, key)

    def read_versioned(self, key: str) -> tuple[ObjectInfo, bytes] | None:
        found = LocalStore.read_versioned(self, key)
        self.log.extend([key] if found is not None else [])
        return found

    def indexes(self) -> list[str]:
        return [info.key for info in self.list("index/")]


@pytest.fixture
def store(tmp_path: Path) -> LoggingStore:
    """Parts with two keys each, of which the second failed; the last one repeats a key."""
    store = LoggingStore(str(tmp_path))
    parts = Parts(store, "scan", "stamp")
    for number in range(N_PARTS):
        a, b = KEYS[2 * number : 2 * number + 2]
        parts.write(pa.table({"n": [number]}), [a, b], failed=[b])
    parts.write(pa.table({"n": [0]}), [KEYS[0]])
    return store


def known(store: LoggingStore, *, may_write: bool = False) -> KnownKeys:
    there = part_versions(store, "scan")
    return KnownKeys.of(store, "scan", there, list(there), may_write=may_write)


def matches(store: LoggingStore) -> list[tuple[int, str, bool]]:
    return list(known(store).matches([*KEYS, "new", "gone"]))


def test_keys_are_found_in_the_parts_that_have_them(store: LoggingStore) -> None:
    found = known(store)
    assert len(found) == len(KEYS) + 1
    assert found.find([]) == []
    first, nowhere, twice = found.find([KEYS[3], "nothing", KEYS[0]])
    assert Parts(store, "scan", "").keys(str(first)) == KEYS[2:4]
    assert nowhere is None
    places = [part for _, part, _ in found.matches([KEYS[0]])]
    assert (places, len(places)) == (sorted(places), 2)
    assert twice == places[0]
    assert [failed for _, _, failed in found.matches(KEYS[2:4])] == [False, True]
    none = KnownKeys.of(store, "scan", {}, [], may_write=True)
    assert (len(none), none.find(["1"]), store.indexes()) == (0, [None], [])


def test_only_footers_of_new_parts_are_read(store: LoggingStore) -> None:
    """Pins that the keys of history cost one read, and that only a run writes."""
    known(store)
    assert (len(store.log), store.indexes()) == (N_PARTS + 1, [])
    before = list(known(store, may_write=True).matches(KEYS))
    (index,) = store.indexes()
    store.log.clear()
    assert list(known(store, may_write=True).matches(KEYS)) == before
    assert store.log == [index]
    new = Parts(store, "scan", "stamp").write(pa.table({"n": [0]}), ["new"])
    content = store.read(index)
    store.log.clear()
    assert known(store, may_write=True).find(["new"]) == [new]
    assert store.log == [index, new]
    assert store.read(index) == content, "it is not written anew for a few parts"


def test_the_index_does_not_depend_on_how_it_grew(store: LoggingStore, tmp_path: Path) -> None:
    known(store, may_write=True)
    for number in range(FEW_FOOTERS + 1):
        Parts(store, "scan", "more").write(pa.table({"n": [0]}), [f"more {number}"])
    known(store, may_write=True)
    (index,) = store.indexes()
    grown = store.read(index)
    store.delete([index])
    known(store, may_write=True)
    assert store.read(index) == grown


def part_gone(store: LoggingStore) -> None:
    store.delete(list(part_versions(store, "scan"))[:2])


def rewritten(store: LoggingStore) -> None:
    """A part of the same name and size has other keys."""
    (name,) = known(store).find([KEYS[2]])
    before = store.read(str(name))
    keys = {KEY_VALUE: json.dumps(["g ü\ta", "g ü\tb"]), FAILED: json.dumps(["g ü\tb"])}
    table = pa.table({"n": [1]}).replace_schema_metadata({**keys, FINGERPRINT: "stamp"})
    store.write(str(name), to_parquet(table, str(name)))
    assert len(store.read(str(name))) == len(before)
    assert known(store).find(["g ü\ta", KEYS[2]]) == [name, None]


def copied(store: LoggingStore) -> None:
    """All parts have other versions, as in a copy of OUT."""
    for name in part_versions(store, "scan"):
        store.write(name, store.read(name))


@pytest.mark.parametrize("change", [part_gone, rewritten, copied])
def test_an_outdated_index_changes_nothing(
    store: LoggingStore, change: Callable[[LoggingStore], None]
) -> None:
    known(store, may_write=True)
    change(store)
    (index,) = store.indexes()
    with_index = matches(store)
    store.delete([index])
    assert with_index == matches(store)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_index_is_read_once_and_made_again(
    store: LoggingStore, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = matches(store)
    known(store, may_write=True)
    (index,) = store.indexes()
    content = store.read(index)
    damage(tmp_path / index, how)
    assert matches(store) == before
    assert len(caplog.records) == (how != "deleted")
    known(store, may_write=True)
    caplog.clear()
    assert store.read(index) == content
    assert matches(store) == before
    assert not caplog.records


def test_what_failed_stays_failed_and_families_stay_apart(tmp_path: Path) -> None:
    """Pins that tracks are found by the indexes of two families as by their footers."""
    store = LoggingStore(str(tmp_path))
    parts = TrackParts(
        store,
        [
            StoredFamily(name=FRAMES, folder=FRAMES, fingerprint=16 * "a", columns=("sha256",)),
            StoredFamily(name="clip", folder="clip", fingerprint=16 * "a", columns=()),
        ],
    )
    for number in range(N_PARTS):
        source = SourceRef(
            uri=f"s3://in/{number}.mp4", n_bytes=1, version="1", source_id=f"id{number}"
        )
        failure = Failure(uri=source.uri, stage="analyze", code=ErrorCode.NOT_A_VIDEO, message="no")
        parts.write([(source, failure)], (FRAMES,))
    # In units of their own, as where a family was added later; of ids without frames, too.
    late = Parts(store, "tracks/clip", 16 * "a")
    for number in range(1, N_PARTS + 1):
        late.write(pa.table({"n": [0]}), [f"id{number}", f"and{number}"])
    ids = ["id0", "id1", f"id{N_PARTS}", "no"]
    by_footers = parts.stored(ids)
    stored, failed = by_footers
    assert {name: set(names) for name, names in stored.items()} == {
        "id0": {FRAMES}, "id1": {FRAMES, "clip"}, f"id{N_PARTS}": {"clip"},
    }  # fmt: skip
    assert failed == {"id0", "id1"}
    origins = list(track_origins(store, {"id1"}))
    assert [(row["source_id"], row["sha256"], row["uri"]) for row in origins] == [
        ("id1", None, "s3://in/1.mp4")
    ]
    parts.stored(ids, may_write=True)
    assert len(store.indexes()) == 2
    store.log.clear()
    assert parts.stored(ids) == by_footers
    assert sorted(store.log) == store.indexes()
    store.log.clear()
    assert list(track_origins(store, {"id1"})) == origins
    assert len(store.log) == 2, "the index, and the part"
    store.log.clear()
    assert parts.stored([]) == ({}, set())
    assert store.log == []

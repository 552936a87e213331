"""A fenced store writes while the lease is held, and nothing over what another writer left."""

import hashlib
import pickle
from pathlib import Path

import pytest

from curator.errors import LeaseLostError, StorageError, UnconditionalStoreError
from curator.storage import ObjectInfo, open_store
from curator.storage.local_store import LocalStore
from curator.tables.fenced_store import Digest, FencedStore

FIXED, PART = "summary.json", "clips/part-00000-0123456789ab.parquet"


class Lease:
    """Held, until something else happens at a check."""

    def __init__(self) -> None:
        self.is_held = True

    def check(self) -> None:
        if not self.is_held:
            raise LeaseLostError("out", "it was taken over")


@pytest.fixture
def lease() -> Lease:
    return Lease()


@pytest.fixture
def store(tmp_path: Path, lease: Lease) -> FencedStore:
    return FencedStore(open_store(str(tmp_path)), lease.check)


def test_it_notes_what_it_wrote_and_is_the_store_itself_elsewhere(store: FencedStore) -> None:
    for name in (FIXED, PART):
        store.write(name, b"old")
        store.write(name, b"new")
        assert store.read(name) == b"new"
        digest = Digest(n_bytes=3, sha256=hashlib.sha256(b"new").hexdigest())
        assert store.written[name] == digest == Digest.of_object(store, name)
    assert isinstance(pickle.loads(pickle.dumps(store)), LocalStore)


def test_nothing_is_written_or_removed_without_the_lease(store: FencedStore, lease: Lease) -> None:
    store.write(FIXED, b"old")
    lease.is_held = False
    for change in (
        lambda: store.write(FIXED, b"new"),
        lambda: store.write(PART, b"new"),
        lambda: store.write_new(PART, b"new"),
        lambda: store.copy(FIXED, PART),
        lambda: store.delete([FIXED]),
        lambda: store.create(PART).__enter__(),
    ):
        with pytest.raises(LeaseLostError):
            change()
    assert [(info.key, store.read(info.key)) for info in store.list()] == [(FIXED, b"old")]


def test_a_stream_whose_lease_is_lost_meanwhile_makes_no_object(
    store: FencedStore, lease: Lease
) -> None:
    def written() -> None:
        with store.create(PART) as stream:
            stream.write(b"new")
            lease.is_held = False

    with pytest.raises(LeaseLostError):
        written()
    assert list(store.list()) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_what_a_successor_wrote_after_the_check_stays(
    store: FencedStore, lease: Lease, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_there:
        store.write(FIXED, b"old")
    name = "replace" if is_there else "write_new"
    call = getattr(LocalStore, name)

    def stopped(inner: LocalStore, key: str, data: bytes, *version: str) -> ObjectInfo | None:
        if lease.is_held:
            inner.write(key, b"of the successor")
            lease.is_held = False
        done: ObjectInfo | None = call(inner, key, data, *version)
        return done

    monkeypatch.setattr(LocalStore, name, stopped)
    with pytest.raises(LeaseLostError):
        store.write(FIXED, b"new")
    assert store.read(FIXED) == b"of the successor"


def test_something_else_that_writes_all_the_time_is_an_error(
    store: FencedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(FIXED, b"old")
    monkeypatch.setattr(LocalStore, "replace", lambda *_: None)
    with pytest.raises(StorageError, match="another program changed"):
        store.write(FIXED, b"new")


def test_a_store_without_conditions_is_written_as_before(
    store: FencedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise UnconditionalStoreError("no conditions")

    for name in ("replace", "write_new"):
        monkeypatch.setattr(LocalStore, name, refused)
    for data in (b"old", b"new"):
        store.write(FIXED, data)
    assert store.read(FIXED) == b"new"

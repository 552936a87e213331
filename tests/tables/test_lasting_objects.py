"""What no run can make again has a copy, and its loss is noticed and can be accepted."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator.errors import UsageError
from curator.storage import LocalStore, open_store
from curator.tables.checksums import sealed_parquet
from curator.tables.lasting_objects import (
    LastingObject,
    copy_name,
    give_up_lasting,
    lasting_names,
    read_lasting,
    receipt_name,
    repair_lasting,
    write_lasting,
)
from curator.tables.out_layout import LEARNED_MODEL, is_own
from curator.tables.removal_records import Removals
from curator.tools.verify.findings import FindingCode, Findings
from curator.tools.verify.lasting_check import check_lasting

NAME = "marks/0123456789abcdef.parquet"
KEYS = (NAME, copy_name(NAME), receipt_name(NAME))


def marks(*values: str, name: str = NAME) -> bytes:
    table = pa.table({"clip_id": list(values)})
    return sealed_parquet(lambda out: out.write_table(table), table.schema, name)[1]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def unsealed(path: Path) -> None:
    """Another whole object, as another program writes it."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"clip_id": ["other"]}), path)
    else:
        path.write_text("{}")


DAMAGES = [Path.unlink, flip, unsealed]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output root with one object."""
    write_lasting(open_store(str(tmp_path)), NAME, marks("a", "b"), entries=2)
    return tmp_path


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("key", KEYS)
def test_one_damaged_object_of_three_is_written_again(
    damage: Callable[[Path], None], key: str, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(str(out))
    damage(out / key)
    findings = Findings()
    check_lasting(store, Removals(), findings)
    assert sum(findings.counts.values()) == 1
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    assert read_lasting(store, NAME) == marks("a", "b")
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == before
    repair_lasting(store)
    assert store.read(NAME) == store.read(copy_name(NAME)) == marks("a", "b")
    assert NAME in caplog.text or key == receipt_name(NAME)
    assert not LastingObject.read(store, NAME).stale
    assert all(map(is_own, KEYS))


@pytest.mark.parametrize("damages", itertools.product(DAMAGES, DAMAGES))
def test_a_loss_is_said_and_can_be_accepted(
    damages: tuple[Callable[[Path], None], ...], out: Path
) -> None:
    store = open_store(str(out))
    other = "marks/fedcba9876543210.parquet"
    write_lasting(store, other, marks("c", name=other), entries=1)
    for damage, key in zip(damages, KEYS[:2], strict=True):
        damage(out / key)
    if damages == (unsealed, unsealed):
        # Equal bytes would prove each other.
        (out / NAME).write_bytes((out / NAME).read_bytes()[:-1])
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    why = rf"{NAME} is .* no valid copy of it; lost: 2 marks of 20.*"
    why += rf"restore .* backup .*`curate mark {out} --give-up-lost`"
    for command in (repair_lasting, lambda store: read_lasting(store, NAME)):
        with pytest.raises(UsageError, match=why):
            command(store)
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == before
    findings = Findings()
    check_lasting(store, Removals(), findings)
    assert findings.counts["irreplaceable"] == 1
    (loss,) = give_up_lasting(store)
    assert "lost: 2 marks of 20" in loss
    repair_lasting(store)
    assert lasting_names(store) == [other]
    assert give_up_lasting(store) == []


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("n_done", [0, 1, 2])
def test_a_killed_write_loses_neither_state(
    n_done: int, sealed: bool, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(out))
    name = NAME if sealed else LEARNED_MODEL
    old, new = (marks("a", "b"), marks("a", "b", "c")) if sealed else (b'{"a": 1}', b'{"a": 2}')
    write_lasting(store, name, old, entries=2)
    whole, done = LocalStore.create, []

    def killed(self: LocalStore, key: str) -> object:
        if len(done) == n_done:
            raise KeyboardInterrupt
        done.append(key)
        return whole(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "create", killed)
        with pytest.raises(KeyboardInterrupt):
            write_lasting(store, name, new, entries=3)
    expected = new if n_done == 2 else old
    assert read_lasting(store, name) == expected
    repair_lasting(store)
    assert store.read(name) == store.read(copy_name(name)) == expected


@pytest.mark.parametrize("n_done", [0, 1, 2])
def test_a_killed_first_write_is_no_loss(
    n_done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails where the receipt comes first: nothing stored would count as lost for good."""
    store, whole, done = open_store(str(tmp_path)), LocalStore.create, []

    def killed(self: LocalStore, key: str) -> object:
        if len(done) == n_done:
            raise KeyboardInterrupt
        done.append(key)
        return whole(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "create", killed)
        with pytest.raises(KeyboardInterrupt):
            write_lasting(store, NAME, marks("a"), entries=1)
    repair_lasting(store)
    assert store.exists(NAME) == (n_done > 0)


@pytest.mark.parametrize("n_writes", [1, 2])
@pytest.mark.parametrize("older", ["copies", "marks"])
def test_the_newer_contents_stay_when_a_folder_is_restored_from_a_backup(
    older: str, n_writes: int, out: Path
) -> None:
    store = open_store(str(out))
    backup = {p: p.read_bytes() for p in (out / older).rglob("*") if p.is_file()}
    for number in range(n_writes):
        newest = marks("a", "b", *"cde"[: number + 1])
        write_lasting(store, NAME, newest, entries=3 + number)
    for path, data in backup.items():
        path.write_bytes(data)
    assert read_lasting(store, NAME) == newest
    repair_lasting(store)
    assert store.read(NAME) == store.read(copy_name(NAME)) == newest
    assert not LastingObject.read(store, NAME).stale


def test_an_object_whose_copies_are_lost_is_named_and_gets_copies(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.write(LEARNED_MODEL, b'{"curves": {}}')
    store.write(NAME, marks("a"))
    findings = Findings()
    check_lasting(store, Removals(), findings)
    assert findings.counts == {FindingCode.IRREPLACEABLE: 2}
    repair_lasting(store)
    for name in (LEARNED_MODEL, NAME):
        assert store.read(copy_name(name)) == store.read(name)
    unsealed(tmp_path / LEARNED_MODEL)
    repair_lasting(store)
    assert store.read(LEARNED_MODEL) == b'{"curves": {}}'

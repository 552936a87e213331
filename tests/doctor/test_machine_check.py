"""Checks of cores, memory, disk and limits, at their bounds."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from curator.doctor import machine_check
from curator.doctor.diagnosis import CheckRow, State

GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine in order; a test changes what it has."""
    here = SimpleNamespace(cpus=8, memory=64 * GIB, free=500 * 10**9, files=(1024, -1), landlock=6)
    disk = SimpleNamespace(total=1000 * 10**9)
    monkeypatch.setattr(machine_check, "available_cpus", lambda: here.cpus)
    monkeypatch.setattr(machine_check, "memory_bytes", lambda: here.memory)
    monkeypatch.setattr(machine_check, "object_store_bytes", lambda: 2 * GIB)
    monkeypatch.setattr(machine_check, "landlock_version", lambda: here.landlock)
    monkeypatch.setattr(machine_check, "has_seccomp", lambda: True)
    monkeypatch.setattr(machine_check.resource, "getrlimit", lambda which: here.files)
    usage = lambda path: SimpleNamespace(free=here.free, **vars(disk))  # noqa: E731
    monkeypatch.setattr(machine_check.shutil, "disk_usage", usage)
    return here


def rows_of(out: str | None = None) -> dict[str, CheckRow]:
    return {row.name: row for row in machine_check.machine_rows(out)}


def test_a_machine_in_order(tmp_path: Path) -> None:
    rows = rows_of(str(tmp_path / "not" / "there"))
    assert {row.state for name, row in rows.items() if name != "/dev/shm"} == {State.OK}
    assert rows["disk of OUT"].found == f"500.0 GB free of 1000.0 GB at {tmp_path}"
    assert rows["memory"].found == "64.0 GiB"
    assert rows["open files"].found == "limit 1024, up to without end"
    assert "disk of OUT" not in rows_of("s3://bucket/out")


@pytest.mark.parametrize(
    ("free", "state", "stops"),
    [
        (5 * 10**9, State.OK, False),
        (5 * 10**9 - 1, State.MISSING, False),
        (10**8, State.MISSING, True),
    ],
)
def test_a_full_disk(
    free: int, state: State, stops: bool, tmp_path: Path, machine: SimpleNamespace
) -> None:
    machine.free = free
    rows = rows_of(str(tmp_path))
    for name in ("disk of OUT", "disk for temporary files"):
        assert (rows[name].state, rows[name].stops) == (state, stops)
    if stops:
        assert "TMPDIR" in (rows["disk for temporary files"].remedy or "")


def test_a_small_shared_memory_has_a_remedy(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pins a container's default of 64 MiB."""
    monkeypatch.setattr(machine_check, "_SHM", str(tmp_path))
    machine.free = 64 << 20
    row = rows_of()[str(tmp_path)]
    assert (row.state, row.stops) == (State.MISSING, False), "Ray then takes the disk"
    assert "--shm-size=2g" in (row.remedy or "")


@pytest.mark.parametrize(
    ("memory", "words", "stops"),
    [
        (GIB, "one worker takes up to 2.0 GiB", True),
        (8 * GIB, "room for 4 of 8 workers", False),
        (16 * GIB, "16.0 GiB", False),
    ],
)
def test_memory(memory: int, words: str, stops: bool, machine: SimpleNamespace) -> None:
    machine.memory = memory
    row = rows_of()["memory"]
    assert words in row.found
    assert row.stops is stops


def test_few_open_files(machine: SimpleNamespace) -> None:
    machine.files = (256, 512)
    row = rows_of()["open files"]
    assert (row.state, row.stops) == (State.MISSING, False)
    assert "limit 256, up to 512" in row.found


def test_a_kernel_without_landlock_is_named(machine: SimpleNamespace) -> None:
    """Pins that what a decoder could still reach is said, and does not stop a run."""
    machine.landlock = 0
    row = rows_of()["sandbox"]
    assert (row.state, row.stops) == (State.MISSING, False)
    assert "reach files" in row.found

"""Checks of cores, memory, disk and limits, at their bounds."""

from pathlib import Path

import pytest
from fake_host import GIB, FakeHost

from curator.doctor.diagnosis import Group, Row, State
from curator.doctor.machine_check import existing, machine_rows


def rows_of(host: FakeHost, out: str | None = None) -> dict[str, Row]:
    return {row.name: row for row in machine_rows(host, out)}


def test_a_machine_in_order(tmp_path: Path) -> None:
    rows = rows_of(FakeHost(files={"/dev/shm": ""}), str(tmp_path / "not" / "there"))
    assert {row.state for row in rows.values()} == {State.OK}
    assert {row.group for row in rows.values()} == {Group.MACHINE}
    assert rows["disk of OUT"].found == f"500.0 GB free of 1000.0 GB at {tmp_path}"
    assert rows["memory"].found == "64.0 GiB"


def test_out_on_s3_has_no_disk() -> None:
    assert "disk of OUT" not in rows_of(FakeHost(), "s3://bucket/out")


@pytest.mark.parametrize(
    ("free", "state", "stops"),
    [
        (5 * 10**9, State.OK, False),
        (5 * 10**9 - 1, State.MISSING, False),
        (10**8, State.MISSING, True),
    ],
)
def test_a_full_disk(free: int, state: State, stops: bool, tmp_path: Path) -> None:
    rows = rows_of(FakeHost(free_bytes=free), str(tmp_path))
    for name in ("disk of OUT", "disk for temporary files"):
        assert (rows[name].state, rows[name].stops) == (state, stops)
    if stops:
        assert "TMPDIR" in (rows["disk for temporary files"].remedy or "")


def test_a_small_shared_memory_has_a_remedy() -> None:
    """Pins a container's default of 64 MiB."""
    row = rows_of(FakeHost(files={"/dev/shm": ""}, free_bytes=64 << 20))["/dev/shm"]
    assert row.state == State.MISSING
    assert not row.stops, "Ray then takes the disk"
    assert "--shm-size=2g" in (row.remedy or "")
    assert rows_of(FakeHost())["/dev/shm"].state == State.NOT_NEEDED


@pytest.mark.parametrize(
    ("memory", "words", "stops"),
    [
        (GIB, "one worker takes up to 2.0 GiB", True),
        (8 * GIB, "room for 4 of 8 workers", False),
        (16 * GIB, "16.0 GiB", False),
    ],
)
def test_memory(memory: int, words: str, stops: bool) -> None:
    row = rows_of(FakeHost(memory=memory, n_cpus=8))["memory"]
    assert words in row.found
    assert row.stops is stops


@pytest.mark.parametrize(
    ("limits", "state", "words"),
    [
        ((256, 512), State.MISSING, "limit 256, up to 512"),
        ((256, 1 << 20), State.OK, "limit 256, up to 1048576"),
        ((1024, -1), State.OK, "limit 1024, up to without end"),
        (None, State.NOT_NEEDED, "no such limit"),
    ],
)
def test_open_files(limits: tuple[int, int] | None, state: State, words: str) -> None:
    row = rows_of(FakeHost(limits=limits))["open files"]
    assert row.state == state
    assert words in row.found


def test_the_other_package_of_that_name_is_said() -> None:
    row = rows_of(FakeHost(versions={"elasticsearch-curator": "8"}))["Python"]
    assert row.state == State.BROKEN


def test_existing_is_the_nearest_folder(tmp_path: Path) -> None:
    assert existing(str(tmp_path / "a" / "b")) == str(tmp_path)
    assert existing(str(tmp_path)) == str(tmp_path)


def test_a_kernel_without_landlock_is_named() -> None:
    """Pins that what a decoder could still reach is said, and does not stop a run."""
    row = rows_of(FakeHost(landlock=0))["sandbox"]
    assert (row.state, row.stops) == (State.MISSING, False)
    assert "reach files" in row.found

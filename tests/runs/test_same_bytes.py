"""Workers, kills and interrupts show in no byte of the result, and leave no process behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from captioned import work_here
from place import Place, sets, write_films

MARK = "CURATE_TEST_MARK"


class Same(Place):
    """Films whose clips all stay."""

    settings = (*Place.settings, "dedup.enabled=false", "analyze.thumbnail_every=1")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_films(tmp_path_factory.mktemp("same") / "in", (60, 70, 80, 90))


@pytest.fixture(scope="module")
def reference(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Same:
    """A run by this process alone."""
    place = Same(sources, tmp_path_factory.mktemp("reference") / "out")
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        place.run()
    return place


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Marks all processes of a test in their environment; kills what is left of them."""
    monkeypatch.setenv(MARK, str(tmp_path))
    yield str(tmp_path)
    for pid in marked(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


def start(
    sources: Path, out: Path, *more: str, stderr: int | None = None
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "curator.cli", "run", str(sources), str(out)]
    # A test run in the background ignores interrupts, and so would what it starts.
    return subprocess.Popen(
        [*command, *sets(Same.settings), *more],
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def marked(mark: str) -> list[int]:
    """Processes with a mark in their environment, but this one."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                is_zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if f"{MARK}={mark}".encode() in environment and not is_zombie:
                found.append(int(folder.name))
    return found


def none_left(mark: str, *, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.2)
    return not marked(mark)


def wait_for_part(out: Path, process: "subprocess.Popen[bytes]") -> None:
    """Waits until the run has stored its first tracks, whose family `frames` is written last."""
    end = time.monotonic() + 240
    while not list(out.glob("tracks/frames/*.parquet")):
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < end
        time.sleep(0.05)


def worker_at(stage: str, mark: str, process: "subprocess.Popen[bytes]") -> int:
    """Waits for a worker of Ray's that works on a unit of a stage."""
    title = f"ray::curate_{stage}.run".encode()
    while process.poll() is None:
        for pid in marked(mark):
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title):
                    return pid
        time.sleep(0.02)
    raise AssertionError(f"the run ended before a worker began to {stage}")


def test_a_killed_run_goes_on_with_two_workers_to_the_bytes_of_none(
    sources: Path, reference: Same, tmp_path: Path, mark: str
) -> None:
    out = tmp_path / "out"
    process = start(sources, out, "--workers", "1")
    wait_for_part(out, process)
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)
    process.wait(timeout=30)
    assert not (out / "summary.json").exists()
    assert not list(out.glob("clips/*"))
    whole = {part.stem.rpartition("-")[2] for part in out.glob("tracks/frames/*.parquet")}
    stored = {
        part: part.stat().st_mtime_ns
        for part in out.glob("tracks/*/*.parquet")
        if part.stem.rpartition("-")[2] in whole
    }
    assert len(stored) > len(whole)
    for part in stored:
        pq.read_metadata(part)
    # A worker that dies over a unit shows in no byte either.
    process = start(sources, out, "--workers", "2", stderr=subprocess.PIPE)
    os.kill(worker_at("analyze", mark, process), signal.SIGKILL)
    said = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 0
    assert said.count("a worker process died") == 1
    assert none_left(mark, within_s=10), "a normal run left processes behind"
    assert Same(sources, out).files() == reference.files() != {}
    for table in ("clips", "shots", "sources", "embeddings"):
        assert pq.read_table(out / table) == pq.read_table(reference.out / table)
    for part, modified in stored.items():
        assert part.stat().st_mtime_ns == modified, "stored tracks were made again"


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)],
)
def test_an_interrupt_ends_a_run_soon_and_leaves_no_process(
    sources: Path, tmp_path: Path, mark: str, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "out"
    process = start(sources, out, "--workers", "1")
    wait_for_part(out, process)
    begun = time.monotonic()
    process.send_signal(number)
    assert process.wait(timeout=30) == code
    assert time.monotonic() - begun < 15
    assert none_left(mark, within_s=10), "an interrupted run left processes behind"

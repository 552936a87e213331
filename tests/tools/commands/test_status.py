"""`curate status`: runs that work, were killed, broke off and finished; and their report."""

import io
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Curate

from curator.errors import CuratorError, StorageError, UsageError
from curator.executor.end_time import Expected, ProgressStep
from curator.executor.progress import Progress
from curator.runs import progress_report
from curator.runs.lease import acquire_lease
from curator.runs.progress_report import reported, run_status
from curator.storage import open_store
from curator.tables.json_objects import sealed_json
from curator.tables.out_layout import LEASE, PROGRESS, SUMMARY, is_own
from curator.tables.snapshot_store import FORMAT


@pytest.fixture(autouse=True)
def _fast_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_report, "REPORT_EVERY_S", 0.01)


def wait(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)


def break_off(out: str, curate: Curate) -> None:
    """Asks for the status of a run that works, and breaks it off."""
    store = open_store(out)
    with (
        acquire_lease(store, "run"),
        Progress(io.StringIO(), live=False) as progress,
        reported(store, progress),
    ):
        progress.expect(Expected(), [ProgressStep(name="analyze", noun="source")])
        progress.stage("analyze")
        progress.work(40, 400.0)
        wait(lambda: run_status(store).get("items") == 40)
        shown = curate("status", out)
        assert shown.startswith("running: `curate run` of ")
        assert "analyze   works for" in shown
        assert "0 of 40 sources" in shown
        raise CuratorError("the disk is full")


def test_run_that_works_then_breaks_off(tmp_path: Path, curate: Curate) -> None:
    with pytest.raises(CuratorError, match="the disk"):
        break_off(str(tmp_path), curate)
    status = json.loads(curate("status", tmp_path, "--json"))
    assert status["state"] == "failed"
    assert status["error"] == "the disk is full"
    assert status["stage"] == "analyze"
    assert "the same command resumes" in curate("status", tmp_path)
    # A run that was killed says so.
    store = open_store(str(tmp_path / "killed"))
    with acquire_lease(store, "run"):
        lease = store.read(LEASE)
    # The holder of this process has ended.
    store.write(LEASE, lease)
    assert run_status(store)["state"] == "silent"
    assert "likely killed" in curate("status", store.uri, "--watch")


def test_resumed_run_does_not_show_the_report_of_the_attempt_before(
    tmp_path: Path, curate: Curate
) -> None:
    with pytest.raises(CuratorError, match="the disk"):
        break_off(str(tmp_path), curate)
    store = open_store(str(tmp_path))
    with acquire_lease(store, "run"):
        shown = curate("status", tmp_path)
        assert shown.startswith("running: `curate run` of ")
        assert "\nresumed what an earlier attempt began; no report yet" in shown
        assert "analyze" not in shown
        status = json.loads(curate("status", tmp_path, "--json"))
        assert status["resumes"]
        assert not {"error", "stage", "reported"} & set(status)
        with Progress(io.StringIO(), live=False) as progress, reported(store, progress):
            progress.stage("scan")
            wait(lambda: run_status(store).get("stage") == "scan")
            assert "resumed" not in curate("status", tmp_path)
    with acquire_lease(open_store(str(tmp_path / "new")), "run"):
        assert "\nno report yet" in curate("status", tmp_path / "new")


def test_finished_run_leaves_no_report_but_its_summary(tmp_path: Path, curate: Curate) -> None:
    store = open_store(str(tmp_path))
    with Progress(io.StringIO(), live=False) as progress, reported(store, progress):
        wait(lambda: store.exists(PROGRESS))
    assert not store.exists(PROGRESS)
    summary = {"format": FORMAT, "counts": {"sources": 3, "done": 3, "clips": 9, "kept": 5}}
    store.write(SUMMARY, sealed_json(summary, lambda v: json.dumps(v).encode(), SUMMARY))
    shown = curate("status", tmp_path)
    assert shown.startswith("finished: ")
    assert "kept" in shown
    # So does one that is refused.
    progress = Progress(io.StringIO(), live=False)
    with pytest.raises(UsageError, match="would be lost"), reported(store, progress):
        raise UsageError("clips would be lost")
    assert not store.exists(PROGRESS)
    assert "has begun" in curate("status", tmp_path / "nothing", code=2)


def test_store_that_fails_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tried = open_store(str(tmp_path)), []

    def write(self: object, key: str, data: bytes) -> None:
        tried.append(key)
        raise StorageError("no space left")

    monkeypatch.setattr(type(store), "write", write)
    with Progress(io.StringIO(), live=False) as progress, reported(store, progress):
        wait(lambda: len(tried) > 1)
    assert set(tried) == {PROGRESS}
    assert is_own(PROGRESS)
    assert is_own("plan.json")

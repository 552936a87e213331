"""Accounting: processes that serve a run count, whatever they make of their environment.

And what the CPU-seconds of a worker are called, and which of them count as progress.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from curator.executor import cpu_accounting as accounting
from curator.executor.cpu_accounting import MARK, CpuClock, Heartbeat, tree_cpu_s
from curator.executor.unit_worker import UnitWorker
from curator.stage import Scope, Stage, StageConfig

STARTS = """
import subprocess, sys
subprocess.run([sys.argv[2], "-c", sys.argv[1]], env={})
"""
BURNS = """
import time
while time.process_time() < 1.5:
    pass
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def burning(*arguments: str) -> Iterator[None]:
    """A process, under the name of its first argument, that has spent 1.5 CPU-seconds."""
    with subprocess.Popen(
        arguments, executable=sys.executable, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
def test_what_serves_a_run_counts_without_its_mark_and_workers_by_their_steps_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray's agents write their titles over their environment. A worker counts for its parent."""
    monkeypatch.setenv(MARK, "as it was")
    accounting.mark_processes()
    with burning(sys.executable, "-c", STARTS, BURNS, sys.executable):
        assert 1.4 < accounting.cpu_profile({})["engine"] < 10
    before_s = tree_cpu_s()
    with burning("ray::curate_cut.run", "-c", STARTS, BURNS, sys.executable):
        # A sandbox, whose environment has no mark.
        assert accounting.cpu_profile({})["engine"] == 0
    with burning("ray::curate_cut.run", "-c", BURNS):
        assert accounting.cpu_profile({})["engine"] == 0
        assert tree_cpu_s() >= before_s + 1.4


class Echo(Stage[StageConfig, int, int]):
    """Returns its items."""

    name, version, scope = "echo", 1, Scope.SOURCE

    def process(self, unit: int) -> int:
        return unit


def spend(*_: object) -> None:
    end_s = time.thread_time() + 0.05
    while time.thread_time() < end_s:
        pass


def test_what_the_driver_stores_itself_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that it is in the driver's CPU-seconds alone; a worker's are counted by its steps."""
    monkeypatch.setenv(MARK, "another process")
    monkeypatch.setattr(CpuClock, "_of_process", None)
    worker = UnitWorker(stage=Echo(StageConfig()), keep=spend)
    assert worker([1]).cpu_s["store"] >= 0.05
    accounting.mark_processes()
    monkeypatch.setattr(CpuClock, "_of_process", None)
    worker = UnitWorker(stage=Echo(StageConfig()), keep=spend)
    assert sum(worker([1]).cpu_s.values()) == 0


def test_each_step_has_a_start_up_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that models which a process loads after it has scanned count as start-up."""
    monkeypatch.delenv(MARK, raising=False)
    scan, analyze = CpuClock(), CpuClock()
    assert "start_up" in scan.end(scan.begin(), rest="scan")
    spend()
    assert 0.05 <= analyze.begin()["start_up"] < 0.5
    analyze.end({}, rest="analyze")
    spend()
    assert 0.05 <= analyze.begin()["between_units"] < 0.5


class Clock:
    """Both clocks, which a test moves."""

    now_s, cpu_s = 100.0, 5.0

    def monotonic(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.cpu_s


def test_results_and_work_of_the_driver_are_progress_and_waiting_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(accounting, "time", clock)
    heartbeat = Heartbeat()
    clock.now_s += 1000
    clock.cpu_s += 10
    assert heartbeat.idle_s() == 1000, "a hundredth of a core is what waiting takes"
    clock.now_s += 100
    clock.cpu_s += 90
    assert heartbeat.idle_s() == 0, "arithmetic of the driver"
    clock.now_s += 50
    assert heartbeat.idle_s() == 50
    heartbeat.beat()
    assert heartbeat.idle_s() == 0

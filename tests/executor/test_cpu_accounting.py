"""Accounting: processes that serve a run count, whatever they make of their environment."""

import os
import signal
import subprocess
import sys
import time

import pytest

from curator.executor import cpu_accounting as accounting
from curator.executor.cpu_accounting import CpuClock
from curator.executor.unit_worker import UnitWorker
from curator.stage import Scope, Stage, StageConfig

STARTS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]], env={})
"""
BURNS = """
import time
while time.process_time() < 1.5:
    pass
print("ready", flush=True)
time.sleep(600)
"""


def test_children_of_marked_processes_count_without_the_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray's agents write their titles over their environment."""
    monkeypatch.setenv(accounting.MARK, "as it was")
    accounting.mark_processes()
    script = [sys.executable, "-c", STARTS, BURNS]
    with subprocess.Popen(script, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert 1.4 < accounting.cpu_profile({})["engine"] < 10
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_workers_that_still_run_count_by_their_steps_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(accounting.MARK, "as it was")
    accounting.mark_processes()
    script = ["ray::curate_cut.run", "-c", BURNS]
    with subprocess.Popen(
        script, executable=sys.executable, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert accounting.cpu_profile({})["engine"] == 0
        finally:
            os.killpg(process.pid, signal.SIGKILL)


class Echo(Stage[StageConfig, int, int]):
    """Returns its items."""

    name, version, scope = "echo", 1, Scope.SOURCE

    def process(self, unit: int) -> int:
        return unit


def burns(*_: object) -> None:
    """Stores, which takes a while."""
    begun_s = time.thread_time()
    while time.thread_time() < begun_s + 0.05:
        pass


def test_what_the_driver_stores_itself_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that it is in the driver's CPU-seconds alone; a worker's are counted by its steps."""
    monkeypatch.setenv(accounting.MARK, "another process")
    monkeypatch.setattr(CpuClock, "_of_process", None)
    worker = UnitWorker(stage=Echo(StageConfig()), keep=burns)
    assert worker([1]).cpu_s["store"] >= 0.05
    accounting.mark_processes()
    monkeypatch.setattr(CpuClock, "_of_process", None)
    worker = UnitWorker(stage=Echo(StageConfig()), keep=burns)
    assert sum(worker([1]).cpu_s.values()) == 0

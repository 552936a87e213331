"""Accounting: processes that serve a run count, whatever they make of their environment."""

import os
import signal
import subprocess
import sys

import pytest

from curator.executor import cpu_accounting as accounting

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

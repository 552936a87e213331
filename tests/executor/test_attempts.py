"""Pins what the CPU-seconds of a worker are called."""

import time

import pytest

from curator.executor.cpu_accounting import MARK, CpuClock


def spend(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_each_step_has_a_start_up_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that models which a process loads after it has scanned count as start-up."""
    monkeypatch.delenv(MARK, raising=False)
    scan, analyze = CpuClock(), CpuClock()
    assert "start_up" in scan.end(scan.begin(), rest="scan")
    spend(0.05)
    assert 0.05 <= analyze.begin()["start_up"] < 0.5
    analyze.end({}, rest="analyze")
    spend(0.05)
    assert 0.05 <= analyze.begin()["between_units"] < 0.5

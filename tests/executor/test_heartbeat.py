"""What counts as progress of a run."""

import subprocess
import sys

import pytest

from curator.executor import cpu_accounting as module
from curator.executor.cpu_accounting import Heartbeat, tree_cpu_s

BURNS = "import time\nwhile time.process_time() < 1: pass\nprint(flush=True)\ntime.sleep(600)"


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
    monkeypatch.setattr(module, "time", clock)
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


def test_the_work_of_a_sandboxed_child_counts_for_its_worker() -> None:
    before_s = tree_cpu_s()
    with subprocess.Popen([sys.executable, "-c", BURNS], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert tree_cpu_s() >= before_s + 0.9
        child.kill()

"""Runs small work in one child process, if starting a cluster would take longer than the work.

If a model crashes the process, the run starts the process again. Stages that parse untrusted bytes
run in a `sandboxed_process` instead.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from curator.errors import CuratorError
from curator.executor.cpu_accounting import MARK
from curator.executor.termination import uninterrupted
from curator.executor.unit_worker import UnitResult
from curator.executor.worker import (
    MAX_DEATHS,
    Chain,
    Death,
    UnitAttempts,
    call_chain,
    chain_name,
    is_crash_looping,
    load_chain,
    pack_chain,
)
from curator.tables.parts import leave_pandas_out

MAX_LOADS = 3
"""Times that a process may die while it loads models before the run gives up."""

_READY = b"ready"
_PARENT_POLL_S = 1.0

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Ray's workers have these too: for small matrix products, a second thread mostly busy-waits."""


class Child:
    """One process that runs chains of steps, and keeps the steps of the last chain."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._is_ready = False
        self._loaded: bytes | None = None
        """The chain that the process has loaded."""

    def _start(self) -> None:
        with uninterrupted():
            self._begin()

    def _begin(self) -> None:
        ours, theirs = Pipe()
        # The steps count this process's CPU time, so the mark must not count it as the engine's.
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        environment = ONE_THREAD | environment
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        # The start method of multiprocessing would run the caller's script again.
        self._process = subprocess.Popen(
            # -P: the current folder may hold untrusted files.
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            env=environment,
            # Only the driver gets interrupts from the terminal, and ends this process.
            process_group=0,
        )
        theirs.close()
        self._pipe, self._is_ready, self._loaded = ours, False, None

    def run(self, steps: Chain, units: Sequence[Any]) -> Iterator[Any]:
        """Sends units through a chain, one after the other.

        If a unit kills the process, a new process gets the parts of the unit, or the unit again.

        Raises:
            CuratorError: A step raised it, or the process died repeatedly.
        """
        chain = pack_chain(steps)
        waiting = deque(UnitAttempts(unit=unit) for unit in units)
        n_crashes, n_loads = 0, 0
        while waiting:
            if self._loaded != chain:
                n_loads += 1
                if self._ask(chain, None) is None:
                    if n_loads > MAX_LOADS:
                        raise CuratorError(
                            "the worker process dies each time while it loads the models of "
                            f"{chain_name(steps)}; is there enough memory? use a smaller model"
                        )
                    continue
                self._loaded, n_loads = chain, 0
            work = waiting.popleft()
            answer = self._ask(chain, work.packed())
            if answer is not None:
                n_crashes = n_crashes if work.is_given_up else 0
                if isinstance(answer[0], UnitResult) and answer[0].not_begun:
                    waiting.appendleft(UnitAttempts(unit=list(answer[0].not_begun)))
                yield answer[0]
                continue
            n_crashes += 1
            if len(work.deaths) >= MAX_DEATHS or is_crash_looping(n_crashes, 1):
                raise CuratorError(
                    f"the worker process died {n_crashes} times, and finished no unit; is there "
                    "enough memory? run again with --workers 1, and look into Ray's logs"
                )
            waiting.extendleft(reversed(work.after_death(Death())))

    def stop(self) -> None:
        """Ends the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def _ask(self, chain: bytes, unit: bytes | None) -> tuple[Any] | None:
        """Returns the result of a unit (or of loading, for None); None if the process died."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._pipe is not None
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError, EOFError, ConnectionResetError):
            self._is_ready = self._is_ready or self._pipe.recv_bytes() == _READY
            self._pipe.send_bytes(pickle.dumps((chain, unit)))
            result = pickle.loads(self._pipe.recv_bytes())
            if isinstance(result, CuratorError):
                raise result
            return (result,)
        code = self._process.wait()
        self._loaded = None
        self._pipe.close()
        if not self._is_ready:
            raise CuratorError(
                f"the worker process ended with status {code} before it began to work; its output "
                "says why; --workers 1 runs the work in Ray instead"
            )
        return None


def _end_with(parent: int) -> None:
    """Ends this process if the run's process is gone, also during a unit."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)


def _serve(pipe: Connection, parent: int) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    leave_pandas_out()
    pipe.send_bytes(_READY)
    while True:
        try:
            packed, unit = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        pipe.send_bytes(load_chain(packed) if unit is None else call_chain(packed, unit))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])), int(sys.argv[2]))

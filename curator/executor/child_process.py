"""Runs small work in one child process, where starting a cluster would take longer than the work.

A model that crashes must not end the run: the process is started again, and attempts are counted in
files. Stages that parse untrusted bytes have a `decoder_box` instead.
"""

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from curator.errors import CuratorError
from curator.executor.cpu_accounting import MARK
from curator.executor.ledger import FileLedger
from curator.executor.worker import Chain, call_chain, pack_chain
from curator.storage.scratch import ScratchFolder
from curator.tables.parts import leave_pandas_out

MAX_DEATHS = 100
"""Deaths over one unit after which a run gives up: more than the steps' own ledgers allow."""

_READY = b"ready"

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""As Ray has it in its workers: small products of matrices on two threads mostly wait, busily."""


class Child:
    """One process that runs chains of steps; it keeps the last chain's steps for the next unit."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._is_ready = False
        self._folders: list[ScratchFolder] = []

    def ledger(self) -> FileLedger:
        """A fresh ledger."""
        self._folders.append(ScratchFolder("curate-attempts-"))
        return FileLedger(self._folders[-1].path)

    def start(self) -> None:
        """Starts the process."""
        ours, theirs = Pipe()
        # The steps count its CPU time; it is not the engine's.
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        environment = ONE_THREAD | environment
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        # Not multiprocessing's own start, which would run the caller's script again.
        self._process = subprocess.Popen(
            # -P: the folder in which the run was started may be one of strangers' files.
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            # An interrupt from the terminal goes to the driver, which ends this process.
            process_group=0,
        )
        theirs.close()
        self._pipe, self._is_ready = ours, False

    def run(self, steps: Chain, units: Sequence[Any]) -> Iterator[Any]:
        """Sends units through a chain, one after the other.

        A unit that kills the process is sent again to a new one; steps give up by their ledger.

        Raises:
            CuratorError: Raised by a step, or the process dies repeatedly.
        """
        chain = pack_chain(steps)
        for unit in units:
            for _ in range(MAX_DEATHS):
                answer = self._ask(chain, unit)
                if answer is not None:
                    break
            else:
                raise CuratorError(
                    f"the worker process died {MAX_DEATHS} times over the same work; is there "
                    "enough memory? run again with --workers 1 to see more of it in Ray's logs"
                )
            yield answer[0]

    def stop(self) -> None:
        """Ends the process at once, and removes the ledgers."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        for folder in self._folders:
            folder.close()
        self._folders.clear()

    def _ask(self, chain: bytes, unit: Any) -> tuple[Any] | None:  # noqa: ANN401
        """Returns the result of one unit, or raises the error it is; None if the process died."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        assert self._pipe is not None
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError, EOFError, ConnectionResetError):
            self._is_ready = self._is_ready or self._pipe.recv_bytes() == _READY
            self._pipe.send_bytes(pickle.dumps((chain, pickle.dumps(unit))))
            result = pickle.loads(self._pipe.recv_bytes())
            if isinstance(result, CuratorError):
                raise result
            return (result,)
        code = self._process.wait()
        self._pipe.close()
        if not self._is_ready:
            raise CuratorError(
                f"the worker process ended with {code} before it had begun; what it printed says "
                "why; --workers 1 runs the work in Ray instead"
            )
        return None


def _serve(pipe: Connection) -> None:
    leave_pandas_out()
    pipe.send_bytes(_READY)
    while True:
        try:
            packed, unit = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        pipe.send_bytes(call_chain(packed, unit))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))

"""Runs a server as a child of a worker; the server never outlives the worker.

This file is also the program of the keeper, a small process between worker and server. It waits for
the end of a pipe that only the worker holds, and then ends the server and all that it started.
`PR_SET_PDEATHSIG` reaches neither children of the server, such as the engine of vLLM, nor is it
bound to the worker: the signal comes when the thread ends that started the child. The keeper is no
child of the worker, because Ray kills a worker's children with the worker: a relay is between them.
Both need only the standard library, so they start in milliseconds. Both adopt processes whose
parent has ended, and end them: engines in a session of their own, and those of a killed keeper.
"""

import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO
from weakref import finalize

LOG_LINES = 200
"""Lines of the server's output that are kept."""
_LINE_BYTES = 4096
_GRACE_S = 3.0
"""Time between SIGTERM and SIGKILL."""
_POLL_S = 0.25
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOCAL, _LISTEN = "0100007F:%04X", "0A"
"""As /proc/net/tcp writes 127.0.0.1 with a port, and the state of a socket that listens."""
_FIRST_SIGNAL = 128
"""The keeper exits with 128 + N if signal N ended the server, as shells do."""


class ServerProcess:
    """A running server. The object's end, `stop`, or the end of this process ends the server.

    Args:
        command: Program and arguments.
        environment: All environment variables of the server.

    Attributes:
        pid: Process id of the relay, an ancestor of the server.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._lines = deque([(time.monotonic(), "")], maxlen=LOG_LINES)
        lifeline, held = os.pipe()
        self._release = finalize(self, os.close, held)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__, str(lifeline), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[lifeline],
                env=dict(environment),
                # Interrupts from the terminal reach the driver alone.
                process_group=0,
            )
        finally:
            os.close(lifeline)
        self.pid = self._process.pid
        # Without a reference to this object, which may end before the server.
        reads = (self._process.stdout, self._lines)
        self._reader = threading.Thread(target=_read, args=reads, name="server-log", daemon=True)
        self._reader.start()

    @property
    def log(self) -> list[str]:
        """Returns the last lines of the server's output that are not empty."""
        return [text for _, text in list(self._lines) if text.strip()]

    @property
    def heard_s(self) -> float:
        """Returns when the last line came, or the server was started, by `time.monotonic`."""
        return self._lines[-1][0]

    @property
    def status(self) -> str | None:
        """Returns how the server ended, such as `status 1` or `SIGKILL`; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        # The last lines may still be in the pipe.
        self._reader.join(_GRACE_S)
        number = code - _FIRST_SIGNAL if code > _FIRST_SIGNAL else -code
        with contextlib.suppress(ValueError):
            return signal.Signals(number).name
        return f"status {code}"

    def listens_at(self, port: int) -> bool:
        """Returns whether the server, and no other process, listens at this port of 127.0.0.1.

        True without Linux's /proc.
        """
        from curator.executor.cpu_accounting import process_tree

        try:
            rows = Path("/proc/net/tcp").read_text().splitlines()
        except OSError:
            return True
        fields = (row.split() for row in rows)
        held = {
            f"socket:[{row[9]}]" for row in fields if row[1] == _LOCAL % port and row[3] == _LISTEN
        }
        for process in process_tree(self.pid):
            for descriptor in Path(f"/proc/{process}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor) in held:
                        return True
        return False

    def stop(self) -> None:
        """Ends the server, and waits until it is gone."""
        self._release()
        self._process.wait()


def _read(output: IO[bytes], lines: deque[tuple[float, str]]) -> None:
    rest = b""
    with output:
        while piece := os.read(output.fileno(), 1 << 16):
            # Progress bars end their lines with a carriage return.
            *whole, rest = re.split(rb"[\r\n]+", rest + piece)
            rest = rest[-_LINE_BYTES:]
            now_s = time.monotonic()
            lines.extend((now_s, line[-_LINE_BYTES:].decode("utf-8", "replace")) for line in whole)
    lines.append((time.monotonic(), rest.decode("utf-8", "replace")))


def _relay(lifeline: int, command: Sequence[str]) -> int:
    """Runs the keeper, and returns its exit status, or that of a shell if a signal killed it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.fork()
    if keeper == 0:
        os.setpgid(0, 0)
        os._exit(_keep(lifeline, command))
    code = os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])
    _end_children()
    return code if code >= 0 else _FIRST_SIGNAL - code


def _keep(lifeline: int, command: Sequence[str]) -> int:
    """Runs a server until it ends or the lifeline closes; returns the exit status of the keeper."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    server = subprocess.Popen(command, preexec_fn=_end_with_parent, process_group=0)
    while server.poll() is None:
        if select.select([lifeline], [], [], _POLL_S)[0]:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_GRACE_S)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    code = server.wait()
    _end_children()
    return code if code >= 0 else _FIRST_SIGNAL - code


def _end_children() -> None:
    """Ends all children, also orphans that this process adopts."""
    with contextlib.suppress(OSError):
        while children := _children():
            for child in children:
                os.kill(child, signal.SIGKILL)
            os.wait()


def _children() -> list[int]:
    listed = Path("/proc/self/task").glob("*/children")
    return [int(child) for path in listed for child in path.read_text().split()]


def _end_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(_relay(int(sys.argv[1]), sys.argv[2:]))

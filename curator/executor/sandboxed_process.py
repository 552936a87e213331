"""Runs stages that parse untrusted bytes in a sandbox: the parent's side.

The sandbox is a child process without rights. The sandbox trusts its parent, so messages to it are
pickled. The parent does not trust the sandbox, so messages from it are `plain_values`:

    to the sandbox                             from the sandbox
    load     modules                       ready
    stage    stage, imports, readable,     set_up, or refused class, message
                 plug-ins, locks, GPU
    item     item, n_bytes                 open uri, version      -> handle, size
    release                                read handle, at, n      -> bytes
                                           reached seconds of the item's video
                                           end handle, at; close handle
                                           done result or failure, CPU-seconds, counts
                                           full: no space for temporary files
                                           lost class, message: the GPU failed, the sandbox ends
"""

import contextlib
import io
import logging
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any, BinaryIO

from curator import errors
from curator.errors import CuratorError, DeviceError, DeviceLostError, ErrorCode, FullDiskError
from curator.executor.cpu_accounting import cpu_s_of, stat_of
from curator.executor.plain_values import from_bytes, result_classes
from curator.executor.sandbox import gpu_access, importable_code
from curator.executor.termination import uninterrupted
from curator.stage import Stage
from curator.storage import expect_end, open_source
from curator.storage.scratch import MAX_MP4S, ScratchFolder
from curator.storage.source_reader import local_failure

logger = logging.getLogger(__name__)

KEPT_VARIABLES = frozenset(
    {
        "PATH", "LANG", "TZ", "PYTHONHASHSEED", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE",
        "PYTHONWARNINGS", "PYTHONHOME", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE",
    }
)  # fmt: skip
"""Environment variables that a sandbox gets. None of them holds a credential."""
KEPT_FAMILIES = (
    "LC_", "OMP_", "OPENBLAS_", "MKL_", "ATEN_", "KMP_", "MALLOC_", "CUDA_", "DNNL_", "TORCH_",
    "PYTORCH_", "CUBLAS_", "CUDNN_", "COVERAGE_",
)  # fmt: skip
"""Prefixes of further variables that a sandbox gets. `CUDA_` covers MPS and the visible GPUs.
Prefixes `NVIDIA_`, `LANG` and `TORCHINDUCTOR_` would let keys and passwords of services pass."""
UNLOCKED = "CURATE_UNLOCKED_GPU"
"""Environment variable; if it is 1, sandboxes with a GPU are not locked."""
WALL_PER_CPU = 6.0
"""Wall seconds that a sandbox may take for each CPU-second of its limit, on a shared machine.

A sandbox that gets even less of a busy machine may take the same time again, while it works.
"""
LEAST_SHARE = 0.01
"""Share of a core below which a sandbox counts as waiting."""
HUNG_S = 60.0
"""Seconds without a message and without work after which a sandbox counts as hung.

`LOOKS` checks measure this time, so a pause of the whole machine counts as one check.
"""
LOOKS = 6
_SLOW = "it took longer than its size allows"
_HUNG = "it stopped answering"
_NONSENSE = (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, OSError)
"""Errors that an answer of a compromised sandbox may cause; `OSError` if the answer is too long."""
MAX_READ_BYTES = 16 << 20
MAX_ANSWER_BYTES = 4 << 30
MAX_OPEN = 16
"""Most readers of its source that a sandbox may open. Stages open one or two."""
PIPE_WAIT_S = 600
"""Longest pause of a sandbox in the middle of a message, in seconds."""
MESSAGE_S = 1e-5
"""Least time that a message counts, in seconds. It limits the number of messages."""
PRINT_WAIT_S = 1.0
KILL_WAIT_S = 10.0
"""Wait for a killed process to end, in seconds. A process that waits in a driver may never end."""
FILES = (*(f"clip{n}.mp4" for n in range(MAX_MP4S)), "colours.cube")
"""The only files that a sandbox can write."""
MAX_PRINTED_CHARACTERS = 64 << 10
"""Most characters of a sandbox's output that the parent shows."""
END_WAIT_S = 10.0
"""Wait for a process that has closed its pipe to end, in seconds. It writes no core dump."""
MAX_SET_UP_S = 900.0
"""Longest time for loading models, in seconds."""


SANDBOX_COUNTS = ("lost_gpu", "left_behind")
"""Counters: times that the GPU failed, and processes that did not end when killed."""


Reached = tuple[int, float, float]
"""Items that are done, their seconds of video, and the same seconds by cost."""
NOT_BEGUN: Reached = (0, 0.0, 0.0)


class SandboxDiedError(Exception):
    """The process of a sandbox ended, or the parent ended it, while it worked on an item.

    Args:
        why: For messages.
        code: Error code of the item if it is not tried again: WORKER_DIED or TOO_SLOW.
        lost: The error of the GPU, which then sets the code; None if the GPU is not to blame.
    """

    def __init__(
        self, why: str, *, code: ErrorCode = ErrorCode.WORKER_DIED, lost: DeviceError | None = None
    ) -> None:
        super().__init__(why)
        self.lost = lost
        self.code = code if lost is None else lost.code


class SetUpError(Exception):
    """A stage cannot be set up in a new sandbox, so no item can be processed."""

    def __init__(self, cause: CuratorError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _end(status: int | None) -> str:
    """Describes how a process ended: by a signal, with a status, or not within the wait."""
    if status is None:
        return "no end"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"exit status {status}"


class SandboxedProcess:
    """One process, and the sources that its parent has opened for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._printer: threading.Thread | None = None
        self._folder: ScratchFolder | None = None
        self._stage: Stage[Any, Any, Any] | None = None
        self._readable: tuple[str, ...] | None = None
        """Paths that the locked process can read; None if it is not locked."""
        self._has_gpu: bool | None = None
        """Whether the process may open a GPU; None before its first stage."""
        self.counts: Counter[str] = Counter()
        """`SANDBOX_COUNTS` since the worker last cleared them."""
        self.reached = NOT_BEGUN
        """How far the unit is that this process works on."""
        self._readers: dict[int, BinaryIO] = {}
        self._cpu_s = 0.0
        self._start_up_s = self._work_s = 0.0

    def load(self, modules: Sequence[str]) -> None:
        """Lets the process import modules, without waiting; starts the process if necessary."""
        if self._process is None or self._process.poll() is not None:
            self._start(modules)
        else:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._send("load", tuple(modules))

    def process(
        self,
        stage: Stage[Any, Any, Any],
        item: Any,  # noqa: ANN401
        on_reached: Callable[[float], None] | None = None,
    ) -> Any:  # noqa: ANN401
        """Runs a stage on an item; returns its result, or a `Failure`.

        Args:
            stage: Set up in the sandbox, for this item and the next ones. Its `cpu_s` and `counts`
                get the sandbox's numbers.
            item: Its `uri` names the only source that the sandbox may read now.
            on_reached: Gets the seconds of video that the sandbox claims to have done so far.

        Raises:
            SandboxDiedError: The process ended. The next call starts another process.
            SetUpError: The stage cannot be set up.
            FullDiskError: Temporary files cannot be written.
        """
        limit_s = stage.limit_s(item)
        # Outside of the try, because a wrong type of result is not the process's fault.
        result_classes(type(stage))
        try:
            self._use(stage)
            self._limit(limit_s, stage.limit_bytes)
            self._send("item", item, stage.limit_bytes)
            wall_s = None if limit_s is None else limit_s * WALL_PER_CPU
            answer = self._answer(item.uri, wall_s, on_reached)
            self._limit(None, None)
            return answer
        except (BrokenPipeError, EOFError, ConnectionResetError) as error:
            raise self._died() from error
        except BlockingIOError as error:
            raise self._died(_SLOW, code=ErrorCode.TOO_SLOW) from error
        except _NONSENSE as error:
            raise self._died(f"it answered nonsense ({error!r:.80})") from error
        except BaseException:
            # The process may wait for an answer, and would read the next item as this answer.
            self.stop()
            raise

    def take_cpu_s(self) -> tuple[float, float]:
        """Returns CPU-seconds since the last call: between items (loading models), and in items."""
        taken = self._start_up_s, self._work_s
        self._start_up_s = self._work_s = 0.0
        return taken

    def release(self) -> None:
        """Lets the stage close what its items share, such as an open source."""
        if self._stage is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._send("release")

    def stop(self) -> None:
        """Ends the process at once."""
        with uninterrupted():
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._reap(0)
        if self._pipe is not None:
            self._pipe.close()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        if self._printer is not None:
            self._printer.join(PRINT_WAIT_S)
        if self._folder is not None:
            self._folder.close()
        self._process = self._pipe = self._printer = self._folder = self._stage = None
        self._readable = self._has_gpu = None
        self._cpu_s = 0.0

    def _start(self, modules: Sequence[str] = ()) -> None:
        self.stop()
        try:
            with uninterrupted():
                self._begin(modules)
        except OSError as error:
            self.stop()
            raise SetUpError(
                CuratorError(
                    f"the process for decoding cannot start: {error}; free memory, processes or "
                    "space in the folder for temporary files, and run again"
                )
            ) from error

    def _begin(self, modules: Sequence[str]) -> None:
        ours, theirs = Pipe()
        with socket.socket(fileno=os.dup(ours.fileno())) as wire:
            wait = struct.pack("@ll", PIPE_WAIT_S, 0)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in KEPT_VARIABLES or name.startswith(KEPT_FAMILIES)
        }
        # OpenBLAS would start threads when it is imported, and these would not be locked. CUDA's
        # cache is a folder that processes share. `torch._dynamo` makes its cache folder when it is
        # imported, unless the folder exists; a locked process cannot make folders.
        environment |= {
            "TMPDIR": tempfile.gettempdir(),
            "HOME": "/nonexistent",
            "OPENBLAS_NUM_THREADS": "1",
            "CUDA_CACHE_DISABLE": "1",
            "TORCHINDUCTOR_CACHE_DIR": "/",
        }
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        with contextlib.ExitStack() as stack:
            stack.enter_context(theirs)
            self._folder = ScratchFolder("curate-sandbox-")
            for name in FILES:
                (self._folder.path / name).touch()
            self._process = subprocess.Popen(
                [
                    # -P: the current folder may hold untrusted files.
                    sys.executable, "-P", "-m", "curator.executor.sandbox_main",
                    str(theirs.fileno()), str(self._folder.path), *modules,
                ],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                # The process could truncate the files that are this process's output.
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Only the driver gets interrupts from the terminal, and ends this process. This
                # process cannot type into the terminal.
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        printed = io.TextIOWrapper(self._process.stdout, encoding="utf-8", errors="replace")
        self._printer = threading.Thread(target=_print, args=(printed,), daemon=True)
        self._printer.start()
        self._pipe = ours

    def _limit(self, cpu_s: float | None, n_bytes: int | None) -> None:
        """Limits CPU-seconds and memory beyond the process's present use; None removes a limit.

        The parent sets the soft limits, because the process cannot change its limits. This works
        only on Linux; elsewhere, only wall time is limited.
        """
        if sys.platform != "linux" or self._process is None:
            return
        limits = {
            resource.RLIMIT_CPU: None if cpu_s is None else round(self._used_s() + cpu_s) + 1,
            resource.RLIMIT_DATA: None if n_bytes is None else self._data_bytes() + n_bytes,
        }
        for kind, value in limits.items():
            with contextlib.suppress(ProcessLookupError):
                _, hard = resource.prlimit(self._process.pid, kind)
                if value is None or (hard != resource.RLIM_INFINITY and hard < value):
                    value = hard
                resource.prlimit(self._process.pid, kind, (value, hard))

    def _data_bytes(self) -> int:
        assert self._process is not None
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            return int(status.partition("VmData:")[2].split()[0]) << 10
        return 0

    def _use(self, stage: Stage[Any, Any, Any]) -> None:
        """Sets a stage up; starts a new process if this one may not read the stage's files."""
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        if self._stage is stage:
            return
        readable, packed = _sendable(stage)
        code = importable_code()
        readable = (*readable, *code.paths)
        is_locked_out = self._readable is not None and not set(readable) <= set(self._readable)
        gpu = gpu_access(os.environ) if stage.resources.gpus else None
        # Stages with and without a GPU share no process: a GPU needs more rights, and its memory
        # stays occupied.
        is_other = self._has_gpu is not None and self._has_gpu != (gpu is not None)
        if self._process is None or is_locked_out or is_other:
            self._start()
        is_new = self._stage is None
        self._stage, self._has_gpu = None, gpu is not None
        locks = stage.locks and not (gpu is not None and os.environ.get(UNLOCKED) == "1")
        self._send("stage", packed, stage.imports, readable, code.plugins, locks, gpu)
        try:
            problem: CuratorError | None = self._answer("", MAX_SET_UP_S)
        except SandboxDiedError as died:
            if died.lost is None:
                raise
            problem = died.lost
        if problem is None:
            self._stage, self._readable = stage, readable if locks else None
            return
        self.stop()
        if is_new:
            raise SetUpError(problem)
        # The process had worked on items, so its error is not trusted: try a new process.
        self._use(stage)

    def _used_s(self) -> float:
        """Returns the CPU-seconds of the process so far; 0 if the system does not give them."""
        assert self._process is not None
        return cpu_s_of(self._process.pid)

    def _wants_core(self) -> bool:
        """Whether a thread of the process runs on a core or waits for one."""
        assert self._process is not None
        for thread in Path(f"/proc/{self._process.pid}/task").glob("*"):
            with contextlib.suppress(OSError, IndexError):
                if stat_of(thread.relative_to("/proc"))[0] == "R":
                    return True
        return False

    def _send(self, *message: object) -> None:
        assert self._pipe is not None
        self._pipe.send_bytes(pickle.dumps(message))

    def _answer(
        self, uri: str, wall_s: float | None, on_reached: Callable[[float], None] | None = None
    ) -> Any:  # noqa: ANN401
        """Serves the sandbox until it is done; time in which it waits for bytes is not counted."""
        assert self._pipe is not None
        stage, patience = self._stage, _Patience(wall_s, self._used_s())
        records = result_classes(type(stage)) if stage is not None else ()
        most_bytes = (stage.limit_bytes if stage is not None else None) or MAX_ANSWER_BYTES
        while True:
            self._wait(patience)
            kind, *parts = from_bytes(self._pipe.recv_bytes(min(most_bytes, MAX_ANSWER_BYTES)))
            match kind:
                case "set_up":
                    return None
                case "refused":
                    return _error(*parts)
                case "done":
                    self._take(*parts[1:])
                    return from_bytes(parts[0], records)
                case "full":
                    raise FullDiskError(tempfile.gettempdir())
                case "lost":
                    error = _error(*parts)
                    lost = error if isinstance(error, DeviceError) else DeviceLostError(str(error))
                    raise self._died(str(lost), lost=lost)
                case "open" | "read":
                    self._pipe.send_bytes(self._served(kind, parts, uri))
                case "reached" if on_reached is not None:
                    on_reached(float(parts[0]))
                case "end":
                    expect_end(self._readers[parts[0]], parts[1])
                case "close":
                    self._readers.pop(parts[0]).close()

    def _wait(self, patience: "_Patience") -> None:
        """Waits for a message; ends a process that exceeds its time or hangs."""
        assert self._pipe is not None
        n_idle, used_s = 0, None
        look_s = HUNG_S / LOOKS
        while True:
            asked_s, wait_s = time.monotonic(), patience.left_s
            is_look = self._stage is not None and (wait_s is None or wait_s > look_s)
            if wait_s != 0 and self._pipe.poll(look_s if is_look else wait_s):
                patience.spend(max(MESSAGE_S, time.monotonic() - asked_s))
                return
            before_s, used_s = used_s, self._used_s()
            if not is_look:
                if not patience.renew(used_s):
                    raise self._gave_up(_SLOW, ErrorCode.TOO_SLOW)
                continue
            patience.spend(look_s)
            is_idle = before_s is not None and 0 < used_s < before_s + LEAST_SHARE * look_s
            n_idle = n_idle + 1 if is_idle and not self._wants_core() else 0
            if n_idle == LOOKS:
                raise self._gave_up(_HUNG, ErrorCode.WORKER_DIED)

    def _gave_up(self, why: str, code: ErrorCode) -> SandboxDiedError:
        """Ends a process that hangs or is too slow; blames its GPU if it holds one."""
        return self._died(why, code=code, lost=DeviceLostError(why) if self._has_gpu else None)

    def _served(self, kind: str, parts: Sequence[Any], uri: str) -> bytes:
        """Returns the answer to a message: 0 and bytes, or 1 and a pickled error."""
        try:
            if kind == "open":
                return b"\0" + pickle.dumps(self._opened(*parts, allowed=uri))
            handle, at, n = parts
            if n < 0:
                raise ValueError(f"a request for {n} bytes")
            reader = self._readers[handle]
            reader.seek(at)
            return b"\0" + reader.read(min(n, MAX_READ_BYTES))
        except CuratorError as error:
            return b"\1" + pickle.dumps(error)
        except OSError as error:
            return b"\1" + pickle.dumps(local_failure(uri, error))

    def _opened(self, uri: str, version: str | None, *, allowed: str) -> tuple[int, int]:
        if uri != allowed:
            raise CuratorError(f"a decoder requested {uri!r} while it worked on {allowed!r}")
        if len(self._readers) >= MAX_OPEN:
            raise ValueError(f"more than {MAX_OPEN} readers of one source")
        reader = open_source(uri, expected_version=version)
        handle = max(self._readers, default=0) + 1
        self._readers[handle] = reader
        return handle, reader.seek(0, os.SEEK_END)

    def _take(
        self, begun_s: float, ended_s: float, cpu_s: dict[str, float], counts: dict[str, int]
    ) -> None:
        stage = self._stage
        assert stage is not None
        self._start_up_s += begun_s - self._cpu_s
        self._work_s += ended_s - begun_s
        self._cpu_s = ended_s
        for name, seconds in cpu_s.items():
            stage.cpu_s[name] += seconds
        stage.counts.update(counts)

    def _died(
        self,
        why: str | None = None,
        *,
        code: ErrorCode = ErrorCode.WORKER_DIED,
        lost: DeviceError | None = None,
    ) -> SandboxDiedError:
        """Cleans up after the process; ends it if `why` is given, else it has ended by itself."""
        works_on_gpu = self._has_gpu and self._stage is not None
        status = self._reap(0 if why is not None else END_WAIT_S)
        self.stop()
        if status == -signal.SIGXCPU:
            why, code = _SLOW, ErrorCode.TOO_SLOW
        why = why or f"its decoder ended with {_end(status)}"
        if works_on_gpu and status == 1 and lost is None:
            # PyNvVideoCodec ends the process like this at some driver errors, without a message.
            lost = DeviceLostError(why)
        if lost is not None:
            self.counts["lost_gpu"] += 1
        return SandboxDiedError(why, code=code, lost=lost)

    def _reap(self, wait_s: float) -> int | None:
        """Waits for the process to end, and then kills it; returns its status.

        None if the killed process does not end, because it waits uninterruptibly in a driver.
        """
        process, self._process = self._process, None
        assert process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(wait_s)
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(KILL_WAIT_S)
        logger.error(
            "process %d has not ended %.0f s after it was killed, and is left behind; a driver may "
            "block it, and it may hold memory of the GPU",
            process.pid,
            KILL_WAIT_S,
        )
        self.counts["left_behind"] += 1
        return None


class _Patience:
    """Counts down the wall time that an answer may take: `given_s`, or no limit if None."""

    def __init__(self, given_s: float | None, used_s: float) -> None:
        self.left_s = self._given_s = given_s
        self._used_s = used_s
        self._most_s = used_s + (given_s or 0.0) / WALL_PER_CPU

    def spend(self, wall_s: float) -> None:
        """Subtracts `wall_s` from the time that is left."""
        if self.left_s is not None:
            self.left_s = max(0.0, self.left_s - wall_s)

    def renew(self, used_s: float) -> bool:
        """Grants the full time again, unless the process did not work or used up its CPU time."""
        before_s, self._used_s = self._used_s, used_s
        given_s = self._given_s or 0.0
        if used_s - before_s < LEAST_SHARE * given_s or used_s >= self._most_s:
            return False
        self.left_s = self._given_s
        return True


def _sendable(stage: Stage[Any, Any, Any]) -> tuple[tuple[str, ...], bytes]:
    try:
        return tuple(stage.files()), pickle.dumps(stage)
    except CuratorError as error:
        raise SetUpError(error) from error
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SetUpError(
            CuratorError(
                f"stage {stage.name} cannot be sent to the process that decodes: {error}; before "
                "`setup`, a stage may hold no open files, locks or lambdas"
            )
        ) from error


def _print(printed: IO[str]) -> None:
    """Shows a process's output up to a limit, without control characters for a terminal."""
    left = MAX_PRINTED_CHARACTERS
    with printed:
        while line := printed.readline(1 << 10):
            if left > 0:
                shown = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in line)
                more = "\nfurther output of this process is not shown\n"
                sys.stderr.write(shown[:left] + ("" if left > len(line) else more))
                left -= len(line)


def _error(name: str, message: str) -> CuratorError:
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, CuratorError):
        kind = CuratorError
    return kind(message)


_sandbox: SandboxedProcess | None = None


def process_sandbox() -> SandboxedProcess:
    """Returns the sandbox of this process, which serves all stages, one after the other."""
    global _sandbox
    if _sandbox is None:
        _sandbox = SandboxedProcess()
    return _sandbox

"""Runs stages that parse untrusted bytes in a child process without rights: the parent's side.

Messages to the box are pickled, because it trusts its parent; messages from it are plain values
(`plain_values`), because its parent does not trust it:

    to the box                             from the box
    load     modules                       ready
    stage    stage, imports, readable,     set_up, or refused class, message
                 locks
    item     item, cpu_s, n_bytes          open uri, version, checks -> handle, size, MD5
    release                                read handle, at, n      -> bytes
                                           end handle, at; close handle
                                           done result or failure, CPU-seconds, counts
                                           full (no space for temporary files)
"""

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, BinaryIO

from curator import errors
from curator.errors import CuratorError, ErrorCode, FullDiskError
from curator.executor.plain_values import from_bytes
from curator.records.sources import Failure
from curator.stage import Stage
from curator.storage import expect_end, open_source
from curator.storage.scratch import ScratchFolder
from curator.storage.source_reader import local_failure, stored_md5

KEPT_VARIABLES = frozenset(
    {
        "PATH", "LANG", "TZ", "PYTHONHASHSEED", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE",
        "PYTHONWARNINGS", "PYTHONHOME", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE",
    }
)  # fmt: skip
"""Environment variables that a box gets: none holds a credential."""
KEPT_FAMILIES = (
    "LC_", "OMP_", "OPENBLAS_", "MKL_", "ATEN_", "KMP_", "MALLOC_", "CUDA_", "DNNL_", "TORCH_",
    "ORT_", "COVERAGE_",
)  # fmt: skip
"""Beginnings of names of further ones. `NVIDIA_` and `LANG` would let API keys of services pass."""
WALL_PER_CPU = 6.0
"""Seconds that a box may take for each CPU-second that it is given: machines are shared.

Where the machine is so busy that it gets less, it has as long again while it works at all.
"""
LEAST_SHARE = 0.01
"""Share of a core below which a box does not work, but waits."""
_SLOW = "it took longer than its size allows"
_NONSENSE = (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, OSError)
"""Errors that an answer raises which no honest box gives; `OSError` for one that is too long."""
MAX_READ_BYTES = 16 << 20
MAX_ANSWER_BYTES = 4 << 30
MAX_OPEN = 16
"""Readers of its source that a box may have; stages have one or two."""
PIPE_WAIT_S = 600
"""Seconds for which a box may neither take nor send on in the middle of a message."""
MESSAGE_S = 1e-5
END_WAIT_S = 10.0
"""Seconds for a process that has closed its pipe to end: a core dump is not written."""
MAX_SET_UP_S = 900.0
"""Seconds for loading models."""


class BoxDiedError(Exception):
    """The process of a box ended, or had to be ended, while it worked on an item.

    Args:
        why: For messages.
        is_slow: It took more time than it may.
    """

    def __init__(self, why: str, *, is_slow: bool = False) -> None:
        super().__init__(why)
        self.is_slow = is_slow


class SetUpError(Exception):
    """A stage cannot be set up in a new box, so that no item can be processed.

    Args:
        cause: For users.
    """

    def __init__(self, cause: CuratorError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Box:
    """One process, and the sources that are open for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._folder: ScratchFolder | None = None
        self._stage: Stage[Any, Any, Any] | None = None
        self._readable: tuple[str, ...] | None = None
        """What the process can read since it was locked; None before."""
        self._readers: dict[int, BinaryIO] = {}
        self._cpu_s = 0.0
        self._start_up_s, self._work_s = 0.0, 0.0

    def load(self, modules: Sequence[str]) -> None:
        """Lets the process import modules without waiting; starts it if necessary."""
        if self._process is None or self._process.poll() is not None:
            self._start(modules)
        else:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._send("load", tuple(modules))

    def process(self, stage: Stage[Any, Any, Any], item: Any) -> Any:  # noqa: ANN401
        """Runs a stage on an item; returns its result, or a `Failure`.

        Args:
            stage: Set up in the box, for this item and the next ones; takes the box's `cpu_s` and
                `counts`.
            item: It has a `uri`, the only source that the box may read now.

        Raises:
            BoxDiedError: The process ended, and the next call starts another one.
            SetUpError: The stage cannot be set up.
            FullDiskError: Temporary files cannot be written.
        """
        limit_s = stage.limit_s(item)
        try:
            self._use(stage)
            self._send("item", item, limit_s, stage.limit_bytes)
            return self._answer(item.uri, None if limit_s is None else limit_s * WALL_PER_CPU)
        except (BrokenPipeError, EOFError, ConnectionResetError) as error:
            raise self._died() from error
        except BlockingIOError as error:
            raise self._died(_SLOW) from error
        except _NONSENSE as error:
            raise self._died(f"it answered nonsense ({error!r:.80})") from error
        except BaseException:
            # It may still wait for an answer, and would take the next item for that.
            self.stop()
            raise

    def take_cpu_s(self) -> tuple[float, float]:
        """Returns CPU-seconds between items, such as loading models, and of items, since then."""
        taken = self._start_up_s, self._work_s
        self._start_up_s = self._work_s = 0.0
        return taken

    def release(self) -> None:
        """Lets the stage close what its items had open in common."""
        if self._stage is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._send("release")

    def stop(self) -> None:
        """Ends the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._pipe is not None:
            self._pipe.close()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        if self._folder is not None:
            self._folder.close()
        self._process = self._pipe = self._folder = self._stage = self._readable = None
        self._cpu_s = 0.0

    def _start(self, modules: Sequence[str] = ()) -> None:
        self.stop()
        try:
            self._begin(modules)
        except OSError as error:
            self.stop()
            raise SetUpError(
                CuratorError(
                    f"no process for decoding can be started: {error}; free memory, processes or "
                    "room in the folder for temporary files, and run again"
                )
            ) from error

    def _begin(self, modules: Sequence[str]) -> None:
        self._folder = ScratchFolder("curate-box-")
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
        folder = str(self._folder.path)
        # OpenBLAS starts its threads when it is imported, and they would not be locked.
        environment |= {"TMPDIR": folder, "HOME": folder, "OPENBLAS_NUM_THREADS": "1"}
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        self._process = subprocess.Popen(
            [
                # -P: the folder in which the run was started may be one of strangers' files.
                sys.executable, "-P", "-m", "curator.executor.box_process",
                str(theirs.fileno()), folder, *modules,
            ],
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            # An interrupt from the terminal goes to the driver, which ends this process, and this
            # process can type nothing into the terminal.
            start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._pipe = ours

    def _use(self, stage: Stage[Any, Any, Any]) -> None:
        """Sets a stage up, in another process where this one may not read the stage's files."""
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        if self._stage is stage:
            return
        readable, packed = _sendable(stage)
        is_locked_out = self._readable is not None and not set(readable) <= set(self._readable)
        if self._process is None or is_locked_out:
            self._start()
        is_new = self._stage is None
        self._stage = None
        self._send("stage", packed, stage.imports, readable, stage.locks)
        answer = self._answer("", MAX_SET_UP_S)
        if isinstance(answer, CuratorError):
            self.stop()
            if is_new:
                raise SetUpError(answer)
            # This one has worked on items, and is not believed.
            self._use(stage)
            return
        self._stage, self._readable = stage, readable if stage.locks else None

    def _used_s(self) -> float:
        """CPU-seconds of the process so far, as the system counts them; 0 where it does not say."""
        assert self._process is not None
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text("ascii", "replace")
        except OSError:
            return 0.0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _send(self, *message: object) -> None:
        assert self._pipe is not None
        self._pipe.send_bytes(pickle.dumps(message))

    def _answer(self, uri: str, wall_s: float | None) -> Any:  # noqa: ANN401
        """Serves the box until it is done; time in which it waits for bytes does not count."""
        assert self._pipe is not None
        stage, given_s, used_s = self._stage, wall_s or 0.0, self._used_s()
        most_s = used_s + given_s / WALL_PER_CPU
        records = (*stage.answers, Failure, ErrorCode) if stage is not None else ()
        most_bytes = (stage.limit_bytes if stage is not None else None) or MAX_ANSWER_BYTES
        while True:
            asked_s = time.monotonic()
            while wall_s == 0 or not self._pipe.poll(wall_s):
                before_s, used_s = used_s, self._used_s()
                if used_s - before_s < LEAST_SHARE * given_s or used_s >= most_s:
                    raise self._died(_SLOW)
                wall_s = given_s
                asked_s = time.monotonic()
            if wall_s is not None:
                # Something for each message, so that no number of them holds its parent for ever.
                wall_s = max(0.0, wall_s - max(MESSAGE_S, time.monotonic() - asked_s))
            kind, *parts = from_bytes(self._pipe.recv_bytes(min(most_bytes, MAX_ANSWER_BYTES)))
            match kind:
                case "set_up":
                    return None
                case "refused":
                    return _error(*parts)
                case "done":
                    result, *spent = parts
                    self._take(*spent)
                    return from_bytes(result, records)
                case "full":
                    raise FullDiskError(tempfile.gettempdir())
                case "open" | "read":
                    self._pipe.send_bytes(self._served(kind, parts, uri))
                case "end":
                    expect_end(self._readers[parts[0]], parts[1])
                case "close":
                    self._readers.pop(parts[0]).close()

    def _served(self, kind: str, parts: Sequence[Any], uri: str) -> bytes:
        """Returns the answer to a message: 0 and bytes, or 1 and a pickled error."""
        try:
            if kind == "open":
                return b"\0" + pickle.dumps(self._opened(*parts, allowed=uri))
            handle, at, n = parts
            if n < 0:
                raise ValueError(f"{n} bytes were asked for")
            reader = self._readers[handle]
            reader.seek(at)
            return b"\0" + reader.read(min(n, MAX_READ_BYTES))
        except CuratorError as error:
            return b"\1" + pickle.dumps(error)
        except OSError as error:
            return b"\1" + pickle.dumps(local_failure(uri, error))

    def _opened(
        self, uri: str, version: str | None, checks: bool, *, allowed: str
    ) -> tuple[int, int, str | None]:
        if uri != allowed:
            raise CuratorError(f"a decoder asked for {uri!r} while it worked on {allowed!r}")
        if len(self._readers) >= MAX_OPEN:
            raise ValueError(f"more than {MAX_OPEN} readers of one source")
        reader = open_source(uri, expected_version=version, checks=checks)
        handle = max(self._readers, default=0) + 1
        self._readers[handle] = reader
        return handle, reader.seek(0, os.SEEK_END), stored_md5(reader)

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

    def _died(self, why: str | None = None) -> BoxDiedError:
        """Ends what is left of the process; `why` it has to end, or None where it ended itself."""
        assert self._process is not None
        try:
            code = self._process.wait(0 if why is not None else END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self.stop()
        if code == -signal.SIGXCPU:
            why = _SLOW
        return BoxDiedError(why or f"its decoder ended with {_words(code)}", is_slow=why == _SLOW)


def _sendable(stage: Stage[Any, Any, Any]) -> tuple[tuple[str, ...], bytes]:
    """Returns the files that a stage reads, and the stage as bytes."""
    try:
        return tuple(stage.files()), pickle.dumps(stage)
    except CuratorError as error:
        raise SetUpError(error) from error
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SetUpError(
            CuratorError(
                f"stage {stage.name} cannot be sent to the process that decodes: {error}; keep no "
                "open files, locks or functions without a name in it before `setup`"
            )
        ) from error


def _words(code: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit status {code}"


def _error(name: str, message: str) -> CuratorError:
    kind = getattr(errors, name, CuratorError)
    is_plain = isinstance(kind, type) and issubclass(kind, CuratorError)
    return kind(message) if is_plain else CuratorError(message)


_box: Box | None = None


def process_box() -> Box:
    """Returns the box of this process: one serves all stages, one after the other."""
    global _box
    if _box is None:
        _box = Box()
    return _box

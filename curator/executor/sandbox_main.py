"""The process of a sandbox, which parses untrusted bytes and holds nothing worth stealing.

It has no credentials, and opens no connections and no files of users: its parent reads sources for
it. `sandboxed_process` is the parent's side, and lists the messages.
"""

import importlib
import io
import logging
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from curator.errors import (
    CuratorError,
    DeviceError,
    ErrorCode,
    FullDiskError,
    ModelError,
    SourceError,
    one_line,
)
from curator.executor.cpu_accounting import no_collection
from curator.executor.failures import failure, internal_failure
from curator.executor.freed_memory import return_freed_memory
from curator.executor.plain_values import to_bytes
from curator.executor.sandbox import (
    GpuAccess,
    PluginFinder,
    Plugins,
    end_with_parent,
    importable_code,
    lock,
)
from curator.media.device_errors import device_error
from curator.stage import Stage
from curator.storage.range_reader import BUFFER_BYTES, SeekableReader
from curator.storage.scratch import LOCK, use_files
from curator.storage.source_reader import open_through

REPORT_S = 0.5
"""Shortest time between messages about the progress of an item, in seconds."""


class _ParentReader(SeekableReader):
    """A source that the parent has opened; threads may read, one at a time."""

    def __init__(self, sandbox: "_Sandbox", uri: str, opened: tuple[int, int]) -> None:
        self._handle, size = opened
        super().__init__(uri, size)
        self._sandbox = sandbox

    @property
    def expected_end(self) -> int | None:
        """Write-only: see `expect_end`."""
        return None

    @expected_end.setter
    def expected_end(self, end: int | None) -> None:
        self._sandbox.tell("end", self._handle, end)

    def _at_position(self, most: int) -> memoryview:
        # A demuxer may seek beyond the end, to positions that a file system does not accept.
        return self._sandbox.ask("read", self._handle, min(self._position, self.size), most)

    def close(self) -> None:
        if not self.closed:
            with suppress(BrokenPipeError):
                self._sandbox.tell("close", self._handle)
        super().close()


class _Sandbox:
    """Runs a stage over items, one at a time; `files` are the only files that it may write."""

    def __init__(self, pipe: Connection, files: Sequence[str]) -> None:
        self._pipe, self._files = pipe, files
        self._finder = PluginFinder()
        self._stage: Stage[Any, Any, Any] | None = None
        self._is_locked = False
        self._gpu: GpuAccess | None = None
        # Several threads of a decoder may read.
        self._turn = threading.Lock()
        self._report_s = 0.0
        """Time of the next message about the progress, by the monotonic clock."""

    def tell(self, *message: object) -> None:
        with self._turn:
            self._pipe.send_bytes(to_bytes(message))

    def ask(self, *message: object) -> memoryview:
        """Sends a message; returns the answer, or raises the error that the answer holds."""
        with self._turn:
            self._pipe.send_bytes(to_bytes(message))
            answer = memoryview(self._pipe.recv_bytes())
        if answer[0]:
            raise pickle.loads(answer[1:])
        return answer[1:]

    def serve(self) -> None:
        open_through(self._open)
        sys.meta_path.append(self._finder)
        self.tell("ready")
        while True:
            try:
                kind, *parts = pickle.loads(self._pipe.recv_bytes())
            except EOFError:
                return
            match kind:
                case "load":
                    _load(*parts)
                case "stage":
                    self._set_up(*parts)
                case "item":
                    self._run(*parts)
                case "release" if self._stage is not None:
                    self._stage.release()

    def _reached(self, video_s: float) -> None:
        """Tells how far the item is, once in a while."""
        now_s = time.monotonic()
        if now_s >= self._report_s:
            self._report_s = now_s + REPORT_S
            self.tell("reached", video_s)

    def _open(self, uri: str, expected_version: str | None) -> BinaryIO:
        # A reader whose constructor raised would be closed before it has attributes.
        opened = pickle.loads(self.ask("open", uri, expected_version))
        return io.BufferedReader(_ParentReader(self, uri, opened), BUFFER_BYTES)

    def _set_up(
        self,
        stage: bytes,
        imports: tuple[str, ...],
        readable: tuple[str, ...],
        plugins: Plugins,
        locks: bool,
        gpu: GpuAccess | None,
    ) -> None:
        """Loads a stage; locks this process before the first set-up."""
        self._gpu, self._finder.plugins = gpu, plugins
        try:
            if locks and not self._is_locked:
                # The stage's `setup` reports a missing module.
                with suppress(ImportError):
                    _load(imports)
                paths = (*readable, *importable_code().paths)
                lock(paths, writable=self._files, gpu=gpu)
                self._is_locked = True
                # Hides compilers, for which `ctypes.util.find_library` would write temporary files.
                os.environ["PATH"] = "/nonexistent"
            if self._stage is not None:
                self._stage = None
                return_freed_memory()
            with no_collection():
                self._stage = pickle.loads(stage)
                self._stage.on_reached = self._reached
                self._stage.setup()
        except Exception as error:
            if not isinstance(error, CuratorError):
                logging.getLogger(__name__).exception("a stage cannot be set up")
            more = "" if isinstance(error, ModelError) else self._locked_words()
            if (lost := gpu_error(error, gpu)) is not None:
                self._end(lost, more)
            name = type(error).__name__
            if isinstance(error, CuratorError):
                self.tell("refused", name, f"{error}{more}")
            else:
                self.tell("refused", "CuratorError", f"{name}: {error}{more}")
        else:
            self.tell("set_up")

    def _locked_words(self) -> str:
        """Returns advice for the case that a locked process cannot use its GPU."""
        if self._gpu is None or not self._is_locked:
            return ""
        problems = "; ".join(self._gpu.problems()) or "its device files open"
        return (
            f"; this process is locked ({problems}): CURATE_UNLOCKED_GPU=1 in the environment "
            "leaves processes with a GPU unlocked; please report it if that helps"
        )

    def _end(self, error: DeviceError, more: str = "") -> NoReturn:
        """Reports that the GPU failed, and ends the process, because its state may be unusable."""
        self.tell("lost", type(error).__name__, one_line(error) + more)
        os._exit(1)

    def _run(self, item: Any, n_bytes: int | None) -> None:  # noqa: ANN401
        stage = self._stage
        assert stage is not None
        begun_s = time.process_time()
        try:
            result = to_bytes(stage.process(item))
        except MemoryError:
            failed = failure(item, stage, stage.memory_code, _too_much(item, n_bytes))
            result = to_bytes(failed)
        except FullDiskError:
            self.tell("full")
            return
        except DeviceError as error:
            self._end(error)
        except CuratorError as error:
            code = error.code if isinstance(error, SourceError) else ErrorCode.INTERNAL
            result = to_bytes(failure(item, stage, code, str(error)))
        except Exception as error:  # noqa: BLE001 - becomes the item's failed outcome
            if (lost := gpu_error(error, self._gpu)) is not None:
                self._end(lost)
            result = to_bytes(internal_failure(item, stage, error))
        spent = (begun_s, time.process_time(), dict(stage.cpu_s), dict(stage.counts))
        stage.cpu_s.clear()
        stage.counts.clear()
        self.tell("done", result, *spent)


def gpu_error(error: Exception, gpu: GpuAccess | None) -> DeviceError | None:
    """Returns the failure of this process's GPU that an error reports; None if it reports none."""
    torch: Any = sys.modules.get("torch")
    if isinstance(error, DeviceError):
        return error
    if gpu is None or torch is None or isinstance(error, CuratorError):
        return None
    return device_error(error, torch.cuda.synchronize if torch.cuda.is_initialized() else int)


def _load(modules: Sequence[str]) -> None:
    with no_collection():
        for name in modules:
            importlib.import_module(name)


def _too_much(item: Any, n_bytes: int | None) -> str:  # noqa: ANN401
    limit = "this machine has" if n_bytes is None else f"{n_bytes >> 20} MiB, the limit of a source"
    return (
        f"{item.uri}: reading it needs more memory than {limit}; the header may be damaged, or "
        "made to exhaust memory: remux the source with ffmpeg, or leave it out"
    )


def main(number: str, files: str, *modules: str) -> None:
    """Runs a sandbox.

    Args:
        number: File descriptor of the pipe.
        files: Folder of the files that the sandbox may write.
        modules: Modules to import at once.
    """
    end_with_parent()
    # Set, because `gettempdir` would test the folder by writing a file.
    tempfile.tempdir = os.environ["TMPDIR"]
    given = [str(path) for path in Path(files).iterdir() if path.name != LOCK]
    use_files(given)
    _load(modules)
    _Sandbox(Connection(int(number)), given).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

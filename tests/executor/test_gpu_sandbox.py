"""Boxes of stages that hold a GPU: what they may open, and what becomes of one whose GPU fails."""

import contextlib
import errno
import fcntl
import io
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from curator.errors import (
    CuratorError,
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    ErrorCode,
    ModelError,
)
from curator.executor import sandbox, sandboxed_process
from curator.executor.engine import Engine
from curator.executor.sandbox import gpu_access, landlock_version
from curator.executor.sandbox_main import gpu_error
from curator.executor.sandboxed_process import SandboxedProcess, process_sandbox
from curator.executor.system_calls import has_seccomp
from curator.executor.unit_worker import UnitWorker, stage_step
from curator.records.sources import Failure, Note
from curator.stage import Resources, Scope, Stage, StageConfig
from curator.storage import open_source

NV_ESC_RM_FREE = 0xC0104629
"""An `ioctl` of NVIDIA's driver, which other devices do not know."""
FS_IOC_GETFLAGS = 0x80086601
LOCKS_DEVICES = landlock_version() >= 5 and has_seccomp()
needs_lock = pytest.mark.skipif(not LOCKS_DEVICES, reason="no Landlock of version 5, or no seccomp")


@dataclass(frozen=True)
class Item:
    """A file, and what to do: on a GPU, and on a CPU."""

    uri: str
    act: str
    on_cpu: str = "pid"


class HoldingConfig(StageConfig):
    """Where it runs."""

    gpus: float = 0.125
    may_leave: bool = True
    set_up: str = "nothing"


Answer = None | int | str | dict[str, str]
"""What an act gives."""


class Holding(Stage[HoldingConfig, Item, Any]):
    """Holds a share of a GPU, and does what an item says."""

    name, version, scope = "holding", 1, Scope.SOURCE
    sandboxed = True
    note: Note | None = None

    @property
    def resources(self) -> Resources:
        return Resources(gpus=self.config.gpus)

    def limit_s(self, unit: Item) -> float:
        return 30.0

    def files(self) -> tuple[str, ...]:
        # Where `set_up` leads.
        return (self.config.set_up,) if self.config.gpus else ()

    def setup(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.config.gpus:
                ACTS[Path(self.config.set_up).read_text()](Item("", ""))

    def process(self, unit: Item) -> Answer | list[Answer]:
        if self.note is not None:
            return [str(self.note), ACTS[unit.on_cpu](unit)]
        answer: Answer = ACTS[unit.act](unit)
        return answer

    def on_cpu(self, note: Note) -> Self | None:
        if not self.config.may_leave or not self.config.gpus:
            return None
        stage = copy(self)
        stage.config, stage.note = self.config.model_copy(update={"gpus": 0.0}), note
        return stage

    def failed(self, unit: Item, failure: Failure) -> Failure:
        return failure


class Torch(SimpleNamespace):
    """What is asked of torch after an error."""

    OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})

    def __init__(self, *, is_lost: bool, is_begun: bool = True) -> None:
        def synchronize() -> None:
            if is_lost:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

        super().__init__(
            cuda=SimpleNamespace(is_initialized=lambda: is_begun, synchronize=synchronize)
        )


def _raise(error: Exception) -> None:
    raise error


def _with_torch(is_lost: bool) -> None:
    sys.modules["torch"] = Torch(is_lost=is_lost)  # type: ignore[assignment]
    raise ValueError("wrong shape")


def _by_source(unit: Item) -> object:
    with open_source(unit.uri) as reader:
        return ACTS[reader.read(99).decode()](unit)


def _priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


REFUSED = "PermissionError"
RIGHTS: dict[str, tuple[Callable[[str], object], str]] = {
    "ioctl": (lambda film: _controls(_beside(film, "nvidia0"), NV_ESC_RM_FREE), "allowed"),
    "ioctl of a file": (lambda film: _controls(_beside(film, "nvidia0"), FS_IOC_GETFLAGS), REFUSED),
    "other device": (lambda film: os.open(_beside(film, "other"), os.O_RDWR), REFUSED),
    "thread": (lambda _: _names_a_thread(), "allowed"),
    "listens": (lambda _: _listens(), "allowed"),
    "no MPS": (lambda film: _seqpacket().connect(f"{film}.socket"), "FileNotFoundError"),
    "accepts": (lambda _: _seqpacket().accept(), REFUSED),
    "stream": (lambda _: socket.socket(socket.AF_UNIX), REFUSED),
    "internet": (lambda _: socket.socket(), REFUSED),
    "write": (lambda film: Path(film).with_suffix(".new").write_bytes(b""), REFUSED),
    "unlink": (lambda film: os.unlink(_beside(film, "other")), "FileNotFoundError"),
    "unlink without a name": (lambda _: os.unlink(""), "FileNotFoundError"),
    "folder": (lambda film: os.mkdir(f"{film}.folder"), "FileExistsError"),
    "link": (lambda film: os.symlink(film, f"{film}.link"), "FileNotFoundError"),
    "priority": (lambda _: os.setpriority(os.PRIO_PROCESS, 0, _priority()), "allowed"),
    "lower priority": (lambda _: os.setpriority(os.PRIO_PROCESS, 0, _priority() + 1), REFUSED),
    "program": (lambda _: subprocess.run(["/bin/true"], check=True), REFUSED),
    "devices": (lambda _: Path("/proc/devices").read_text()[:1], "allowed"),
    "passwords": (lambda _: Path("/etc/passwd").read_text(), REFUSED),
}
"""What a process tries with devices, sockets and files, and how that ends in a locked one."""


def _beside(film: str, name: str) -> Path:
    return Path(film).parent / name


def _told(act: Callable[[str], object], film: str) -> str:
    try:
        act(film)
    except OSError as error:
        return type(error).__name__
    return "allowed"


def _controls(device: Path, number: int) -> None:
    with open(device, "r+b", buffering=0) as file:
        try:
            fcntl.ioctl(file, number, bytes(16))
        except OSError as error:
            # It came to the device, which does not know it.
            if error.errno not in (errno.EINVAL, errno.ENOTTY):
                raise


def _names_a_thread() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text("cuda00001")
    finally:
        done.set()


def _seqpacket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def _listens() -> None:
    with _seqpacket() as made:
        made.bind(f"\0cuda-uvmfd-{os.getpid()}")
        made.listen(1)


ACTS: dict[str, Callable[[Item], Any]] = {
    "pid": lambda _: os.getpid(),
    "lost": lambda _: _raise(DeviceLostError("an illegal memory access")),
    "no memory": lambda _: _raise(DeviceMemoryError("0 bytes free")),
    "crash": lambda _: signal.raise_signal(signal.SIGSEGV),
    "exit": lambda _: os._exit(1),
    "busy": lambda _: signal.raise_signal(signal.SIGXCPU),
    "sleep": lambda _: time.sleep(60),
    "internal, lost": lambda _: _with_torch(True),
    "internal": lambda _: _with_torch(False),
    "no weights": lambda _: _raise(ModelError("no weights")),
    "no device": lambda _: _raise(RuntimeError("no CUDA-capable device")),
    "by source": _by_source,
    "rights": lambda unit: {name: _told(act, unit.uri) for name, (act, _) in RIGHTS.items()},
}


@pytest.fixture
def film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file beside device files of a GPU: one that is meant, and one that is not."""
    (tmp_path / "film").write_bytes(b"abcdefgh")
    for name in ("nvidia0", "other"):
        try:
            os.mknod(tmp_path / name, stat.S_IFCHR | 0o666, os.makedev(1, 8))
            os.close(os.open(tmp_path / name, os.O_RDWR))
        except OSError:
            # Stand-ins that are no devices, where none can be made.
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / name).write_bytes(b"")
    monkeypatch.setattr(sandbox, "GPU_FILES", (f"{tmp_path}/nvidia*",))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "mps"))
    return str(tmp_path / "film")


@pytest.fixture(autouse=True)
def sandboxed() -> Iterator[SandboxedProcess]:
    """The sandbox of this process, new for each test."""
    process_sandbox().stop()
    yield process_sandbox()
    process_sandbox().stop()
    process_sandbox().counts.clear()


def _run(film: str, *items: tuple[str, str] | str, **settings: Any) -> list[Any]:  # noqa: ANN401
    worker = UnitWorker(stage=Holding(HoldingConfig(**settings)))
    made = [Item(film, *((item,) if isinstance(item, str) else item)) for item in items]
    results: list[Any] = worker(made).results
    return results


@needs_lock
def test_a_locked_sandbox_opens_the_device_files_of_its_gpu(film: str) -> None:
    """Pins what the driver needs in a locked process, and that nothing else is left."""
    (rights,) = _run(film, "rights")
    assert rights == {name: ends for name, (_, ends) in RIGHTS.items()}
    assert sorted(path.name for path in Path(film).parent.iterdir()) == ["film", "nvidia0", "other"]


@needs_lock
def test_a_sandbox_without_a_gpu_opens_no_device_file(film: str) -> None:
    """Pins that a process which held a GPU does no work for a stage without one."""
    before, rights, after = [
        _run(film, act, gpus=gpus)[0] for act, gpus in (("pid", 1.0), ("rights", 0.0), ("pid", 1.0))
    ]
    assert before != after
    assert (rights["ioctl"], rights["thread"], rights["listens"]) == (REFUSED,) * 3


@needs_lock
def test_a_locked_sandbox_reaches_the_server_of_mps(film: str) -> None:
    """Pins that where MPS runs its socket is found, and its folder can be written in."""
    folder = Path(film).parent / "mps"
    folder.mkdir()
    (folder / "control").touch()
    access = gpu_access(os.environ)
    assert access.writable == (str(folder), "/dev/shm")
    (rights,) = _run(film, "rights")
    assert (rights["no MPS"], rights["stream"]) == ("FileNotFoundError", REFUSED)
    with _seqpacket() as server:
        server.bind(f"{film}.socket")
        server.listen(1)
        (rights,) = _run(film, "rights")
    assert rights["no MPS"] == "allowed"


@pytest.mark.long
def test_a_sandbox_with_a_gpu_can_be_left_unlocked(
    film: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the way out where a driver needs more than is known here."""
    monkeypatch.setenv(sandboxed_process.UNLOCKED, "1")
    (rights,) = _run(film, "rights")
    assert rights["write"] == rights["internet"] == "allowed"
    if LOCKS_DEVICES:
        (rights,) = _run(film, "rights", gpus=0.0)
        assert rights["write"] == REFUSED


def test_a_locked_sandbox_that_cannot_begin_names_what_may_be_missing(film: str) -> None:
    """Pins the message: device files that are not there, and the variable."""
    Path(film).write_text("no device")
    with pytest.raises(CuratorError, match=r"there is no /dev/nvidia.*CURATE_UNLOCKED_GPU=1"):
        _run(film, "pid", set_up=film)
    Path(film).write_text("no weights")
    with pytest.raises(ModelError, match=r"^no weights$"):
        _run(film, "pid", set_up=film)


@pytest.mark.parametrize(
    ("act", "note"),
    [
        ("crash", Note.NOT_ON_GPU_DEVICE_LOST),
        pytest.param("no memory", Note.NOT_ON_GPU_OUT_OF_MEMORY, marks=pytest.mark.long),
        *(
            pytest.param(act, Note.NOT_ON_GPU_DEVICE_LOST, marks=pytest.mark.long)
            for act in ("lost", "exit", "busy", "internal, lost")
        ),
    ],
)
def test_a_cpu_does_what_a_gpu_failed_under(film: str, act: str, note: Note) -> None:
    """Pins that the process ends, and the next item is on the GPU again."""
    before, (found, on_cpu), after, again = _run(film, "pid", act, "pid", "pid")
    assert found == note
    assert len({before, on_cpu, after}) == 3
    assert after == again


@pytest.mark.parametrize(
    ("act", "code"),
    [
        ("lost", ErrorCode.GPU_FAILED),
        pytest.param("busy", ErrorCode.TOO_SLOW, marks=pytest.mark.long),
        pytest.param("internal", ErrorCode.INTERNAL, marks=pytest.mark.long),
        pytest.param("no memory", ErrorCode.GPU_OUT_OF_MEMORY, marks=pytest.mark.long),
        pytest.param("crash", ErrorCode.WORKER_DIED, marks=pytest.mark.long),
        pytest.param("exit", ErrorCode.GPU_FAILED, marks=pytest.mark.long),
    ],
)
def test_a_stage_that_needs_a_gpu_fails_the_item(film: str, act: str, code: ErrorCode) -> None:
    """Pins codes of errors of a GPU, and that an error after which it answers is a defect."""
    failure, after = _run(film, act, "pid", may_leave=False)
    assert failure.code == code
    assert film in failure.message
    assert isinstance(after, int)


def test_a_new_process_is_tried_before_a_cpu(film: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that one loss costs a new process and nothing else, and is counted."""
    contents = iter([b"lost", b"pid"])
    monkeypatch.setattr(
        sandboxed_process, "open_source", lambda *_, **__: io.BytesIO(next(contents))
    )
    worker = UnitWorker(stage=Holding(HoldingConfig()))
    result = worker([Item(film, "by source")])
    assert isinstance(result.results[0], int)
    assert result.counts["lost_gpu"] == 1


def test_deaths_on_the_cpu_count_from_none_after_losses(film: str) -> None:
    """Pins that a source is not blamed for a GPU, and has one more try after it ended a process."""
    lost, crashed = _run(film, ("lost", "crash"), ("crash", "crash"))
    assert lost.code == crashed.code == ErrorCode.WORKER_DIED
    assert "GPU" not in lost.message


@pytest.mark.parametrize(
    ("may_leave", "act", "ends"),
    [
        pytest.param(True, "no device", Note.NOT_ON_GPU_DEVICE_LOST, marks=pytest.mark.long),
        (True, "no memory", Note.NOT_ON_GPU_OUT_OF_MEMORY),
        pytest.param(False, "no memory", ErrorCode.GPU_OUT_OF_MEMORY, marks=pytest.mark.long),
        pytest.param(False, "no weights", ErrorCode.GPU_FAILED, marks=pytest.mark.long),
    ],
)
def test_where_the_gpu_does_not_begin_again_a_cpu_does_the_item_or_it_fails(
    film: str, may_leave: bool, act: str, ends: Note | ErrorCode
) -> None:
    """Pins that a set-up which worked once and fails now is the GPU's fault, and no other is."""
    # A GPU whose memory others have meanwhile ends no run, and is tried again.
    words = Path(film).with_name("words")
    words.write_text("pid")
    config = HoldingConfig(set_up=str(words), may_leave=may_leave)
    worker = UnitWorker(stage=Holding(config))
    assert isinstance(worker([Item(film, "pid")]).results[0], int)
    process_sandbox().stop()
    words.write_text(act)
    (result,) = worker([Item(film, "pid")]).results
    assert (result[0] if may_leave else result.code) == ends
    with pytest.raises(CuratorError):
        _run(film, "pid", set_up=str(words))
    words.write_text("pid")
    assert isinstance(worker([Item(film, "pid")]).results[0], int)


@pytest.mark.long
def test_an_engine_that_hangs_is_a_gpu_that_failed(
    film: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins the outcome of a process that waits for its GPU for ever."""
    monkeypatch.setattr(sandboxed_process, "HUNG_S", 0.6)
    (on_cpu,) = _run(film, "sleep")
    assert on_cpu[0] == Note.NOT_ON_GPU_DEVICE_LOST
    (failure,) = _run(film, "sleep", may_leave=False)
    assert failure.code == ErrorCode.GPU_FAILED
    assert "stopped answering" in failure.message


@pytest.mark.long
def test_a_run_says_how_often_a_gpu_failed(film: str) -> None:
    """Pins that no fall-back is silent: `sandboxes` of the summary."""
    with Engine(address=None, workers=None) as engine:
        step = stage_step(Holding(HoldingConfig()))
        list(engine.run([step], [[Item(film, "lost")]], placement="child"))
        assert engine.facts()["sandboxes"] == {"lost_gpu": 2}


@pytest.mark.parametrize(
    ("error", "torch", "expected"),
    [
        (ValueError("x"), Torch(is_lost=True), DeviceLostError),
        (ValueError("x"), Torch(is_lost=False), None),
        (ValueError("x"), Torch(is_lost=True, is_begun=False), None),
        (ValueError("x"), None, None),
        (Torch.OutOfMemoryError("x"), Torch(is_lost=False), DeviceMemoryError),
        (DeviceMemoryError("x"), None, DeviceMemoryError),
        (ModelError("x"), Torch(is_lost=True), None),
    ],
)
def test_an_error_is_the_gpus_where_it_answers_no_more(
    error: Exception, torch: Torch | None, expected: type | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = gpu_error(error, gpu_access({}))
    assert found is None if expected is None else type(found) is expected
    if not isinstance(error, DeviceError):
        assert gpu_error(error, None) is None


def test_torch_has_the_names_that_are_asked_for() -> None:
    """Pins `torch.OutOfMemoryError`, and that CUDA's number of an error is kept by its name."""
    import torch

    error = torch.AcceleratorError("CUDA error: out of memory")
    error.error_code = 2  # type: ignore[attr-defined]
    assert isinstance(error, RuntimeError)
    assert isinstance(gpu_error(error, gpu_access({})), DeviceMemoryError)
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    assert not torch.cuda.is_initialized()

"""The sandbox: what a stage may do in it, and how it ends."""

import contextlib
import ctypes
import io
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from curator.errors import CuratorError, ErrorCode, ModelError
from curator.executor import sandboxed_process
from curator.executor.plain_values import to_bytes
from curator.executor.sandboxed_process import SandboxDiedError, SandboxedProcess, process_sandbox
from curator.executor.unit_worker import UnitWorker, process_alone
from curator.records.sources import Failure
from curator.stage import Scope, Stage, StageConfig
from curator.storage import open_source

LIMIT_BYTES = 256 << 20


@dataclass(frozen=True)
class Item:
    """A file, and what to do to it."""

    uri: str
    act: str = "read"

    @property
    def key(self) -> str:
        return self.uri


class ActingConfig(StageConfig):
    """Whether setting up fails."""

    fails: bool = False


Answer = None | bytes | str | int | dict[str, str] | tuple[bool, bool]
"""What an act gives; the one that gives an object fails."""


class Acting(Stage[ActingConfig, Item, Any]):
    """Does what an item says."""

    name, version, scope = "acting", 1, Scope.SOURCE
    sandboxed = True

    @property
    def limit_bytes(self) -> int:
        return LIMIT_BYTES

    def limit_s(self, unit: Item) -> float:
        return 1.0

    def setup(self) -> None:
        if self.config.fails:
            raise ModelError("no weights")

    def process(self, unit: Item) -> Answer:
        self.counts["acts"] += 1
        answer: Answer = ACTS[unit.act](unit)
        return answer

    def failed(self, unit: Item, failure: Failure) -> Failure:
        return failure


def _read(unit: Item) -> bytes:
    with open_source(unit.uri) as reader:
        reader.seek(2)
        return reader.read(3)


def _refused(act: Callable[[], Any]) -> str:
    try:
        return f"allowed: {act()!r}"
    except OSError as error:
        return type(error).__name__


def _read_at(unit: Item, at: int) -> bytes:
    with open_source(unit.uri) as reader:
        raw = cast(io.BufferedReader, reader).raw
        raw.seek(at)
        return cast(bytes, raw.read(10))


def _rights(unit: Item) -> dict[str, str]:
    return {
        "home": _refused(lambda: Path(unit.uri).read_bytes()),
        "write": _refused(lambda: Path(unit.uri).with_suffix(".new").write_bytes(b"")),
    }


def _work(cpu_s: float) -> bytes:
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        pass
    return b"worked"


def _close_and_stay() -> None:
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            os.close(number)
    time.sleep(60)


def _other_source(unit: Item) -> None:
    with open_source(unit.uri + ".other"):
        pass


ACTS: dict[str, Callable[[Item], Any]] = {
    "read": _read,
    "rights": _rights,
    "environment": lambda _: dict(os.environ),
    "crash": lambda _: signal.raise_signal(signal.SIGSEGV),
    "capabilities": lambda _: int(
        Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16
    ),
    "terminal": lambda _: (
        int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[3]) == os.getpid(),
        os.fstat(0).st_rdev == os.stat("/dev/null").st_rdev,
    ),
    "far": lambda unit: _read_at(unit, 2**63 - 1),
    "too far": lambda unit: _read_at(unit, 2**70),
    "closes": lambda _: _close_and_stay(),
    "abort": lambda _: ctypes.CDLL(None).abort(),
    "busy": lambda _: _work(600),
    "work": lambda _: _work(0.5),
    "sleep": lambda _: time.sleep(60),
    "hungry": lambda _: bytes(LIMIT_BYTES * 2),
    "other": _other_source,
    "object": lambda _: object(),
    "pid": lambda _: os.getpid(),
}


@pytest.fixture
def film(tmp_path: Path) -> str:
    (tmp_path / "film").write_bytes(b"abcdefgh")
    return str(tmp_path / "film")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SandboxedProcess]:
    """The sandbox of this process, ended after these tests."""
    yield process_sandbox()
    process_sandbox().stop()


def _run(film: str, *acts: str) -> list[Any]:
    worker = UnitWorker(stage=Acting(ActingConfig()))
    results: list[Any] = worker([Item(film, act) for act in acts]).results
    return results


@pytest.mark.usefixtures("sandbox")
def test_bytes_come_through_the_parent_of_the_one_source(film: str) -> None:
    """Pins that a stage reads its source with `open_source` as it does outside, and no other."""
    # An offset that no file system takes costs nothing, and results keep their items: the parent
    # raised an error that it did not answer, and the next item got the failure of this one. A
    # superuser's sandbox is none, and none can type into the user's terminal.
    read, failure, *nowhere, capabilities, terminal, again = _run(
        film, "read", "other", "far", "too far", "capabilities", "terminal", "read"
    )
    assert read == again == b"cde"
    assert isinstance(failure, Failure)
    assert "while it worked on" in failure.message
    assert nowhere == [b"", b""]
    assert capabilities & ~0b100 == 0
    assert terminal == (True, True)


def test_a_sandbox_has_the_settings_of_packages_and_no_credentials(
    film: str, sandbox: SandboxedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins those by which GPUs are assigned, memory is split, and MPS is found, and no others."""
    secrets = ("AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN", "HF_TOKEN", "NVIDIA_API_KEY",
               "LANGCHAIN_API_KEY", "PYTHONANYWHERE_TOKEN", "PATHWAY_LICENSE_KEY",
               "TORCHINDUCTOR_REDIS_PASSWORD")  # fmt: skip
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "PYTORCH_CUDA_ALLOC_CONF",
             "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "CUDNN_LOGLEVEL_DBG")  # fmt: skip
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    for name in (*names, "CUDA_CACHE_DISABLE"):
        monkeypatch.setenv(name, "0")
    sandbox.stop()
    (environment,) = _run(film, "environment")
    assert "secret" not in environment.values()
    assert {"PATH", "PYTHONPATH", "TMPDIR"} <= environment.keys()
    assert {name: environment.get(name) for name in names} == dict.fromkeys(names, "0")
    assert environment["CUDA_CACHE_DISABLE"] == "1"


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("is_busy", [True, False])
def test_a_sandbox_that_stops_answering_ends_before_its_time_is_over(
    film: str, monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    """Pins that one which waits is ended, and one which gets no core is waited for."""
    assert _run(film, "read") == [b"cde"]
    monkeypatch.setattr(sandboxed_process, "WALL_PER_CPU", 600.0)
    monkeypatch.setattr(sandboxed_process, "HUNG_S", 0.3)
    monkeypatch.setattr(SandboxedProcess, "_used_s", lambda _: 1.0)
    begun = time.monotonic()
    (result,) = _run(film, "work" if is_busy else "sleep")
    assert time.monotonic() - begun < 30
    assert result == b"worked" if is_busy else result.code == ErrorCode.WORKER_DIED


class Unending:
    """A process that its driver holds: killed, and never over."""

    pid = 1

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "would wait for ever"
        raise subprocess.TimeoutExpired("sandbox", timeout)


def test_a_process_that_does_not_end_is_left_behind(
    film: str,
    sandbox: SandboxedProcess,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Pins that stopping ends, that it is counted, and that the next item has a new process."""
    monkeypatch.setattr(sandboxed_process, "KILL_WAIT_S", 0.01)
    assert _run(film, "read") == [b"cde"]
    real, sandbox._process = sandbox._process, Unending()  # type: ignore[assignment]
    sandbox.stop()
    assert "left behind" in caplog.text
    worker = UnitWorker(stage=Acting(ActingConfig()))
    result = worker([Item(film)])
    assert (result.results, result.counts["left_behind"]) == ([b"cde"], 1)
    assert worker([Item(film)]).counts["left_behind"] == 0
    assert real is not None
    real.kill()
    real.wait()


@pytest.mark.usefixtures("sandbox")
def test_a_stage_names_the_files_that_it_reads(film: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that weights of a user's stage are read from the place that it names."""
    folder = str(Path(film).parent)
    monkeypatch.setattr(Acting, "files", lambda _: (folder,))
    (rights,) = _run(film, "rights")
    assert (rights["home"], rights["write"]) == ("allowed: b'abcdefgh'", "PermissionError")


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("act", ["crash", pytest.param("abort", marks=pytest.mark.long), "object"])
def test_a_sandbox_that_dies_costs_its_item(film: str, act: str) -> None:
    """Pins two attempts, the failure that names the item, and that the others of a unit go on."""
    before, failure, after = _run(film, "read", act, "read")
    assert before == after == b"cde"
    assert isinstance(failure, Failure)
    expected = ErrorCode.INTERNAL if act == "object" else ErrorCode.WORKER_DIED
    assert failure.code == expected
    assert failure.uri == film


@pytest.mark.usefixtures("sandbox")
def test_time_and_memory_are_limited(film: str) -> None:
    """Pins the codes of an item that loops, and of one that takes memory; neither is repeated."""
    begun = time.monotonic()
    slow, large, after = _run(film, "busy", "hungry", "read")
    assert slow.code == ErrorCode.TOO_SLOW
    assert large.code == ErrorCode.OUT_OF_MEMORY
    assert f"{LIMIT_BYTES >> 20} MiB" in large.message
    assert after == b"cde"
    assert time.monotonic() - begun < 60


@pytest.mark.usefixtures("sandbox")
def test_a_sandbox_that_works_on_a_busy_machine_is_waited_for(
    film: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that time without the processor is not held against a source; one that hangs ends."""
    monkeypatch.setattr(sandboxed_process, "WALL_PER_CPU", 0.1)
    worked, hung = _run(film, "work", "sleep")
    assert worked == b"worked"
    assert hung.code == ErrorCode.TOO_SLOW


@pytest.mark.parametrize("error", [RuntimeError("from a service"), OSError(5, "I/O error")])
def test_an_error_of_the_parent_stays_with_its_item(
    film: str, sandbox: SandboxedProcess, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Pins that what opening a source raises, of whatever kind, is the outcome of that source."""
    reads = iter((error, None, None))

    def opened(uri: str, **options: Any) -> Any:  # noqa: ANN401
        if (raised := next(reads)) is not None:
            raise raised
        return open_source(uri, **options)

    monkeypatch.setattr(sandboxed_process, "open_source", opened)
    failure, *after = _run(film, "read", "read", "read")
    expected = ErrorCode.UNREADABLE if isinstance(error, OSError) else ErrorCode.INTERNAL
    assert failure.code == expected
    assert after == [b"cde", b"cde"]


def _said(*message: object) -> bytes:
    """A message as a sandbox sends it, with its length."""
    data = to_bytes(message)
    return struct.pack("!i", len(data)) + data


PICKLE = b"\x80\x04cos\nsystem\n(S'exit 1'\ntR."


NONSENSE = {
    "negative size": _said("read", 1, 0, -1),
    "huge size": _said("read", 1, 0, 10**30),
    "no such reader": _said("open", 7, None),
    "wrong types": _said("done", to_bytes(1), 0.0, 0.0, {"a": "b"}, {}),
    "no result": _said("done", b"", 0.0, 0.0, {}, {}),
    "unknown": _said("unheard of"),
    "list": _said("close", []),
    "empty": _said(),
    "what unpickling would run": struct.pack("!i", len(PICKLE)) + PICKLE,
    "more memory than its own limit": struct.pack("!i", LIMIT_BYTES + 1),
}
SAMPLE = ("huge size", "what unpickling would run", "more memory than its own limit")


@pytest.mark.parametrize(
    "name",
    # Not by `sampled`: sandboxes import this module, and no other of the tests.
    [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.long) for n in NONSENSE],
)
def test_nonsense_ends_the_sandbox_and_not_its_parent(
    film: str, sandbox: SandboxedProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins answers that only a taken-over sandbox gives, and that the next item has a new one."""
    monkeypatch.setattr(sandboxed_process, "WALL_PER_CPU", 2.0)
    stage = Acting(ActingConfig())
    assert sandbox.process(stage, Item(film)) == b"cde"
    kept, before = sandbox._pipe, sandbox._process
    sandbox._pipe, theirs = sandboxed_process.Pipe()
    sandbox._readers[1] = io.BytesIO(b"abc")
    os.write(theirs.fileno(), NONSENSE[name] * 2)
    with pytest.raises((SandboxDiedError, CuratorError)):
        sandbox.process(stage, Item(film))
    assert sandbox._readers == {}
    assert before is not None
    assert before.poll() is not None
    assert kept is not None
    kept.close()
    theirs.close()
    assert sandbox.process(stage, Item(film)) == b"cde"


def test_a_sandbox_that_closes_its_pipe_and_goes_on_is_ended(
    film: str, sandbox: SandboxedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that the parent does not wait for the exit of a process that has no need to end."""
    monkeypatch.setattr(sandboxed_process, "END_WAIT_S", 0.2)
    (failure,) = _run(film, "closes")
    assert failure.code == ErrorCode.WORKER_DIED
    sandbox.stop()


def test_limits_of_the_process_itself_are_kept(film: str) -> None:
    """Pins that a hard limit below what an item may have is its limit, and breaks nothing."""
    code = (
        f"import resource, sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
        "import test_sandboxed_process as t\n"
        "t.LIMIT_BYTES = 64 << 30\n"
        "t.Acting.limit_s = lambda *_: 3600.0\n"
        "t.Acting.limit_bytes = 64 << 30\n"
        f"print(t._run({film!r}, 'read'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[b'cde']\n", done.stderr


def test_modules_of_the_folder_of_the_run_are_not_imported(
    film: str, sandbox: SandboxedProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that a file named av.py in a folder of videos is no program, wherever one stands."""
    (tmp_path / "curator").mkdir()
    (tmp_path / "curator" / "__init__.py").write_text("raise SystemExit(9)")
    sandbox.stop()
    monkeypatch.chdir(tmp_path)
    assert _run(film, "read") == [b"cde"]


def test_a_stage_that_cannot_be_set_up_ends_the_run(film: str, sandbox: SandboxedProcess) -> None:
    """Pins one error, such as of missing weights, and not a failure of each source."""
    sandbox.stop()
    worker = UnitWorker(stage=Acting(ActingConfig(fails=True)))
    with pytest.raises(CuratorError, match="no weights"):
        worker([Item(film), Item(film)])


class Other(Acting):
    """Another stage, for the same sandbox."""


def test_threads_with_different_stages_take_turns_in_the_sandbox(
    film: str, sandbox: SandboxedProcess
) -> None:
    """Pins that a page with two searches at a time does not mix up their answers."""
    kinds = [Acting, Other] * 4
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda kind: process_alone(kind, ActingConfig(), Item(film)), kinds)
        assert list(answers) == [b"cde"] * len(kinds)


def test_a_sandbox_ends_with_its_parent(tmp_path: Path) -> None:
    """Pins that a killed driver leaves no decoder behind."""
    code = (
        "import sys; sys.path[:0] = [{!r}]\n"
        "from test_sandboxed_process import *\n"
        "from test_sandboxed_process import _run\n"
        "print(_run({!r}, 'pid')[0], flush=True); time.sleep(60)"
    ).format(str(Path(__file__).parent), str(tmp_path / "film"))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    number = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    until = time.monotonic() + 20
    while Path(f"/proc/{number}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    state = Path(f"/proc/{number}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"

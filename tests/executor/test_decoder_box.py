"""The decoder box: what a stage may do in it, and how it ends."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from curator.errors import ErrorCode
from curator.executor import decoder_box
from curator.executor.decoder_box import Box, BoxDiedError, process_box
from curator.executor.sandbox import has_seccomp, landlock_version
from curator.executor.unit_worker import UnitWorker
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


class Acting(Stage[StageConfig, Item, Any]):
    """Does what an item says."""

    name, version, scope = "acting", 1, Scope.SOURCE
    boxed = True

    @property
    def limit_bytes(self) -> int:
        return LIMIT_BYTES

    def limit_s(self, unit: Item) -> float:
        return 1.0

    def process(self, unit: Item) -> object:
        self.counts["acts"] += 1
        return ACTS[unit.act](unit)

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


def _rights(unit: Item) -> dict[str, str]:
    return {
        "home": _refused(lambda: Path(unit.uri).read_bytes()),
        "write": _refused(lambda: Path(unit.uri).with_suffix(".new").write_bytes(b"")),
        "passwords": _refused(lambda: Path("/etc/passwd").read_text()),
        "parent": _refused(lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes()),
        "kill": _refused(lambda: os.kill(os.getppid(), 0)),
        "socket": _refused(socket.socket),
        "program": _refused(lambda: subprocess.run(["/bin/true"], check=True)),
    }


def _busy(unit: Item) -> None:
    while True:
        pass


def _hungry(unit: Item) -> bytes:
    return bytes(LIMIT_BYTES * 2)


def _other_source(unit: Item) -> None:
    with open_source(unit.uri + ".other"):
        pass


ACTS: dict[str, Callable[[Item], Any]] = {
    "read": _read,
    "rights": _rights,
    "environment": lambda _: dict(os.environ),
    "crash": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "abort": lambda _: ctypes.CDLL(None).abort(),
    "busy": _busy,
    "sleep": lambda _: time.sleep(60),
    "hungry": _hungry,
    "other": _other_source,
    "object": lambda _: object(),
    "pid": lambda _: os.getpid(),
}


@pytest.fixture
def film(tmp_path: Path) -> str:
    (tmp_path / "film").write_bytes(b"abcdefgh")
    return str(tmp_path / "film")


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """The box of this process, ended after these tests."""
    yield process_box()
    process_box().stop()


def _run(film: str, *acts: str) -> list[Any]:
    worker = UnitWorker(stage=Acting(StageConfig()))
    results: list[Any] = worker([Item(film, act) for act in acts]).results
    return results


@pytest.mark.usefixtures("box")
def test_bytes_come_through_the_parent_of_the_one_source(film: str) -> None:
    """Pins that a stage reads its source with `open_source` as it does outside, and no other."""
    read, failure = _run(film, "read", "other")
    assert read == b"cde"
    assert isinstance(failure, Failure)
    assert "while it worked on" in failure.message


@pytest.mark.usefixtures("box")
@pytest.mark.skipif(
    not landlock_version() or not has_seccomp(), reason="this kernel has no Landlock or seccomp"
)
def test_a_box_has_no_rights(film: str) -> None:
    """Pins what an exploited decoder cannot do: files, processes, network, programs."""
    (rights,) = _run(film, "rights")
    assert set(rights.values()) == {"PermissionError"}, rights


def test_a_box_has_no_credentials(film: str, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that secrets of the environment stay outside, whatever their names."""
    for name in ("AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN", "MY_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    box.stop()
    (environment,) = _run(film, "environment")
    assert "secret" not in environment.values()
    assert {"PATH", "PYTHONPATH", "TMPDIR"} <= environment.keys()


@pytest.mark.usefixtures("box")
def test_a_stage_names_the_files_that_it_reads(film: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that weights of a user's stage are read from the place that it names."""
    folder = str(Path(film).parent)
    monkeypatch.setattr(Acting, "files", lambda _: (folder,))
    (rights,) = _run(film, "rights")
    assert (rights["home"], rights["write"]) == ("allowed: b'abcdefgh'", "PermissionError")


@pytest.mark.usefixtures("box")
@pytest.mark.parametrize("act", ["crash", "abort", "object"])
def test_a_box_that_dies_costs_its_item(film: str, act: str) -> None:
    """Pins two attempts, the failure that names the item, and that the others of a unit go on."""
    before, failure, after = _run(film, "read", act, "read")
    assert before == after == b"cde"
    assert isinstance(failure, Failure)
    expected = ErrorCode.INTERNAL if act == "object" else ErrorCode.WORKER_DIED
    assert failure.code == expected
    assert failure.uri == film


@pytest.mark.usefixtures("box")
def test_time_and_memory_are_limited(film: str) -> None:
    """Pins the codes of an item that loops, and of one that takes memory; neither is repeated."""
    begun = time.monotonic()
    slow, large, after = _run(film, "busy", "hungry", "read")
    assert slow.code == ErrorCode.TOO_SLOW
    assert large.code == ErrorCode.OUT_OF_MEMORY
    assert f"{LIMIT_BYTES >> 20} MiB" in large.message
    assert after == b"cde"
    assert time.monotonic() - begun < 60


@pytest.mark.usefixtures("box")
def test_a_box_that_waits_for_nothing_ends(film: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins the limit of wall time, for a decoder that hangs without using the processor."""
    monkeypatch.setattr(decoder_box, "WALL_PER_CPU", 2.0)
    (failure,) = _run(film, "sleep")
    assert failure.code == ErrorCode.TOO_SLOW


def test_an_answer_that_is_no_plain_value_ends_the_box(film: str, box: Box) -> None:
    """Pins that a box that sends a pickle runs nothing in its parent."""
    stage = Acting(StageConfig())
    assert box.process(stage, Item(film)) == b"cde"
    ours, theirs = decoder_box.Pipe()
    theirs.send_bytes(b"\x80\x04cos\nsystem\n(S'exit 1'\ntR.")
    kept, box._pipe = box._pipe, ours
    with pytest.raises(BoxDiedError, match="nonsense"):
        box.process(stage, Item(film))
    assert kept is not None
    kept.close()


def test_a_box_ends_with_its_parent(tmp_path: Path) -> None:
    """Pins that a killed driver leaves no decoder behind."""
    code = (
        "import sys; sys.path[:0] = [{!r}]\n"
        "from test_decoder_box import *\n"
        "from test_decoder_box import _run\n"
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

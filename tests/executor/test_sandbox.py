"""What a sandboxed worker that was taken over can reach: see `sandbox_probe`."""

import ctypes.util
import importlib
import json
import os
import platform
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sandbox_probe
from sandbox_probe import PROBES, Victim, not_refused

from curator.executor import sandboxed_process
from curator.executor.sandbox import MAX_FILE_BYTES, PluginFinder, importable_code, landlock_version
from curator.executor.sandboxed_process import process_sandbox
from curator.executor.system_calls import has_seccomp
from curator.executor.unit_worker import UnitWorker
from curator.records.sources import Failure
from curator.stage import Resources, Scope, Stage, StageConfig

pytestmark = pytest.mark.skipif(
    landlock_version() < 5 or not has_seccomp(), reason="no Landlock of version 5, or no seccomp"
)


@dataclass(frozen=True)
class Item:
    """What a taken-over decoder goes for."""

    uri: str
    victim: Victim | None = None


class ProbingConfig(StageConfig):
    """Whether it holds a GPU."""

    gpus: float = 0.0


class Probing(Stage[ProbingConfig, Item, Any]):
    """Tries all probes."""

    name, version, scope = "probing", 1, Scope.SOURCE
    sandboxed = True
    limit_bytes = 1 << 30

    @property
    def resources(self) -> Resources:
        return Resources(gpus=self.config.gpus)

    def limit_s(self, unit: Item) -> float:
        return 60.0

    def process(self, unit: Item) -> dict[str, str]:
        return not_refused(unit.victim) if unit.victim is not None else _printed()

    def failed(self, unit: Item, failure: Failure) -> Failure:
        return failure


def _printed() -> dict[str, str]:
    """Prints to both outputs, and returns what they are, and its limits."""
    # As `import torch` does, and it makes a file where it finds a compiler.
    ctypes.util.find_library("dl")
    print("to its output \x1b[2J", flush=True)
    print("x" * 2000 + "\n" + "y" * 2000, file=sys.stderr, flush=True)
    kinds = ("CORE", "NOFILE", "FSIZE", "NPROC", "AS")
    limits = {kind: resource.getrlimit(getattr(resource, f"RLIMIT_{kind}")) for kind in kinds}
    pipes = [stat.S_ISFIFO(os.fstat(number).st_mode) for number in (1, 2)]
    return {"pipes": str(pipes), **{kind: f"{s} {h}" for kind, (s, h) in limits.items()}}


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Victim]:
    """A process of this user, and a file in a folder where the run is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "credentials").write_text("secret")
    process = subprocess.Popen(["/bin/sleep", "600"])
    yield Victim(pid=process.pid, folder=str(tmp_path), secret=str(tmp_path / "credentials"))
    process.kill()
    process.wait()
    process_sandbox().stop()


def _tried(victim: Victim, gpus: float = 0.0) -> Any:  # noqa: ANN401
    process_sandbox().stop()
    worker = UnitWorker(stage=Probing(ProbingConfig(gpus=gpus)))
    return worker([Item("film", victim)]).results[0]


def test_a_sandboxed_worker_is_refused_all_that_it_and_its_gpu_do_not_need(victim: Victim) -> None:
    assert len(PROBES) >= 60
    assert _tried(victim) == {}
    # `docs/design/gpu.md`: memory that is not counted, and sockets without an address. Changes of
    # folders end with another error than a refusal, and change nothing.
    tried = _tried(victim, gpus=0.125)
    for name in ("unlink", "symlink"):
        assert tried.pop(name).startswith("FileNotFoundError")
    assert tried.pop("folder").startswith("FileExistsError")
    assert os.listdir(victim.folder) == ["credentials"]
    assert set(tried) == {
        "shared map", "checked shared map", "growing stack", "huge pages", "memfd", "mlock",
        "mbind", "sendmsg",
    }  # fmt: skip


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_a_plain_users_sandbox_is_refused_the_same(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o005 != 0o005 and parent.is_relative_to("/tmp/"):
            parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, sandbox_probe.__file__, "65534", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="it has no calls of 32 bits")
def test_calls_of_32_bits_end_the_process() -> None:
    """Pins that numbers which mean other calls there are no way around the list."""
    done = subprocess.run([sys.executable, sandbox_probe.__file__, "32 bits"], check=False)
    assert done.returncode == -signal.SIGSYS


def test_what_it_prints_goes_through_its_parent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins pipes, which cannot be emptied as a log can, and hard limits."""
    monkeypatch.setattr(sandboxed_process, "MAX_PRINTED_CHARACTERS", 1000)
    process_sandbox().stop()
    worker = UnitWorker(stage=Probing(ProbingConfig()))
    (result,) = worker([Item("film")]).results
    process_sandbox().stop()
    printed = capsys.readouterr().err
    assert printed.startswith("to its output ?[2J\nxxx")
    assert printed.endswith("x\nfurther output of this process is not shown\n")
    assert len(printed) < 1100
    assert result.pop("pipes") == "[True, True]"
    soft_and_hard = {kind: words.split() for kind, words in result.items()}
    assert all(soft == hard != "-1" for soft, hard in soft_and_hard.values()), result
    assert soft_and_hard["CORE"] == ["0", "0"]
    assert int(soft_and_hard["FSIZE"][1]) <= MAX_FILE_BYTES


def test_code_is_found_without_the_folder_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that neither the current nor the home folder can be read, whatever is in them."""
    home, current = tmp_path / "home", tmp_path / "current"
    for folder in (home, current):
        (folder / "some-1.0.dist-info").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(folder))
    (home / "one_file_plugin.py").write_text("")
    (current / "spread_plugin").mkdir()
    (current / "spread_plugin" / "part.py").write_text("")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(current)
    plugins = [importlib.import_module(n) for n in ("one_file_plugin", "spread_plugin.part")]
    # `torch.classes` is no module.
    monkeypatch.setitem(sys.modules, "one_file_plugin.classes", SimpleNamespace(__path__=1))
    code = importable_code()
    assert not {str(home), str(current), str(tmp_path)} & set(code.paths)
    assert {str(home / "one_file_plugin.py"), str(current / "spread_plugin")} <= set(code.paths)
    finder = PluginFinder()
    finder.plugins = code.plugins
    spec = finder.find_spec("one_file_plugin")
    assert spec is not None
    assert spec.origin == plugins[0].__file__
    spec = finder.find_spec("spread_plugin")
    assert spec is not None
    assert spec.submodule_search_locations == [str(current / "spread_plugin")]
    assert finder.find_spec("numpy") is None


def test_libraries_inside_packages_are_no_path_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The import of OpenCV adds one. A sandbox from before the import can read it already."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    before = importable_code().paths
    inside = f"{Path(pytest.__file__).parents[1]}/cv2/../../lib64"
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{inside}:/opt/libraries")
    assert set(importable_code().paths) - set(before) == {"/opt/libraries"}

"""What a sandboxed worker that was taken over can reach: see `sandbox_probe`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sandbox_probe
from sandbox_probe import PROBES, Victim, not_refused

from curator.executor.decoder_box import process_box
from curator.executor.sandbox import has_seccomp, landlock_version
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
    victim: Victim


class ProbingConfig(StageConfig):
    """Whether it holds a GPU."""

    gpus: float = 0.0


class Probing(Stage[ProbingConfig, Item, Any]):
    """Tries all probes."""

    name, version, scope = "probing", 1, Scope.SOURCE
    boxed = True
    limit_bytes = 1 << 30

    @property
    def resources(self) -> Resources:
        return Resources(gpus=self.config.gpus)

    def limit_s(self, unit: Item) -> float:
        return 60.0

    def process(self, unit: Item) -> dict[str, str]:
        return not_refused(unit.victim)

    def failed(self, unit: Item, failure: Failure) -> Failure:
        return failure


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
    process_box().stop()


def _tried(victim: Victim, gpus: float = 0.0) -> Any:  # noqa: ANN401
    process_box().stop()
    worker = UnitWorker(stage=Probing(ProbingConfig(gpus=gpus)))
    return worker([Item("film", victim)]).results[0]


def test_a_sandboxed_worker_is_refused_all_that_it_does_not_need(victim: Victim) -> None:
    assert len(PROBES) >= 60
    assert _tried(victim) == {}


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_a_plain_users_sandbox_is_refused_the_same(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o005 != 0o005 and parent.is_relative_to("/tmp/"):
            parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, sandbox_probe.__file__, "65534", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}

"""Where analysis runs, by what is asked for and what is here."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from curator.errors import ErrorCode, UsageError
from curator.executor import host_resources as machine
from curator.executor.engine import Engine
from curator.executor.host_resources import device_of
from curator.executor.ray_cluster import RayCluster
from curator.executor.unit_worker import UnitWorker
from curator.records.sources import Failure, SourceRef
from curator.stage import Resources
from curator.stages.analyze import stage
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.measurer import AnalysisModels
from curator.storage.source_reader import stat_source
from curator.tables.track_items import SourceItem


@pytest.mark.parametrize(
    ("asked", "n_gpus", "has_package", "device"),
    [
        ("auto", 1, True, "gpu"),
        ("auto", 1, False, "cpu"),
        ("auto", 0, True, "cpu"),
        ("cpu", 8, True, "cpu"),
        ("gpu", 0.5 + 0.5, False, "gpu"),
    ],
)
def test_the_gpu_is_taken_where_it_and_the_package_are_here(
    asked: str, n_gpus: float, has_package: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = object() if has_package else None
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _: spec)
    assert device_of(asked, n_gpus) == device


def test_a_gpu_that_was_asked_for_and_is_not_here_is_an_error() -> None:
    with pytest.raises(UsageError, match="curate doctor"):
        device_of("gpu", 0)


def test_workers_are_as_many_as_have_a_share_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curator.executor.engine.available_gpus", lambda: 2)
    share = Resources(cpus=1, gpus=1 / 3)
    assert Engine(address=None, workers=64).n_workers(100, share) == 6
    assert Engine(address=None, workers=4).n_workers(100, share) == 4
    assert Engine(address=None, workers=64).n_workers(100, Resources(cpus=1)) == 64


GPU, MIG = "GPU-8f3a", "MIG-41c2"


@pytest.mark.parametrize(
    ("visible", "n_gpus"),
    [
        (None, 2), ("", 0), ("0", 1), ("1,0", 2), ("0,2", 1), ("-1", 0), ("0,-1,1", 1),
        ("NoDevFiles", 0), (GPU, 1), (f"{GPU},{GPU}1,{GPU}2", 2), (MIG, 1),
        (f"{MIG},{MIG}1,{MIG}2", 3),
    ],
)  # fmt: skip
def test_gpus_are_counted_by_their_devices(
    visible: str | None, n_gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins names of GPUs and of MIG's instances, and CDI, which makes the other variable `void`."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "void")
    monkeypatch.setattr(machine, "_DEVICES", tmp_path)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.available_gpus() == 0
    for name in ("nvidia1", "nvidia6", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (tmp_path / name).touch()
    # Listed in the folder, and refused by the rules of the container.
    (tmp_path / "nvidia7").symlink_to("missing")
    assert machine.available_gpus() == n_gpus


def test_ray_is_told_how_many_gpus_there_are_and_started_once_more_where_it_took_too_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins that workers with a share of a GPU do not wait for one that Ray does not count."""
    # A busy machine does not end a run, and other errors are not tried again.
    monkeypatch.setattr("curator.executor.ray_cluster.available_gpus", lambda: 3)
    answers: list[Exception | None] = [Exception("timed out during startup"), None]
    services = SimpleNamespace(resolve_ip_for_localhost=str)
    private = SimpleNamespace(node=SimpleNamespace(Node=type("Node", (), {})), services=services)

    def init(**options: object) -> SimpleNamespace:
        assert options["num_gpus"] == 3
        if (answer := answers.pop(0)) is not None:
            raise answer
        return SimpleNamespace(address_info={"session_dir": str(tmp_path)})

    ray = SimpleNamespace(init=init, shutdown=lambda: None, _private=private)
    RayCluster(None, 2)._init_twice(ray)
    assert answers == []
    assert "starting it once more" in caplog.text
    answers[:] = [ConnectionError("refused"), None]
    with pytest.raises(ConnectionError):
        RayCluster(None, 2)._init_twice(ray)
    assert len(answers) == 1


@pytest.mark.usefixtures("unsandboxed")
def test_halved_batches_of_a_worker_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that a unit's result says what was halved in it, and not before."""
    network = SimpleNamespace(n_halved=3)
    to_halve = [2, 0, 1]

    def halves(*_: object, **__: object) -> Failure:
        network.n_halved += to_halve.pop(0)
        return Failure(uri="a.mp4", stage="analyze", code=ErrorCode.NO_FRAMES, message="")

    monkeypatch.setattr(stage, "analyze_source", halves)
    analysis_models = AnalysisModels(network=network)  # type: ignore[arg-type]
    monkeypatch.setattr(stage, "load_analysis_models", lambda *_: analysis_models)
    (tmp_path / "a.mp4").write_bytes(b"film")
    size, version = stat_source(str(tmp_path / "a.mp4"))
    source = SourceRef(uri=str(tmp_path / "a.mp4"), n_bytes=size, version=version)
    worker = UnitWorker(stage=stage.AnalyzeStage(AnalyzeConfig()))
    unit = [SourceItem(source=source, families=frozenset())]
    assert [worker(unit).counts["gpu_batches_halved"] for _ in range(3)] == [2, 0, 1]

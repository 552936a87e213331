"""How many workers share a GPU, and which sources are left to CPUs beside it."""

import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_nvdec import fake_module
from film_makers import MAKERS, write_video
from film_shots import moving_texture
from simulated_workers import Simulated

from curator.errors import CuratorError
from curator.executor.engine import Engine
from curator.executor.fleet import Worker
from curator.media.container import open_container, video_stream
from curator.media.nvdec import Nvdec
from curator.records.sources import Note, SourceRef
from curator.stages.analyze import gpu_engines
from curator.stages.analyze.gpu_engines import GpuFacts, GpuProbe, workers_per_gpu
from curator.stages.scan.probe import header_facts

GIB = 1 << 30
CAPS = {"supported": 1, "num_decoder_engines": 7, "width_min": 48, "height_min": 16,
        "width_max": 4096, "height_max": 4096}  # fmt: skip
H100 = GpuFacts(
    name="NVIDIA H100 80GB HBM3",
    n_engines=7,
    free_bytes=79 * GIB,
    caps={
        f"{codec} {bits}": CAPS if codec != "AV1" else {"supported": 0}
        for codec in gpu_engines.CODECS
        for bits in gpu_engines.DEPTHS
    },
)


@pytest.mark.parametrize(
    ("machine", "n_engines", "n_cores", "free_gib", "n_workers"),
    [
        ("H100, 16 cores", 7, 16, 79, 14),
        ("8 H100, 192 cores", 7, 192 / 8, 79, 14),
        ("8 A100, 96 cores", 5, 96 / 8, 79, 10),
        ("L4, 8 cores", 4, 8, 22, 8),
        ("T4, 4 cores", 2, 4, 15, 4),
        ("a laptop of 8 cores", 1, 8, 7, 2),
        ("H100, 1 core", 7, 1, 79, 2),
        ("L4 whose memory a server of captions has", 4, 32, 3, 1),
        ("L4 without free memory", 4, 32, 0, 1),
        ("a GPU that does not answer, 16 cores", None, 16, None, 8),
        ("a GPU that is not there yet", None, None, None, 8),
    ],
)
def test_workers_of_a_gpu_follow_from_its_engines_cores_and_memory(
    machine: str, n_engines: int | None, n_cores: float | None, free_gib: int | None, n_workers: int
) -> None:
    free_bytes = None if free_gib is None else free_gib * GIB
    found = workers_per_gpu(n_engines=n_engines, n_cores=n_cores, free_bytes=free_bytes)
    assert found == n_workers, machine


def source_of(path: Path) -> SourceRef:
    """A source as the driver of the analysis has it after the scan."""
    n_bytes = path.stat().st_size
    with path.open("rb") as reader:
        facts = header_facts(reader, str(path), n_bytes)
    names = ("codec", "pixel_format", "width", "height", "header_duration_s")
    return SourceRef(
        uri=str(path), n_bytes=n_bytes, version="1", **{name: facts[name] for name in names}
    )


def tiny(path: Path, width: int = 32, pix_fmt: str = "yuv420p") -> None:
    write_video(path, moving_texture(30, width_px=width, height_px=32), pix_fmt=pix_fmt)


FILMS = MAKERS | {"tiny.mp4": tiny, "444.mp4": partial(tiny, width=64, pix_fmt="yuv444p")}


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("b_frames.mp4", None),
        ("ten_bit.mp4", None),
        ("constant_rate.avi", Note.NOT_ON_GPU_CODEC),
        ("tiny.mp4", Note.NOT_ON_GPU_SIZE),
        ("444.mp4", Note.NOT_ON_GPU_PIXEL_FORMAT),
    ],
)
def test_a_header_says_without_a_gpu_what_the_engine_says_of_the_stream(
    name: str, note: Note | None, tmp_path: Path
) -> None:
    path = tmp_path / name
    FILMS[name](path)
    facts = pickle.loads(pickle.dumps(H100))
    assert facts.refusal(source_of(path)) == note
    nvdec = Nvdec(module=fake_module(GetDecoderCaps=lambda **_: CAPS), device="cpu")
    with path.open("rb") as reader, open_container(reader, name, n_bytes=1) as container:
        refused = nvdec.refusal(video_stream(container, name))
    assert (refused and Note(f"not_on_gpu_{refused[0]}")) == note


def source(**facts: Any) -> SourceRef:  # noqa: ANN401
    header = {"codec": "h264", "pixel_format": "yuv420p", "width": 1920, "height": 1080,
              "header_duration_s": 60.0}  # fmt: skip
    return SourceRef(uri="a.mp4", n_bytes=1, version="1", **(header | facts))


def test_sources_that_hold_an_engine_for_nothing_are_left_to_cpus() -> None:
    assert not H100.leaves(source())
    assert H100.leaves(source(codec="av1"))
    assert H100.refusal(source(codec="av1")) == Note.NOT_ON_GPU_CODEC
    assert H100.leaves(source(header_duration_s=1.9))
    assert H100.refusal(source(header_duration_s=1.9)) is None
    # Nothing is known of a header without a codec, nor of a GPU that is silent.
    assert not H100.leaves(source(codec=None, header_duration_s=None))
    assert not GpuFacts().leaves(source(codec="av1"))


def test_a_gpu_is_asked_for_engines_memory_and_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def caps(*, codec: str, bitdepth: int, **_: object) -> dict[str, int]:
        if codec == "MPEG2" and bitdepth == 10:
            raise RuntimeError("no such format")
        return CAPS

    names = SimpleNamespace(**{name: name for name in gpu_engines.CODECS})
    module = SimpleNamespace(GetDecoderCaps=caps, cudaVideoCodec=names)
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", module)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (79 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    facts = gpu_engines._asked()
    assert (facts.name, facts.n_engines, facts.free_bytes) == (H100.name, 7, 79 * GIB)
    assert not facts.has_mps
    assert set(facts.caps) == set(H100.caps)
    assert facts.caps["MPEG2 10"] == {"supported": 0}
    (tmp_path / "control").touch()
    assert gpu_engines._asked().has_mps


def test_a_gpu_that_does_not_work_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(CuratorError, match=r"PyNvVideoCodec|torch does not see the GPU"):
        gpu_engines.ask()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets GPUs answer at once; notes that they did."""
    asked: list[str] = []

    def ask() -> GpuFacts:
        asked.append("asked")
        return H100

    monkeypatch.setattr(gpu_engines, "ask", ask)
    return asked


def test_a_run_asks_once_and_says_what_it_decided(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("curator.executor.engine.available_cpus", lambda: 4)
    engine = Engine(address=None, workers=None)
    probe = GpuProbe(engine)
    assert [probe.workers(), probe.workers(), probe.facts] == [8, 8, H100]
    assert len(asked) == 1
    engine.counts.workers = 1
    assert engine.facts()["cluster"]["gpu"] == {
        "name": H100.name, "engines": 7, "free_bytes": 79 * GIB, "has_mps": False,
        "workers_per_gpu": 8,
    }  # fmt: skip


class Joined(Engine):
    """A cluster with a node that has a GPU, if one comes."""

    def __init__(self, n_gpus: float, nodes: list[str]) -> None:
        super().__init__(address="simulated", workers=None)
        self._n_gpus = n_gpus
        self.backend = Simulated(self._does, nodes=nodes)
        self._nodes = [{"nodes": 1, "CPU": 12.0, "GPU": 1.0}]

    def _does(self, worker: Worker, unit: object, n_deaths: int) -> object:
        assert worker.pool.resources.gpus > 0
        return gpu_engines.ask()

    def _start(self) -> Any:  # noqa: ANN401
        most: Callable[[str], float] = {"GPU": self._n_gpus, "CPU": 12.0}.__getitem__
        state = SimpleNamespace(most=most, likely_gpus=lambda: 1.0)
        watch = SimpleNamespace(state=state)
        return SimpleNamespace(backend=self.backend, watch=watch, stop=lambda: None)


def test_a_gpu_of_a_cluster_is_asked_by_a_worker(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_engines, "WAIT_S", 0.1)
    with Joined(1.0, ["gpu"]) as engine:
        assert GpuProbe(engine).workers() == 14
    reasons = (0.0, "the cluster has no node with a GPU yet"), (1.0, "no worker with a GPU")
    for n_gpus, why in reasons:
        with Joined(n_gpus, []) as engine:
            assert GpuProbe(engine).workers() == 8
        assert why in caplog.text
    assert len(asked) == 1

"""The CUDA device in software is as strict as CUDA."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_nvdec import fake_module
from film_makers import write_video
from film_shots import moving_texture
from software_cuda import SoftwareCuda, installed

from curator.media.nvdec import Nvdec
from curator.models.text_detector import TextDetector
from curator.models.transnet import ShotNetwork
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.measurer import AnalysisModels


@pytest.fixture
def device() -> Iterator[SoftwareCuda]:
    with installed() as soft:
        yield soft
    assert not torch.cuda.is_available()
    assert torch.ones(2).sum() == 2


@pytest.mark.usefixtures("device")
def test_tensors_of_host_and_device_do_not_meet() -> None:
    here, there = torch.ones(3), torch.ones(3, device="cuda")
    assert (there.is_cuda, str(there.device), here.is_cuda) == (True, "cuda:0", False)
    with pytest.raises(RuntimeError, match="on the same device"):
        there + here
    with pytest.raises(TypeError, match="can't convert cuda"):
        np.asarray(there)
    assert (there + torch.tensor(1.0)).tolist() == [2, 2, 2]


@pytest.mark.usefixtures("device")
def test_what_a_copy_brings_is_there_when_it_was_waited_for() -> None:
    """Pins pageable memory, which blocks, and pinned memory, which holds nonsense before."""
    given = torch.ones(2, 2, device="cuda")
    pageable, pinned = torch.zeros(2, 2), torch.zeros(2, 2, pin_memory=True)
    assert (pageable.is_pinned(), pinned.is_pinned()) == (False, True)
    event = torch.cuda.Event()
    with torch.cuda.stream(torch.cuda.Stream()):
        pageable.copy_(given, non_blocking=True)
        assert pageable.sum() == 4
        pinned.copy_(given, non_blocking=True)
        given.zero_()
        event.record()
    assert pinned.sum() != 4
    event.synchronize()
    assert pinned.sum() == 4


@pytest.mark.usefixtures("device")
def test_a_capture_refuses_what_a_gpu_does_not_capture() -> None:
    """Pins waits, shapes by values, copies from pageable memory, and queries."""
    given, on_host = torch.ones(2, device="cuda"), torch.tensor([1, 0])
    for what, step in {
        "pinned": lambda _: torch.empty(3, pin_memory=True),
        "blocking copy": lambda x: x.copy_(torch.ones(2)),
        "of the host": lambda x: x[on_host],
        "_local_scalar_dense": lambda x: float(x.sum()),
        "nonzero": lambda x: x.nonzero(),
        "nonzero: ": lambda x: x[x > 0],
        "copy": lambda _: torch.tensor(1.0, device="cuda"),
        "empty_cache": lambda _: torch.cuda.empty_cache(),
        "synchronize": lambda _: torch.cuda.synchronize(),
    }.items():
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.graph(graph, pool=0, capture_error_mode="thread_local"),
            pytest.raises(RuntimeError, match=what),
        ):
            step(given)


@pytest.mark.long
def test_a_source_is_analyzed_on_the_device(tmp_path: Path) -> None:
    """Pins that the whole of the GPU's path runs there, in all of its threads."""
    path = tmp_path / "film.mp4"
    write_video(path, moving_texture(30, width_px=192, height_px=108), bframes=2)

    def analyzed(analysis_models: AnalysisModels) -> tuple[object, ...]:
        with path.open("rb") as reader:
            track = analyze_source(
                reader, "film", source_id="0" * 32, n_bytes=path.stat().st_size,
                analysis_models=analysis_models, config=AnalyzeConfig(), decoder_threads=1,
            )  # fmt: skip
        return track.notes, track.n_frames, track.shot_probability

    notes, n_frames, expected = analyzed(AnalysisModels(network=ShotNetwork(precision="float32")))
    with installed() as device:
        found = analyzed(
            AnalysisModels(
                network=ShotNetwork(device="cuda"),
                detector=TextDetector(device="cuda"),
                nvdec=Nvdec(module=fake_module(), device="cuda"),
            )
        )
    assert found[:2] == (notes, n_frames) == ((), 30)
    assert np.abs(found[2] - expected).max() < 0.02  # type: ignore[operator]
    assert device.n_replays > 0

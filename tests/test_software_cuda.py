"""The CUDA device in software is as strict as CUDA, and counts copies and waits."""

import threading
from collections.abc import Callable, Iterator
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


def test_tensors_of_host_and_device_do_not_meet(device: SoftwareCuda) -> None:
    here, there = torch.ones(3), torch.ones(3, device="cuda")
    assert (there.is_cuda, str(there.device), here.is_cuda) == (True, "cuda:0", False)
    with pytest.raises(RuntimeError, match="on the same device"):
        there + here
    with pytest.raises(TypeError, match="can't convert cuda"):
        there.numpy()
    with pytest.raises(TypeError, match="can't convert cuda"):
        np.asarray(there)
    assert (there + torch.tensor(1.0)).tolist() == [2, 2, 2]


def test_what_a_copy_brings_is_there_when_it_was_waited_for(device: SoftwareCuda) -> None:
    """Pins pageable memory, which blocks, and pinned memory, which holds nonsense before."""
    given = torch.ones(2, 2, device="cuda")
    pageable, pinned = torch.zeros(2, 2), torch.zeros(2, 2, pin_memory=True)
    assert pinned.is_pinned()
    assert pinned[1:].is_pinned()
    assert not pageable.is_pinned()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        pageable.copy_(given, non_blocking=True)
        assert pageable.sum() == 4
        pinned.copy_(given, non_blocking=True)
        given.zero_()
        event = stream.record_event()
        event2 = torch.cuda.Event()
    assert pinned.sum() != 4
    event2.record()
    event2.wait(stream)
    event.synchronize()
    assert pinned.sum() == 4
    assert device.counts.copies == {("d2h", True): 1, ("d2h", False): 1}
    assert device.counts.waits == {"event.synchronize": 1}


def refused_in_a_capture() -> dict[str, Callable[[torch.Tensor], object]]:
    outside = torch.cuda.Event()
    outside.record()
    on_host = torch.tensor([1, 0])
    return {
        "event.query": lambda _: outside.query(),
        "stream.query": lambda _: torch.cuda.current_stream().query(),
        "pinned": lambda _: torch.empty(3, pin_memory=True),
        "blocking copy": lambda x: x.copy_(torch.ones(2)),
        "of the host": lambda x: x[on_host],
        "_local_scalar_dense": lambda x: float(x.sum()),
        "nonzero": lambda x: x.nonzero(),
        "nonzero: ": lambda x: x[x > 0],
        "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(2, device="cuda").long()),
        "copy": lambda _: torch.tensor(1.0, device="cuda"),
        "cuBLAS": lambda x: x[None] @ x[:, None],
        "cuFFT": lambda x: torch.fft.rfft(x),
        "uncaptured work": lambda _: torch.cuda.current_stream().wait_event(outside),
        "empty_cache": lambda _: torch.cuda.empty_cache(),
        "synchronize": lambda _: torch.cuda.synchronize(),
    }


def test_a_capture_refuses_what_a_gpu_does_not_capture(device: SoftwareCuda) -> None:
    """Pins waits, shapes by values, copies from pageable memory, queries and first allocations."""
    given = torch.ones(2, device="cuda")
    for what, step in refused_in_a_capture().items():
        with (
            torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"),
            pytest.raises(RuntimeError, match=what),
        ):
            step(given)
    for step in (lambda x: x[None] @ x[:, None], lambda x: torch.fft.rfft(x)):
        step(given)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            step(given)


def test_a_capture_of_one_thread_forbids_others_to_allocate_and_to_wait(
    device: SoftwareCuda,
) -> None:
    problems = []

    def other() -> None:
        try:
            torch.ones(3, device="cuda").cpu()
        except RuntimeError as error:
            problems.append(str(error))

    for mode in ("global", "thread_local"):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
    assert len(problems) == 1
    assert "thread_local" in problems[0]


def test_nothing_of_it_stays() -> None:
    with installed():
        pass
    assert not torch.cuda.is_available()
    assert torch.ones(2).sum() == 2


def test_a_source_is_analyzed_on_the_device(tmp_path: Path) -> None:
    """Pins that the whole of the GPU's path runs there, in all of its threads."""
    path = tmp_path / "film.mp4"
    write_video(path, moving_texture(60, width_px=192, height_px=108), bframes=2)

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
    assert found[:2] == (notes, n_frames) == ((), 60)
    assert np.abs(found[2] - expected).max() < 0.02  # type: ignore[operator]
    assert device.counts.waits["event.synchronize"] > 0
    assert device.counts.graphs > 0

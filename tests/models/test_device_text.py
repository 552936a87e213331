"""The text detector's network on a device: torch's CPU, with CUDA graphs by a stand-in."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_graphs import Graphs
from film_shots import texture
from numpy.typing import NDArray
from overlays import drawn, lettering

from curator.errors import DeviceMemoryError
from curator.media.device_graphs import Replayed
from curator.media.opencv import cv2
from curator.models.device_text import DeviceTextDetector
from curator.models.onnx_network import OnnxNetwork
from curator.models.text_detector import (
    TextDetector,
    lines_of,
    network_size,
    text_model_file,
)

WEIGHTS = text_model_file().read_bytes()


@pytest.fixture
def detector() -> DeviceTextDetector:
    return DeviceTextDetector(WEIGHTS, device="cpu")


@pytest.fixture(scope="module")
def cpu() -> TextDetector:
    return TextDetector()


def frame(seed: int, width: int = 320, height: int = 96) -> NDArray[np.uint8]:
    word = lettering(("Title", "Other", "Where?", "A line", "Last")[seed % 5], size_px=20)
    return drawn(texture(seed, width_px=width, height_px=height), word, 10 + 30 * seed, 40)


def batch(*frames: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(np.stack(frames))


def test_the_network_is_that_of_onnxruntime() -> None:
    """Pins the operators, without the rounding of pictures and maps: values are onnxruntime's."""
    picture = batch(frame(0, height=192)).permute(0, 3, 1, 2).flip(1) / 127.5 - 1
    found = OnnxNetwork(WEIGHTS, device="cpu")(picture)[0, 0]
    assert found.mean() == pytest.approx(0.005217, abs=1e-6)
    column = [0.99717, 0.99964, 0.99978, 0.99925, 0.98826, 0.0044]
    assert found[48:60:2, 30].tolist() == pytest.approx(column, abs=1e-4)


@pytest.mark.parametrize("size_px", [(640, 360), (352, 640), (300, 200), (100, 640)])
def test_maps_have_the_lines_of_the_cpus_detector(
    detector: DeviceTextDetector, cpu: TextDetector, size_px: tuple[int, int]
) -> None:
    """Pins them for pictures that the network sees smaller, as they are, and larger."""
    picture = frame(0, *size_px)
    (found,) = detector.maps(batch(picture))
    assert found.dtype == torch.uint8
    expected = cpu.boxes(picture)
    assert len(expected) == 1
    np.testing.assert_allclose(lines_of(found.numpy()), expected, atol=1e-3)


@pytest.mark.parametrize("size_px", [(640, 360), (200, 300), (637, 481), (1, 1), (10, 6)])
def test_pictures_are_scaled_as_by_opencv(
    detector: DeviceTextDetector, size_px: tuple[int, int]
) -> None:
    """Pins all bits: where some values differ by 1, lines change."""
    width, height = size_px
    picture = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    scaled = cv2.resize(picture, network_size(width, height), interpolation=cv2.INTER_LINEAR)
    (found,) = detector.maps(batch(picture)).numpy()
    np.testing.assert_array_equal(found, detector.host_map(np.asarray(scaled, np.uint8)))


def test_a_batch_has_the_maps_of_its_pictures(detector: DeviceTextDetector) -> None:
    frames = [frame(seed) for seed in range(5)]
    together = detector.maps(batch(*frames)).int()
    for one, found in zip(frames, together, strict=True):
        assert (detector.maps(batch(one))[0].int() - found).abs().max() <= 1
    assert detector.maps(batch(*frames)[:0]).shape == (0, 192, 640)


def test_the_gate_empties_maps_of_pictures_without_text(detector: DeviceTextDetector) -> None:
    """Pins that stopping early changes no map."""
    plain = texture(4, width_px=320, height_px=192)
    together = detector.maps(batch(plain, frame(0, height=192)))
    assert [bool(found.any()) for found in together] == [False, True]
    assert not detector.host_map(plain).any()
    ungated = DeviceTextDetector(WEIGHTS, device="cpu", is_gated=False)
    assert ungated.host_map(plain).any()


def test_a_graph_is_replayed_for_each_batch_of_its_size(
    detector: DeviceTextDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that inputs reach the graph, that results outlive the next replay, and padding."""
    frames = [frame(seed) for seed in range(4)]
    expected = detector.maps(batch(*frames)).int()
    graphs = Graphs(monkeypatch)
    detector.capture_graphs()
    two = detector.maps(batch(*frames[:2]))
    others = detector.maps(batch(*frames[2:]))
    single = detector.maps(batch(frames[3]))
    for found, wanted in (
        (two, expected[:2]),
        (others, expected[2:]),
        (single, expected[3:]),
    ):
        assert (found.int() - wanted).abs().max() <= 1
    assert [graph.n_replays for graph in graphs.made] == [2, 1]
    assert len({id(options["pool"]) for options in graphs.options}) == 1
    assert {options["capture_error_mode"] for options in graphs.options} == {"thread_local"}


@pytest.mark.long
def test_more_pictures_than_a_graph_takes_are_several_replays(
    detector: DeviceTextDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [frame(seed) for seed in range(5)]
    expected = detector.maps(batch(*frames)).int()
    graphs = Graphs(monkeypatch)
    detector.capture_graphs()
    assert (detector.maps(batch(*frames)).int() - expected).abs().max() <= 1
    assert [graph.n_replays for graph in graphs.made] == [1, 1]


def test_a_capture_reads_nothing_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins the stand-in: it notices what ends a capture on a GPU."""
    Graphs(monkeypatch)
    with pytest.raises(RuntimeError, match="stream is capturing"):
        Replayed(lambda x: [x * float(x.sum())], [torch.zeros(2)], pool=None)


@pytest.fixture
def limited(detector: DeviceTextDetector, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A network without memory for its first calls, or for larger batches than some size."""
    memory = SimpleNamespace(n_fails=0, most=4)
    real = OnnxNetwork.__call__

    def call(network: OnnxNetwork, pictures: torch.Tensor, **options: bool) -> torch.Tensor:
        memory.n_fails -= 1
        if memory.n_fails >= 0 or len(pictures) > memory.most:
            raise torch.OutOfMemoryError("made by the test")
        return real(network, pictures, **options)

    monkeypatch.setattr(OnnxNetwork, "__call__", call)
    return memory


def test_batches_are_halved_when_memory_runs_out(
    detector: DeviceTextDetector, limited: SimpleNamespace
) -> None:
    frames = [frame(seed) for seed in range(4)]
    expected = detector.maps(batch(*frames)).int()
    limited.most = 1
    for n_halved in (2, 2):
        assert (detector.maps(batch(*frames)).int() - expected).abs().max() <= 1
        assert detector.n_halved == n_halved


def test_without_memory_for_a_graph_there_is_none(
    detector: DeviceTextDetector, limited: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [frame(seed) for seed in range(2)]
    expected = detector.maps(batch(*frames)).int()
    graphs = Graphs(monkeypatch)
    detector.capture_graphs()
    limited.n_fails = 1
    for _ in range(2):
        assert (detector.maps(batch(*frames)).int() - expected).abs().max() <= 1
    assert not graphs.made
    assert detector.n_halved == 1


def test_without_memory_for_one_picture_it_fails(
    detector: DeviceTextDetector, limited: SimpleNamespace
) -> None:
    limited.most = 0
    with pytest.raises(DeviceMemoryError, match=r"640 x 192 pixels.*workers_per_gpu"):
        detector.maps(batch(frame(0), frame(1)))


def test_other_errors_are_not_taken_for_missing_memory(
    detector: DeviceTextDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("an illegal memory access")

    monkeypatch.setattr(OnnxNetwork, "__call__", broken)
    with pytest.raises(torch.AcceleratorError, match="illegal"):
        detector.maps(batch(frame(0)))
    assert detector.n_halved == 0


@pytest.mark.needs_gpu
def test_a_gpus_graph_has_the_maps_of_single_calls() -> None:
    detector = DeviceTextDetector(WEIGHTS, device="cuda")
    frames = [frame(seed) for seed in range(3)]
    found = detector.maps(batch(*frames).cuda()).cpu().numpy().astype(int)
    for one, map_hw in zip(frames, found, strict=True):
        assert np.abs(detector.host_map(one).astype(int) - map_hw).max() <= 2

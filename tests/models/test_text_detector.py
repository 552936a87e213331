"""The text detector: the real network of the installed wheel."""

import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import software_cuda
import torch
from film_shots import texture
from numpy.typing import NDArray
from overlays import drawn, lettering

from curator.errors import DeviceMemoryError, ModelError
from curator.models import onnx_network, text_detector
from curator.models.onnx_network import OnnxNetwork
from curator.models.text_detector import (
    BOX_COLUMNS,
    TEXT_WEIGHTS,
    TextDetector,
    lines_of,
    network_size,
)


@pytest.fixture(scope="module")
def detector() -> TextDetector:
    return TextDetector()


def frame(seed: int, width: int = 320, height: int = 96) -> NDArray[np.uint8]:
    word = lettering(("Title", "Other", "Where?", "A line", "Last")[seed % 5], size_px=20)
    return drawn(texture(seed, width_px=width, height_px=height), word, 10 + 30 * seed, 40)


def batch(*frames: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(np.stack(frames))


def test_the_model_is_in_the_wheel_and_nothing_else_of_the_package_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert TEXT_WEIGHTS.path().parent.parent.name == "rapidocr"
    TextDetector().boxes(np.zeros((64, 64, 3), np.uint8))
    assert "rapidocr" not in sys.modules


def test_another_file_or_a_missing_package_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "model.onnx"
    other.write_bytes(b"weights")
    with pytest.raises(ModelError, match=r"model.onnx has SHA-256 .*, expected .*analyze.text"):
        TextDetector(other)
    monkeypatch.setattr("curator.models.wheel_weights.find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"pip install .*rapidocr.*set analyze.text to false"):
        TEXT_WEIGHTS.path()


def test_the_network_is_that_of_onnxruntime_in_bfloat16_too(detector: TextDetector) -> None:
    """Pins the operators, without the rounding of pictures and maps: values are onnxruntime's."""
    picture = batch(frame(0, height=192)).permute(0, 3, 1, 2).flip(1) / 127.5 - 1
    found = OnnxNetwork(TEXT_WEIGHTS.read(), device="cpu")(picture)[0, 0]
    assert found.mean() == pytest.approx(0.005217, abs=1e-6)
    column = [0.99717, 0.99964, 0.99978, 0.99925, 0.98826, 0.0044]
    assert found[48:60:2, 30].tolist() == pytest.approx(column, abs=1e-4)
    # Bfloat16 finds the same text.
    expected = detector.boxes(frame(0, 640, 360))
    assert len(expected) == 1
    found = TextDetector(precision="auto").boxes(frame(0, 640, 360))
    np.testing.assert_allclose(found, expected, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_saves_time_on_cpus_changes_no_bit(dtype: torch.dtype) -> None:
    levels = batch(frame(0, 640, 352), frame(1, 640, 352)).permute(0, 3, 1, 2)
    given = text_detector._looked_up(levels, dtype)
    assert torch.equal(given, (levels.flip(1) / 127.5 - 1).to(dtype))
    # Maxima of bits.
    rectified = given.relu()
    found = onnx_network._largest_of_four(
        {"auto_pad": "SAME_UPPER", "kernel_shape": [2, 2]}, rectified
    )
    padded = torch.nn.functional.pad(rectified.float(), (0, 1, 0, 1))
    assert torch.equal(found.float(), torch.nn.functional.max_pool2d(padded, 2, stride=1))
    # Packed weights, whose layout suits the first size, serve other sizes too.
    used, fresh = (OnnxNetwork(TEXT_WEIGHTS.read(), device="cpu", dtype=dtype) for _ in range(2))
    used(given)
    tall = given.transpose(2, 3)
    assert torch.equal(used(tall), fresh(tall))


def test_no_weight_slows_arithmetic_down() -> None:
    """Half of the weights of two layers of the file are denormals."""
    network = OnnxNetwork(TEXT_WEIGHTS.read(), device="cpu")
    weights = [tensor for tensor in network._weights.values() if tensor.is_floating_point()]
    assert all(((tensor == 0) | (tensor.abs() >= 1e-30)).all() for tensor in weights)
    assert sum(int((tensor == 0).sum()) for tensor in weights) > 200_000


@pytest.mark.needs_gpu
def test_a_gpu_finds_the_same_text(detector: TextDetector) -> None:
    on_gpu = TextDetector(device="cuda")
    found = on_gpu.boxes(frame(0, 640, 360))
    np.testing.assert_allclose(found, detector.boxes(frame(0, 640, 360)), atol=0.01)
    frames = [frame(seed) for seed in range(3)]
    maps = on_gpu.maps(batch(*frames).cuda()).cpu().numpy().astype(int)
    for picture, map_hw in zip(frames, maps, strict=True):
        assert np.abs(on_gpu.host_map(picture).astype(int) - map_hw).max() <= 2


@pytest.mark.parametrize("size_px", [14, 24, 48])
def test_a_line_is_found_where_it_was_drawn(detector: TextDetector, size_px: int) -> None:
    """Pins too that boxes do not depend on the size of the picture."""
    patch = lettering("Where were you?", size_px=size_px)
    picture = drawn(texture(3, width_px=640, height_px=360), patch, 60, 220)
    boxes = detector.boxes(picture)
    assert boxes.shape == (1, len(BOX_COLUMNS))
    x0, y0, x1, y1, confidence, area = boxes[0]
    margin = size_px // 5
    expected = (60 + margin, 220 + margin, 60 + patch.shape[1] - margin,
                220 + patch.shape[0] - margin)  # fmt: skip
    found = np.array([x0 * 640, y0 * 360, x1 * 640, y1 * 360])
    assert np.abs(found - expected).max() < 8 + size_px / 6
    assert confidence > 0.7
    assert area == pytest.approx((x1 - x0) * (y1 - y0), rel=0.1)
    double = picture.repeat(2, 0).repeat(2, 1)
    assert np.abs(boxes[0, :4] - detector.boxes(double)[0, :4]).max() < 0.01


def test_the_network_sees_multiples_of_32_and_cores_grow_to_lines() -> None:
    assert network_size(1920, 1080) == (640, 352)
    assert network_size(1080, 1920) == (352, 640)
    assert network_size(2000, 10) == (640, 32)
    # Growth by area over perimeter.
    text_map = np.zeros((100, 200), np.uint8)
    text_map[40:50, 50:100] = 230
    # Joining adds a pixel; pixel centres take one away: 50 by 10, grown by 500 * 1.6 / 120 = 6.7.
    ((x0, y0, x1, y1, confidence, area),) = lines_of(text_map).tolist()
    assert (x1 - x0) * 200 == pytest.approx(63.3, abs=1)
    assert (y1 - y0) * 100 == pytest.approx(23.3, abs=1)
    assert confidence == pytest.approx(0.9, abs=0.1)
    assert area == pytest.approx((x1 - x0) * (y1 - y0))
    text_map[text_map > 0] = 128
    assert len(lines_of(text_map)) == 0
    text_map[20:80, 50:150] = 230
    assert len(lines_of(text_map)) == 0


@pytest.mark.parametrize("size_px", [(640, 360), (200, 300), (637, 481), (1, 1), (10, 6)])
def test_maps_are_those_of_pictures_that_opencv_scales(
    detector: TextDetector, size_px: tuple[int, int]
) -> None:
    """Pins all bits: where some values differ by 1, lines change."""
    width, height = size_px
    picture = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    (found,) = detector.maps(batch(picture)).numpy()
    np.testing.assert_array_equal(found, detector.host_map(picture))


def test_a_batch_has_the_maps_of_its_pictures_and_the_gate_empties_those_without_text(
    detector: TextDetector,
) -> None:
    frames = [frame(seed) for seed in range(5)]
    together = detector.maps(batch(*frames)).int()
    for picture, found in zip(frames, together, strict=True):
        assert (detector.maps(batch(picture))[0].int() - found).abs().max() <= 1
    assert detector.maps(batch(*frames)[:0]).shape == (0, 192, 640)
    # Stopping early changes no map.
    plain = texture(4, width_px=320, height_px=192)
    together = detector.maps(batch(plain, frame(0, height=192)))
    assert [bool(found.any()) for found in together] == [False, True]
    assert detector.boxes(plain).shape == (0, len(BOX_COLUMNS))
    assert TextDetector(is_gated=False).host_map(plain).any()


@pytest.mark.long
def test_a_graph_is_replayed_for_each_batch_of_its_size() -> None:
    """Pins that inputs reach the graph, that results outlive the next replay, and padding."""
    frames = [frame(seed) for seed in range(5)]
    expected = TextDetector(long_side_px=320).maps(batch(*frames)).int()
    with software_cuda.installed() as device:
        on_device = TextDetector(device="cuda", long_side_px=320)
        parts = [slice(2), slice(2, 5), slice(5)]
        maps = [on_device.maps(batch(*frames[part]).to("cuda")) for part in parts]
        for part, found in zip(parts, maps, strict=True):
            assert (found.cpu().int() - expected[part]).abs().max() <= 1
        # Two, three that are filled up to four, and four and one.
        assert device.n_replays == 4
        device.fail_allocation(least_bytes=3 * 192 * 320 * 4)
        other = on_device.maps(batch(frame(0, height=192)).to("cuda"))
        assert (device.n_replays, on_device.n_halved) == (4, 1)
        assert other.cpu().any()


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A network without memory for larger batches than some size."""
    memory = SimpleNamespace(most=4, error=torch.OutOfMemoryError)
    real = OnnxNetwork.__call__

    def call(network: OnnxNetwork, pictures: torch.Tensor, **options: bool) -> torch.Tensor:
        if len(pictures) > memory.most:
            raise memory.error("made by the test")
        return real(network, pictures, **options)

    monkeypatch.setattr(OnnxNetwork, "__call__", call)
    return memory


def test_batches_are_halved_when_memory_runs_out(limited: SimpleNamespace) -> None:
    small = TextDetector()
    frames = [frame(seed) for seed in range(4)]
    expected = small.maps(batch(*frames)).int()
    limited.most = 1
    for _ in range(2):
        assert (small.maps(batch(*frames)).int() - expected).abs().max() <= 1
        assert small.n_halved == 2
    limited.most = 0
    with pytest.raises(DeviceMemoryError, match=r"640 x 192 pixels.*workers_per_gpu"):
        small.maps(batch(frame(0), frame(1)))
    limited.error = torch.AcceleratorError
    with pytest.raises(torch.AcceleratorError, match="made by the test"):
        small.maps(batch(frame(0)))
    assert small.n_halved == 2

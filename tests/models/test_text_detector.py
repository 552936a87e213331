"""The text detector: the real network of the installed wheel."""

import socket
import sys
from pathlib import Path

import numpy as np
import pytest
from film_shots import texture
from overlays import drawn, lettering

from curator.errors import ModelError
from curator.models.text_detector import (
    BOX_COLUMNS,
    TextDetector,
    lines_of,
    network_size,
    text_model_file,
)


@pytest.fixture(scope="module")
def detector() -> TextDetector:
    return TextDetector()


def test_the_model_is_in_the_wheel_and_nothing_else_of_the_package_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert text_model_file().parent.parent.name == "rapidocr"
    TextDetector().boxes(np.zeros((64, 64, 3), np.uint8))
    assert "rapidocr" not in sys.modules


def test_another_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "model.onnx"
    other.write_bytes(b"weights")
    with pytest.raises(ModelError, match=r"model.onnx has SHA-256 .*, expected .*analyze.text"):
        TextDetector(other)


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curator.models.text_detector.find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"pip install rapidocr.*set analyze.text to false"):
        text_model_file()


@pytest.mark.parametrize("size_px", [(640, 360), (352, 640)])
def test_bfloat16_finds_the_same_text(detector: TextDetector, size_px: tuple[int, int]) -> None:
    width, height = size_px
    frame = drawn(texture(3, width_px=width, height_px=height),
                  lettering("Title", size_px=20), 10, 40)  # fmt: skip
    expected = detector.boxes(frame)
    assert len(expected) == 1
    found = TextDetector(precision="auto").boxes(frame)
    np.testing.assert_allclose(found, expected, atol=0.02)


@pytest.mark.needs_gpu
def test_a_gpu_finds_the_same_text(detector: TextDetector) -> None:
    frame = drawn(texture(3, width_px=640, height_px=360),
                  lettering("Title", size_px=20), 10, 40)  # fmt: skip
    found = TextDetector(device="cuda").boxes(frame)
    np.testing.assert_allclose(found, detector.boxes(frame), atol=0.01)


@pytest.mark.parametrize("size_px", [14, 24, 48])
def test_a_line_is_found_where_it_was_drawn(detector: TextDetector, size_px: int) -> None:
    patch = lettering("Where were you?", size_px=size_px)
    frame = drawn(texture(3, width_px=640, height_px=360), patch, 60, 220)
    boxes = detector.boxes(frame)
    assert boxes.shape == (1, len(BOX_COLUMNS))
    x0, y0, x1, y1, confidence, area = boxes[0]
    margin = size_px // 5
    expected = (60 + margin, 220 + margin, 60 + patch.shape[1] - margin,
                220 + patch.shape[0] - margin)  # fmt: skip
    assert (
        np.abs(np.array([x0 * 640, y0 * 360, x1 * 640, y1 * 360]) - expected).max()
        < 8 + size_px / 6
    )
    assert confidence > 0.7
    assert area == pytest.approx((x1 - x0) * (y1 - y0), rel=0.1)


def test_a_picture_without_text_has_no_line(detector: TextDetector) -> None:
    assert detector.boxes(texture(4, width_px=640, height_px=360)).shape == (0, len(BOX_COLUMNS))


def test_boxes_do_not_depend_on_the_size_of_the_picture(detector: TextDetector) -> None:
    frame = drawn(
        texture(3, width_px=640, height_px=360), lettering("A title", size_px=40), 200, 150
    )
    double = frame.repeat(2, 0).repeat(2, 1)
    assert np.abs(detector.boxes(frame)[0, :4] - detector.boxes(double)[0, :4]).max() < 0.01


def test_the_network_sees_multiples_of_32() -> None:
    assert network_size(1920, 1080) == (640, 352)
    assert network_size(1080, 1920) == (352, 640)
    assert network_size(2000, 10) == (640, 32)


def test_a_core_grows_by_its_area_over_its_perimeter() -> None:
    text_map = np.zeros((100, 200), np.uint8)
    text_map[40:50, 50:100] = 230
    # Joining adds a pixel; pixel centres take one away: 50 by 10, grown by 500 * 1.6 / 120 = 6.7.
    ((x0, y0, x1, y1, confidence, area),) = lines_of(text_map).tolist()
    assert (x1 - x0) * 200 == pytest.approx(63.3, abs=1)
    assert (y1 - y0) * 100 == pytest.approx(23.3, abs=1)
    assert confidence == pytest.approx(0.9, abs=0.1)
    assert area == pytest.approx((x1 - x0) * (y1 - y0))


def test_unsure_and_huge_cores_are_no_lines() -> None:
    unsure = np.zeros((100, 200), np.uint8)
    unsure[40:50, 50:100] = 128
    huge = np.zeros((100, 200), np.uint8)
    huge[20:80, 50:150] = 230
    assert len(lines_of(unsure)) == 0
    assert len(lines_of(huge)) == 0

"""The detector of faces, on a photograph with one face, and the arithmetic of its boxes."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from skimage import data

from curator.errors import ModelError
from curator.media.opencv import cv2
from curator.models import face_detector
from curator.models.face_detector import FaceDetector, overlaps, without_overlaps


@pytest.fixture(scope="module")
def detector() -> FaceDetector:
    return FaceDetector()


def test_a_face_is_found_in_its_place_at_any_size(detector: FaceDetector) -> None:
    """Pins the place of the one face of a photograph, whole, small, and off the middle."""
    picture = data.astronaut()
    found = detector.boxes(picture)
    assert found.shape == (1, 5)
    left, top, right, bottom, confidence = found[0]
    # Eyes, nose and mouth; not the whole head, nor the flag.
    assert 0.34 < left < 0.40 < 0.48 < right < 0.55
    assert 0.10 < top < 0.20 < 0.30 < bottom < 0.42
    assert confidence > 0.8
    wide = np.zeros((512, 1300, 3), np.uint8)
    wide[:, 700:1212] = picture
    moved = detector.boxes(wide)
    assert moved.shape == (1, 5)
    assert moved[0, 0] * 1300 == pytest.approx(left * 512 + 700, abs=12)
    small = cv2.resize(picture, (128, 128), interpolation=cv2.INTER_AREA)
    assert overlaps(detector.boxes(small), found).max() > 0.5


def test_pictures_without_faces_have_none(detector: FaceDetector) -> None:
    for picture in (data.coffee(), np.zeros((9, 16, 3), np.uint8), data.gravel()):
        rgb = picture if picture.ndim == 3 else np.stack([picture] * 3, axis=2)
        assert detector.boxes(rgb).shape == (0, 5)


def test_overlapping_boxes_are_one_face() -> None:
    boxes = np.array(
        [[0, 0, 0.5, 0.5, 0.9], [0.05, 0, 0.5, 0.5, 0.8], [0.5, 0.5, 1, 1, 0.7]], np.float32
    )
    np.testing.assert_array_equal(without_overlaps(boxes), boxes[[0, 2]])
    assert overlaps(boxes[:1], boxes).tolist()[0] == pytest.approx([1, 0.9, 0])


def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(face_detector, "_SHA256", hashlib.sha256(b"").hexdigest())
    with pytest.raises(ModelError, match=r"centerface\.onnx has SHA-256 .*expected e3b0"):
        FaceDetector()
    monkeypatch.setattr(face_detector, "_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match=r"faces need the weights .*\[faces\]"):
        FaceDetector()

"""The example that blurs what a detector of the user's own finds."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from tiny_onnx import node, save_onnx

from curator.errors import ModelError
from curator.stage import ClipFrames


def test_the_rows_of_a_network_are_blurred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins the whole example with a network that gives its input's first rows as boxes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    from blur_plates import BlurPlates, PlatesConfig

    missing = BlurPlates(PlatesConfig(weights=str(tmp_path / "no.onnx")))
    with pytest.raises(ModelError, match=r"no\.onnx does not exist"):
        missing.preflight()
    path = save_onnx(
        tmp_path / "plates.onnx", [node("Abs", ["x"], "y")], shape=(1, 3, 640, 640),
        outputs=(1, 3, 640, 640),
    )  # fmt: skip
    stage = BlurPlates(PlatesConfig(weights=str(path)))
    assert stage.files() == (str(path),)
    assert len(stage.models()[0]) == 64  # type: ignore[arg-type]
    stage.setup()
    # OpenCV gives the network's output; a made one stands for a detector's rows.
    rows = np.array([[64, 64, 320, 320, 0.9], [400, 400, 640, 640, 0.1]], np.float32)
    monkeypatch.setattr(stage, "_network", Rows(rows))
    frame = np.random.default_rng(3).integers(0, 255, (100, 200, 3), np.uint8)
    unit = ClipFrames(clip_id="x", fps=Fraction(25), frames=iter([frame] * 5))
    for made in stage.process(unit):
        assert made[20:40, 40:80].std(axis=(0, 1)).max() < 40 < frame.std()
        np.testing.assert_array_equal(made[70:], frame[70:])


class Rows:
    """Stands for OpenCV's network."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def setInput(self, blob: np.ndarray) -> None:
        """Takes a picture as OpenCV prepares it."""
        assert blob.shape == (1, 3, 640, 640)

    def forward(self) -> np.ndarray:
        """Returns the rows."""
        return self.rows[None]

"""Networks that score pictures: what a file in ONNX reads, and what goes to pyiqa."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_onnx import node, save_onnx

from curator.errors import ModelError
from curator.models.catalogue import ModelEntry, load_catalogue
from curator.models.picture_score import load_picture_score, prepared_picture


def entry(**picture: object) -> ModelEntry:
    return ModelEntry.model_validate({
        "name": "m", "kind": "picture", "about": "", "file": "m.onnx", "licence": "",
        "picture": {"runs": "onnx", "side_px": 8} | picture,
    })  # fmt: skip


@pytest.fixture(scope="module", params=["channels first", "channels last", "one at a time"])
def network(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Returns the mean of each channel, so that order and normalisation of pixels are seen."""
    path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    first: int | str = 1 if request.param == "one at a time" else "n"
    last = request.param == "channels last"
    axes, shape = ((1, 2), (first, 8, 8, 3)) if last else ((2, 3), (first, 3, 8, 8))
    return save_onnx(path, [node("ReduceMean", ["x"], "y", axes)], shape=shape, outputs=(first, 3))


FRAMES = np.stack([
    np.full((20, 30, 3), colour, np.uint8)
    for colour in ((255, 0, 51), (10, 20, 30), *[(n, 0, 0) for n in range(9)])
])  # fmt: skip


def test_each_picture_has_its_own_score(network: Path) -> None:
    """Pins normalisation, the order of channels, the output, and batches."""
    scores = load_picture_score(entry(output=2), network).scores_N(FRAMES)
    np.testing.assert_allclose(scores[:2], [51 / 255, 30 / 255], atol=1e-6)
    bgr = entry(output=2, channels="bgr", mean=(1, 2, 3), std=(2, 2, 2))
    scores = load_picture_score(bgr, network).scores_N(FRAMES)
    np.testing.assert_allclose(scores, (FRAMES[:, 0, 0, 0].astype(float) - 3) / 2, atol=1e-5)
    expected = (FRAMES[:, 0, 0].astype(float) / 255) @ [1, 2, 3]
    scores = load_picture_score(entry(output="expectation"), network).scores_N(FRAMES)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert load_picture_score(entry(), network).scores_N(FRAMES[:0]).shape == (0,)


def test_the_middle_is_cropped_or_both_sides_are_scaled() -> None:
    picture = np.zeros((10, 30, 3), np.uint8)
    picture[:, :10], picture[:, 20:] = 255, 255
    how = entry(side_px=10).picture
    assert how is not None
    cropped = prepared_picture(picture, how)
    assert cropped.shape == (10, 10, 3)
    assert cropped.max() == 0
    squashed = prepared_picture(picture, how.model_copy(update={"fit": "squash"}))
    assert squashed[:, 0].min() == squashed[:, -1].min() == 1
    assert squashed[:, 5].max() == 0


def test_a_file_that_does_not_fit_is_named(network: Path, tmp_path: Path) -> None:
    """Pins a file without a network, an output too few, other pictures and other inputs."""
    broken = tmp_path / "m.onnx"
    broken.write_bytes(b"no network")
    with pytest.raises(ModelError, match=r"m\.onnx holds no m: "):
        load_picture_score(entry(), broken)
    with pytest.raises(ModelError, match="output is 3, and the network has 3 outputs"):
        load_picture_score(entry(output=3), network).scores_N(FRAMES)
    with pytest.raises(ModelError, match="refuses pictures of 9 px"):
        load_picture_score(entry(side_px=9), network).scores_N(FRAMES)
    grey = save_onnx(tmp_path / "g.onnx", [node("Abs", ["x"], "y")], shape=(1, 9), outputs=(1, 9))
    with pytest.raises(ModelError, match=r"reads x \[1, 9\]; expected one input of RGB"):
        load_picture_score(entry(), grey)
    # One number for a whole batch is none of a picture.
    mean = node("ReduceMean", ["x"], "y", (0, 1, 2, 3))
    whole = save_onnx(tmp_path / "w.onnx", [mean], shape=("n", 3, 8, 8), outputs=())
    with pytest.raises(ModelError, match=r"makes an array \[\] of 2 pictures; .*needs 1 as"):
        load_picture_score(entry(), whole).scores_N(FRAMES[:2])
    single = save_onnx(tmp_path / "s.onnx", [mean], shape=(1, 3, 8, 8), outputs=())
    assert load_picture_score(entry(), single).scores_N(FRAMES[:2]).shape == (2,)


def test_pyiqa_gets_the_file_and_whole_frames(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pins the calls of pyiqa's interface; its licence keeps it out of the tests' packages."""
    seen: list[Any] = []

    def create_metric(name: str, **options: str) -> object:
        seen.append((name, options["pretrained_model_path"]))
        if "bad" in options["pretrained_model_path"]:
            raise RuntimeError("size mismatch")
        return lambda x: (seen.append(tuple(x.shape)), x.mean() * 100)[1]

    fake = SimpleNamespace(
        list_models=lambda mode: ["musiq", "niqe"], create_metric=create_metric, __version__="1"
    )
    monkeypatch.setitem(sys.modules, "pyiqa", fake)
    monkeypatch.setattr("curator.models.picture_score.find_spec", lambda name: fake)
    musiq = entry(runs="pyiqa", metric="musiq")
    scores = load_picture_score(musiq, tmp_path / "good.pth").scores_N(FRAMES[:2])
    np.testing.assert_allclose(scores, [40, 20 / 2.55], atol=1e-4)
    assert seen == [("musiq", str(tmp_path / "good.pth")), *[(1, 3, 20, 30)] * 2]
    with pytest.raises(ModelError, match=r"bad\.pth holds no musiq of pyiqa: size mismatch"):
        load_picture_score(musiq, tmp_path / "bad.pth")
    with pytest.raises(ModelError, match=r"pyiqa 1: .*musik.*did you mean 'musiq'"):
        load_picture_score(entry(runs="pyiqa", metric="musik"), tmp_path / "good.pth")


def test_a_missing_package_is_named_with_its_licence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curator.models.picture_score.find_spec", lambda name: None)
    known = load_catalogue()
    with pytest.raises(ModelError, match=r"needs pyiqa .*not for commercial use.*install"):
        load_picture_score(known.find("musiq-koniq", "picture"), Path("m"))
    with pytest.raises(ModelError, match="m needs onnxruntime: "):
        load_picture_score(entry(), Path("m"))


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        ({"runs": "pyiqa"}, "expected metric"),
        ({"side_px": None}, "expected side_px"),
        ({"scaled_px": 8, "side_px": 16}, "scaled_px is 8"),
        ({"std": (1, 0, 1)}, "expected no 0"),
    ],
)
def test_incomplete_entries_are_refused(picture: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        entry(**picture)

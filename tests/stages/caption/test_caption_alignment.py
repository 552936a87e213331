"""Captions against stored image embeddings, by a tiny CLIP of the real architecture."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_clip import tiny_folder

from curator.errors import ModelError
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import embed_texts
from curator.models.weight_store import ModelStore
from curator.stages.caption import caption_alignment as alignment
from curator.stages.caption.caption_alignment import alignments

DOG, CAR = "A dog runs over wet sand", "A red car waits at a crossing"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelEntry, Path]:
    store = ModelStore(str(tiny_folder(tmp_path_factory.mktemp("models"))))
    entry = store.catalogue.find("test-tiny")
    return entry, store.find(entry)


def test_the_cosine_is_that_of_the_clips_own_caption(model: tuple[ModelEntry, Path]) -> None:
    """Pins that captions meet the clips they belong to, in whatever order both come."""
    entry, weights = model
    (dog, car), _ = embed_texts(entry, weights, [DOG, CAR])
    vectors = {"b": 3 * dog, "a": car, "c": -dog, "alone": dog}
    captions = {"c": DOG, "a": CAR, "b": f"  {DOG}\n", "empty": " ", "without": DOG}
    found = alignments(captions | {"d": ""}, vectors | {"d": dog}, entry=entry, weights=weights)
    assert list(found) == ["a", "b", "c"]
    cosines = [found[clip].cosine for clip in "abc"]
    assert cosines == pytest.approx([1, 1, -1], abs=1e-5)
    crossed = alignments({"x": CAR}, {"x": dog}, entry=entry, weights=weights)["x"].cosine
    assert crossed == pytest.approx(float(dog @ car), abs=1e-5)
    assert crossed < 0.999


def test_what_clip_does_not_read_is_told(model: tuple[ModelEntry, Path]) -> None:
    """Pins the bound of 77 tokens, and that the rest has no part in the value."""
    entry, weights = model
    vector = np.ones(32, np.float32)
    whole = " ".join(["dog"] * 75)
    captions = {"a": DOG, "b": whole, "c": f"{whole} and the Cat"}
    found = alignments(captions, dict.fromkeys("abc", vector), entry=entry, weights=weights)
    assert (found["a"].n_tokens, found["a"].unread) == (8, "")
    assert (found["b"].n_tokens, found["b"].unread) == (77, "")
    assert (found["c"].n_tokens, found["c"].unread) == (80, "and the cat")
    assert found["b"].cosine == pytest.approx(found["c"].cosine, abs=1e-6)


def test_each_caption_is_embedded_once(
    model: tuple[ModelEntry, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins one call with distinct captions, and none where there is nothing to compare."""
    entry, weights = model
    asked: list[list[str]] = []

    def counted(entry: ModelEntry, weights: Path, texts: list[str]) -> object:
        asked.append(texts)
        return embed_texts(entry, weights, texts)

    monkeypatch.setattr(alignment, "embed_texts", counted)
    vectors = {str(i): np.ones(32, np.float32) for i in range(9)}
    captions = {str(i): (DOG, CAR)[i % 2] for i in range(9)}
    assert len(alignments(captions, vectors, entry=entry, weights=weights)) == 9
    assert asked == [[DOG, CAR]]
    assert alignments({"0": DOG}, {}, entry=entry, weights=weights) == {}
    assert len(asked) == 1


def test_embeddings_of_another_model_are_refused(model: tuple[ModelEntry, Path]) -> None:
    entry, weights = model
    with pytest.raises(ModelError, match=r"clip a has shape \(8,\); expected \(32,\)"):
        alignments({"a": DOG}, {"a": np.ones(8, np.float32)}, entry=entry, weights=weights)
    zero = {"a": np.zeros(32, np.float32)}
    assert alignments({"a": DOG}, zero, entry=entry, weights=weights) == {}


def test_importing_it_costs_nothing() -> None:
    program = (
        "import sys, curator.stages.caption.caption_alignment\n"
        "print(sorted({'open_clip', 'torch', 'torchvision'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"

"""Captions against stored image embeddings, with a tiny CLIP of the real architecture.

Each alignment is computed once per clip, caption and picture, and belongs to its clip.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_clip import tiny_folder

from curator.errors import ModelError
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import embed_texts, text_embedder
from curator.models.weight_store import ModelStore
from curator.stage import CLIP_EMBEDDING, SHORT_CAPTION, ClipFacts, SampledClip
from curator.stages.caption import caption_annotators as alignment
from curator.stages.caption.caption_annotators import COLUMN, CaptionClipScore
from curator.stages.caption.config import CaptionConfig

DOG, CAR = "A dog runs over wet sand", "A red car waits at a crossing"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelEntry, ModelStore]:
    store = ModelStore(str(tiny_folder(tmp_path_factory.mktemp("models"))))
    return store.catalogue.find("test-tiny"), store


def clip(name: str, caption: str | None, vector: NDArray[np.float32] | None) -> ClipFacts:
    columns = {SHORT_CAPTION: caption, CLIP_EMBEDDING: vector}
    return ClipFacts(
        clip_id=name, source_id="s", n_frames=4, fps=Fraction(30), width=160, height=120,
        columns=columns,
    )  # fmt: skip


def annotator(model: tuple[ModelEntry, ModelStore]) -> CaptionClipScore:
    return CaptionClipScore(CaptionConfig(), *model)


def cosines(
    model: tuple[ModelEntry, ModelStore],
    captions: Mapping[str, str],
    vectors: Mapping[str, NDArray[np.float32]],
) -> dict[str, Any]:
    """Returns the cosines of captions and vectors, by clip."""
    clips = [clip(name, text, vectors[name]) for name, text in captions.items()]
    rows = annotator(model).process([SampledClip(facts=one, requested=()) for one in clips])
    return {one.clip_id: row[COLUMN] for one, row in zip(clips, rows, strict=True)}


def test_the_cosine_is_that_of_what_clip_reads_of_the_own_caption(
    model: tuple[ModelEntry, ModelStore],
) -> None:
    """Pins that captions are matched to their clips, whatever the order of both."""
    entry, store = model
    (dog, car), _ = embed_texts(entry, store.find(entry), [DOG, CAR])
    vectors = {"b": 3 * dog, "a": car, "c": -dog}
    found = cosines(model, {"c": DOG, "a": CAR, "b": f"  {DOG}\n"}, vectors)
    assert found == pytest.approx({"a": 1, "b": 1, "c": -1}, abs=1e-5)
    exact = dog.astype(np.float64) @ (3 * dog).astype(np.float64)
    assert found["b"] == float(exact) / float(np.linalg.norm((3 * dog).astype(np.float64)))
    crossed = cosines(model, {"x": CAR}, {"x": dog})["x"]
    assert crossed == pytest.approx(float(dog @ car), abs=1e-5)
    assert crossed < 0.999
    # The limit of 77 tokens.
    vector = np.ones(32, np.float32)
    whole = " ".join(["dog"] * 75)
    captions = {"a": whole, "b": f"{whole} and the Cat", "c": whole.removesuffix(" dog")}
    found = cosines(model, captions, dict.fromkeys("abc", vector))
    assert found["a"] == pytest.approx(found["b"], abs=1e-6)
    assert found["a"] != pytest.approx(found["c"], abs=1e-6)


def test_each_caption_is_embedded_once(
    model: tuple[ModelEntry, ModelStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins one call with distinct captions."""
    asked: list[Sequence[str]] = []

    def counted(entry: ModelEntry, weights: Path) -> object:
        embed = text_embedder(entry, weights)

        def said(texts: Sequence[str]) -> object:
            asked.append(texts)
            return embed(texts)

        return said

    monkeypatch.setattr(alignment, "text_embedder", counted)
    vectors = {str(i): np.ones(32, np.float32) for i in range(9)}
    captions = {str(i): (DOG, CAR)[i % 2] for i in range(9)}
    assert len(cosines(model, captions, vectors)) == 9
    assert asked == [[DOG, CAR]]


def test_a_key_is_of_a_clip_caption_and_picture_and_other_models_are_refused(
    model: tuple[ModelEntry, ModelStore],
) -> None:
    with pytest.raises(ModelError, match=r"clip a has shape \(8,\); expected \(32,\)"):
        cosines(model, {"a": DOG}, {"a": np.ones(8, np.float32)})
    assert cosines(model, {"a": DOG}, {"a": np.zeros(32, np.float32)}) == {"a": None}
    # A key depends on clip, caption and picture.
    stage, one, other = annotator(model), np.ones(32, np.float32), np.zeros(32, np.float32)
    key = stage.key(clip("a", DOG, one), "mp4")
    # Neither another cut of the clip nor other columns change the key.
    assert stage.key(clip("a", DOG, one.copy()), "other mp4") == key
    others = [clip("b", DOG, one), clip("a", CAR, one), clip("a", DOG, other)]
    assert len({key, *(stage.key(facts, "mp4") for facts in others)}) == 4
    for facts in (clip("a", " ", one), clip("a", None, one), clip("a", DOG, None)):
        assert stage.key(facts, "mp4") is None

"""Captions against stored image embeddings, by a tiny CLIP of the real architecture.

Alignments are made once per clip, caption and picture, and belong to their clips.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from tiny_clip import tiny_folder

from curator.errors import ModelError
from curator.executor.engine import Engine
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import embed_texts
from curator.models.weight_store import ModelStore
from curator.stages.caption import caption_alignment as alignment
from curator.stages.caption.caption_alignment import Alignments, Compared, cosines_table
from curator.storage import open_store
from curator.tables.clip_vectors import Vectors
from curator.tables.schemas import embeddings_schema

DOG, CAR = "A dog runs over wet sand", "A red car waits at a crossing"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelEntry, ModelStore]:
    store = ModelStore(str(tiny_folder(tmp_path_factory.mktemp("models"))))
    return store.catalogue.find("test-tiny"), store


def cosines(
    model: tuple[ModelEntry, ModelStore],
    captions: Mapping[str, str],
    vectors: Mapping[str, NDArray[np.float32]],
) -> dict[str, float]:
    """Cosines of captions and vectors by key, in the order of the table."""
    pairs = [Compared(key=key, caption=text, vector=vectors[key]) for key, text in captions.items()]
    table = cosines_table(pairs, entry=model[0], models=model[1])
    return dict(zip(table["key"].to_pylist(), table["cosine"].to_pylist(), strict=True))


def test_the_cosine_is_that_of_the_clips_own_caption(model: tuple[ModelEntry, ModelStore]) -> None:
    """Pins that captions meet the clips they belong to, in whatever order both come."""
    entry, store = model
    (dog, car), _ = embed_texts(entry, store.find(entry), [DOG, CAR])
    vectors = {"b": 3 * dog, "a": car, "c": -dog}
    found = cosines(model, {"c": DOG, "a": CAR, "b": f"  {DOG}\n"}, vectors)
    assert list(found) == ["a", "b", "c"]
    assert list(found.values()) == pytest.approx([1, 1, -1], abs=1e-5)
    crossed = cosines(model, {"x": CAR}, {"x": dog})["x"]
    assert crossed == pytest.approx(float(dog @ car), abs=1e-5)
    assert crossed < 0.999


def test_what_clip_does_not_read_has_no_part_in_the_value(
    model: tuple[ModelEntry, ModelStore],
) -> None:
    """Pins the bound of 77 tokens."""
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
    asked: list[list[str]] = []

    def counted(entry: ModelEntry, weights: Path, texts: list[str]) -> object:
        asked.append(texts)
        return embed_texts(entry, weights, texts)

    monkeypatch.setattr(alignment, "embed_texts", counted)
    vectors = {str(i): np.ones(32, np.float32) for i in range(9)}
    captions = {str(i): (DOG, CAR)[i % 2] for i in range(9)}
    assert len(cosines(model, captions, vectors)) == 9
    assert asked == [[DOG, CAR]]


def test_embeddings_of_another_model_are_refused(model: tuple[ModelEntry, ModelStore]) -> None:
    with pytest.raises(ModelError, match=r"clip a has shape \(8,\); expected \(32,\)"):
        cosines(model, {"a": DOG}, {"a": np.ones(8, np.float32)})
    assert cosines(model, {"a": DOG}, {"a": np.zeros(32, np.float32)}) == {}


class Models:
    """Has one model."""

    def fingerprint(self, entry: object) -> str:
        """The same."""
        return "model"


class Here:
    """An engine in this process."""

    def is_small(self, n_items: int, frames: float) -> bool:
        """Yes."""
        return True

    def run(self, steps: Any, units: Any, **_: Any) -> Iterator[Any]:  # noqa: ANN401
        """As the engine."""
        return Engine(address=None, workers=None).run_here(steps, units)


def _vectors(**values: float) -> Vectors:
    rows = [{"clip_id": name, "vector": [value, 0.0]} for name, value in sorted(values.items())]
    return Vectors(pa.Table.from_pylist(rows, schema=_schema()))


def _schema() -> pa.Schema:
    schema = embeddings_schema(2)
    return pa.schema([field for field in schema if field.name in ("clip_id", "vector")])


def test_a_cosine_is_made_once_for_a_clip_a_caption_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def made(compared: Sequence[Compared], **more: object) -> pa.Table:
        asked.append([one.caption for one in compared])
        values = [float(np.sum(one.vector)) + len(one.caption) for one in compared]
        return pa.table({"key": [one.key for one in compared], "cosine": values})

    monkeypatch.setattr(alignment, "cosines_table", made)

    def found(captions: dict[str, str], vectors: Vectors) -> dict[str, float]:
        return Alignments(
            open_store(str(tmp_path)),
            cast("ModelEntry", None),
            cast("ModelStore", Models()),
            cast("Engine", Here()),
        ).of(captions, vectors)

    captions = {"a": "dog", "b": "dog", "c": " ", "d": "nobody embedded it"}
    vectors = _vectors(a=0.25, b=0.5, c=0.5)
    assert found(captions, vectors) == {"a": 3.25, "b": 3.5}
    assert found(captions, vectors) == {"a": 3.25, "b": 3.5}
    assert asked == [["dog", "dog"]]
    assert found({"a": "a dog", "b": "dog"}, vectors) == {"a": 5.25, "b": 3.5}
    assert asked[1:] == [["a dog"]]
    # As after another `analyze.clip_every_s`: the same clip has another embedding.
    assert found({"a": "dog", "b": "dog"}, _vectors(a=0.75, b=0.5)) == {"a": 3.75, "b": 3.5}


def test_importing_it_costs_nothing() -> None:
    program = (
        "import sys, curator.stages.caption.caption_alignment\n"
        "print(sorted({'open_clip', 'torch', 'torchvision'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"

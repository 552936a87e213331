"""Alignments are made once per clip, caption and picture, and belong to their clips."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from curator.executor.engine import Engine
from curator.models.catalogue import ModelEntry
from curator.models.weight_store import ModelStore
from curator.stages.caption import alignment_store as aligning
from curator.stages.caption.alignment_store import Alignments
from curator.stages.caption.caption_alignment import Alignment
from curator.storage import open_store
from curator.tables.clip_vectors import Vectors
from curator.tables.schemas import embeddings_schema


class Models:
    """Has one model."""

    def fingerprint(self, entry: object) -> str:
        """The same."""
        return "model"

    def find(self, entry: object) -> Path:
        """Anywhere."""
        return Path("weights")


class Here:
    """An engine in this process."""

    def is_small(self, n_items: int, frames: float) -> bool:
        """Yes."""
        return True

    def run(self, steps: Any, units: Any, *, small: bool) -> Iterator[Any]:  # noqa: ANN401
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
    asked: list[dict[str, str]] = []

    def made(captions: Any, vectors: Any, **more: object) -> dict[str, Alignment]:  # noqa: ANN401
        asked.append(dict(captions))
        return {
            key: Alignment(cosine=float(np.sum(vectors[key])) + len(text), n_tokens=3, unread="")
            for key, text in captions.items()
        }

    monkeypatch.setattr(aligning, "alignments", made)

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
    assert len(asked) == 1
    assert found({"a": "a dog", "b": "dog"}, vectors) == {"a": 5.25, "b": 3.5}
    assert [list(some.values()) for some in asked[1:]] == [["a dog"]]
    # As after another `analyze.clip_every_s`: the same clip has another embedding.
    assert found({"a": "dog", "b": "dog"}, _vectors(a=0.75, b=0.5)) == {"a": 3.75, "b": 3.5}

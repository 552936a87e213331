"""Runs with a CLIP model: columns, embeddings, reruns, and what is refused before any work."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from captioned import work_here
from newest import earlier_objects
from place import QVGA, Place, sets, write_films
from tiny_clip import tiny_folder

from curator.cli import main
from curator.models.clip_model import embed_texts
from curator.models.weight_store import ModelStore
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE

CLIP = ("analyze.clip=test-tiny", "semantic.aesthetic=test-head")


@dataclass(frozen=True)
class Clip(Place):
    """A film, its output, and a folder of models."""

    models: str

    @property
    def settings(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("filters.short_side_px.min=60", "propose.min_s=1.0", "shard.resolutions=[64, 120]",
                f"models={self.models}")  # fmt: skip

    def clip(self) -> dict[str, Any]:
        (clip,) = pq.read_table(self.out / "clips").to_pylist()
        return clip

    def vectors(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.out / "clip_embeddings").to_pylist()
        return rows


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    folder = tmp_path_factory.mktemp("clip")
    sources = write_films(folder / "in", (90,), fps=30, **QVGA)
    return Clip(sources, folder / "out", str(tiny_folder(folder / "models")))


def test_a_run_stores_scores_types_and_embeddings_and_reruns_without_pixels(place: Clip) -> None:
    """Pins what readers see with a model; bounds, its removal and its return decode nothing.

    Adding it to what is measured runs no other network.
    """
    out = place.out
    summary = place.run(*CLIP)
    clip = place.clip()
    assert clip["decision"] == "kept"
    assert isinstance(clip["content_type"], str)
    for name in ("aesthetic", "content_probability", "nsfw", "consistency"):
        assert isinstance(clip[name], float), name
    assert summary["cpu_seconds"]["clip"] > 0
    (row,) = place.vectors()
    assert (row["clip_id"], row["model"]) == (clip["clip_id"], "test-tiny")
    assert np.linalg.norm(row["vector"]) == pytest.approx(1, abs=1e-5)
    assert len(row["vector"]) == 32
    (perceptual,) = pq.read_table(out / "embeddings").to_pylist()
    assert perceptual["model"] == "efficientnet-lite0-1"

    embeddings = place.vectors()
    stored = sorted((out / "candidates").rglob("*.parquet"))
    assert {path.parent.name for path in stored} >= {"vectors", "clip_vectors"}
    unwanted = f"semantic.reject=[{clip['content_type']}]"
    bound = clip["content_probability"] - 1e-6
    summary = place.run(*CLIP, unwanted, f"semantic.reject_from={bound}")
    assert summary["work"]["sources_analyzed"] == 0
    assert summary["counts"]["by_reason"] == {"content_type_unwanted": 1}
    assert place.vectors() == embeddings
    assert sorted((out / "candidates").rglob("*.parquet")) == stored
    assert place.run(*CLIP, "select.by=[content_type]")["counts"]["kept"] == 1
    head_of_none = ["analyze.clip=test-tiny"]
    assert place.run(*head_of_none)["work"]["sources_analyzed"] == 0
    clip = place.clip()
    assert clip["aesthetic"] is None
    earlier = {out / name for name in earlier_objects(out)}
    assert set(stored) <= earlier
    assert place.vectors() == embeddings

    summary = place.run()
    assert summary["work"]["sources_analyzed"] == 0
    assert "clip_embeddings" not in summary["tables"]
    assert not list((out / "clip_embeddings").glob("*.parquet"))
    clip = place.clip()
    assert clip["content_type"] is clip["consistency"] is None

    assert place.run(*CLIP)["work"]["sources_analyzed"] == 0
    assert place.vectors() == embeddings
    shutil.rmtree(out / "tracks" / "clip")
    summary = place.run("propose.max_s=50", *CLIP)
    assert summary["work"]["sources_analyzed"] == 1
    assert summary["cpu_seconds"]["clip"] > 0
    assert "shot_network" not in summary["cpu_seconds"]
    assert place.vectors() == embeddings


CAPTIONER = """
from curator.stages.caption.captioners.captioner_contract import Captioner

class Said(Captioner):
    version = 1

    def answer(self, request, frames):
        fields = request.schema["properties"]
        return {name: f"A {name} text of texture {len(frames.arrays())}" for name in fields}
"""


def test_the_short_caption_is_compared_with_the_clip_once(
    place: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that `caption_clip_score` is of the short caption, whatever `caption.text` is."""
    # This process has imported open_clip already, which takes seconds.
    work_here(monkeypatch)
    (tmp_path / "said.py").write_text(CAPTIONER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out, models = place.out, ModelStore(place.models)
    captions = [
        "caption.captioner=said:Said", "caption.language=null",
        "caption.lengths=[short, long]", "caption.text=long",
    ]  # fmt: skip
    summary = place.run(*CLIP, *captions)
    assert summary["work"]["caption_clip_scores_made"] == 1
    clip = place.clip()
    (window,) = pq.read_table(out / "annotations").to_pylist()
    assert clip["caption"] == window["long"] != window["short"]
    (row,) = place.vectors()
    entry = models.catalogue.find("test-tiny")
    ((text,), _) = embed_texts(entry, models.find(entry), [window["short"]])
    vector = np.array(row["vector"], np.float32).astype(np.float64)
    cosine = float(text.astype(np.float64) @ vector) / float(np.linalg.norm(vector))
    assert clip["caption_clip_score"] == cosine
    names = pq.read_schema(out / summary["tables"]["clips"][0]).names
    assert names.index("caption_clip_score") == names.index("caption_failure") + 1
    off, on = ["caption.enabled=false"], ["caption.enabled=true", *captions]
    for more, expected in ((off, None), (on, cosine)):
        assert main(["recaption", str(out), *sets(more)]) == EXIT_OK
        clip = place.clip()
        assert clip["caption_clip_score"] == expected
        summary = place.summary()
        assert "caption_clip_scores_made" not in summary["work"]
    assert main(["verify", str(out), "--json"]) == EXIT_OK


def test_a_rerun_needs_neither_torch_nor_ray(place: Clip) -> None:
    """Pins that stored candidates, and stored embeddings under other heads, need no network."""
    place.run(*CLIP)
    runs = [place.arguments(*CLIP, *more) for more in ((), ("semantic.safety=false",))]
    code = (
        "import sys\nfrom curator.cli import main\n"
        f"assert [main(arguments) for arguments in {runs}] == [0, 0]\n"
        "assert not {'torch', 'open_clip', 'ray'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert place.summary()["work"]["sources_analyzed"] == 0
    assert len(place.vectors()) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["filters.nsfw.max=0.5"], ["filters.nsfw", "analyze.clip=", "models pull"]),
        (["analyze.clip=openai-vit-b-32"], ["models pull openai-vit-b-32"]),
        (["analyze.clip=openai-vit-b"], ["did you mean 'openai-vit-b-32'"]),
    ],
)
def test_missing_models_are_refused_before_any_work(
    place: Clip,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    words: list[str],
) -> None:
    refused = Clip(place.sources, tmp_path / "out", place.models)
    assert refused.code(*more) == EXIT_USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert not (tmp_path / "out").exists()

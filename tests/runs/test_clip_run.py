"""Runs with a CLIP model: columns, embeddings, reruns, and what is refused before any work."""

import json
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from film_makers import write_video
from film_shots import moving_texture
from newest import earlier_objects
from tiny_clip import tiny_folder

from curator.cli import main
from curator.commands.arguments import EXIT_OK, EXIT_USAGE
from curator.models.clip_model import embed_texts
from curator.models.weight_store import ModelStore

SETTINGS = [
    "--set", "filters.short_side_px.min=60", "--set", "propose.min_s=1.0",
    "--set", "shard.resolutions=[64, 120]",
]  # fmt: skip
CLIP = ["--set", "analyze.clip=test-tiny", "--set", "semantic.aesthetic=test-head"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    folder = tmp_path_factory.mktemp("clip")
    (folder / "in").mkdir()
    frames = moving_texture(90, seed=1, width_px=160, height_px=120)
    write_video(folder / "in" / "film.mp4", frames, fps=Fraction(30))
    return folder / "in", folder / "out", str(tiny_folder(folder / "models"))


def run(places: tuple[Path, Path, str], *more: str) -> dict[str, Any]:
    sources, out, models = places
    arguments = [
        "run",
        "--recipe",
        "quickstart",
        str(sources),
        str(out),
        *SETTINGS,
        "--set",
        f"models={models}",
        *more,
    ]
    assert main(arguments) == EXIT_OK
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def test_a_run_stores_scores_types_and_embeddings_and_reruns_without_pixels(
    places: tuple[Path, Path, str],
) -> None:
    """Pins what readers see with a model; bounds, its removal and its return decode nothing.

    Adding it to what is measured runs no other network.
    """
    out = places[1]
    summary = run(places, *CLIP)
    (clip,) = pq.read_table(out / "clips").to_pylist()
    assert clip["decision"] == "kept"
    assert isinstance(clip["content_type"], str)
    for name in ("aesthetic", "content_probability", "nsfw", "consistency"):
        assert isinstance(clip[name], float), name
    assert summary["cpu_seconds"]["clip"] > 0
    (row,) = pq.read_table(out / "clip_embeddings").to_pylist()
    assert (row["clip_id"], row["model"]) == (clip["clip_id"], "test-tiny")
    assert np.linalg.norm(row["vector"]) == pytest.approx(1, abs=1e-5)
    assert len(row["vector"]) == 32
    (perceptual,) = pq.read_table(out / "embeddings").to_pylist()
    assert perceptual["model"] == "efficientnet-lite0-1"

    embeddings = pq.read_table(out / "clip_embeddings").to_pylist()
    stored = sorted((out / "candidates").rglob("*.parquet"))
    assert {path.parent.name for path in stored} >= {"vectors", "clip_vectors"}
    unwanted = f"semantic.reject=[{clip['content_type']}]"
    bound = clip["content_probability"] - 1e-6
    summary = run(places, *CLIP, "--set", unwanted, "--set", f"semantic.reject_from={bound}")
    assert summary["work"]["sources_analyzed"] == 0
    assert summary["counts"]["by_reason"] == {"content_type_unwanted": 1}
    assert pq.read_table(out / "clip_embeddings").to_pylist() == embeddings
    assert sorted((out / "candidates").rglob("*.parquet")) == stored
    assert run(places, *CLIP, "--set", "select.by=[content_type]")["counts"]["kept"] == 1
    head_of_none = ["--set", "analyze.clip=test-tiny"]
    assert run(places, *head_of_none)["work"]["sources_analyzed"] == 0
    (clip,) = pq.read_table(out / "clips").to_pylist()
    assert clip["aesthetic"] is None
    earlier = {out / name for name in earlier_objects(out)}
    assert set(stored) <= earlier
    assert pq.read_table(out / "clip_embeddings").to_pylist() == embeddings

    summary = run(places)
    assert summary["work"]["sources_analyzed"] == 0
    assert "clip_embeddings" not in summary["tables"]
    assert not list((out / "clip_embeddings").glob("*.parquet"))
    (clip,) = pq.read_table(out / "clips").to_pylist()
    assert clip["content_type"] is clip["consistency"] is None

    assert run(places, *CLIP)["work"]["sources_analyzed"] == 0
    assert pq.read_table(out / "clip_embeddings").to_pylist() == embeddings
    shutil.rmtree(out / "tracks" / "clip")
    summary = run(places, "--set", "propose.max_s=50", *CLIP)
    assert summary["work"]["sources_analyzed"] == 1
    assert summary["cpu_seconds"]["clip"] > 0
    assert "shot_network" not in summary["cpu_seconds"]
    assert pq.read_table(out / "clip_embeddings").to_pylist() == embeddings


CAPTIONER = """
from curator.stages.caption.captioners.captioner_contract import Captioner

class Said(Captioner):
    version = 1

    def answer(self, request, frames):
        fields = request.schema["properties"]
        return {name: f"A {name} text of texture {len(frames.arrays())}" for name in fields}
"""


def test_the_short_caption_is_compared_with_the_clip_once(
    places: tuple[Path, Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that `caption_alignment` is of the short caption, whatever `caption.text` is."""
    (tmp_path / "said.py").write_text(CAPTIONER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out, models = places[1], ModelStore(places[2])
    captions = [
        "--set", "caption.captioner=said:Said", "--set", "caption.language=null",
        "--set", "caption.lengths=[short, long]", "--set", "caption.text=long",
    ]  # fmt: skip
    summary = run(places, *CLIP, *captions)
    assert summary["work"]["caption_alignments_made"] == 1
    (clip,) = pq.read_table(out / "clips").to_pylist()
    (window,) = pq.read_table(out / "annotations").to_pylist()
    assert clip["caption"] == window["long"] != window["short"]
    (row,) = pq.read_table(out / "clip_embeddings").to_pylist()
    entry = models.catalogue.find("test-tiny")
    ((text,), _) = embed_texts(entry, models.find(entry), [window["short"]])
    vector = np.array(row["vector"], np.float32).astype(np.float64)
    cosine = float(text.astype(np.float64) @ vector) / float(np.linalg.norm(vector))
    assert clip["caption_alignment"] == cosine
    names = pq.read_schema(out / summary["tables"]["clips"][0]).names
    assert names.index("caption_alignment") == names.index("caption_failure") + 1
    off, on = ["--set", "caption.enabled=false"], ["--set", "caption.enabled=true", *captions]
    for more, expected in ((off, None), (on, cosine)):
        assert main(["recaption", str(out), *more]) == EXIT_OK
        (clip,) = pq.read_table(out / "clips").to_pylist()
        assert clip["caption_alignment"] == expected
        summary = json.loads((out / "summary.json").read_text())
        assert "caption_alignments_made" not in summary["work"]
    assert main(["verify", str(out), "--json"]) == EXIT_OK


@pytest.mark.parametrize("more", [[], ["--set", "semantic.safety=false"]])
def test_a_rerun_needs_neither_torch_nor_ray(
    places: tuple[Path, Path, str], more: list[str]
) -> None:
    """Pins that stored candidates, and stored embeddings under other heads, need no network."""
    run(places, *CLIP)
    sources, out, models = places
    arguments = ["run", str(sources), str(out), *SETTINGS, "--set", f"models={models}", *CLIP]
    code = (
        "import sys\nfrom curator.cli import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "assert not {'torch', 'open_clip', 'ray'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, *arguments, *more], check=True)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["work"]["sources_analyzed"] == 0
    assert len(pq.read_table(out / "clip_embeddings")) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--set", "filters.nsfw.max=0.5"], ["filters.nsfw", "analyze.clip=", "models pull"]),
        (["--set", "analyze.clip=openai-vit-b-32"], ["models pull openai-vit-b-32"]),
        (["--set", "analyze.clip=openai-vit-b"], ["did you mean 'openai-vit-b-32'"]),
    ],
)
def test_missing_models_are_refused_before_any_work(
    places: tuple[Path, Path, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    words: list[str],
) -> None:
    sources, _, models = places
    place = ["--set", f"models={models}"]
    assert main(["run", str(sources), str(tmp_path / "out"), *place, *more]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert not (tmp_path / "out").exists()

"""An annotator from a file outside the package: its values go from the run to the trainer.

The class is copied to a folder, used by a run, and deleted before anything reads what it left.
"""

import json
import shutil
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from film_makers import write_video
from film_shots import moving_texture
from safetensors.torch import load
from tiny_text import text_folder

from curator.cli import main
from curator.commands.arguments import EXIT_OK
from curator.errors import RecipeError
from curator.loading import ClipDataset
from curator.pipeline import graph_of
from curator.recipe import load_recipe

EXAMPLE = Path(__file__).parents[2] / "examples" / "mean_latents.py"
SETTINGS = (
    "shard.resolutions=[120]", "filters.short_side_px.min=100", "propose.min_s=1",
    "shard.lengths=[17]", "dedup.enabled=false", "filters.motion.min=0.0001",
    "filters.sharpness.min=0.0001", "shard.val_share=0",
)  # fmt: skip


def stage(block_px: int = 16) -> str:
    return f"stages=[{{use: own_latents:MeanLatents, config: {{block_px: {block_px}}}}}]"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, in a folder of its own."""
    folder = tmp_path / "own"
    folder.mkdir()
    shutil.copy(EXAMPLE, folder / "own_latents.py")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder / "own_latents.py"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, name in enumerate(("beach.mp4", "holiday.mp4", "lake.mp4")):
        frames = moving_texture(60, width_px=160, height_px=120, seed=number)
        write_video(folder / name, frames, fps=Fraction(30))
    return folder


def curated(sources: Path, out: Path, *more: str) -> dict[str, Any]:
    settings = [part for setting in (*SETTINGS, *more) for part in ("--set", setting)]
    assert main(["run", "--recipe", "quickstart", str(sources), str(out), *settings]) == EXIT_OK
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def latents(out: Path) -> dict[str, torch.Tensor]:
    """Values by clip, as a training reads them: without frames."""
    dataset = ClipDataset(str(out), members=["latents"], video=False, batch_size=1)
    found = {}
    for batch in dataset:
        assert "video" not in batch
        found[batch["key"][0]] = batch["latents"][0]
    return found


def test_values_go_from_the_class_to_the_trainer_and_need_the_class_no_more(
    sources: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    summary = curated(sources, out, stage())
    assert (summary["counts"]["kept"], summary["work"]["latents_made"]) == (3, 3)
    values = latents(out)
    assert {(v.dtype, v.shape) for v in values.values()} == {(torch.float16, (3, 16, 6, 10))}
    # The second frame is the first of sixteen that it saw, as the loader decodes and crops it.
    dataset = ClipDataset(str(out), frames=2, window="first", size=(96, 160), batch_size=3)
    (batch,) = list(dataset)
    for key, video in zip(batch["key"], batch["video"], strict=True):
        blocks = torch.nn.functional.avg_pool2d(video[:, 1].float(), 16) / 127.5 - 1
        assert (values[key][:, 0].float() - blocks).abs().max() < 0.02

    again = curated(sources, out, stage())
    assert again["work"].get("latents_made", 0) == again["work"]["clips_cut"] == 0
    assert [s["name"] for s in again["shards"]] == [s["name"] for s in summary["shards"]]
    coarser = curated(sources, out, stage(32))
    assert coarser["work"]["latents_made"] == 3
    assert coarser["work"]["clips_cut"] == coarser["work"]["sources_analyzed"] == 0
    assert {v.shape for v in latents(out).values()} == {(3, 16, 3, 5)}
    assert not list((out / "values").rglob("*.parquet"))

    # A run that finds the manifest damaged makes values again, and the manifest.
    manifest = out / "shards" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    curated(sources, out, stage(8), "shard.max_bytes=65536", "shard.min_bytes=1024")
    assert json.loads(manifest.read_text())["counts"]["shards"] > 1

    own.unlink()
    sys.modules.pop("own_latents")
    assert main(["verify", str(out), "--json"]) == EXIT_OK
    last = json.loads((out / "summary.json").read_text())
    (table,) = [pq.read_table(out / part) for part in last["tables"]["members"]]
    assert table["member"].to_pylist() == ["latents.safetensors"] * 3
    gone = table["clip_id"][0].as_py()
    named = tmp_path / "gone.txt"
    named.write_text(gone)
    assert main(["remove", str(out), "--clips", str(named)]) == EXIT_OK
    assert main(["verify", str(out), "--removed"]) == EXIT_OK
    left = latents(out)
    assert len(left) == 2
    assert gone not in left
    exported = tmp_path / "exported"
    assert main(["export", str(out), str(exported), "--format", "wids"]) == EXIT_OK
    assert "left out" not in capsys.readouterr().out
    assert main(["export", str(out), str(exported / "cosmos"), "--format", "cosmos"]) == EXIT_OK
    assert "latents.safetensors of each sample is left out: cosmos" in capsys.readouterr().out
    assert main(["export", str(out), str(exported / "rows"), "--format", "parquet"]) == EXIT_OK
    assert "left out" not in capsys.readouterr().out
    for part in (exported / "rows").rglob("*.parquet"):
        for row in pq.read_table(part).to_pylist():
            tar = (out / "shards" / row["shard"]).read_bytes()
            value = tar[row["latents_offset"] :][: row["latents_bytes"]]
            assert torch.equal(load(value)["value"], left[row["clip_id"]])


def test_captions_are_embedded_each_once_and_again_only_where_they_change(
    sources: Path, tmp_path: Path
) -> None:
    """Pins that member, card and loader agree, and that equal captions share a value."""
    out, models = tmp_path / "out", text_folder(tmp_path / "models")
    settings = (f"models={models}", "caption.embedding=tiny-t5")
    summary = curated(sources, out, *settings)
    clips = [r for p in summary["tables"]["clips"] for r in pq.read_table(out / p).to_pylist()]
    distinct = {clip["caption"] for clip in clips}
    assert summary["work"]["caption_embeddings_made"] == len(distinct) <= len(clips)
    (batch,) = list(ClipDataset(str(out), caption_embedding=True, video=False, batch_size=3))
    found = batch["caption_embedding"]
    assert len(found.unique) == len(distinct)
    assert {value.dtype for value in found.unique} == {torch.float16}
    again = curated(sources, out, *settings)
    assert "caption_embeddings_made" not in again["work"]
    assert [s["name"] for s in again["shards"]] == [s["name"] for s in summary["shards"]]
    assert "text.npy" in (out / "shards" / "README.md").read_text()
    assert main(["recaption", str(out), "--set", "caption.enabled=false"]) == EXIT_OK
    (batch,) = list(ClipDataset(str(out), caption_embedding=True, video=False, batch_size=3))
    assert batch["caption_embedding"].unique == [None]
    assert main(["verify", str(out), "--json"]) == EXIT_OK


def test_verify_finds_a_value_that_is_not_as_declared(
    sources: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    curated(sources, out, stage())
    manifest = out / "shards" / "manifest.json"
    text = manifest.read_text().replace('"dtype": "f16"', '"dtype": "f32"')
    value = json.loads(text)
    del value["checksum"]
    manifest.write_text(json.dumps(value))
    capsys.readouterr()
    assert main(["verify", str(out)]) != EXIT_OK
    assert "expected f32" in capsys.readouterr().out


TWICE = """
from mean_latents import MeanLatents
from curator.family import Array, Family, Scope

class Twice(MeanLatents):
    name = "twice"

class Names(MeanLatents):
    families = (
        Family("one", Scope.CLIP, Array("f32", ("d",)), member="one.npy"),
        Family("one", Scope.CLIP, Array("f32", ("d",)), member="two.npy"),
    )

class Sources(MeanLatents):
    families = (Family("one", Scope.SOURCE, Array("f32", ("d",)), member="one.npy"),)

class Path(MeanLatents):
    name = "../evil"

class Captions(MeanLatents):
    name = "own_captions"
    families = (Family("captions", Scope.CLIP, Array("f32", ("d",)), member="text.npy"),)
"""


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ("[mean_latents:MeanLatents, twice:Twice]", "'mean_latents' makes the family 'latents'"),
        ("[twice:Names]", "two families of one name"),
        ("[twice:Sources]", "scope clip"),
        ("[twice:Path]", "'../evil'"),
        ("[wrong:Wrong]", r"expected one of npy, safetensors \(.*wrong.py:7"),
        ("[twice:Captions]", "'caption' makes the member 'text.npy'"),
        ("[{use: mean_latents:MeanLatents, before: dedup}]", "leave out before and after"),
        ("[{use: mean_latents:MeanLatents, config: {blok: 1}}]", "blok"),
    ],
)
def test_an_annotator_that_cannot_stand_there_is_refused(stages: str, said: str, own: Path) -> None:
    shutil.copy(EXAMPLE, own.parent / "mean_latents.py")
    (own.parent / "twice.py").write_text(TWICE)
    wrong = TWICE[: TWICE.index("class Twice")] + (
        "class Wrong(MeanLatents):\n    families = (\n"
        '        Family("one", Scope.CLIP, Array("f32", ("d",)), member="one.txt"),\n    )\n'
    )
    (own.parent / "wrong.py").write_text(wrong)
    with pytest.raises(RecipeError, match=said):
        graph_of(load_recipe("quickstart", [f"stages={stages}"]))


FAILING = """
import numpy as np
from mean_latents import MeanLatents as Base

class Failing(Base):
    version = 2
    {required}
    def process(self, unit):
        values = super().process(unit)
        if any(clip.frames.mean() > {bound} for clip in unit):
            raise ArithmeticError('too bright \\x1b[31m \\ud800' + '!' * 5000)
        return values
"""


@pytest.mark.parametrize("required", [True, False])
def test_a_clip_on_which_it_fails_is_rejected_or_lacks_the_value(
    required: bool, sources: Path, own: Path, tmp_path: Path
) -> None:
    shutil.copy(EXAMPLE, own.parent / "mean_latents.py")
    out = tmp_path / "out"
    curated(sources, out, stage())
    bright = sorted(float(value.float().mean()) for value in latents(out).values())
    bound = (np.mean(bright[1:]) + 1) * 127.5
    text = FAILING.format(required="" if required else "required = False", bound=bound)
    (own.parent / "failing.py").write_text(text)
    sys.modules.pop("failing", None)
    summary = curated(sources, out, "stages=[{use: failing:Failing}]")
    rows = [r for p in summary["tables"]["clips"] for r in pq.read_table(out / p).to_pylist()]
    if required:
        (rejected,) = [row for row in rows if row["decision"] == "rejected"]
        assert rejected["reason"] == "mean_latents_failed"
        assert "ArithmeticError: too bright [31m \\ud800!!!" in rejected["reason_detail"]
        assert len(rejected["reason_detail"]) < 1500
        assert "failing.py:11" in rejected["reason_detail"]
    else:
        assert summary["counts"]["kept"] == 3
        assert summary["work"]["mean_latents_lacking"] == 1
        values = ClipDataset(str(out), members=["latents"], video=False, batch_size=3)
        (batch,) = list(values)
        assert sum(value is None for value in batch["latents"]) == 1
    assert main(["verify", str(out), "--json"]) == EXIT_OK

"""An annotator from a file outside the package: its values go from the run to the trainer.

The class is copied to a folder, used by a run, and deleted before anything reads what it left.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from captioned import work_here
from place import QVGA, SHORT, Place, count_units, write_films
from safetensors.torch import load
from tiny_text import DIM, write_catalogue

from curator import read_clips
from curator.cli import main
from curator.errors import RecipeError
from curator.loading import ClipDataset, ClipLoader
from curator.pipeline import graph_of
from curator.recipe import load_recipe
from curator.runs import commit_run
from curator.stages.caption import caption_annotators
from curator.stages.shard.shard_driver import Sharding
from curator.storage import Store
from curator.tables.out_layout import MANIFEST, NEXT_MANIFEST
from curator.tools.commands.arguments import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE

EXAMPLE = Path(__file__).parents[2] / "examples" / "mean_latents.py"
LIGHT = EXAMPLE.with_name("light_columns.py")


class Annotated(Place):
    """Three films of a clip each."""

    settings = (*SHORT, "shard.lengths=[17]", "shard.val_share=0")

    @property
    def manifest(self) -> Path:
        return self.out / "shards" / "manifest.json"

    def redeclare(self, old: str, new: str) -> None:
        """Changes a declaration in the manifest."""
        value = json.loads(self.manifest.read_text().replace(old, new))
        value.pop("checksum", None)
        self.manifest.write_text(json.dumps(value))

    def values(self) -> dict[str, torch.Tensor]:
        """Latents by clip, as a training reads them: without frames."""
        dataset = ClipDataset(str(self.out), members=["latents"], video=False, batch_size=1)
        found = {}
        for batch in ClipLoader(dataset, num_workers=0):
            assert "video" not in batch
            found[batch["key"][0]] = batch["latents"][0]
        return found

    def remove(self, clip_id: str) -> None:
        named = self.out.parent / "gone.txt"
        named.write_text(clip_id)
        assert main(["remove", str(self.out), "--clips", str(named)]) == EXIT_OK
        assert main(["verify", str(self.out), "--removed"]) == EXIT_OK


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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Annotated:
    """A run without annotators; not to be changed."""
    folder = tmp_path_factory.mktemp("annotated")
    place = Annotated(write_films(folder / "in", (60, 60, 60), fps=30, **QVGA), folder / "out")
    place.run()
    return place


@pytest.fixture
def place(finished: Annotated, tmp_path: Path) -> Annotated:
    """A copy of the finished run: analyzed and cut."""
    return finished.copy(tmp_path)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotators work in this process: the tests without this fixture pin their own one."""
    work_here(monkeypatch)


@pytest.mark.long
def test_values_go_from_the_class_to_the_trainer_and_need_the_class_no_more(
    place: Annotated, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = place.run(stage())
    assert (summary["counts"]["kept"], summary["work"]["latents_made"]) == (3, 3)
    values = place.values()
    assert {(v.dtype, v.shape) for v in values.values()} == {(torch.float16, (3, 16, 6, 10))}
    # The second frame is the first of sixteen that it saw, as the loader decodes and crops it.
    dataset = ClipDataset(str(place.out), frames=2, window="first", size=(160, 96), batch_size=3)
    (batch,) = list(dataset)
    for key, video in zip(batch["key"], batch["video"], strict=True):
        blocks = torch.nn.functional.avg_pool2d(video[:, 1].float(), 16) / 127.5 - 1
        assert (values[key][:, 0].float() - blocks).abs().max() < 0.001

    again = place.run(stage())
    assert again["work"].get("latents_made", 0) == again["work"]["clips_cut"] == 0
    assert [s["name"] for s in again["shards"]] == [s["name"] for s in summary["shards"]]
    coarser = place.run(stage(32))
    assert coarser["work"]["latents_made"] == 3
    assert coarser["work"]["clips_cut"] == coarser["work"]["sources_analyzed"] == 0
    assert {v.shape for v in place.values().values()} == {(3, 16, 3, 5)}
    assert not list((place.out / "values").rglob("*.parquet"))

    # A run that finds the manifest damaged makes values again, and the manifest.
    text = place.manifest.read_text()
    place.manifest.write_text(text[: len(text) // 2])
    place.run(stage(8), "shard.max_bytes=65536", "shard.min_bytes=1024")
    assert json.loads(place.manifest.read_text())["counts"]["shards"] > 1

    own.unlink()
    sys.modules.pop("own_latents")
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK
    rows = place.table("members")
    assert [row["member"] for row in rows] == ["latents.safetensors"] * 3
    gone = rows[0]["clip_id"]
    place.remove(gone)
    left = place.values()
    assert len(left) == 2
    assert gone not in left
    exported = tmp_path / "exported"
    assert main(["export", str(place.out), str(exported), "--format", "wids"]) == EXIT_OK
    assert "left out" not in capsys.readouterr().out
    assert (
        main(["export", str(place.out), str(exported / "cosmos"), "--format", "cosmos"]) == EXIT_OK
    )
    assert "left out of each sample: latents.safetensors, because cosmos" in capsys.readouterr().out
    assert (
        main(["export", str(place.out), str(exported / "rows"), "--format", "parquet"]) == EXIT_OK
    )
    assert "left out" not in capsys.readouterr().out
    for part in (exported / "rows").rglob("*.parquet"):
        for row in pq.read_table(part).to_pylist():
            tar = (place.out / "shards" / row["shard"]).read_bytes()
            value = tar[row["latents_offset"] :][: row["latents_bytes"]]
            assert torch.equal(load(value)["value"], left[row["clip_id"]])
    place.redeclare('"dtype": "f16"', '"dtype": "f32"')
    capsys.readouterr()
    # Under OUT, the manifest of the snapshot would count.
    assert main(["verify", str(place.out / "shards")]) != EXIT_OK
    assert "expected f32" in capsys.readouterr().out
    place.redeclare('"dtype": "f32"', '"dtype": "f16"')
    place.redeclare('"t"', '"frames"')
    assert main(["verify", str(place.out / "shards")]) != EXIT_OK
    assert "a value of 16 frames; expected 60" in capsys.readouterr().out


class Letters:
    """Stands for a text encoder, whose import takes ten seconds: a vector for each letter."""

    def __init__(self, *_: object) -> None:
        """Loads nothing."""

    def each(self, texts: Sequence[str]) -> Iterator[tuple[int, np.ndarray]]:
        for number, text in enumerate(texts):
            yield number, np.full((len(text), DIM), len(text) / 100, np.float16)


@pytest.mark.usefixtures("here")
def test_captions_are_embedded_each_once_and_again_only_where_they_change(
    place: Annotated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that member, card and loader agree, and that equal captions share a value."""
    monkeypatch.setattr(caption_annotators, "TextEncoder", Letters)
    models = tmp_path / "models"
    (models / "tiny-t5").mkdir(parents=True)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (models / "tiny-t5" / name).write_text("as of a model")
    write_catalogue(models)
    settings = (f"models={models}", "caption.embedding=tiny-t5")
    summary = place.run(*settings)
    clips = place.table("clips")
    distinct = {clip["caption"] for clip in clips}
    assert summary["work"]["caption_embeddings_made"] == len(distinct) <= len(clips)
    (batch,) = list(ClipDataset(str(place.out), caption_embedding=True, video=False, batch_size=3))
    found = batch["caption_embedding"]
    assert len(found.unique) == len(distinct)
    assert {value.dtype for value in found.unique} == {torch.float16}
    again = place.run(*settings)
    assert "caption_embeddings_made" not in again["work"]
    assert [s["name"] for s in again["shards"]] == [s["name"] for s in summary["shards"]]
    assert "text.npy" in (place.out / "shards" / "README.md").read_text()
    assert main(["recaption", str(place.out), "--set", "caption.enabled=false"]) == EXIT_OK
    (batch,) = list(ClipDataset(str(place.out), caption_embedding=True, video=False, batch_size=3))
    assert batch["caption_embedding"].unique == [None]
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK


def samples(out: Path) -> dict[str, dict[str, Any]]:
    """The JSON of each sample."""
    dataset = ClipDataset(str(out), video=False, batch_size=1)
    return {batch["key"][0]: batch["json"][0] for batch in dataset}


@pytest.mark.long
def test_columns_go_from_the_class_to_tables_and_samples_and_need_the_class_no_more(
    place: Annotated,
    own: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(LIGHT, own.parent / "own_light.py")
    columns = ("brightness", "n_dark", "light")
    light = "stages=[{use: own_light:LightColumns, config: {dark: %s}}]"
    with monkeypatch.context() as patch:
        # As if it were killed after annotators, before anything is committed.
        patch.setattr(Sharding, "shard", lambda *_, **__: sys.exit(9))
        with pytest.raises(SystemExit):
            place.code(light % 0.5)
    summary = place.run(light % 0.5)
    assert summary["work"].get("light_made", 0) == 0, "values of the killed run are found"
    assert summary["counts"]["kept"] == 3
    schema = pq.read_schema(place.out / summary["tables"]["clips"][0])
    assert [str(schema.field(name).type) for name in columns] == ["float", "int32", "string"]
    rows = {row["clip_id"]: row for row in place.table("clips")}
    told = samples(place.out)
    assert set(told) == set(rows)
    for clip_id, row in rows.items():
        assert 0 < row["brightness"] < 1
        assert np.float32(told[clip_id]["columns"]["brightness"]) == np.float32(row["brightness"])
        assert {name: row[name] for name in columns[1:]} == {
            name: told[clip_id]["columns"][name] for name in columns[1:]
        }
    card = yaml.safe_load((place.out / "shards" / "README.md").read_text().split("---")[1])
    (fields,) = [f for f in card["dataset_info"]["features"] if f["name"] == "json"]
    (typed,) = [field for field in fields["struct"] if field["name"] == "columns"]
    assert [one["dtype"] for one in typed["struct"]] == ["float32", "int32", "string"]

    other = place.run(light % 0, "select.max_per_group=2")
    assert (other["work"]["light_made"], other["work"]["clips_cut"]) == (2, 0)
    values = {"kept": (0, "light"), "rejected": (None, None)}
    assert [(row["n_dark"], row["light"]) for row in place.table("clips")] == [
        values[row["decision"]] for row in place.table("clips")
    ]
    assert main(["recaption", str(place.out), "--set", "caption.enabled=false"]) == EXIT_OK
    assert {row["light"] for row in place.table("clips")} == {"light", None}
    again = place.summary()
    assert again["work"].get("light_made", 0) == 0

    (own.parent / "own_light.py").unlink()
    sys.modules.pop("own_light")
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK
    kept = sorted(row["clip_id"] for row in place.table("clips") if row["decision"] == "kept")
    gone = kept[0]
    place.remove(gone)
    capsys.readouterr()
    assert main(["verify", str(place.out)]) == EXIT_OK, capsys.readouterr().out
    parts = [
        pq.read_table(part)["clip_id"].to_pylist()
        for part in place.out.rglob("families/*/*.parquet")
    ]
    # Values of clips that stay are not lost with the removed one's.
    assert parts
    assert all(kept[1] in ids and gone not in ids for ids in parts)
    (row,) = [row for row in place.table("clips") if row["decision"] == "kept"]
    assert (row["clip_id"], row["light"]) == (kept[1], "light")
    assert {one["columns"]["light"] for one in samples(place.out).values()} == {"light"}
    assert "light" in read_clips(place.out).to_arrow().column_names
    exported = tmp_path / "exported"
    assert main(["export", str(place.out), str(exported), "--format", "parquet"]) == EXIT_OK
    (table,) = map(pq.read_table, exported.rglob("*.parquet"))
    assert '"light":"light"' in table["json"][0].as_py()
    assert [str(table.schema.field(name).type) for name in columns] == ["float", "int32", "string"]
    assert table["light"].to_pylist() == ["light"]
    capsys.readouterr()
    assert main(["explain", str(place.out), kept[1]]) == EXIT_OK
    assert "n_dark 0" in capsys.readouterr().out
    assert "n_dark" in (place.out / "report" / "index.html").read_text()

    place.redeclare('"n_dark": "i32"', '"n_dark": "i64"')
    capsys.readouterr()
    assert main(["verify", str(place.out)]) != EXIT_OK
    assert "shards/manifest.json" in capsys.readouterr().out


BOTH = """
from light_columns import LightColumns
from curator.family import Columns, Family, Scope, Text

class Both(LightColumns):
    name, required = "both", False
    families = (*LightColumns.families, Family("word", Scope.CLIP, Text(), member="word.txt"))

    def process(self, unit):
        rows = super().process(unit)
        return [
            {"light": {**row, "n_dark": "many"} if row["brightness"] > BOUND else row, "word": "a"}
            for row in rows
        ]

class Reader(LightColumns):
    name, frames, columns = "reader", (), ("brightness",)
    families = (Family("twice", Scope.CLIP, Columns({"twice": "f64"})),)

    def key(self, facts, mp4_sha256):
        return None if facts.columns["brightness"] is None else super().key(facts, mp4_sha256)

    def process(self, unit):
        return [{"twice": 2 * clip.facts.columns["brightness"]} for clip in unit]
"""


@pytest.mark.usefixtures("here")
def test_columns_that_are_not_in_samples_change_no_tar(place: Annotated, own: Path) -> None:
    """Pins that a new column costs the table alone, and that readers of the table see it."""
    (own.parent / "own_beside.py").write_text(
        LIGHT.read_text().replace('"light": "text"})\n', '"light": "text"}), place="table"\n')
    )
    assert "table" in (own.parent / "own_beside.py").read_text()
    before = place.tars()
    summary = place.run("stages=[{use: own_beside:LightColumns}]")
    assert summary["work"]["light_made"] == 3
    assert place.tars() == before
    assert all("columns" not in told for told in samples(place.out).values())
    assert all(0 < row["brightness"] < 1 for row in place.table("clips"))
    dataset = ClipDataset(str(place.out), where="brightness > 0", video=False, batch_size=1)
    assert len(list(dataset)) == 3
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK


@pytest.mark.usefixtures("here")
def test_an_annotator_leaves_columns_and_members_and_another_reads_its_columns(
    place: Annotated, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins also that a row which does not fit fails its own clip."""
    shutil.copy(LIGHT, own.parent / "light_columns.py")
    place.run("stages=[light_columns:LightColumns]")
    bright = sorted(row["brightness"] for row in place.table("clips"))
    (own.parent / "both.py").write_text(BOTH.replace("BOUND", str(np.mean(bright[1:]))))
    summary = place.run("stages=[both:Both, both:Reader]")
    work = summary["work"]
    assert (work["both_lacking"], work["light_made"], work["word_made"]) == (1, 2, 2)
    rows = sorted(
        place.table("clips"), key=lambda row: (row["brightness"] is None, row["brightness"])
    )
    assert [row["brightness"] for row in rows] == [*bright[:2], None]
    assert [row["twice"] for row in rows] == [*(2 * one for one in bright[:2]), None]
    assert "column n_dark: 'many' of str; expected i32 or None" in caplog.text
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK


@pytest.mark.long
def test_a_commit_that_adds_members_and_breaks_off_is_no_damage(
    place: Annotated, own: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Pins that tars of the commit under way are checked by its own declarations."""

    def ends(store: Store, files: Mapping[str, bytes]) -> None:
        store.write(NEXT_MANIFEST, files[MANIFEST])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(commit_run, "write_shard_files", ends)
        assert place.code(stage()) == EXIT_INTERRUPTED
    assert (place.out / NEXT_MANIFEST).exists()
    capsys.readouterr()
    assert main(["verify", str(place.out)]) == EXIT_OK, capsys.readouterr().out
    assert "was interrupted" in capsys.readouterr().out


TWICE = """
from mean_latents import MeanLatents
from curator.family import Array, Columns, Family, Scope

class Taken(MeanLatents):
    name = "taken"
    families = (Family("taken", Scope.CLIP, Columns({"width": "i32"})),)

class Score(MeanLatents):
    name = "score"
    families = (Family("score", Scope.CLIP, Columns({"motion": "f64"})),)

class Doubled(MeanLatents):
    name = "doubled"
    families = (
        Family("one", Scope.CLIP, Columns({"same": "i32"})),
        Family("two", Scope.CLIP, Columns({"same": "i32"})),
    )

class Unknown(MeanLatents):
    name, columns = "unknown", ("captoin",)

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
        ("[twice:Taken]", "the table clips has the column 'width' already"),
        ("[twice:Score]", "the table clips has the column 'motion' already"),
        ("[twice:Doubled]", "two columns of one name: 'same'"),
        ("[twice:Unknown]", "captoin.*caption"),
        ("[twice:Sources]", "scope clip"),
        ("[twice:Path]", "'../evil'"),
        ("[wrong:Wrong]", r"expected one of npy, safetensors \(.*wrong.py:25"),
        ("[late:Windowed]", r"'late:Windowed': family 'one': windows with the member 'one.npy'"),
        ("[typo:Typo]", r"TypeError: .*select.*typo.py:\d+"),
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
    (own.parent / "late.py").write_text(
        "from curator.family import Windows\n"
        + wrong.replace("one.txt", "one.npy").replace(
            "Wrong(MeanLatents):", "Windowed(MeanLatents):"
        )
        + "    windows = Windows(frames=9)\n"
    )
    typo = wrong[: wrong.index("    families")] + "    frames = (FrameRequest(select=1),)\n"
    (own.parent / "typo.py").write_text(
        "from curator.stage import FrameRequest\n" + typo.replace("class Wrong", "class Typo")
    )
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
@pytest.mark.usefixtures("here")
def test_a_clip_on_which_it_fails_is_rejected_or_lacks_the_value(
    required: bool, place: Annotated, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins also that a clip in the shards, on which it fails, goes only where that is allowed."""
    shutil.copy(EXAMPLE, own.parent / "mean_latents.py")
    place.run(stage())
    bright = sorted(float(value.float().mean()) for value in place.values().values())
    bound = (np.mean(bright[1:]) + 1) * 127.5
    text = FAILING.format(required="" if required else "required = False", bound=bound)
    (own.parent / "failing.py").write_text(text)
    sys.modules.pop("failing", None)
    failing, more = "stages=[{use: failing:Failing}]", []
    if required:
        capsys.readouterr()
        assert place.code(failing) == EXIT_USAGE
        assert "for which a stage failed" in capsys.readouterr().err
        more = ["--replace"]
    summary = place.run(failing, *more)
    rows = place.table("clips")
    if required:
        (rejected,) = [row for row in rows if row["decision"] == "rejected"]
        assert rejected["reason"] == "mean_latents_failed"
        assert "ArithmeticError: too bright [31m \\ud800!!!" in rejected["reason_detail"]
        assert len(rejected["reason_detail"]) < 1500
        assert "failing.py:11" in rejected["reason_detail"]
    else:
        assert summary["counts"]["kept"] == 3
        assert summary["work"]["mean_latents_lacking"] == 1
        values = ClipDataset(str(place.out), members=["latents"], video=False, batch_size=3)
        (batch,) = list(values)
        assert sum(value is None for value in batch["latents"]) == 1
    assert main(["verify", str(place.out), "--json"]) == EXIT_OK


@pytest.mark.long
@pytest.mark.usefixtures("here")
def test_a_rerun_keeps_the_rejections_and_cuts_and_decodes_nothing(
    place: Annotated, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins also that a mended class, and a failure that may pass, are tried again."""
    shutil.copy(EXAMPLE, own.parent / "mean_latents.py")
    place.run(stage())
    bright = sorted(float(value.float().mean()) for value in place.values().values())
    bound = (np.mean(bright[:2]) + 1) * 127.5
    failing = own.parent / "failing.py"
    failing.write_text(FAILING.format(required="", bound=bound))
    calls = count_units(monkeypatch)

    def rerun() -> tuple[int, int]:
        """Returns how many clips are rejected, and how many were cut."""
        sys.modules.pop("failing", None)
        summary = place.run("stages=[{use: failing:Failing}]", "--replace", "--max-failed=1")
        decisions = [row["reason"] for row in place.table("clips")]
        assert decisions.count("mean_latents_failed") + decisions.count(None) == 3
        return decisions.count("mean_latents_failed"), summary["work"]["clips_cut"]

    assert rerun() == (2, 0)
    assert "AnnotatorWorker" in calls
    before = place.files("shards", "clips")
    calls.clear()
    assert rerun() == (2, 0)
    assert rerun() == (2, 0)
    assert calls == []
    assert place.files("shards", "clips") == before
    # What may pass is tried again, with the same error here.
    failing.write_text(failing.read_text().replace("'too bright", "'out of memory: too bright"))
    assert rerun() == rerun() == (2, 2)
    failing.write_text(FAILING.format(required="", bound=10_000))
    assert rerun() == (0, 2)
    assert rerun() == (0, 0)


HANGING = """
import time
from mean_latents import MeanLatents

class Hanging(MeanLatents):
    required, timeout_s = False, 1.0

    def process(self, unit):
        if any(clip.facts.clip_id == {clip_id!r} for clip in unit):
            time.sleep(10_000)
        return super().process(unit)
"""


@pytest.mark.long
def test_a_call_that_hangs_costs_its_own_clip_and_stage(
    place: Annotated,
    own: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Pins also that a class may not switch the limit off."""
    for example in (EXAMPLE, LIGHT):
        shutil.copy(example, own.parent / example.name)
    hanging = place.table("clips")[1]["clip_id"]
    (own.parent / "hanging.py").write_text(HANGING.format(clip_id=hanging))
    sys.modules.pop("hanging", None)
    summary = place.run("stages=[{use: hanging:Hanging}, {use: light_columns:LightColumns}]")
    assert summary["counts"]["kept"] == 3
    assert summary["work"]["mean_latents_lacking"] == 1
    assert all(row["brightness"] is not None for row in place.table("clips"))
    assert f"such as {hanging}: Hanging: its worker died 2 times on this clip" in caplog.text
    stacks = capfd.readouterr().err
    # The batch of three clips, the clip with both stages, and the clip with this stage.
    assert re.findall(r"Timeout \(0:00:0(\d)\)!", stacks) == ["3", "1", "1"]
    assert 'hanging.py", line 10 in process' in stacks
    text = (own.parent / "hanging.py").read_text().replace("1.0", "float('inf')")
    (own.parent / "hanging.py").write_text(text)
    sys.modules.pop("hanging")
    with pytest.raises(RecipeError, match=r"timeout_s = inf; expected 0\.1 or more"):
        graph_of(load_recipe("quickstart", ["stages=[{use: hanging:Hanging}]"]))

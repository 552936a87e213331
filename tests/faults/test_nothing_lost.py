"""A run adds to what earlier ones made, and takes clips out only with `--replace`.

Fails where a run over fewer sources removes the tars of the others and ends with 0.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from captioned import run_arguments
from film_makers import write_video
from film_shots import moving_texture

import curator
from curator.cli import main
from curator.storage import file_walk
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE

SETTINGS = (
    "shard.resolutions=[64, 120]", "filters.short_side_px.min=60", "propose.min_s=0.5",
    "propose.max_s=1", "dedup.enabled=false", "filters.sharpness.min=0",
)  # fmt: skip
SECONDS = {"a": 10, "b": 1, "c": 4}
"""Clips of a film: one a second. Of all 15, those of `b` are fewer than 10%, and of `c` more."""


@dataclass(frozen=True)
class Place:
    """Sources, and the output of a finished run over all of them."""

    sources: Path
    out: Path

    def code(self, *more: str, sources: str | None = None) -> int:
        sets = [part for setting in SETTINGS for part in ("--set", setting)]
        return main(run_arguments(sources or self.sources, self.out, *sets, *more))

    def film(self, name: str) -> Path:
        return self.sources / f"{name}.mp4"

    def samples(self) -> list[dict[str, Any]]:
        """The JSON of all samples in the shards that the manifest names."""
        folder = self.out / "shards"
        manifest = json.loads((folder / "manifest.json").read_text())
        names = [shard["name"].removesuffix(".tar") for shard in manifest["shards"]]
        files = (folder / f"{name}.meta.jsonl" for name in names)
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    def clips(self) -> dict[str, int]:
        return dict(Counter(Path(sample["source_uri"]).stem for sample in self.samples()))

    def objects(self) -> dict[str, str]:
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((self.out / "shards").rglob("*"))
            if path.is_file()
        }


def write_film(path: Path, seconds: float, seed: int) -> None:
    frames = moving_texture(round(seconds * 25), seed=seed, width_px=160, height_px=120)
    write_video(path, frames, fps=Fraction(25))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("finished")
    place = Place(folder / "in", folder / "out")
    place.sources.mkdir()
    for seed, (name, seconds) in enumerate(SECONDS.items()):
        write_film(place.film(name), seconds, seed)
    assert place.code() == EXIT_OK
    assert place.clips() == SECONDS
    return place


@pytest.fixture
def settled(finished: Place, tmp_path: Path) -> Iterator[Place]:
    """A copy of the finished run; its sources are restored after the test."""
    before = versions(finished.sources)
    pristine = shutil.copytree(finished.sources, tmp_path / "pristine")
    shutil.copytree(finished.out, tmp_path / "out")
    yield Place(finished.sources, tmp_path / "out")
    if versions(finished.sources) != before:
        shutil.rmtree(finished.sources)
        shutil.copytree(pristine, finished.sources)


def versions(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_ctime_ns for path in folder.rglob("*")}


@pytest.mark.long
def test_sources_at_another_address_lose_nothing(
    settled: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = {sample["clip_id"] for sample in settled.samples()}
    assert settled.code(sources=str(tmp_path / "pristine")) == EXIT_OK
    assert {sample["clip_id"] for sample in settled.samples()} == before
    assert not caplog.records


def test_fewer_sources_add_and_only_replace_leaves_the_others_out(
    settled: Place, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Pins problem 3: `curate run in/a.mp4 out` after `curate run in out`."""
    before = settled.objects()
    only_a = str(settled.film("a"))
    assert settled.code(sources=only_a) == EXIT_OK
    assert "this command does not name them: 2" in capsys.readouterr().out
    assert settled.objects() == before
    assert settled.code("--replace", sources=only_a) == EXIT_OK
    assert settled.clips() == {"a": 10}
    assert "5 clips (5.0 s of 2 sources, such as" in caplog.text
    assert "from sources that are not in this run" in caplog.text
    # What the first snapshot names is still there.
    tars = {path for path in before if path.endswith(".tar")}
    assert {path: settled.objects().get(path) for path in tars} == {p: before[p] for p in tars}
    assert settled.code() == EXIT_OK
    assert settled.clips() == SECONDS
    caplog.clear()
    shutil.copy(settled.film("a"), settled.film("b"))
    assert settled.code() == EXIT_OK
    assert "1 clip (1.0 s of 1 source" in caplog.text
    assert "from sources with other content now" in caplog.text
    assert settled.clips() == {"a": 10, "c": 4}


def test_new_sources_give_what_all_at_once_give(settled: Place, tmp_path: Path) -> None:
    grown = Place(settled.sources, tmp_path / "grown")
    assert grown.code(sources=str(settled.film("c"))) == EXIT_OK
    assert grown.code(sources=str(settled.film("a"))) == EXIT_OK
    assert grown.code(sources=str(settled.film("b"))) == EXIT_OK
    assert grown.clips() == SECONDS
    ids = [{sample["clip_id"] for sample in place.samples()} for place in (grown, settled)]
    assert ids[0] == ids[1]


def test_a_dry_run_prints_what_a_run_would_remove(
    settled: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = settled.out.parent / "most.txt"
    manifest.write_text(f"{settled.film('a')}\n{settled.film('c')}\n")
    assert settled.code("--dry-run", sources=str(manifest)) == EXIT_OK
    said = capsys.readouterr().out
    assert "1 source of earlier runs would stay" in said
    assert "would leave the shards" not in said
    assert settled.code("--dry-run", "--replace", sources=str(manifest)) == EXIT_OK
    said = capsys.readouterr().out
    assert "clips would leave the shards: 1 clip (1.0 s of 1 source, such as" in said
    assert f"{settled.film('b')}) from sources that are not in this run" in said


def test_failed_sources_that_a_run_does_not_name_leave_the_table_with_a_warning(
    settled: Place, caplog: pytest.LogCaptureFixture
) -> None:
    settled.film("broken").write_bytes(b"no film at all")
    assert settled.code() == EXIT_OK
    assert settled.code() == EXIT_OK
    assert "failed sources of earlier runs" not in caplog.text
    settled.film("broken").unlink()
    assert settled.code() == EXIT_OK
    assert "failed sources of earlier runs that this run does not name: 1;" in caplog.text
    caplog.clear()
    assert settled.code() == EXIT_OK
    assert "failed sources of earlier runs" not in caplog.text


def test_the_clips_of_a_source_that_is_gone_stay(settled: Place) -> None:
    before = settled.objects()
    settled.film("b").unlink()
    assert settled.code() == EXIT_OK
    assert settled.objects() == before
    assert settled.code("--replace") == EXIT_OK
    assert settled.clips() == {"a": 10, "c": 4}


@pytest.mark.parametrize(
    ("film", "more", "said", "clips"),
    [
        ("b", (), "1 of 15 clips would leave the shards|"
         "from sources that cannot be read or analyzed|"
         "the run removed nothing, and kept its work|--replace", {"a": 10, "c": 4}),
        # Other content at an address, above a tenth of the clips.
        ("c", (), "4 clips (4.0 s of 1 source|from sources with other content now", SECONDS),
        # A source whose analysis fails now.
        ("", ("--set", "analyze.max_frames=60"),
         "14 clips (|from sources that cannot be read or analyzed", None),
    ],
)  # fmt: skip
def test_clips_of_sources_that_failed_or_changed_need_replace(
    settled: Place,
    capsys: pytest.CaptureFixture[str],
    film: str,
    more: tuple[str, ...],
    said: str,
    clips: dict[str, int] | None,
) -> None:
    before = settled.objects()
    if film == "b":
        settled.film("b").write_bytes(b"no film at all")
    elif film:
        write_film(settled.film("c"), 4, seed=9)
    assert settled.code(*more) == EXIT_USAGE
    error = capsys.readouterr().err.splitlines()[-1]
    assert [words for words in said.split("|") if words not in error] == []
    assert settled.objects() == before
    if clips is not None:
        assert settled.code("--replace") == EXIT_OK
        assert settled.clips() == clips


def test_a_limit_and_a_folder_that_cannot_be_listed_remove_nothing(
    settled: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert settled.code("--limit", "2", "--replace") == EXIT_USAGE
    assert "--replace with --limit 2 would remove" in capsys.readouterr().err
    assert settled.code("--limit", "1") == EXIT_OK
    assert settled.clips() == SECONDS
    folder = settled.sources / "more"
    folder.mkdir()
    shutil.move(settled.film("b"), folder / "b.mp4")
    assert settled.code() == EXIT_OK
    before = settled.objects()

    def locked(listing: Callable[[str], Any]) -> Callable[[str], Any]:
        def listed(path: str) -> Any:  # noqa: ANN401 - as it is there
            if path == str(folder):
                raise PermissionError(13, "Permission denied", path)
            return listing(path)

        return listed

    monkeypatch.setattr(file_walk, "_entries", locked(file_walk._entries))
    monkeypatch.setattr(os, "listdir", locked(os.listdir))
    for sources in (settled.sources, f"{settled.sources}/**/*.mp4", f"{settled.sources}/m*/*.mp4"):
        assert settled.code("--replace", sources=str(sources)) == EXIT_USAGE
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"cannot list all sources: make {folder} readable" in error
    assert settled.objects() == before
    assert settled.code() == EXIT_OK
    assert settled.clips() == SECONDS


def test_what_the_recipe_rejects_is_printed_and_goes(
    settled: Place, caplog: pytest.LogCaptureFixture
) -> None:
    assert settled.code("--set", "select.max_per_group=3", "--set", "select.by=[]") == EXIT_OK
    assert sum(settled.clips().values()) == 3
    assert "12 clips (12.0 s of" in caplog.text
    assert "that the recipe or a mark rejects" in caplog.text


def test_clips_that_the_recipe_makes_no_longer_are_not_called_rejected(
    settled: Place, caplog: pytest.LogCaptureFixture
) -> None:
    assert settled.code("--set", "cut.size=[128x96]") == EXIT_OK
    assert "that the recipe makes no longer" in caplog.text
    assert "rejects" not in caplog.text


STAGE = """
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from curator.stage import ClipFrames, PixelStage, StageConfig


class BreaksConfig(StageConfig):
    clip: str


class Breaks(PixelStage[BreaksConfig]):
    name = "breaks"
    version = 1
    config_type = BreaksConfig

    def process(self, unit: ClipFrames) -> Iterator[NDArray[np.uint8]]:
        if unit.clip_id == self.config.clip:
            raise ValueError("this one not")
        yield from unit.frames
"""


@pytest.mark.long
def test_clips_that_cannot_be_cut_again_need_replace(
    settled: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a custom stage, which fails on clips that are in the shards."""
    folder = settled.out.parent
    (folder / "breaking_stage.py").write_text(STAGE)
    monkeypatch.syspath_prepend(str(folder))
    (clip,) = (clip["clip_id"] for clip in settled.samples() if "/b.mp4" in clip["source_uri"])
    changed = ("--set", f"stages=[{{use: breaking_stage:Breaks, config: {{clip: '{clip}'}}}}]")
    before = settled.objects()
    assert settled.code(*changed) == EXIT_USAGE
    error = capsys.readouterr().err.splitlines()[-1]
    for words in ("1 clip (", "that could not be cut again (", "this one not",
                  "fix the failure, or name another OUT"):  # fmt: skip
        assert words in error
    assert settled.objects() == before
    assert settled.code(*changed, "--replace") == EXIT_OK
    assert settled.clips() == {"a": 10, "c": 4}


def test_what_the_shards_hold_must_be_known(
    settled: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    (settled.out / "summary.json").unlink()
    assert settled.code(sources=str(settled.film("a"))) == EXIT_OK
    assert settled.clips() == SECONDS
    (settled.out / "summary.json").unlink()
    shutil.rmtree(settled.out / "snapshots")
    shutil.rmtree(settled.out / "sources")
    assert settled.code(sources=str(settled.film("a"))) == EXIT_USAGE
    assert "5 of 15 clips would leave the shards" in capsys.readouterr().err
    table = settled.out / "shards" / "dataset.parquet"
    table.write_bytes(table.read_bytes()[:100])
    shutil.rmtree(settled.out / "clips")
    before = settled.objects()
    assert settled.code() == EXIT_USAGE
    error = capsys.readouterr().err.splitlines()[-1]
    assert "nothing says which clips this run would remove" in error
    assert settled.objects() == before
    assert settled.code("--replace") == EXIT_OK
    assert settled.clips() == SECONDS


def test_python_adds_and_replaces_too(settled: Place) -> None:
    film, out = settled.film("a"), settled.out
    assert curator.run(film, out, overrides=SETTINGS)["counts"]["kept"] == 15
    assert curator.run(film, out, overrides=SETTINGS, replace=True)["counts"]["kept"] == 10

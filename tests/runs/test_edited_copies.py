"""Edited copies: in one output, in another one, and of footage that was removed."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from captioned import work_here
from film_makers import write_video
from film_shots import photograph
from numpy.typing import NDArray
from place import Place

from curator.cli import main
from curator.recipe import recipe_names
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.split_groups import drawn_split
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE
from curator.tools.review.bound_tuning import tune
from curator.tools.review.changed_decisions import NOT_PROPOSED
from curator.tools.review.finished_run import open_finished

Picture = NDArray[np.uint8]
Edit = Callable[[Picture], Picture]
N_FRAMES = 120


def plain(picture: Picture) -> Picture:
    return picture


def mirrored_crop(picture: Picture) -> Picture:
    """The right 80%, mirrored and darker."""
    height, width = picture.shape[:2]
    part = picture[height // 10 : height * 9 // 10, width // 5 :][:, ::-1]
    return cv2.resize((part * 0.8).astype(np.uint8), (480, 288), interpolation=cv2.INTER_AREA)


def small(picture: Picture) -> Picture:
    return cv2.resize(picture, (480, 270), interpolation=cv2.INTER_AREA)


def film(name: str, edit: Edit = plain, since: int = 0, until: int = N_FRAMES) -> Iterator[Picture]:
    """A camera that swings over a photograph."""
    picture = photograph(name)
    width = picture.shape[1] * 3 // 5
    height = width * 9 // 16
    rest = picture.shape[1] - width, picture.shape[0] - height
    for number in range(since, until):
        swing = np.sin(number / 35.0), np.cos(number / 50.0)
        left, top = (round(r * (0.5 + 0.45 * s)) for r, s in zip(rest, swing, strict=True))
        view = picture[top : top + height, left : left + width]
        yield edit(cv2.resize(view, (640, 360), interpolation=cv2.INTER_AREA))


def write(path: Path, name: str, edit: Edit = plain, **frames: int) -> None:
    path.parent.mkdir(exist_ok=True)
    write_video(path, film(name, edit, **frames), options={"crf": "26"})


class Copies(Place):
    """Films of the same footage."""

    settings = ("shard.max_bytes=10000000", "caption.enabled=false")

    def by_film(self) -> dict[str, dict[str, Any]]:
        """The clip of each film, by its name; a part of it has a `+` behind that."""
        return {
            Path(row["source_uri"]).stem + "+" * ("remainder" in row["tags"]): row
            for row in self.table("clips")
        }


@pytest.fixture(scope="module", autouse=True)
def _here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        yield


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    """An output of two films, an edited copy of one, and more of the other; not to be changed."""
    folder = tmp_path_factory.mktemp("copies")
    write(folder / "in" / "coins.mp4", "coins")
    write(folder / "in" / "motorcycle.mp4", "motorcycle")
    write(folder / "in" / "copy.mp4", "coins", mirrored_crop, since=24)
    write(folder / "in" / "more.mp4", "motorcycle", small, since=50, until=190)
    place = Copies(folder / "in", folder / "out")
    place.run()
    return place


def test_an_edited_copy_names_the_clip_that_stays_and_where_it_is(first: Copies) -> None:
    clips = first.by_film()
    assert {name for name, clip in clips.items() if clip["decision"] == "kept"} == {
        "coins", "motorcycle", "more+",
    }  # fmt: skip
    copy = clips["copy"]
    assert (copy["reason"], copy["duplicate_of"]) == ("duplicate", clips["coins"]["clip_id"])
    assert copy["duplicate_offset_s"] == pytest.approx(1.0, abs=0.3)
    assert 3.0 <= copy["duplicate_overlap_s"] <= 4.1
    assert copy["reason_score"] >= 0.8


def test_sources_that_share_footage_are_in_one_split(first: Copies, tmp_path: Path) -> None:
    """Pins two kept clips of one film, for a seed that parts their sources by their ids."""
    clips = first.by_film()
    ids = [clips[name]["source_id"] for name in ("motorcycle", "more")]
    seed = next(
        seed
        for seed in range(99)
        if len({drawn_split(name, ShardConfig(seed=seed, val_share=0.5)) for name in ids}) == 2
    )
    again = first.copy(tmp_path)
    again.run(f"shard.seed={seed}", "shard.val_share=0.5")
    split = {name: clip["shard"].rpartition("/")[2][:3] for name, clip in again.by_film().items()
             if clip["shard"]}  # fmt: skip
    assert split["motorcycle"] == split["more+"]


def test_tune_decides_about_remainders(first: Copies) -> None:
    """Pins that nothing changes without changes, and that an undivided clip leaves no remainder."""
    finished = open_finished(str(first.out))
    name = {clip["clip_id"]: name for name, clip in first.by_film().items()}
    ids = [name[clip_id] for clip_id in finished.clips["clip_id"].to_pylist()]
    tuned = tune(finished, [])
    assert tuned.then == tuned.now
    assert not tuned.unknown
    whole = dict(zip(ids, tune(finished, ["dedup.remainders=false"]).then, strict=True))
    assert (whole["more"], whole["more+"]) == (None, NOT_PROPOSED)
    gone = tune(finished, ["dedup.enabled=false"])
    assert dict(zip(ids, gone.then, strict=True)) == {
        "coins": None, "motorcycle": None, "copy": None, "more": None, "more+": NOT_PROPOSED,
    }  # fmt: skip
    assert any("2 clips would newly be kept" in line for line in gone.unknown)


def test_what_only_a_part_of_a_clip_shows_is_a_clip(
    first: Copies, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins the part's span, that a rerun makes nothing anew, and what `explain` says."""
    clips = first.by_film()
    whole, part = clips["more"], clips["more+"]
    assert (whole["reason"], whole["duplicate_of"]) == ("divided", clips["motorcycle"]["clip_id"])
    assert whole["reason_score"] == pytest.approx(70 / 140, abs=0.03)
    assert whole["reason_detail"] == "2.3 s that only it has are 1 clip of its own"
    assert part["reason_detail"] == f"remainder of {whole['clip_id']}"
    assert part["start_frame"] == pytest.approx(70, abs=3)
    assert (part["end_frame"], part["shot"], part["cut_mode"]) == (140, 0, "encode")
    # Scores are of the part.
    assert part["duration_s"] == pytest.approx(70 / 30, abs=0.1)
    assert part["motion"] != whole["motion"]
    again = first.copy(tmp_path)
    work = again.run()["work"]
    assert again.by_film() == clips
    assert (work["sources_analyzed"], work["clips_cut"]) == (0, 0)
    for of, said in ((whole, f"is {part['clip_id']}, kept"), (part, part["reason_detail"])):
        capsys.readouterr()
        assert main(["explain", str(again.out), of["clip_id"]]) == EXIT_OK
        assert said in capsys.readouterr().out
    assert main(["tune", str(again.out), "dedup.min_share=0.3"]) == EXIT_OK


@pytest.mark.long
def test_footage_of_another_output_is_rejected_and_new_footage_stays(
    first: Copies, tmp_path: Path
) -> None:
    write(tmp_path / "in" / "again.mp4", "motorcycle", mirrored_crop)
    write(tmp_path / "in" / "coffee.mp4", "coffee")
    place = Copies(tmp_path / "in", tmp_path / "out")
    place.run(f"--against={first.out}")
    clips = place.by_film()
    assert clips["coffee"]["decision"] == "kept"
    assert clips["again"]["reason"] == "duplicate_elsewhere"
    theirs = first.by_film()["motorcycle"]["clip_id"]
    assert clips["again"]["reason_detail"] == f"{first.out}: {theirs}"
    assert clips["again"]["duplicate_of"] is None
    # What was compared is stored, and the recipe names the other output now.
    before = sorted((place.out / "duplicate_pairs").iterdir())
    assert main(["run", str(place.sources), str(place.out)]) == EXIT_OK
    assert sorted((place.out / "duplicate_pairs").iterdir()) == before
    assert place.by_film() == clips


def test_an_output_is_not_compared_with_itself(
    first: Copies, capsys: pytest.CaptureFixture[str]
) -> None:
    assert first.code(f"--against={first.out}") == EXIT_USAGE
    assert "is this run's own output" in capsys.readouterr().err


@pytest.fixture(scope="module")
def returned(first: Copies, tmp_path_factory: pytest.TempPathFactory) -> Copies:
    """The output after the removal of a film, which comes back edited; not to be changed."""
    folder = tmp_path_factory.mktemp("returned")
    out = Path(shutil.copytree(first.out, folder / "out"))
    (folder / "names").write_text(str(first.sources / "motorcycle.mp4"))
    assert main(["remove", str(out), "--sources", str(folder / "names")]) == EXIT_OK
    write(folder / "in" / "returned.mp4", "motorcycle", mirrored_crop)
    write(folder / "in" / "plain.mp4", "motorcycle", small)
    write(folder / "in" / "coffee.mp4", "coffee")
    place = Copies(folder / "in", out)
    place.run()
    return place


@pytest.mark.long
def test_edited_copies_of_removed_footage_stay_out(returned: Copies) -> None:
    clips = returned.by_film()
    assert {clips[name]["reason"] for name in ("returned", "plain")} == {"removed_before"}
    # The removed part of it does not come back either.
    assert (clips["more"]["reason"], clips["more+"]["decision"]) == ("removed_before", "kept")
    assert {clips[name]["decision"] for name in ("coffee", "coins")} == {"kept"}
    assert main(["verify", str(returned.out), "--removed"]) == EXIT_OK


WITHOUT_MODELS = (
    "analyze.clip=null", "analyze.device=cpu", "semantic.aesthetic=null", "semantic.reject=[]",
    "filters.aesthetic.severity=flag", "shard.by_content_type=false", "shard.embedding=scene",
    "filters.short_side_px.min=240", "shard.min_bytes=0",
)  # fmt: skip
"""Settings with which `cosmos` needs no model and keeps small films."""
OF_TRAINERS = {f"--recipe={name}" for name in ("wan", "ltx2", "hunyuan", "cosmos3", "tokenizer")}


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        ("--recipe=driving",),
        ("dedup.similarity=0.99", "dedup.neighbours=1", "dedup.min_share=1", "run.mode=growing"),
        ("dedup.enabled=false", "run.mode=growing"),
        ("dedup.enabled=false", "run.generation_hours=0.001"),
        ("dedup.enabled=false", "dedup.remainders=false"),
        ("dedup.enabled=false", "select.by=[tags]", "select.max_per_group=9"),
        ("stages=[{use: dedup, after: select}]",),
        ("propose.max_s=4", "propose.min_s=1"),
        *(
            (f"--recipe={name}", *(WITHOUT_MODELS if name == "cosmos" else ()))
            for name in recipe_names()
            if name != "driving"
        ),
    ],
    ids=" ".join,
)
def test_no_recipe_lets_removed_footage_come_back(
    returned: Copies, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Pins that recognition is no setting, with an output that no other recipe has seen."""
    place = returned.copy(tmp_path)
    shutil.rmtree(place.out / "duplicate_pairs")
    place.run(*settings)
    clips = place.by_film()
    assert not {Path(clip["source_uri"]).stem for clip in place.clips()} & {"returned", "plain"}
    # Recipes of trainers reject these small, short films by their sizes or lengths as well.
    if settings[0] not in OF_TRAINERS:
        assert {clips[name]["reason"] for name in ("returned", "plain")} == {"removed_before"}
        assert clips["coffee"]["decision"] == "kept"


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("analyze.scenes=false",), "analyze.scenes is false.*add --set analyze.scenes=true"),
        (("analyze.scene_every_s=30",), "scene_every_s is 30.*--set analyze.scene_every_s=2"),
        (("analyze.thumbnail_every=4",), "thumbnail_every is 4.*--set analyze.thumbnail_every=2"),
        (("analyze.samples_per_s=0.2",), "samples_per_s is 0.2.*--set analyze.samples_per_s=1"),
    ],
)
def test_a_recipe_without_the_signals_of_recognition_is_refused(
    returned: Copies, capsys: pytest.CaptureFixture[str], settings: tuple[str, ...], said: str
) -> None:
    before = (returned.out / "summary.json").stat().st_mtime_ns
    assert returned.code(*settings) == EXIT_USAGE
    assert re.search(said, capsys.readouterr().err)
    assert (returned.out / "summary.json").stat().st_mtime_ns == before

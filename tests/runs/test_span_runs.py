"""Manifests with spans and groups, from their rows to clips, tables, splits and duplicates."""

import hashlib
import json
import re
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import webdataset
from film_makers import write_video
from film_shots import moving_texture
from place import SHORT, Place

from curator.cli import main
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE

FPS = Fraction(25)
HEAD = "uri,start_s,end_s,group,task\n"
EPISODES = (
    "0.mp4,0,2,e1,pick\n1.mp4,0,2,e1,pick\n0.mp4,2,4,e2,place\n1.mp4,2,,e2,place\n2.mp4,,,,\n"
)
FOUND = [
    ("0.mp4", 0, 50, "e1", "pick"), ("0.mp4", 50, 100, "e2", "place"),
    ("1.mp4", 0, 50, "e1", "pick"), ("1.mp4", 50, 150, "e2", "place"),
    ("2.mp4", 0, 75, None, None),
]  # fmt: skip
SETTINGS = tuple(s for s in SHORT if not s.startswith("dedup."))


class Spanned(Place):
    """Films with a manifest, and an output."""

    settings = (*SETTINGS, "cut.mode=encode", "--replace")

    def of(self, rows: str, name: str = "m.csv") -> "Spanned":
        (self.sources / name).write_text(HEAD + rows)
        return Spanned(self.sources / name, self.out)

    def found(self) -> list[tuple[Any, ...]]:
        """Source, frames, group and task of each clip."""
        return sorted(
            (Path(row["source_uri"]).name, row["start_frame"], row["end_frame"],
             row.get("meta.group"), row.get("meta.task"))
            for row in self.table("clips")
        )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Spanned:
    """Two cameras of two episodes, which show the same, and a film without rows of its own."""
    folder = tmp_path_factory.mktemp("spans")
    (folder / "in").mkdir()
    cameras = [*moving_texture(50, seed=1), *moving_texture(100, seed=4)]
    write_video(folder / "in" / "0.mp4", iter(cameras), fps=FPS)
    write_video(folder / "in" / "1.mp4", iter(cameras), fps=FPS, options={"crf": "30"})
    write_video(folder / "in" / "2.mp4", moving_texture(75, seed=2), fps=FPS)
    place = Spanned(folder / "in", folder / "out")
    place.of(EPISODES).run("shard.val_share=0.5", "dedup.min_share=0.5")
    return place


def test_clips_lie_in_spans_and_have_their_metadata(finished: Spanned) -> None:
    """Pins frames, metadata, the table of sources, and that cameras of a group all stay."""
    assert finished.found() == FOUND
    assert len(finished.clips()) == len(FOUND)
    by_name = {Path(row["uri"]).name: row for row in finished.table("sources")}
    assert by_name["2.mp4"]["spans"] is None
    assert by_name["0.mp4"]["meta.group"] is None
    assert '"start_s": 2.0, "end_s": null' in by_name["1.mp4"]["spans"]
    spans = {(row["span_start_s"], row["span_end_s"]) for row in finished.table("clips")}
    assert spans == {(0.0, 2.0), (2.0, 4.0), (2.0, None), (None, None)}
    splits = {row["source_uri"]: row["shard"].split("/")[-1][:3] for row in finished.clips()}
    assert splits[by_name["0.mp4"]["uri"]] == splits[by_name["1.mp4"]["uri"]]


def test_without_groups_the_second_camera_is_a_duplicate(finished: Spanned, tmp_path: Path) -> None:
    """Pins that the comparison finds these cameras, so that it is the group that keeps them."""
    place = finished.copy(tmp_path)
    rows = EPISODES.replace("1.mp4,0,2,e1", "1.mp4,0,2,e3").replace("1.mp4,2,,e2", "1.mp4,2,,e4")
    place.of(rows, "others.csv").run()
    reasons = [row["reason"] for row in place.clips("rejected")]
    assert reasons == ["duplicate"] * 2


def test_other_spans_and_metadata_decode_nothing(finished: Spanned, tmp_path: Path) -> None:
    """Pins a rerun with a renamed task, one with another border, and one by folder."""
    place = finished.copy(tmp_path)
    summary = place.of(EPISODES.replace("pick", "grip"), "task.csv").run()
    assert summary["work"]["sources_analyzed"] == 0
    assert place.found() == [(*row[:4], row[4] and row[4].replace("pick", "grip")) for row in FOUND]
    summary = place.of(EPISODES.replace("0.mp4,0,2,", "0.mp4,0.4,2,"), "border.csv").run()
    assert summary["work"]["sources_analyzed"] == 0
    assert place.found() == [("0.mp4", 10, 50, "e1", "pick"), *FOUND[1:]]
    # Sources of earlier runs keep their spans.
    extra = shutil.copy(finished.sources / "2.mp4", tmp_path / "3.mp4")
    write_video(Path(extra), moving_texture(75, seed=5), fps=FPS)
    Place(Path(extra), place.out).run(*SETTINGS, "cut.mode=encode")
    assert place.found()[:-1] == [("0.mp4", 10, 50, "e1", "pick"), *FOUND[1:]]


@pytest.mark.long
def test_a_growing_run_decides_again_when_spans_change(finished: Spanned, tmp_path: Path) -> None:
    place = Spanned(finished.sources, tmp_path / "out")
    place.of("0.mp4,0,2,e1,pick\n", "grow.csv").run("run.mode=growing")
    place.of("0.mp4,0,2,e1,pick\n0.mp4,2,4,e2,place\n", "grow.csv").run("run.mode=growing")
    assert place.found() == FOUND[:2]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("0.mp4,0,2,a,b\n0.mp4,1.5,3,a,b\n", r"0 s to 2 s and from 1\.5 s to 3 s overlap"),
        ("0.mp4,,,a,b\n0.mp4,1,3,a,b\n", r"0 s to the end and from 1 s to 3 s overlap"),
        ("0.mp4,2,2,a,b\n", r"from 2 s to 2 s has no length"),
        ("0.mp4,-1,2,a,b\n", r"start_s is '-1'"),
        ("0.mp4,0,soon,a,b\n", r"end_s is 'soon'"),
        ("0.mp4,nan,2,a,b\n", r"start_s is 'nan'"),
    ],
)
def test_wrong_spans_are_refused_before_any_decode(
    finished: Spanned, tmp_path: Path, rows: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Spanned(finished.sources, tmp_path / "out").of(rows, f"{tmp_path.name}.csv")
    assert main(place.arguments()) == EXIT_USAGE
    error = capsys.readouterr().err

    assert re.search(words, error), error
    assert not (tmp_path / "out" / "tracks").exists()


@pytest.mark.long
def test_a_span_behind_the_end_is_noted(finished: Spanned, tmp_path: Path) -> None:
    place = Spanned(finished.sources, tmp_path / "out")
    place.of("2.mp4,0,2,a,b\n2.mp4,9,12,a,c\n", "late.csv").run()
    assert place.table("sources")[0]["notes"] == ["span_outside"]
    assert place.found() == [("2.mp4", 0, 50, "a", "b")]


def rigged(finished: Spanned, out: Path, name: str, rows: str, *settings: str) -> Spanned:
    (finished.sources / name).write_text(rows)
    place = Spanned(finished.sources / name, out)
    place.run("cameras.clock=given", *settings)
    return place


def test_cameras_are_cut_at_the_same_instants_and_exported_together(
    finished: Spanned, tmp_path: Path
) -> None:
    """Pins moments of spans and of whole sources, their columns, samples, and tars by camera."""
    place = rigged(finished, tmp_path / "out", "rig.csv", HEAD + EPISODES)
    found: dict[str, list[tuple[str, int, int]]] = {}
    for row in place.table("clips"):
        if row["moment"] is not None:
            name = Path(row["source_uri"]).name
            at = (name, row["start_frame"], row["end_frame"])
            found.setdefault(row["moment"], []).append(at)
            assert row["moment_offset_s"] == 0
            assert row["moment_residual_s"] is None
    assert sorted(map(sorted, found.values())) == [
        [("0.mp4", 0, 50), ("1.mp4", 0, 50)], [("0.mp4", 50, 100), ("1.mp4", 50, 100)],
        [("1.mp4", 100, 150)],
    ]  # fmt: skip
    clips = {row["source_uri"]: row for row in place.table("clips")}
    assert clips[str(finished.sources / "2.mp4")]["moment_cameras"] is None
    command = ["export", str(place.out), str(tmp_path / "cams"), "--format", "cameras"]
    assert main(command) == EXIT_OK
    tars = [str(path) for path in (tmp_path / "cams").rglob("*.tar")]
    samples = list(webdataset.WebDataset(tars, shardshuffle=False))
    both = [sample for sample in samples if "0.mp4" in sample]
    assert len(both) == 2
    for sample in both:
        fields = json.loads(sample["json"])["cameras"]
        for camera in ("0", "1"):
            assert (
                hashlib.sha256(sample[f"{camera}.mp4"]).hexdigest() == fields[camera]["mp4_sha256"]
            )
        assert fields["0"]["n_frames"] == fields["1"]["n_frames"] == 50


def test_an_export_of_cameras_without_moments_names_the_setting(
    finished: Spanned, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(finished.out), str(tmp_path / "cams"), "--format", "cameras"]
    assert main(command) == EXIT_USAGE
    assert "cameras.clock" in capsys.readouterr().err


@pytest.mark.long
def test_a_moment_is_kept_whole_or_not_at_all(finished: Spanned, tmp_path: Path) -> None:
    """Pins that a rule that rejects one camera rejects the other of the same moment alone."""
    rows = "uri,group,grade\n0.mp4,r,1\n1.mp4,r,2\n2.mp4,,2\n"
    place = rigged(finished, tmp_path / "out", "grades.csv", rows, "filters.meta.grade.min=2")
    reasons = {
        (Path(row["source_uri"]).name, row["start_frame"]): row["reason"]
        for row in place.table("clips")
    }
    assert reasons["1.mp4", 0] == "incomplete_moment"
    assert reasons["0.mp4", 0] == "meta.grade_too_low"
    assert reasons["2.mp4", 0] is None


@pytest.mark.long
def test_cameras_without_common_content_are_refused_with_the_reason(
    finished: Spanned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (finished.sources / "far.csv").write_text("uri,group\n0.mp4,r\n2.mp4,r\n")
    place = Spanned(finished.sources / "far.csv", tmp_path / "out")
    place.run("cameras.clock=content", "analyze.activity=true")
    assert {row["reason"] for row in place.table("clips")} == {"not_aligned"}
    clocks = [json.loads(row["clock"])["refused"] for row in place.table("sources")]
    assert all("0.mp4" in why and "no_common_series" in why for why in clocks)
    assert "without a common clock" in caplog.text

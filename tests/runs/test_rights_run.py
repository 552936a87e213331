"""Licence, origin and C2PA of sources: columns, the gate before the decode, and another recipe."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from place import SHORT, Place, write_films
from signed_films import signed

from curator.cli import main
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE

RIGHTS = ("rights.license=meta.license", "rights.origin=meta.url")
ROWS = (
    "uri,license,url\n0.mp4,cc0,https://www.example.org/0\n"
    "1.mp4,CC BY-NC 4.0,https://films.example/1\n2.mp4,,\n"
)
FREE = "rights.allow=[CC0, CC-BY-4.0]"


class Licensed(Place):
    """Films with a manifest, and an output."""

    settings = (*SHORT, *RIGHTS)

    def named(self, rows: str) -> "Licensed":
        """The same output, of a manifest with these rows."""
        (self.folder / "m.csv").write_text(rows)
        return Licensed(self.folder / "m.csv", self.out)

    @property
    def folder(self) -> Path:
        return self.sources if self.sources.is_dir() else self.sources.parent

    def outcomes(self) -> dict[str, str]:
        """Error code, or the outcome, by name of the source."""
        rows = self.table("sources")
        return {Path(row["uri"]).stem: row["error_code"] or row["outcome"] for row in rows}

    def licences(self) -> dict[str, Any]:
        """Licences of the kept clips, by name of the source."""
        return {Path(clip["source_uri"]).stem: clip["license"] for clip in self.clips()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Licensed:
    """A run that refuses two of three sources."""
    folder = tmp_path_factory.mktemp("rights")
    place = Licensed(write_films(folder / "in", (40, 40, 40)), folder / "out").named(ROWS)
    place.run(FREE)
    return place


@pytest.fixture
def place(finished: Licensed, tmp_path: Path) -> Licensed:
    """The finished run in another place."""
    shutil.copytree(finished.folder, tmp_path / "in")
    shutil.copytree(finished.out, tmp_path / "out")
    return Licensed(tmp_path / "in", tmp_path / "out").named(ROWS)


def test_sources_of_other_licences_are_refused_before_they_are_decoded(
    finished: Licensed,
) -> None:
    """Pins codes, messages, columns, samples, and that nothing of these sources is stored."""
    summary = finished.summary()
    assert finished.outcomes() == {
        "0": "done", "1": "license_not_allowed", "2": "license_not_allowed",
    }  # fmt: skip
    assert summary["work"]["sources_analyzed"] == 1
    assert summary["counts"]["by_error"] == {"license_not_allowed": 2}
    rows = finished.table("sources")
    assert [row["license"] for row in rows] == ["CC0-1.0", "CC-BY-NC-4.0", None]
    assert "is 'CC-BY-NC-4.0', and rights.allow has CC0-1.0, CC-BY-4.0" in rows[1]["error_message"]
    assert "meta.license, is missing" in rows[2]["error_message"]
    refused = [row["source_id"] for row in rows[1:]]
    for path in finished.out.rglob("*.parquet"):
        table = pq.read_table(path)
        is_list = {"scan", "sources"} & {*path.relative_to(finished.out).parts}
        if "source_id" in table.column_names and not is_list:
            assert not {*table["source_id"].to_pylist()} & {*refused}, path
    (clip,) = finished.clips()
    names = ("license", "origin", "c2pa", "c2pa_generated")
    assert [clip[n] for n in names] == ["CC0-1.0", "https://www.example.org/0", None, None]
    sample = json.loads(finished.sample(clip, "json"))
    assert {n: sample[n] for n in names if n in sample} == {
        "license": "CC0-1.0", "origin": "https://www.example.org/0",
    }  # fmt: skip
    (card,) = (finished.out / "shards").glob("*/README.md")
    assert "| CC0-1.0 | 1 |" in card.read_text()
    assert "- name: license\n      dtype: string" in card.read_text()


@pytest.mark.parametrize("mode", ["exact", pytest.param("growing", marks=pytest.mark.long)])
def test_another_allow_decides_again_from_what_is_stored(place: Licensed, mode: str) -> None:
    """Pins that a wider gate analyzes only new sources, and a narrower one drops clips at once."""
    set_mode = f"run.mode={mode}"
    work = place.run("rights.allow=[CC0, CC-BY-NC-4.0]", set_mode)["work"]
    assert work["sources_analyzed"] == 1
    assert place.licences() == {"0": "CC0-1.0", "1": "CC-BY-NC-4.0"}
    work = place.run("rights.allow=[CC-BY-NC-4.0]", set_mode)["work"]
    assert work["sources_analyzed"] == 0
    assert place.licences() == {"1": "CC-BY-NC-4.0"}
    assert main(["verify", str(place.out)]) == EXIT_OK
    # Another licence in the manifest counts, too.
    again = place.named(ROWS.replace("cc0", "CC BY-NC 4.0"))
    work = again.run("rights.allow=[CC-BY-NC-4.0]", set_mode)["work"]
    assert work["sources_analyzed"] == 0
    assert again.licences() == {"0": "CC-BY-NC-4.0", "1": "CC-BY-NC-4.0"}
    place.named(ROWS).run("rights.allow=null", set_mode)
    assert place.outcomes() == dict.fromkeys("012", "done")


def test_refused_sources_stay_when_a_run_does_not_name_them(place: Licensed) -> None:
    """Pins that carried sources are refused and allowed by their stored licence."""
    only = place.named("".join(ROWS.splitlines(keepends=True)[:2]))
    only.run("rights.allow=[MIT, CC-BY-NC-4.0]")
    assert only.outcomes() == {
        "0": "license_not_allowed", "1": "done", "2": "license_not_allowed",
    }  # fmt: skip
    only.run(FREE)
    assert only.licences() == {"0": "CC0-1.0"}
    assert only.outcomes()["1"] == "license_not_allowed"


def test_a_copy_with_another_licence_decides_for_itself(place: Licensed) -> None:
    shutil.copy(place.folder / "1.mp4", place.folder / "z.mp4")
    both = place.named(ROWS + "z.mp4,cc by 4.0,https://films.example/z\n")
    both.run(FREE)
    assert both.licences() == {"0": "CC0-1.0", "z": "CC-BY-4.0"}
    outcomes = both.outcomes()
    assert (outcomes["1"], outcomes["z"]) == ("license_not_allowed", "done")


def test_one_refused_span_refuses_its_source(place: Licensed) -> None:
    rows = "uri,license,url,start_s,end_s\n0.mp4,cc0,a,0,0.8\n0.mp4,MIT,a,0.8,\n1.mp4,MIT,b,,\n"
    spans = place.named(rows)
    spans.run("rights.allow=[MIT]", "--replace", "propose.min_s=0.5")
    assert spans.outcomes() == {"0": "license_not_allowed", "1": "done"}
    spans.run("rights.allow=[MIT, CC0]", "propose.min_s=0.5")
    by_span = [(clip["span_start_s"], clip["license"]) for clip in spans.table("clips")]
    assert sorted(by_span, key=str) == [(0.0, "CC0-1.0"), (0.8, "MIT"), (None, "MIT")]


def test_generated_and_reserved_footage_is_refused(place: Licensed) -> None:
    """Pins both gates, the columns of C2PA, and that a repeated run reads no manifest again."""
    film = place.folder / "1.mp4"
    film.write_bytes(signed(film.read_bytes()))
    rows = "uri,license,tdm\n0.mp4,cc0,0\n1.mp4,cc0,0\n2.mp4,cc0,1\n"
    place = place.named(rows)
    settings = ("rights.origin=null", "scan.c2pa=true", "rights.reserved=meta.tdm", "--replace")
    place.run(*settings)
    assert place.outcomes() == {"0": "done", "1": "done", "2": "rights_reserved"}
    c2pa = {Path(c["source_uri"]).stem: (c["c2pa"], c["c2pa_generated"]) for c in place.clips()}
    assert c2pa == {"0": ("none", None), "1": ("valid", True)}
    summary = place.run(*settings, "rights.generated=refuse")
    assert place.outcomes() == {"0": "done", "1": "generated", "2": "rights_reserved"}
    assert (summary["work"]["sources_scanned"], summary["counts"]["kept"]) == (0, 1)


def test_a_dry_run_counts_what_is_refused(
    place: Licensed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.code("rights.allow=[CC-BY-NC-4.0]", "--dry-run") == EXIT_OK
    said = capsys.readouterr().out
    assert "2 refused by rights of the recipe" in said
    assert "from sources that rights of the recipe refuses" in said


def test_explain_and_the_report_say_why(
    finished: Licensed, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(finished.out)
    assert main(["explain", out, "1.mp4"]) == EXIT_OK
    said = capsys.readouterr().out
    assert "failed: license_not_allowed (rights)" in said
    assert "licence: CC-BY-NC-4.0; origin: https://films.example/1" in said
    assert main(["explain", out, finished.clips()[0]["clip_id"]]) == EXIT_OK
    assert "licence: CC0-1.0; origin: https://www.example.org/0" in capsys.readouterr().out
    assert main(["report", out, "--rights"]) == EXIT_OK
    said = capsys.readouterr().out
    assert "| CC0-1.0 | 1 | 1 |" in said
    assert "| license_not_allowed | CC-BY-NC-4.0 | 1 |" in said


def test_exports_carry_the_licence(finished: Licensed, tmp_path: Path) -> None:
    main(["export", str(finished.out), str(tmp_path / "folder"), "--format", "folder"])
    (row,) = (tmp_path / "folder" / "train" / "metadata.jsonl").read_text().splitlines()
    facts = json.loads(row)
    assert (facts["license"], facts["origin"]) == ("CC0-1.0", "https://www.example.org/0")
    main(["export", str(finished.out), str(tmp_path / "robot"), "--format", "lerobot"])
    (path,) = (tmp_path / "robot" / "train" / "meta" / "episodes").rglob("*.parquet")
    episodes = pq.read_table(path)
    assert episodes["license"].to_pylist() == ["CC0-1.0"]


def test_a_recipe_that_cannot_be_meant_is_refused(
    place: Licensed, capsys: pytest.CaptureFixture[str]
) -> None:
    for settings, words in {
        ("rights.license=null", FREE): "rights.license is null: set it to the column of metadata",
        ("rights.license=license",): "expected a column of metadata, such as meta.license",
        ("rights.generated=refuse",): "scan.c2pa is false, so no manifest is read",
        ("rights.license=meta.licence",): "did you mean 'meta.license'",
    }.items():
        assert place.code(*settings) == EXIT_USAGE
        assert words in capsys.readouterr().err

"""Metadata of sources, from a manifest or a sidecar to tables, rules, selection and samples."""

import io
import json
import shutil
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from film_makers import write_video
from film_shots import moving_texture

from curator.cli import main
from curator.commands.arguments import EXIT_OK, EXIT_USAGE

SETTINGS = ["--set", "shard.resolutions=[120]", "--set", "filters.short_side_px.min=100"]
HEADER = "uri,Rating,License,share,is ok,\n"
ROWS = "0.mp4,4,cc0,0.5,true,x\n1.mp4,2,cc-by,1,false,x\n2.mp4,,,,,x\n"


@dataclass(frozen=True)
class Place:
    """A folder of sources with manifests, and an output."""

    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def code(self, source: str, *settings: str) -> int:
        more = [part for setting in settings for part in ("--set", setting)]
        return main(
            [
                "run",
                "--recipe",
                "quickstart",
                str(self.folder / "in" / source),
                str(self.out),
                "--replace",
                *SETTINGS,
                *more,
            ]
        )

    def run(self, source: str, *settings: str) -> dict[str, Any]:
        assert self.code(source, *settings) == EXIT_OK
        return self.summary()

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return summary

    def table(self, name: str) -> pa.Table:
        return pq.read_table(self.out / name)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The columns of metadata, by the number of the source."""
        key = "source_uri" if name == "clips" else "uri"
        table = self.table(name).sort_by(key)
        return table.select([n for n in table.schema.names if n.startswith("meta.")]).to_pylist()

    def samples(self) -> list[dict[str, Any]]:
        named = self.summary()["shards"]
        tars = [str(self.out / shard["name"]) for shard in named]
        found = [json.loads(s["json"]) for s in webdataset.WebDataset(tars, shardshuffle=False)]
        return sorted(found, key=lambda sample: str(sample["source_uri"]))

    def reasons(self) -> list[str | None]:
        """First reason against the clip of each source."""
        found: list[str | None] = self.table("clips").sort_by("source_uri")["reason"].to_pylist()
        return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run over a CSV with metadata."""
    place = Place(tmp_path_factory.mktemp("metadata"))
    (place.folder / "in").mkdir()
    for number in range(3):
        frames = moving_texture(75, seed=number)
        write_video(place.folder / "in" / f"{number}.mp4", frames, fps=Fraction(25))
    (place.folder / "in" / "m.csv").write_text(HEADER + ROWS)
    place.run("m.csv")
    return place


@pytest.fixture
def place(finished: Place, tmp_path: Path) -> Place:
    """The finished run in a copy of the output; sources stay where they are."""
    shutil.copytree(finished.folder / "in", tmp_path / "in")
    shutil.copytree(finished.out, tmp_path / "out")
    return Place(tmp_path)


TYPED = [
    {"meta.rating": 4, "meta.license": "cc0", "meta.share": 0.5, "meta.is_ok": True},
    {"meta.rating": 2, "meta.license": "cc-by", "meta.share": 1.0, "meta.is_ok": False},
    dict.fromkeys(("meta.rating", "meta.license", "meta.share", "meta.is_ok")),
]


def test_columns_of_a_manifest_are_typed_columns_of_tables_and_in_samples(finished: Place) -> None:
    """Pins names, types and values in `sources`, `clips` and the samples' JSON."""
    assert finished.rows("sources") == TYPED
    assert finished.rows("clips") == TYPED
    schema = finished.table("clips").schema
    kinds = [str(schema.field(name).type) for name in TYPED[0]]
    assert kinds == ["int64", "string", "double", "bool"]
    assert [sample["meta"] for sample in finished.samples()] == [
        {name.removeprefix("meta."): value for name, value in row.items()} for row in TYPED
    ]


def test_without_metadata_nothing_has_another_column(finished: Place, tmp_path: Path) -> None:
    """Pins that the same sources by folder have today's columns and samples."""
    plain = Place(tmp_path)
    shutil.copytree(finished.folder / "in", tmp_path / "in")
    plain.run("")
    for name in ("sources", "clips"):
        assert [n for n in plain.table(name).schema.names if "meta" in n] == []
    assert all("meta" not in sample for sample in plain.samples())
    assert [sample["mp4_sha256"] for sample in plain.samples()] == [
        sample["mp4_sha256"] for sample in finished.samples()
    ]


def test_rules_bound_numbers_and_name_values(place: Place) -> None:
    """Pins reasons of each kind, and that nothing is analyzed again for a rule."""
    summary = place.run("m.csv", "filters.meta.rating.min=3")
    assert summary["work"]["sources_analyzed"] == 0
    assert place.reasons() == [None, "meta.rating_too_low", "not_measured"]
    place.run("m.csv", "filters.meta.rating={min: 3, unmeasured: keep}")
    assert place.reasons() == [None, "meta.rating_too_low", None]
    summary = place.run("m.csv", "filters.meta.license={one_of: [cc0], unmeasured: keep}")
    assert place.reasons() == [None, "meta.license_unwanted", None]
    (rule,) = (rule for rule in summary["rules"] if rule["rule"] == "meta.license")
    assert (rule["one_of"], rule["first"]) == (["cc0"], 1)
    place.run("m.csv", "filters.sound={score: meta.is_ok, none_of: [false], severity: flag}")
    assert place.reasons() == [None, None, None]
    tags = place.table("clips").sort_by("source_uri")["tags"].to_pylist()
    assert ["sound" in (some or ()) for some in tags] == [False, True, False]
    page = (place.out / "report" / "index.html").read_text()
    assert "meta.is_ok" in page


def test_selection_groups_by_metadata(place: Place) -> None:
    place.run("m.csv", "select.by=[meta.is_ok]", "select.keep_fractions={'True': 0}")
    assert place.reasons() == ["not_selected", None, None]
    details = place.table("clips").sort_by("source_uri")["reason_detail"].to_pylist()
    assert details[0] == "group True: 0 of 1 taken, this is no. 1"


def test_a_changed_value_is_read_and_no_source_decoded(place: Place) -> None:
    """Pins that values are not kept with what is stored of a source, and types follow them."""
    place.run("m.csv")
    (place.folder / "in" / "m.csv").write_text(HEADER + ROWS.replace("1.mp4,2", "1.mp4,high"))
    work = place.run("m.csv")["work"]
    assert (work["sources_scanned"], work["sources_analyzed"], work["clips_cut"]) == (0, 0, 0)
    assert [row["meta.rating"] for row in place.rows("clips")] == ["4", "high", None]
    assert [sample["meta"]["rating"] for sample in place.samples()] == ["4", "high", None]


def test_parquet_and_sidecars(place: Place) -> None:
    """Pins a list, a nested type that stays out, and that the manifest counts before a sidecar."""
    table = pa.table(
        {
            "uri": ["0.mp4", "1.mp4", "2.mp4"],
            "tags": [["a", "b"], ["b"], None],
            "when": pa.array([0, None, 86400], pa.timestamp("s")),
            "where": [{"x": 1}, None, None],
            "rating": [1.5, None, 3.0],
        }
    )
    pq.write_table(table, place.folder / "in" / "m.parquet")
    (place.folder / "in" / "0.mp4.json").write_text('{"Rating": 9, "camera": "x", "at": {"y": 1}}')
    (place.folder / "in" / "1.json").write_text('{"rating": 7}')
    (place.folder / "in" / "2.json").write_text("no JSON")
    place.run("m.parquet")
    tables = place.summary()["tables"]
    assert main(["recaption", str(place.out)]) == EXIT_OK
    assert place.summary()["tables"] == tables, "lists are written as a run writes them"
    without = place.rows("sources")
    assert [list(row) for row in without] == [["meta.tags", "meta.when", "meta.rating"]] * 3
    assert [row["meta.tags"] for row in without] == [["a", "b"], ["b"], None]
    assert [row["meta.when"] for row in without] == [
        "1970-01-01 00:00:00.000", None, "1970-01-02 00:00:00.000",
    ]  # fmt: skip
    place.run("m.parquet", "scan.sidecar_meta=true", "filters.meta.tags.one_of=[a]")
    found = place.rows("clips")
    assert [row["meta.rating"] for row in found] == [1.5, 7.0, 3.0]
    assert [row["meta.camera"] for row in found] == ["x", None, None]
    assert place.reasons() == [None, "meta.tags_unwanted", "not_measured"]


def test_the_first_mention_of_a_source_counts(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    others = "".join(f"{number}.mp4,,,,,\n" for number in (1, 2))
    (place.folder / "in" / "m.csv").write_text(HEADER + "0.mp4,1,a,,,\n0.mp4,2,b,,,\n" + others)
    place.run("m.csv")
    assert [row["meta.rating"] for row in place.rows("clips")] == [1, None, None]
    assert "named more than once, such as " in caplog.text


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("filters.meta.ratings.min=1", "did you mean 'meta.rating'"),
        ("select.by=[meta.nothing]", "no source has 'meta.nothing'"),
        ("filters.meta.license.min=1", "meta.license is of type string, and bounds need numbers"),
        ("filters.motion.one_of=[1]", "one_of and none_of are for metadata"),
        ("filters.meta.Rating.min=1", "or a column such as meta.rating"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(
    place: Place, setting: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.code("m.csv", setting) == EXIT_USAGE
    assert words in capsys.readouterr().err


def test_columns_that_become_one_are_refused(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    (place.folder / "in" / "m.csv").write_text("uri,a b,A-B\n0.mp4,1,2\n")
    assert place.code("m.csv") == EXIT_USAGE
    assert "more than one column would be 'meta.a_b'" in capsys.readouterr().err


def test_recaption_explain_and_tune_know_metadata(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins the commands that begin from a finished run."""
    place.run("m.csv", "filters.meta.license={none_of: [cc-by], unmeasured: keep}")
    out = str(place.out)
    assert main(["recaption", out, "--set", "caption.enabled=false"]) == EXIT_OK
    assert place.rows("clips") == TYPED
    assert [sample["meta"]["rating"] for sample in place.samples()] == [4, None]
    capsys.readouterr()
    (clip,) = place.table("clips").filter(pa.compute.field("reason").is_valid()).to_pylist()
    assert main(["explain", out, clip["clip_id"]]) == EXIT_OK
    said = capsys.readouterr().out
    assert "rejected: meta.license_unwanted" in said
    assert "none of cc-by" in said
    assert main(["tune", out, "meta.rating.max=3"]) == EXIT_OK
    said = capsys.readouterr().out
    assert "meta.rating: no rule -> max 3" in said
    assert Counter(line.split()[0] for line in io.StringIO(said) if "meta.rating_too_high" in line)

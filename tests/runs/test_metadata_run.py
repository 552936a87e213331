"""Metadata of sources, from a manifest or a sidecar to tables, rules, selection and samples."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from place import Place, write_films

from curator.cli import main
from curator.stages.shard.config import ShardConfig
from curator.stages.shard.split_groups import drawn_split
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE
from curator.tools.review.bound_tuning import tune
from curator.tools.review.changed_decisions import first_reasons
from curator.tools.review.clip_explanation import explain
from curator.tools.review.finished_run import open_finished
from tests.tools.review.test_remedies import remedies

HEADER = "uri,Rating,License,share,is ok,\n"
ROWS = "0.mp4,4,cc0,0.5,true,x\n1.mp4,2,cc-by,1,false,x\n2.mp4,,,,,x\n"


class Described(Place):
    """A folder of sources with manifests, and an output."""

    settings = (*Place.settings, "--replace")

    def of(self, source: str) -> "Described":
        """The same output of a manifest in the folder, or of the folder."""
        return Described(self.sources / source, self.out)

    def whole(self, name: str) -> pa.Table:
        return pq.read_table(self.out / name)

    def by_source(self, column: str) -> list[Any]:
        """A column of `clips` in the order of the sources."""
        values: list[Any] = self.whole("clips").sort_by("source_uri")[column].to_pylist()
        return values

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The columns of metadata, by the number of the source."""
        table = self.whole(name).sort_by("source_uri" if name == "clips" else "uri")
        return table.select([n for n in table.schema.names if n.startswith("meta.")]).to_pylist()

    def samples(self) -> list[dict[str, Any]]:
        tars = [str(self.out / shard["name"]) for shard in self.summary()["shards"]]
        found = [json.loads(s["json"]) for s in webdataset.WebDataset(tars, shardshuffle=False)]
        return sorted(found, key=lambda sample: str(sample["source_uri"]))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Described:
    """A run over a CSV with metadata."""
    folder = tmp_path_factory.mktemp("metadata")
    place = Described(write_films(folder / "in", (75, 75, 75)), folder / "out")
    (place.sources / "m.csv").write_text(HEADER + ROWS)
    place.of("m.csv").run()
    return place


@pytest.fixture
def place(finished: Described, tmp_path: Path) -> Described:
    """The finished run in another place."""
    shutil.copytree(finished.sources, tmp_path / "in")
    shutil.copytree(finished.out, tmp_path / "out")
    return Described(tmp_path / "in", tmp_path / "out")


TYPED = [
    {"meta.rating": 4, "meta.license": "cc0", "meta.share": 0.5, "meta.is_ok": True},
    {"meta.rating": 2, "meta.license": "cc-by", "meta.share": 1.0, "meta.is_ok": False},
    dict.fromkeys(("meta.rating", "meta.license", "meta.share", "meta.is_ok")),
]


def test_columns_of_a_manifest_are_typed_columns_of_tables_and_in_samples(
    finished: Described,
) -> None:
    """Pins names, types and values in `sources`, `clips` and the samples' JSON."""
    assert finished.rows("sources") == TYPED
    assert finished.rows("clips") == TYPED
    schema = finished.whole("clips").schema
    kinds = [str(schema.field(name).type) for name in TYPED[0]]
    assert kinds == ["int64", "string", "double", "bool"]
    assert [sample["meta"] for sample in finished.samples()] == [
        {name.removeprefix("meta."): value for name, value in row.items()} for row in TYPED
    ]


def test_without_metadata_nothing_has_another_column(finished: Described, tmp_path: Path) -> None:
    """Pins that the same sources by folder have today's columns and samples."""
    plain = Described(finished.sources, tmp_path / "out")
    plain.run()
    for name in ("sources", "clips"):
        assert [n for n in plain.whole(name).schema.names if "meta" in n] == []
    assert all("meta" not in sample for sample in plain.samples())
    assert [sample["mp4_sha256"] for sample in plain.samples()] == [
        sample["mp4_sha256"] for sample in finished.samples()
    ]


def test_sources_with_the_same_value_are_in_one_split(
    place: Described, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins cameras of a recording, for a seed that parts them by source; and an absent column."""
    (place.sources / "m.csv").write_text("uri,episode\n0.mp4,one\n1.mp4,one\n2.mp4,two\n")
    ids = [row["source_id"] for row in place.whole("clips").sort_by("source_uri").to_pylist()]
    seed = next(
        seed
        for seed in range(99)
        if len({drawn_split(name, ShardConfig(seed=seed, val_share=0.5)) for name in ids[:2]}) == 2
    )
    settings = (f"shard.seed={seed}", "shard.val_share=0.5")
    place.of("m.csv").run(*settings)
    assert len({sample["split"] for sample in place.samples()[:2]}) == 2
    place.of("m.csv").run(*settings, "shard.split_by=meta.episode")
    assert len({sample["split"] for sample in place.samples()[:2]}) == 1
    options = ["--set", "shard.split_by=meta.camera"]
    command = ["run", *options, str(place.sources / "m.csv"), str(place.out)]
    assert main(command) == EXIT_USAGE
    error = capsys.readouterr().err
    assert "no source has 'meta.camera'" in error
    assert "meta.episode" in error


def test_rules_bound_numbers_and_name_values(place: Described) -> None:
    """Pins reasons of each kind, and that nothing is analyzed again for a rule."""
    summary = place.of("m.csv").run("filters.meta.rating.min=3")
    assert summary["work"]["sources_analyzed"] == 0
    assert place.by_source("reason") == [None, "meta.rating_too_low", "not_measured"]
    place.of("m.csv").run("filters.meta.rating={min: 3, unmeasured: keep}")
    assert place.by_source("reason") == [None, "meta.rating_too_low", None]
    summary = place.of("m.csv").run("filters.meta.license={one_of: [cc0], unmeasured: keep}")
    assert place.by_source("reason") == [None, "meta.license_unwanted", None]
    finished = open_finished(str(place.out))
    (at,) = (n for n, reason in enumerate(first_reasons(finished.clips)) if reason)
    ((option,),) = remedies(explain(finished, finished.clips["clip_id"][at].as_py()))
    assert option == '--set \'filters.meta.license.one_of=["cc0", "cc-by"]\''
    assert tune(finished, [shlex.split(option)[1]]).then[at] is None
    (rule,) = (rule for rule in summary["rules"] if rule["rule"] == "meta.license")
    assert (rule["one_of"], rule["first"]) == (["cc0"], 1)
    place.of("m.csv").run("filters.sound={score: meta.is_ok, none_of: [false], severity: flag}")
    assert place.by_source("reason") == [None, None, None]
    tags = place.by_source("tags")
    assert ["sound" in (some or ()) for some in tags] == [False, True, False]
    page = (place.out / "report" / "index.html").read_text()
    assert "meta.is_ok" in page


def test_selection_groups_by_metadata(place: Described) -> None:
    place.of("m.csv").run("select.by=[meta.is_ok]", "select.keep_fractions={'True': 0}")
    assert place.by_source("reason") == ["not_selected", None, None]
    details = place.by_source("reason_detail")
    assert details[0] == "group True: 0 of 1 taken, this is no. 1"


def test_a_column_that_is_gone_is_counted_in_a_warning(
    place: Described, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins a manifest that lacks a column which it had in the last run."""
    rows = "".join(",".join(line.split(",")[:2]) + "\n" for line in (HEADER + ROWS).splitlines())
    (place.sources / "m.csv").write_text(rows)
    place.of("m.csv").run()
    assert "meta.license is gone: 2 of these sources had it in the last run" in caplog.text
    assert "meta.rating is gone" not in caplog.text


def test_a_changed_value_is_read_and_no_source_decoded(place: Described) -> None:
    """Pins that values are not kept with what is stored of a source, and types follow them."""
    place.of("m.csv").run()
    (place.sources / "m.csv").write_text(HEADER + ROWS.replace("1.mp4,2", "1.mp4,high"))
    work = place.of("m.csv").run()["work"]
    assert (work["sources_scanned"], work["sources_analyzed"], work["clips_cut"]) == (0, 0, 0)
    assert [row["meta.rating"] for row in place.rows("clips")] == ["4", "high", None]
    assert [sample["meta"]["rating"] for sample in place.samples()] == ["4", "high", None]


def test_parquet_and_sidecars(place: Described) -> None:
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
    pq.write_table(table, place.sources / "m.parquet")
    (place.sources / "0.mp4.json").write_text('{"Rating": 9, "camera": "x", "at": {"y": 1}}')
    (place.sources / "1.json").write_text('{"rating": 7}')
    (place.sources / "2.json").write_text("no JSON")
    place.of("m.parquet").run()
    tables = place.summary()["tables"]
    assert main(["recaption", str(place.out)]) == EXIT_OK
    assert place.summary()["tables"] == tables, "lists are written as a run writes them"
    without = place.rows("sources")
    assert [list(row) for row in without] == [["meta.tags", "meta.when", "meta.rating"]] * 3
    assert [row["meta.tags"] for row in without] == [["a", "b"], ["b"], None]
    assert [row["meta.when"] for row in without] == [
        "1970-01-01 00:00:00.000", None, "1970-01-02 00:00:00.000",
    ]  # fmt: skip
    place.of("m.parquet").run("scan.sidecar_meta=true", "filters.meta.tags.one_of=[a]")
    found = place.rows("clips")
    assert [row["meta.rating"] for row in found] == [1.5, 7.0, 3.0]
    assert [row["meta.camera"] for row in found] == ["x", None, None]
    assert place.by_source("reason") == [None, "meta.tags_unwanted", "not_measured"]


def test_the_first_mention_of_a_source_counts(
    place: Described, caplog: pytest.LogCaptureFixture
) -> None:
    others = "".join(f"{number}.mp4,,,,,\n" for number in (1, 2))
    (place.sources / "m.csv").write_text(HEADER + "0.mp4,1,a,,,\n0.mp4,2,b,,,\n" + others)
    place.of("m.csv").run()
    assert [row["meta.rating"] for row in place.rows("clips")] == [1, None, None]
    assert "named more than once, such as " in caplog.text


def test_a_recipe_that_cannot_be_meant_is_refused(
    place: Described, capsys: pytest.CaptureFixture[str]
) -> None:
    for setting, words in {
        "filters.meta.ratings.min=1": "did you mean 'meta.rating'",
        "select.by=[meta.nothing]": "no source has 'meta.nothing'",
        "filters.meta.license.min=1": "meta.license is of type string, and bounds need numbers",
        "filters.motion.one_of=[1]": "one_of and none_of are for metadata",
        "filters.meta.Rating.min=1": "or a column such as meta.rating",
    }.items():
        assert place.of("m.csv").code(setting) == EXIT_USAGE
        assert words in capsys.readouterr().err
    (place.sources / "m.csv").write_text("uri,a b,A-B\n0.mp4,1,2\n")
    assert place.of("m.csv").code() == EXIT_USAGE
    assert "more than one column would be 'meta.a_b'" in capsys.readouterr().err


def test_recaption_explain_and_tune_know_metadata(
    place: Described, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins the commands that begin from a finished run."""
    place.of("m.csv").run("filters.meta.license={none_of: [cc-by], unmeasured: keep}")
    out = str(place.out)
    assert main(["recaption", out, "--set", "caption.enabled=false"]) == EXIT_OK
    assert place.rows("clips") == TYPED
    assert [sample["meta"]["rating"] for sample in place.samples()] == [4, None]
    capsys.readouterr()
    (clip,) = place.whole("clips").filter(pa.compute.field("reason").is_valid()).to_pylist()
    assert main(["explain", out, clip["clip_id"]]) == EXIT_OK
    said = capsys.readouterr().out
    assert "rejected: meta.license_unwanted" in said
    assert "none of cc-by" in said
    assert main(["tune", out, "meta.rating.max=3"]) == EXIT_OK
    said = capsys.readouterr().out
    assert "meta.rating: no rule -> max 3" in said
    assert "meta.rating_too_high" in said

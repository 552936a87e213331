"""The annotator `rows`: each drawn frame has the row of the source's frame that it shows."""

import csv
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from captioned import work_here
from counted_rows import RECIPE, WithRows, rows_of, stages, write_csv, write_films
from made_mcaps import START_NS, TOPIC, write_json, write_ros2

from curator.errors import RecipeError
from curator.loading import ClipDataset
from curator.pipeline import graph_of
from curator.recipe import load_recipe


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithRows]:
    """A run at the sources' own rates; not to be changed."""
    folder = tmp_path_factory.mktemp("rows")
    write_films(folder / "in")
    write_csv(folder / "in")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        place = WithRows(folder / "in", folder / "out", recipe=str(folder / "recipe.yaml"))
        place.run(stages())
        yield place


def test_copied_and_encoded_clips_and_those_of_a_variable_rate(finished: WithRows) -> None:
    modes = {(Path(c["source_uri"]).stem, c["cut_mode"]) for c in finished.clips()}
    assert {("short", "copy"), ("long", "encode"), ("vfr", "encode")} <= modes
    assert finished.counted(len(finished.clips())) == (len(finished.clips()), 0)
    assert finished.counted(9, stride=2)[1] == 0
    assert finished.counted(9, fps=11)[1] == 0


@pytest.mark.parametrize(
    "settings",
    [
        ("cut.fps=10", "cut.most_repeated=1"),
        ("cut.fps=30", "cut.most_repeated=1", "cut.length_frames=20"),
        ("propose.windows=[17@16]", "cut.most_repeated=1"),
    ],
)
def test_resampled_and_shortened_clips(
    finished: WithRows, settings: Sequence[str], tmp_path: Path
) -> None:
    place = finished.copy(tmp_path)
    place.run(stages(), *settings)
    assert place.counted(len(place.clips())) == (len(place.clips()), 0)


def test_only_clips_of_a_changed_table_get_rows_again(finished: WithRows, tmp_path: Path) -> None:
    sources = shutil.copytree(finished.sources, tmp_path / "in")
    place = replace(finished, sources=sources, out=tmp_path / "out")
    assert place.run(stages())["work"]["rows_made"] == len(place.clips())
    table = sources / "short.csv"
    of_film = [c for c in place.clips() if c["source_uri"].endswith("short.mp4")]
    # A table in another order has the same rows.
    header, *lines = table.read_text().splitlines()
    table.write_text("\n".join([header, *reversed(lines)]))
    work = place.run(stages())["work"]
    assert (work.get("rows_made", 0), work["clips_cut"]) == (0, 0)
    lines[0] = lines[0].replace("x,", "x,9", 1)
    table.write_text("\n".join([header, *lines]))
    work = place.run(stages())["work"]
    assert (work["rows_made"], work["clips_cut"]) == (len(of_film), 0)


def test_a_clip_without_rows_has_no_value(
    finished: WithRows, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = shutil.copytree(finished.sources, tmp_path / "in")
    place = replace(finished, sources=sources, out=tmp_path / "out")
    (sources / "long.csv").unlink()
    header, *lines = (sources / "vfr.csv").read_text().splitlines()
    early = [line for line in lines if float(line.split(",")[2]) < 500]
    (sources / "vfr.csv").write_text("\n".join([header, *early]))
    place.run(stages())
    assert caplog.text.count("there is no table") == 1
    assert "long.csv" in caplog.text
    dataset = ClipDataset(str(place.out), frames=5, batch_size=1, members=["rows"])
    clips = {clip["clip_id"]: clip for clip in place.clips()}
    with_rows = {b["key"][0] for b in dataset if b["rows"][0] is not None}
    expected = {
        name
        for name, clip in clips.items()
        if clip["source_uri"].endswith("short.mp4")
        or (clip["source_uri"].endswith("vfr.mkv") and clip["start_frame"] == 0)
    }
    assert with_rows == expected


def test_a_table_that_is_not_as_declared_fails_its_own_clips(
    finished: WithRows, tmp_path: Path
) -> None:
    sources = shutil.copytree(finished.sources, tmp_path / "in")
    place = replace(finished, sources=sources, out=tmp_path / "out")
    (sources / "short.csv").write_text("t,half\n1,2\n")
    place.run(stages(), "--max-failed=1.0")
    failed = place.clips("rejected")
    assert {Path(clip["source_uri"]).name for clip in failed} == {"short.mp4"}
    assert {clip["reason"] for clip in failed} == {"rows_failed"}
    assert "has no column 'number'; it has t, half" in failed[0]["reason_detail"]
    assert len(place.clips()) == 6


def test_one_table_in_nanoseconds_since_1970_with_lists(finished: WithRows, tmp_path: Path) -> None:
    """Pins that whole times are exact, and that metadata says whose rows are whose."""
    start_ns = 1_760_000_000_123_456_789
    paths = sorted(path for path in finished.sources.iterdir() if path.suffix != ".csv")
    columns: dict[str, list[Any]] = {"stamp": [], "take": [], "state": []}
    for take, path in enumerate(paths):
        for t_ms, number, half in rows_of(path):
            columns["stamp"].append(start_ns + take + round(t_ms * 1e6))
            columns["take"].append(take)
            columns["state"].append([number, half])
    kind = pa.schema(
        [("stamp", pa.int64()), ("take", pa.int32()), ("state", pa.list_(pa.float64(), 2))]
    )
    pq.write_table(pa.table(columns, kind), tmp_path / "all.parquet")
    manifest = tmp_path / "takes.csv"
    lines = [f"{path},{take},{start_ns + take}" for take, path in enumerate(paths)]
    manifest.write_text("\n".join(["uri,take,started", *lines]))
    place = replace(finished, sources=manifest, out=tmp_path / "out")
    place.run(
        stages(
            table=str(tmp_path / "all.parquet"), time="stamp", unit="ns", columns=["state"],
            first_frame="meta.started", source="take", source_value="meta.take",
        )
    )  # fmt: skip
    assert place.counted(len(place.clips()), members={"rows": {"columns": "state"}}) == (
        len(place.clips()),
        0,
    )


def test_topics_of_logs_of_ros_2_and_in_json(finished: WithRows, tmp_path: Path) -> None:
    """Pins stamps since 1970, and messages in no order."""
    paths = sorted(path for path in finished.sources.iterdir() if path.suffix != ".csv")
    lines = ["uri,started"]
    for path in paths:
        rows = [(START_NS + round(t_ms * 1e6), number) for t_ms, number, _ in rows_of(path)]
        write = write_json if path.stem == "long" else write_ros2
        write(tmp_path / f"{path.stem}.mcap", rows)
        lines.append(f"{path},{START_NS}")
    (tmp_path / "takes.csv").write_text("\n".join(lines))
    place = replace(finished, sources=tmp_path / "takes.csv", out=tmp_path / "out")
    place.run(
        stages(
            table=str(tmp_path / "{stem}.mcap"), topic=TOPIC, time="header.stamp", unit="ns",
            columns=["position"], first_frame="meta.started",
        )
    )  # fmt: skip
    n_clips = len(place.clips())
    assert place.counted(n_clips, members={"rows": {"columns": "position"}}) == (n_clips, 0)


def test_one_table_with_paths_beside_it(finished: WithRows, tmp_path: Path) -> None:
    table = finished.sources.parent / "all.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "t", "number", "half"])
        for name in ("long.mp4", "vfr.mkv"):
            writer.writerows([f"in/{name}", *row] for row in rows_of(finished.sources / name))
    place = finished.copy(tmp_path)
    place.run(stages(table=str(table), source="file"))
    dataset = ClipDataset(str(place.out), frames=5, batch_size=1, members=["rows"])
    n_rows = sum(batch["rows"][0] is not None for batch in dataset)
    assert n_rows == sum("short" not in clip["source_uri"] for clip in place.clips())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"table": "{stem}.xlsx"}, "expected a name that ends in .csv, .tsv, .parquet or .mcap"),
        ({"table": "all.csv"}, "is the same for all sources; expected `source`"),
        ({"source": "file"}, "belongs to one source, and source: 'file'"),
        ({"source_value": "meta.take"}, "source_value without source"),
        ({"columns": ["a", "a"]}, "expected each column once"),
        ({"columns": []}, "columns"),
    ],
)  # fmt: skip
def test_unusable_settings_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        graph_of(load_recipe("quickstart", [stages(**config)]))

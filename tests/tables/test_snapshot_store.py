"""Each commit adds a snapshot; nothing that one names goes before `curate clean`."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from film_makers import write_video
from film_shots import moving_texture

import curator
from curator.cli import main
from curator.storage import Store, open_store
from curator.storage.local_store import LocalStore
from curator.tables.snapshot_store import named_objects, read_snapshot, snapshot_numbers
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_FAILED, EXIT_OK, EXIT_USAGE

SETTINGS = (
    "shard.resolutions=[64, 120]", "filters.short_side_px.min=60", "propose.min_s=0.5",
    "propose.max_s=1", "dedup.enabled=false", "filters.sharpness.min=0",
)  # fmt: skip
SETS = [part for setting in SETTINGS for part in ("--set", setting)]
FEWER = ("--set", "select.max_per_group=2", "--set", "select.by=[]")


def write_film(path: Path, seconds: float, seed: int) -> None:
    frames = moving_texture(round(seconds * 25), seed=seed, width_px=160, height_px=120)
    write_video(path, frames, fps=Fraction(25))


def run(place: Path, *more: str, sources: str = "in") -> int:
    return main(
        ["run", "--recipe", "quickstart", str(place / sources), str(place / "out"), *SETS, *more]
    )


def summary(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "out" / "summary.json").read_text())
    return found


def digests(store: Store, names: set[str]) -> dict[str, str]:
    return {name: hashlib.sha256(store.read(name)).hexdigest() for name in names}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three snapshots: a film, both films, and fewer clips of both."""
    place = tmp_path_factory.mktemp("snapshots")
    for seed, name in enumerate(("one", "two")):
        (place / name).mkdir()
        write_film(place / name / f"{name}.mp4", 4, seed)
    assert run(place, sources="one") == EXIT_OK
    assert run(place, sources="two") == EXIT_OK
    assert run(place, *FEWER, sources="two") == EXIT_OK
    return place


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(finished / name)
    shutil.copytree(finished / "out", tmp_path / "out")
    return tmp_path


def test_each_commit_adds_a_snapshot_and_changes_nothing_that_one_names(place: Path) -> None:
    store = open_store(str(place / "out"))
    assert snapshot_numbers(store) == [1, 2, 3]
    snapshots = [read_snapshot(store, number) for number in (1, 2, 3)]
    assert [snapshot["counts"]["kept"] for snapshot in snapshots] == [4, 8, 2]
    named = set().union(*map(named_objects, snapshots))
    assert any(name.endswith(".tar") for name in named)
    before = digests(store, named)
    for _ in range(2):
        # The first finds the sources at another address.
        assert run(place, *FEWER, sources="two") == EXIT_OK
        assert snapshot_numbers(store) == [1, 2, 3, 4]
    assert summary(place)["snapshot"] == 4
    assert run(place, "--set", "filters.motion.min=3.9", sources="two") == EXIT_OK
    assert snapshot_numbers(store) == [1, 2, 3, 4, 5]
    assert digests(store, named) == before


def test_the_tables_of_a_run_into_an_empty_out_are_those_of_a_grown_one(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished / "one", tmp_path / "in")
    shutil.copy(finished / "two" / "two.mp4", tmp_path / "in")
    assert run(tmp_path) == EXIT_OK
    whole = curator.read_clips(tmp_path / "out").to_arrow(rejected=True)
    grown = curator.read_clips(finished / "out", snapshot=2).to_arrow(rejected=True)
    # Places differ: tars that stand are not packed anew.
    columns = ["clip_id", "decision", "motion", "sharpness", "caption", "mp4_sha256"]
    assert whole.select(columns).equals(grown.select(columns))


def test_commands_read_any_snapshot(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(place / "out")
    for number, kept in (("1", 4), ("2", 8), ("3", 2)):
        of = ["--snapshot", number]
        assert main(["verify", out, *of]) == EXIT_OK
        assert f"{kept} clips decoded: all is well" in capsys.readouterr().out
        table = str(place / f"table{number}")
        assert main(["export", out, table, "--format", "parquet", *of]) == EXIT_OK
        assert f"{kept} clips as parquet" in capsys.readouterr().out
    page = str(place / "tune.html")
    assert main(["tune", out, "motion.min=0.0001", "--html", page, "--snapshot", "2"]) == EXIT_OK
    assert "8" in capsys.readouterr().out
    clip = curator.read_clips(out, snapshot=1).to_arrow()["clip_id"][0].as_py()
    assert main(["explain", out, clip, "--snapshot", "1"]) == EXIT_OK
    assert "kept" in capsys.readouterr().out
    for command in (["verify", out], ["tune", out, "motion.min=0"]):
        assert main([*command, "--snapshot", "9"]) == EXIT_USAGE
        assert "has no snapshot 9; there are 1, 2, 3" in capsys.readouterr().err


def test_verify_finds_what_is_wrong_with_an_old_snapshot_alone(place: Path) -> None:
    out = place / "out"
    store = open_store(str(out))
    only_first = {s["name"] for s in read_snapshot(store, 1)["shards"]} - {
        s["name"] for s in read_snapshot(store, 3)["shards"]
    }
    for name in only_first:
        path = out / name
        path.write_bytes(path.read_bytes().replace(b"moov", b"mooo"))
    assert main(["verify", str(out), "--snapshot", "1"]) == EXIT_FAILED
    assert main(["verify", str(out), "--snapshot", "3"]) == EXIT_OK
    assert main(["verify", str(out)]) == EXIT_FAILED


def test_pandas_polars_and_duckdb_read_the_newest_in_a_line_and_others_by_their_parts(
    place: Path,
) -> None:
    import pandas as pd
    import polars as pl

    out = place / "out"
    parts = [str(out / part) for part in read_snapshot(open_store(str(out)), 1)["tables"]["clips"]]
    newest = out / "clips" / "*.parquet"
    for snapshot, n, pandas, others in ((None, 8, out / "clips", newest), (1, 4, parts, parts)):
        table = curator.read_clips(out, snapshot=snapshot).to_arrow(rejected=True)
        ids = table["clip_id"].to_pylist()
        assert len(ids) == n
        assert pd.read_parquet(pandas)["clip_id"].tolist() == ids
        assert pl.read_parquet(others)["clip_id"].to_list() == ids
        files = others if isinstance(others, list) else str(others)
        assert [name for (name,) in duckdb.read_parquet(files).project("clip_id").fetchall()] == ids


def test_a_loader_stays_on_its_snapshot(place: Path) -> None:
    torch_dataset = pytest.importorskip("curator.loading").ClipDataset
    out = str(place / "out")
    dataset = torch_dataset(out, frames=5, batch_size=1, snapshot=1, split=split_of(place, 1))
    before = [batch["key"] for batch in dataset]
    assert before
    assert run(place, "--set", "filters.motion.min=3.9", sources="two") == EXIT_OK
    assert main(["clean", out, "--keep", "9"]) == EXIT_OK
    dataset.set_epoch(0)
    assert [batch["key"] for batch in dataset] == before


def split_of(place: Path, number: int) -> str:
    shards = read_snapshot(open_store(str(place / "out")), number)["shards"]
    split: str = shards[0]["split"]
    return split


def test_the_list_says_what_changed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshots", str(place / "out")]) == EXIT_OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["3", "2", "1"]
    assert "select.max_per_group: null -> 2" in lines[0]
    assert "2 sources, 8 of 8 clips kept" in lines[1]
    assert main(["snapshots", str(place / "out"), "--json"]) == EXIT_OK
    facts = json.loads(capsys.readouterr().out)
    assert [one["kept"] for one in facts] == [2, 8, 4]


def test_clean_removes_what_only_old_snapshots_name(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = place / "out"
    store = open_store(str(out))
    newest = named_objects(read_snapshot(store, 3))
    old = set().union(*(named_objects(read_snapshot(store, n)) for n in (1, 2))) - newest
    assert old
    (out / "clips" / "notes.txt").write_text("mine")
    before = {path for path in out.rglob("*") if path.is_file()}
    for more in (["--dry-run"], ["--older-than", "1d"], ["--keep", "3"]):
        assert main(["clean", str(out), *more]) == EXIT_OK
        assert {path for path in out.rglob("*") if path.is_file()} == before
    assert main(["clean", str(out)]) == EXIT_OK
    assert "snapshots removed: 2, 1" in capsys.readouterr().out
    assert not any(store.exists(name) for name in old)
    assert (out / "clips" / "notes.txt").exists()
    assert main(["verify", str(out)]) == EXIT_OK
    assert run(place, *FEWER, sources="two") == EXIT_OK
    assert summary(place)["earlier"] != []
    assert main(["clean", str(out)]) == EXIT_OK
    assert run(place, *FEWER, sources="two") == EXIT_OK
    assert summary(place)["earlier"] == []
    unfinished = out / "snapshots" / f".tmp-{7:016x}"
    unfinished.write_bytes(b"of a killed command")
    os.utime(unfinished, (time.time() - 60,) * 2)
    assert main(["clean", str(out)]) == EXIT_OK
    assert not unfinished.exists()
    assert main(["clean", str(place)]) == EXIT_USAGE
    assert "has no snapshots" in capsys.readouterr().err


def test_a_commit_that_lost_the_race_changes_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_new: Callable[..., Any] = LocalStore.write_new

    def second(store: LocalStore, key: str, data: bytes) -> Any:  # noqa: ANN401
        if key.startswith("snapshots/"):
            assert write_new(store, key, b"{}") is not None
        return write_new(store, key, data)

    shards = place / "out" / "shards"
    before = {p: p.read_bytes() for p in shards.glob("*") if p.is_file()}
    monkeypatch.setattr(LocalStore, "write_new", second)
    assert run(place, "--set", "filters.motion.min=3.9", sources="two") == EXIT_BROKEN_OFF
    assert "another run committed to this OUT meanwhile" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in shards.glob("*") if p.is_file()} == before
    assert summary(place)["snapshot"] == 3


def test_a_commit_that_was_broken_off_behind_its_snapshot_is_finished(place: Path) -> None:
    """As if the process had ended before it wrote `summary.json` and the indexes."""
    out = place / "out"
    known = [p for p in (out / "shards").rglob("*") if p.is_file()]
    before = {p: p.read_bytes() for p in (out / "summary.json", *known)}
    assert run(place, "--set", "filters.motion.min=3.9", sources="two") == EXIT_OK
    after = {p: p.read_bytes() for p in (out / "shards").rglob("*") if p.is_file()}
    for path, data in before.items():
        path.write_bytes(data)
    assert curator.read_clips(out).finished.summary["snapshot"] == 4
    assert run(place, "--set", "filters.motion.min=3.9", sources="two") == EXIT_OK
    assert summary(place)["snapshot"] == 4
    assert {p: p.read_bytes() for p in (out / "shards").rglob("*") if p.is_file()} == after
    assert main(["verify", str(out)]) == EXIT_OK

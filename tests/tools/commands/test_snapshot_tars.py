"""Tars of older snapshots: they are counted where a glob would read them, and can be left out."""

import tarfile
from pathlib import Path

import pytest
from command_line import Curate
from small_output import CLIPS, SmallOutput

from curator.storage import open_store
from curator.tables.output_format import read_current_summary
from curator.tables.snapshot_store import older_tars_line
from curator.tools.commands.arguments import EXIT_USAGE


def keys(tars: list[Path]) -> list[str]:
    return [
        member.name.partition(".")[0]
        for tar in tars
        for member in tarfile.open(tar)
        if member.name.endswith(".mp4")
    ]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with two snapshots, the second with other captions, and so other tars."""
    output = SmallOutput(tmp_path_factory.mktemp("tars") / "out", {0, 1})
    output.run([0, 1])
    assert line(output.out) == ""
    output.run([0, 1], recipe=1)
    return output.out


def line(out: Path) -> str:
    store = open_store(str(out))
    return older_tars_line(store, read_current_summary(store))


def test_tars_of_the_newest_snapshot_are_listed(out: Path, curate: Curate) -> None:
    """Pins that a glob reads clips twice, and that the listed tars have each clip once."""
    globbed = sorted(out.glob("shards/*/*.tar"))
    listed = [Path(path) for path in curate("snapshots", out, "--tars").split()]
    assert len(set(keys(globbed))) < len(keys(globbed))
    assert len(set(keys(listed))) == len(keys(listed)) > 0
    older = [tar for tar in globbed if tar not in listed]
    assert f"also has {len(older)} tar" in line(out)
    assert f"with {len(keys(older))} sample" in line(out)
    assert f"`curate snapshots {out} --tars`" in line(out)
    assert f"also has {len(older)} tar" in curate("verify", out)
    first = [Path(path) for path in curate("snapshots", out, "--tars", "--snapshot", 1).split()]
    assert len(keys(first)) == 2 * CLIPS
    assert curate("snapshots", out, "--tars", "--split", "val") == ""
    assert "expected --tars" in curate("snapshots", out, "--split", "val", code=EXIT_USAGE)


def test_cleaning_removes_them(out: Path, curate: Curate) -> None:
    curate("clean", out)
    assert line(out) == ""
    assert "older snapshots" not in curate("verify", out)
    listed = curate("snapshots", out, "--tars").split()
    assert sorted(map(str, out.glob("shards/*/*.tar"))) == sorted(listed)

"""Objects under OUT that are deleted, cut off or flipped: the next run makes them again.

Fails where damaged state ends a run with a traceback, or with an error that the next run meets
again. `benchmarks/damage.py` damages every object, each alone.
"""

import shutil
from itertools import cycle
from pathlib import Path

import pytest
from captioned import Captioned
from damages import DAMAGES, damage, objects, shards

from curator.cli import main
from curator.errors import DamagedError, ShardError
from curator.loading.shard_reader import read_output
from curator.tools.commands.arguments import EXIT_BROKEN_OFF, EXIT_FAILED, EXIT_USAGE

TOGETHER = (
    ("scan/", "candidates/clips/", "duplicate_pairs/", "report/", "config.json"),
    ("tracks/", "candidates/vectors/", "shards/dataset.parquet", "annotations/"),
    ("clips/", "shards/manifest.json", "shards/.nv-meta/", "sources/"),
    ("summary.json", "candidates/pictures/", "shards/README.md", "shots/", "embeddings/"),
    (".tar",),
    (".tar.idx", ".meta.jsonl", "candidates/sources/", "shards/wids-"),
)
"""Kinds of objects whose damage one run repairs, each on its own way."""

COMMON = ("deleted", "halved", "flipped in the middle")
"""Damage of which each is noticed in places of its own."""


def damaged(out: Path, kinds: tuple[str, ...], how: str) -> list[str]:
    """Damages the first object of each kind; returns their names."""
    found = []
    for kind in kinds:
        is_of = str.endswith if kind.startswith(".") else str.startswith
        named = [name for name in objects(out) if is_of(name, kind)]
        if named:
            damage(out / named[0], how)
            found.append(named[0])
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "ways",
    [
        COMMON,
        (*COMMON[1:], COMMON[0]),
        *((how,) for how in DAMAGES),
    ],
)
def test_a_run_makes_damaged_objects_again(
    place: Captioned, ways: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Pins problem 4: byte-identical shards after the next run, and warnings of one line each.

    Kinds of objects are damaged in one way after another.
    """
    before = shards(place.out)
    for kinds, how in zip(TOGETHER, cycle(ways), strict=False):
        caplog.clear()
        names = damaged(place.out, kinds, how)
        assert place.run()["work"]["caption_windows_asked"] == 0, names
        assert shards(place.out) == before, names
        assert all("\n" not in record.getMessage() for record in caplog.records)
        # A source whose pictures were lost is proposed again alone, in an object of its own.
        others = {n for n in names if "/part-" in n or n.startswith("candidates/")}
        assert set(names) - set(objects(place.out)) <= others, names
        assert not any("Traceback" in (record.exc_text or "") for record in caplog.records)
    caplog.clear()
    place.run()
    assert not caplog.records


def test_lost_replies_are_asked_again(place: Captioned) -> None:
    before = shards(place.out)
    for path in (*place.out.glob("replies/*"), *place.out.glob("annotations/*")):
        damage(path, "flipped in the middle")
    work = place.run()["work"]
    assert work["caption_windows_asked"] == place.n_asked() > 0
    assert shards(place.out).keys() == before.keys()


@pytest.mark.parametrize(
    "how",
    [
        *(pytest.param(how, marks=pytest.mark.long) for how in ("deleted", "halved")),
        "flipped in the middle",
    ],
)
def test_other_commands_say_what_is_damaged_in_one_line(
    place: Captioned, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(place.out)
    commands = (
        ["explain", out, "0"],
        ["recaption", out, "--set", "caption.failed=keep"],
        ["verify", out],
        ["export", out, str(place.out.parent / "to"), "--format", "conversations"],
    )
    pristine = place.out.parent / "pristine"
    shutil.copytree(place.out, pristine)
    for name in ("summary.json", "clips/", "annotations/", "shards/manifest.json"):
        damaged(place.out, (name,), how)
        for command in commands:
            capsys.readouterr()
            try:
                code = main(command)
            except SystemExit as error:
                code = int(error.code or 0)
            said = capsys.readouterr().err
            assert "Traceback" not in said
            if code in (EXIT_BROKEN_OFF, EXIT_USAGE):
                assert len([line for line in said.splitlines() if "curate: " in line]) == 1, said
        shutil.rmtree(place.out)
        shutil.copytree(pristine, place.out)


@pytest.mark.parametrize("name", ["shards/manifest.json", "shards/dataset.parquet"])
def test_the_loader_names_a_damaged_index(place: Captioned, name: str) -> None:
    damage(place.out / name, "halved")
    with pytest.raises((ShardError, DamagedError), match="writes it again"):
        read_output(str(place.out), "train")


def test_damage_that_nobody_can_repair_is_one_line(
    place: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that a tar whose films are gone is not replaced by nothing."""
    gone = place.out.parent / "gone"
    shutil.copytree(place.sources, gone)
    shutil.rmtree(gone / "in", ignore_errors=True)
    tars = [name for name in objects(place.out) if name.endswith(".tar")]
    before = shards(place.out)
    damage(place.out / tars[0], "flipped in the middle")
    for path in gone.glob("*"):
        path.write_bytes(b"")
    arguments = place.arguments()
    arguments[arguments.index(str(place.sources))] = str(gone)
    assert main(arguments) == EXIT_FAILED
    error = capsys.readouterr().err.splitlines()[-1]
    assert "no source of" in error
    assert "the run changed nothing" in error
    assert shards(place.out).keys() == before.keys()
    assert place.run()["work"]["shards_written"] == 1
    assert shards(place.out) == before

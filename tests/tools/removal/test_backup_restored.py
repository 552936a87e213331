"""A backup from before a removal is copied over OUT: the removal is done again, or refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from captioned import Captioned
from removable import SHARED
from test_removing import check_all, kept, needles_of, of_film, remove, search

from curator.cli import main
from curator.tables import removal_records
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK, EXIT_USAGE


def over(old: Path, out: Path) -> None:
    """Objects of the backup replace those of the same name; newer ones stay."""
    shutil.copytree(old, out, dirs_exist_ok=True)


def over_unfinished(old: Path, out: Path) -> None:
    over(old, out)
    (out / "removed" / "00000001.finished.json").unlink()


def instead_but_for_records(old: Path, out: Path) -> None:
    """Only `removed/` stays; the records' copies are not in the backup."""
    shutil.move(out / "removed", out.parent / "removed")
    shutil.rmtree(out)
    over(old, out)
    shutil.move(out.parent / "removed", out / "removed")


def instead_but_for_copies(old: Path, out: Path) -> None:
    """Only the copies of the record and of the footage stay."""
    paths = [*(out / "snapshots").glob("removed-*"), *(out / "copies" / "removed").iterdir()]
    copies = {path: path.read_bytes() for path in paths}
    shutil.rmtree(out)
    over(old, out)
    for path, data in copies.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def snapshots_alone(old: Path, out: Path) -> None:
    """What one snapshot names, and the snapshot; the newest is of today."""
    for name in ("snapshots", "shards", "clips", "candidates", "marks"):
        if (old / name).exists():
            over(old / name, out / name)


def older_snapshot_alone(old: Path, out: Path) -> None:
    shutil.copy(old / "snapshots" / "00000001.json", out / "snapshots")
    for path in (old / "shards").rglob("*.tar"):
        shutil.copy(path, out / path.relative_to(old))


def snapshot_files_alone(old: Path, out: Path) -> None:
    """Snapshots without the tables and tars that they name."""
    for path in (old / "snapshots").glob("0*.json"):
        shutil.copy(path, out / "snapshots")


def summary_alone(old: Path, out: Path) -> None:
    shutil.copy(old / "summary.json", out)
    for path in (old / "clips").iterdir():
        shutil.copy(path, out / "clips")


def finish(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As an error says, if `--finish` ends with one."""
    capsys.readouterr()
    if main(["remove", str(out), "--finish"]) != EXIT_OK:
        error = capsys.readouterr().err
        print(error)
        assert f"curate remove {out} --give-up-lost" in error
        assert main(["remove", str(out), "--give-up-lost"]) == EXIT_OK


def of_older_version(monkeypatch: pytest.MonkeyPatch, place: Captioned) -> None:
    """A run that does not compare snapshots with records, such as one of an older version."""
    with monkeypatch.context() as patch:
        patch.setattr(removal_records, "_is_named", lambda *_: True, raising=False)
        main(place.arguments(*SHARED))


@pytest.mark.long
@pytest.mark.parametrize(
    "restored",
    [
        over,
        instead_but_for_records,
        snapshots_alone,
        older_snapshot_alone,
        snapshot_files_alone,
        summary_alone,
    ],
)
def test_a_removal_is_finished_after_a_run_over_a_backup(
    restored: Callable[[Path, Path], None],
    place: Captioned,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = place.out
    victim = of_film(kept(out), 3)[0]
    needles = needles_of(out, [victim])
    old = shutil.copytree(out, out.parent / "old")
    assert remove(out, "clips", victim["clip_id"]) == EXIT_OK
    restored(old, out)
    shutil.rmtree(old)
    of_older_version(monkeypatch, place)
    finish(out, capsys)
    assert search(out, needles) == []
    check_all(out)


@pytest.mark.parametrize(
    "restored",
    [
        *(
            pytest.param(restored, marks=pytest.mark.long)
            for restored in (
                over,
                over_unfinished,
                instead_but_for_records,
                instead_but_for_copies,
                snapshots_alone,
                older_snapshot_alone,
                snapshot_files_alone,
                summary_alone,
            )
        ),
    ],
)
def test_a_removal_stays_after_a_backup_is_restored(
    restored: Callable[[Path, Path], None],
    place: Captioned,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = place.out
    victim = of_film(kept(out), 3)[0]
    whole = of_film(kept(out), 5)
    needles = needles_of(out, [victim, *whole])
    assert main(["mark", str(out), victim["clip_id"], "--note", "a secret note"]) == EXIT_OK
    old = shutil.copytree(out, out.parent / "old")
    assert (
        remove(out, "clips", "\n".join([victim["clip_id"], *(c["clip_id"] for c in whole)]))
        == EXIT_OK
    )
    assert search(out, needles) == []
    restored(old, out)
    shutil.rmtree(old)
    capsys.readouterr()
    assert main(["verify", str(out), "--removed"]) == EXIT_FAILED
    assert "curate remove OUT --finish" in capsys.readouterr().out
    for command in (place.arguments(*SHARED), ["recaption", str(out)], ["clean", str(out)]):
        assert main(command) == EXIT_USAGE, command
        assert f"curate remove {out} --finish" in capsys.readouterr().err
    assert main(["verify", str(out)]) == EXIT_FAILED
    assert "curate remove OUT --finish" in capsys.readouterr().out
    finish(out, capsys)
    assert search(out, [*needles, b"a secret note"]) == []
    check_all(out)
    place.run(*SHARED)
    assert search(out, [*needles, b"a secret note"]) == []


@pytest.mark.long
def test_a_removal_without_any_whole_snapshot_can_be_finished(
    place: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that everything that shows the footage goes, and that a run makes the rest again."""
    out = place.out
    victim = of_film(kept(out), 3)[0]
    needles = needles_of(out, [victim])
    old = shutil.copytree(out, out.parent / "old")
    assert remove(out, "clips", victim["clip_id"]) == EXIT_OK
    over(old, out)
    shutil.rmtree(old)
    for folder in ("clips", "snapshots/clips"):
        for path in (out / folder).iterdir():
            path.write_bytes(path.read_bytes()[:-9])
    before = place.files("")
    assert main(["remove", str(out), "--give-up-lost", "--dry-run"]) == EXIT_OK
    assert "[3, 2, 1]" in capsys.readouterr().out
    assert place.files("") == before
    finish(out, capsys)
    assert search(out, needles) == []
    place.run(*SHARED)
    assert kept(out)
    assert search(out, needles) == []
    check_all(out)

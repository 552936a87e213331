"""Records of removals are a chain: one that is lost or changed is noticed, and repaired."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from captioned import Captioned
from removable import SHARED

from curator.cli import main
from curator.storage import open_store
from curator.tables.removal_records import read_removals
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK, EXIT_USAGE

FIRST, SECOND = "removed/00000001.json", "removed/00000002.json"


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def altered(path: Path) -> None:
    """A whole record, of something else."""
    text = path.read_text().replace('"named_by": "clips"', '"named_by": "where"')
    path.write_text(text[: text.index('"checksum"')].rstrip().rstrip(",") + "}")


def removed_twice(place: Captioned) -> list[str]:
    """Removes two clips; returns their ids."""
    ids = [clip["clip_id"] for clip in place.clips()[:2]]
    for name in ids:
        remove(place, name)
    return ids


def remove(place: Captioned, clip_id: str, code: int = EXIT_OK) -> None:
    names = place.out.parent / "names.txt"
    names.write_text(clip_id)
    assert main(["remove", str(place.out), "--clips", str(names)]) == code


@pytest.fixture(scope="session")
def twice(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """An output that two clips were removed from, and their ids; not to be changed."""
    out = tmp_path_factory.mktemp("twice") / "out"
    shutil.copytree(finished / "out", out)
    return out, removed_twice(Captioned(finished / "two", out, None))  # type: ignore[arg-type]


@pytest.fixture
def removed(twice: tuple[Path, list[str]], place: Captioned) -> Captioned:
    """The same in another place."""
    shutil.rmtree(place.out)
    shutil.copytree(twice[0], place.out)
    return place


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        pytest.param(Path.unlink, SECOND, marks=pytest.mark.long),
        pytest.param(cut_off, FIRST, marks=pytest.mark.long),
        (altered, FIRST),
    ],
)
def test_a_record_is_repaired_from_its_copy(
    damage: Callable[[Path], None],
    name: str,
    removed: Captioned,
    twice: tuple[Path, list[str]],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = removed.out / name
    before = record.read_bytes()
    damage(record)
    assert main(["verify", str(removed.out)]) == EXIT_FAILED
    assert f"removal_record: {removed.out}/{name}" in capsys.readouterr().out
    assert main(["clean", str(removed.out), "--keep", "9"]) == EXIT_OK
    assert f"{name} is " in caplog.text
    assert record.read_bytes() == before
    assert main(["verify", str(removed.out), "--removed"]) == EXIT_OK
    assert main(["verify", str(removed.out)]) == EXIT_OK


@pytest.mark.long
def test_without_the_folder_nothing_comes_back(
    removed: Captioned, twice: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(removed.out / "removed")
    assert main(["verify", str(removed.out)]) == EXIT_FAILED
    assert capsys.readouterr().out.count("removal_record: ") == 2
    # It is not known any more whether the removals were finished.
    assert main(removed.arguments(*SHARED)) == EXIT_USAGE
    assert "--finish` first" in capsys.readouterr().err
    assert main(["remove", str(removed.out), "--finish"]) == EXIT_OK
    removed.run(*SHARED, "propose.max_s=3")
    assert not {clip["clip_id"] for clip in removed.table("clips")} & set(twice[1])
    assert main(["verify", str(removed.out), "--removed"]) == EXIT_OK


def test_a_record_without_a_copy_stops_what_writes_until_it_is_given_up(
    removed: Captioned, twice: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    kept = (removed.out / SECOND).read_bytes()
    shutil.rmtree(removed.out / "removed")
    for copy in (removed.out / "snapshots").glob("removed-*"):
        if copy.read_bytes() != kept:
            copy.unlink()
    names = removed.out.parent / "names.txt"
    names.write_text(removed.clips()[0]["clip_id"])
    before = removed.files("")
    for command in (
        removed.arguments(*SHARED),
        ["recaption", str(removed.out)],
        ["clean", str(removed.out)],
        ["remove", str(removed.out), "--clips", str(names)],
        ["remove", str(removed.out), "--finish"],
    ):
        assert main(command) == EXIT_USAGE, command
        assert f"{FIRST} is missing, and it has no whole copy" in (error := capsys.readouterr().err)
        assert "--give-up-lost" in error
    assert main(["verify", str(removed.out)]) == EXIT_FAILED
    assert main(["verify", str(removed.out), "--removed"]) == EXIT_FAILED
    assert removed.files("") == before
    assert main(["remove", str(removed.out), "--give-up-lost", "--dry-run"]) == EXIT_OK
    assert removed.files("") == before
    assert main(["remove", str(removed.out), "--give-up-lost"]) == EXIT_OK
    assert FIRST in capsys.readouterr().out
    removed.run(*SHARED)
    # What the second one names stays out.
    ids = {clip["clip_id"] for clip in removed.table("clips")}
    assert twice[1][1] not in ids
    assert main(["verify", str(removed.out)]) == EXIT_OK
    assert main(["verify", str(removed.out), "--removed"]) == EXIT_OK
    assert main(["clean", str(removed.out)]) == EXIT_OK
    remove(removed, removed.clips()[0]["clip_id"])


def test_a_lost_copy_is_written_again_and_cleaning_keeps_it(
    removed: Captioned, twice: tuple[Path, list[str]]
) -> None:
    remove(removed, twice[1][0], EXIT_USAGE)
    there = sorted(path.name for path in (removed.out / "removed").iterdir())
    # For each a record, its end, and what copies are known by.
    assert there[:4] == [f"0000000{n}{end}" for n in (1, 2) for end in (".finished.json", ".json")]
    assert len([name for name in there if name.startswith("footage-")]) == len(there) - 4 == 2
    copies = sorted((removed.out / "snapshots").glob("removed-*"))
    assert len(copies) == 2
    copies[0].unlink()
    cut_off(copies[1])
    assert main(["clean", str(removed.out)]) == EXIT_OK
    assert read_removals(open_store(str(removed.out))).n_records == 2
    assert sorted(path.name for path in (removed.out / "removed").iterdir()) == there
    assert {copy.read_bytes() for copy in copies} == {
        (removed.out / name).read_bytes() for name in (FIRST, SECOND)
    }

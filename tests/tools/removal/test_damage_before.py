"""Damage is repaired or refused before a record is written; interrupted runs are searched."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from captioned import Captioned
from removable import LIKE, SHARED
from test_removing import KilledError, check_all, kept, of_film, remove, rows_of, search

from curator.cli import main
from curator.runs import commit_run
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE


def flip(path: Path, at: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)


def part_of(place: Captioned, table: str) -> str:
    return str(place.summary()["tables"][table][0])


def index_of(place: Captioned, kind: str) -> str:
    return str(place.summary()["indexes"][kind])


@pytest.mark.long
@pytest.mark.parametrize(
    "table",
    [
        "shots",
        "clips",
        "manifest",
    ],
)
def test_a_damaged_part_is_repaired_from_an_equal_object(
    table: str, place: Captioned, caplog: pytest.LogCaptureFixture
) -> None:
    is_index = table == "manifest"
    name = index_of(place, table) if is_index else f"snapshots/{part_of(place, table)}"
    flip(place.out / name)
    victim = of_film(kept_of_first(place), 1)[0]
    assert remove(place.out, "clips", victim["clip_id"]) == EXIT_OK
    assert f"damaged objects in {place.out}: 1, such as {name}" in caplog.text
    check_all(place.out)


def kept_of_first(place: Captioned) -> list[dict[str, Any]]:
    """Clips of the first snapshot, none of whose objects is damaged."""
    return [clip for clip in rows_of_first(place) if clip["decision"] == "kept"]


def rows_of_first(place: Captioned) -> list[dict[str, Any]]:
    tables = json.loads((place.out / "snapshots" / "00000001.json").read_text())["tables"]
    return [row for part in tables["clips"] for row in pq.read_table(place.out / part).to_pylist()]


def both_parts(place: Captioned) -> None:
    """A part of the newest snapshot, and its copy."""
    for folder in ("", "snapshots/"):
        flip(place.out / f"{folder}{part_of(place, 'shots')}")


def tar(place: Captioned) -> None:
    victim = of_film(kept_of_first(place), 1)[0]
    path = place.out / victim["shard"]
    others = [
        clip for clip in kept_of_first(place)
        if clip["shard"] == victim["shard"] and clip["clip_id"] != victim["clip_id"]
    ]  # fmt: skip
    flip(path, others[0]["mp4_offset"] + 900)


@pytest.mark.long
@pytest.mark.parametrize("damage", [both_parts, tar])
def test_what_cannot_be_repaired_is_refused_before_the_record(
    damage: Callable[[Captioned], None], place: Captioned, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = of_film(kept_of_first(place), 1)[0]
    damage(place)
    before = place.files("")
    assert remove(place.out, "clips", victim["clip_id"]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert "nothing was removed" in error
    assert "curate run" in error
    assert place.files("") == before
    assert not (place.out / "removed").exists()
    # As the message says.
    Captioned(place.sources, place.out, place.server).run(*SHARED, *LIKE)
    assert main(["clean", str(place.out)]) == EXIT_OK
    assert remove(place.out, "clips", victim["clip_id"]) == EXIT_OK
    check_all(place.out)


@pytest.mark.long
def test_footage_of_an_interrupted_first_run_can_be_removed(
    place: Captioned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Captioned(place.sources, tmp_path / "begun", place.server)
    with monkeypatch.context() as patch:

        def killed(*_: object) -> None:
            raise KilledError

        patch.setattr(commit_run, "add_snapshot", killed)
        with pytest.raises(KilledError):
            main(begun.arguments(*SHARED))
    assert not list((begun.out / "snapshots").glob("0*"))
    rows = [
        row
        for path in (begun.out / "candidates" / "clips").iterdir()
        for row in pq.read_table(path).to_pylist()
    ]
    mp4s = {
        row["clip_id"]: row["mp4"]
        for path in (begun.out / "cuts").iterdir()
        for row in pq.read_table(path).to_pylist()
    }
    film, clip = of_film(rows, 5), of_film(rows, 3)[0]
    needles = [row["clip_id"].encode() for row in (*film, clip)]
    needles += [mp4s[row["clip_id"]] for row in (*film, clip)]
    needles.append(film[0]["source_id"].encode())
    assert len({needle for _, needle in search(begun.out, needles)}) > 5
    assert remove(begun.out, "sources", film[0]["source_uri"]) == EXIT_OK
    assert remove(begun.out, "clips", clip["clip_id"]) == EXIT_OK
    assert not search(begun.out, needles)
    assert main(["verify", str(begun.out), "--removed"]) == EXIT_OK
    begun.run(*SHARED)
    assert not search(begun.out, needles)
    assert kept(begun.out)
    (failed,) = [row for row in rows_of(begun.out, "sources")[-1] if row["uri"].endswith("5.mp4")]
    assert failed["error_code"] == "removed"
    check_all(begun.out)

"""Commands restore what no run can make again, or refuse before they write, with a way on."""

from pathlib import Path

import pytest
from captioned import Captioned
from removable import SHARED
from test_damage_before import flip
from test_removing import kept, of_film, remove

from curator.cli import main
from curator.storage import open_store
from curator.tables.mark_table import read_marks
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK, EXIT_USAGE


def writing(place: Captioned) -> list[list[str]]:
    """Commands that write into OUT."""
    out, names = str(place.out), place.out.parent / "names.txt"
    clips = kept(place.out)
    names.write_text(clips[0]["clip_id"])
    return [
        place.arguments(*SHARED),
        ["recaption", out],
        ["mark", out, clips[1]["clip_id"], "--drop"],
        ["remove", out, "--clips", str(names)],
        ["learn", out],
        ["clean", out],
    ]


def refused(place: Captioned, capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """All commands refuse and change nothing, and the error is one line with all `words`."""
    before = place.files("")
    for command in writing(place):
        if command[0] == "clean" and words[0].startswith("marks"):
            continue
        capsys.readouterr()
        assert main(command) == EXIT_USAGE, command
        error = capsys.readouterr().err
        (line,) = [line for line in error.splitlines() if line.startswith("curate: ")]
        for word in words:
            assert word in line, command
        assert place.files("") == before, command


def test_damaged_marks_are_restored_or_said(
    place: Captioned, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out = place.out
    first, other, victim = kept(out)[:3]
    assert main(["mark", str(out), first["clip_id"], "--note", "one"]) == EXIT_OK
    (path,) = (out / "marks").iterdir()
    assert main(["mark", str(out), other["clip_id"], "--note", "two"]) == EXIT_OK
    name, data = path.relative_to(out), path.read_bytes()
    for command in (
        ["mark", str(out), other["clip_id"], "--label", "x"],
        ["remove", str(out), "--clips", str(out.parent / "names.txt")],
    ):
        (out.parent / "names.txt").write_text(victim["clip_id"])
        flip(path)
        caplog.clear()
        assert main(command) == EXIT_OK
        assert f"{name} is damaged" in caplog.text
        assert path.read_bytes() == data
    flip(path)
    assert main(["verify", str(out), "--frames", "none"]) == EXIT_FAILED
    assert f"irreplaceable: {path}" in capsys.readouterr().out
    (out / "copies" / name).unlink()
    remedy = f"`curate mark {out} --give-up-lost`"
    refused(place, capsys, f"{name} is damaged", "lost: 1 mark of 20", remedy)
    assert main(["verify", str(out), "--frames", "none"]) == EXIT_FAILED
    assert "--give-up-lost" in capsys.readouterr().out
    assert main(["mark", str(out), "--give-up-lost"]) == EXIT_OK
    assert "lost: 1 mark of 20" in capsys.readouterr().out
    assert main(["mark", str(out), other["clip_id"], "--keep"]) == EXIT_OK
    assert len(read_marks(open_store(str(out)))) == 1
    assert main(["verify", str(out), "--frames", "none"]) == EXIT_OK


@pytest.mark.long
def test_footage_of_removals_is_restored_or_refused(
    place: Captioned, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out = place.out
    assert remove(out, "clips", of_film(kept(out), 3)[0]["clip_id"]) == EXIT_OK
    (path,) = (out / "removed").glob("footage-*.parquet")
    copy = out / "copies" / path.relative_to(out)
    data = path.read_bytes()
    for damaged in (path, copy):
        flip(damaged)
        assert main(["verify", str(out), "--frames", "none"]) == EXIT_FAILED
        assert f"irreplaceable: {damaged}" in capsys.readouterr().out
        assert main(["clean", str(out), "--keep", "9"]) == EXIT_OK
        assert path.read_bytes() == copy.read_bytes() == data
    flip(path)
    copy.unlink()
    (Path(f"{copy}.receipt.json")).unlink()
    marks = [command for command in writing(place) if command[0] in ("mark", "learn")]
    before = place.files("")
    for command in (c for c in writing(place) if c not in marks):
        capsys.readouterr()
        assert main(command) == EXIT_USAGE, command
        error = capsys.readouterr().err
        assert f"{path.relative_to(out)} is damaged" in error
        assert f"`curate remove {out} --give-up-lost`" in error
        assert place.files("") == before, command
    assert main(["verify", str(out), "--frames", "none"]) == EXIT_FAILED
    assert "`curate remove OUT --give-up-lost`" in capsys.readouterr().out
    assert main(["remove", str(out), "--give-up-lost"]) == EXIT_OK
    assert path.name in capsys.readouterr().out
    assert main(["clean", str(out), "--keep", "9"]) == EXIT_OK
    assert main(["verify", str(out)]) == EXIT_OK
    assert main(["verify", str(out), "--removed"]) == EXIT_OK

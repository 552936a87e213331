"""Whole runs over cards and download folders: what is no video is skipped and counted."""

import json
from pathlib import Path

import pytest
from command_line import Curate
from film_makers import one_frame

from curator.tools.commands.exit_codes import ExitCode

COMPANIONS = {
    "BDMV/INDEX.BDM": b"INDX0100", "BDMV/CLIPINF/00000.CPI": b"HDMV0100", "a.MPL": b"MPLS0100",
    "sub.SMI": b"<SAMI>", "IMG_1.AAE": b"<plist/>", "README": b"hello", "set_$folder$": b"",
    "x.NAV": bytes(range(256)), "y.MRK": b"1 2 3\n", "z.UNV": b"", "notes.v2": b"text",
}  # fmt: skip


def test_a_card_is_clean(tmp_path: Path, curate: Curate, caplog: pytest.LogCaptureFixture) -> None:
    """Pins that a suffix that says nothing is probed, and that one of videos promises a video."""
    card, out = tmp_path / "card", tmp_path / "out"
    for name, content in COMPANIONS.items():
        (card / name).parent.mkdir(parents=True, exist_ok=True)
        (card / name).write_bytes(content)
    # Without any video, there is nothing to do, whether names or bytes say so.
    error = curate("run", card, out, code=ExitCode.USAGE)
    assert "no input holds a video; 11 files of other kinds" in error
    one_frame(card / "film.mp4")
    (card / "film.mp4").rename(card / "film.odd")
    printed = curate("run", card, out)
    assert "and 11 not video by name or content" in printed
    assert "some files hold no video, and their names promise none" in caplog.text
    counts = json.loads((out / "summary.json").read_text())["counts"]
    assert (counts["sources"], counts["done"], counts["failed"]) == (1, 1, 0)
    words = f"{len(COMPANIONS)} skipped, because they are not videos"
    assert words in curate("run", card, out, "--dry-run")
    # A name that promises a video, and a file that the user names, fail.
    (card / "text.mp4").write_bytes(b"no film")
    curate("run", card, card / "notes.v2", out, "--max-failed", 1)
    counts = json.loads((out / "summary.json").read_text())["counts"]
    assert counts["by_error"] == {"not_a_video": 2}
    assert counts["skipped_names"] == len(COMPANIONS) - 1

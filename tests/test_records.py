"""The records say what a clip has, and mypy holds all code to it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SNIPPET = """
from curator.records.clips import Clip, Written
from curator.tables.clip_rows import ClipRow

def right(clip: Clip, row: ClipRow) -> float:
    clip.decision = "rejected"
    row.caption = None
    return clip.end_s - row.start_s + (row.scores["motion"] or 0.0)

def wrong(clip: Clip, row: ClipRow, written: Written) -> None:
    print(clip.widht)
    row.decision = "droped"
    row.captoin = "a"
    row.width = "640"
    print(written.mp4_size)
    print(clip.caption_alignment + 1)
"""


def test_a_field_that_does_not_exist_is_an_error_of_mypy(tmp_path: Path) -> None:
    """Pins that rows over columns are checked as the records declare them, by line."""
    api = pytest.importorskip("mypy.api")
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--strict", "--hide-error-context"]
    found, failed, _ = api.run([*config, "--cache-dir", str(ROOT / ".mypy_cache"), str(path)])
    errors = {
        (int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]"))
        for line in found.splitlines()
        if ": error:" in line
    }
    assert not failed, failed
    assert errors == {
        (11, "attr-defined"),
        (12, "assignment"),
        (13, "attr-defined"),
        (14, "assignment"),
        (15, "attr-defined"),
        (16, "operator"),
    }, found

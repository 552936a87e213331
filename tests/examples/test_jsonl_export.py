"""`examples/jsonl_export.py`: a format in a file of one's own, on the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_samples import FPS, made_clips, make_shards

from curator.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
FORMAT = "jsonl_export:JsonLines"


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_every_clip_has_a_line_that_leads_to_its_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins the whole way: option, both splits, counts, and the origin in what is printed."""
    clips = made_clips()
    make_shards(str(tmp_path / "out"), clips)
    least = 7 / FPS
    command = ["export", str(tmp_path / "out"), str(tmp_path / "to"), "--format", FORMAT]
    assert main([*command, "--min-duration-s", str(float(least))]) == 0
    wanted = {clip.key: clip for clip in clips if clip.n_frames >= 7}
    assert 0 < len(wanted) < len(clips)
    rows = [
        json.loads(line)
        for split in ("train", "val")
        for line in (tmp_path / "to" / f"{split}.jsonl").read_text().splitlines()
    ]
    assert {row["clip_id"] for row in rows} == set(wanted)
    for row in rows:
        clip = wanted[row["clip_id"]]
        tar = Path(row["tar"]).read_bytes()
        assert tar[row["offset"] : row["offset"] + row["bytes"]] == clip.mp4
        assert (row["text"], row["split"]) == (clip.caption, clip.split)
    said = capsys.readouterr().out
    assert f"8 clips as {FORMAT}; 2 objects written" in said
    assert f"\nlines: {len(wanted)}\n" in said
    assert "\nclass jsonl_export:JsonLines version 1" in said


def test_its_options_are_in_the_help() -> None:
    """Pins that help of a format from outside has its description and its flags alone."""
    done = subprocess.run(
        [sys.executable, "-m", "curator.cli", "export", "--help", "--format", FORMAT],
        env={"PYTHONPATH": f"{EXAMPLES}:{EXAMPLES.parent}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--min-duration-s N" in done.stdout
    assert "a line each" in done.stdout
    assert "--min-margin" not in done.stdout


def test_a_format_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, words in {
        "jsonl_export:JsonLine": "did you mean 'JsonLines'",
        "no_such_package:JsonLines": "cannot be imported",
        "jsonl_export:JsonLinesOptions": "is no exporter",
        "cosmo": "did you mean 'cosmos'",
    }.items():
        with pytest.raises(SystemExit) as stop:
            main(["export", str(tmp_path), str(tmp_path / "to"), "--format", name])
        assert stop.value.code == 2
        assert words in capsys.readouterr().err


def test_an_error_in_a_format_names_it_and_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that a fault in foreign code ends like a broken-off export, and leaves no object."""
    from jsonl_export import JsonLines

    make_shards(str(tmp_path / "out"), made_clips())
    monkeypatch.setattr(JsonLines, "records", None)
    monkeypatch.setattr(JsonLines, "shard", lambda self, job, shard: {}["nothing"])
    command = ["export", str(tmp_path / "out"), str(tmp_path / "to"), "--format", FORMAT]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "JsonLines failed on" in said
    assert "KeyError: 'nothing'" in said
    assert not list((tmp_path / "to").glob("*"))

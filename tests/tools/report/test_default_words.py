"""What a run does by default is said where it matters, and nowhere else."""

from pathlib import Path
from typing import Any

import pytest
from command_line import Curate
from made_out import candidates_table, made_out

from curator.recipe import Recipe
from curator.tools.report.default_words import default_words


@pytest.mark.parametrize(
    ("counts", "cut", "caption", "begins"),
    [
        ({"kept": 3, "kept_with_audio": 2}, "drop", "measured", ["audio: dropped", "captions: "]),
        ({"kept": 3, "kept_with_audio": 2}, "copy", "measured", ["captions: "]),
        ({"kept": 3, "kept_with_audio": 0}, "drop", "openai", []),
        ({"kept": 3}, "drop", "metadata", []),
        ({"kept": 0, "kept_with_audio": 0}, "drop", "measured", []),
    ],
)
def test_a_line_is_said_only_when_it_is_true(
    counts: dict[str, int], cut: str, caption: str, begins: list[str]
) -> None:
    recipe: dict[str, Any] = {"cut": {"audio": cut}, "caption": {"captioner": caption}}
    lines = default_words({"counts": counts, "recipe": recipe})
    assert len(lines) == len(begins)
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True))
    recipe["caption"]["enabled"] = False
    assert not any(
        "captions" in line for line in default_words({"counts": counts, "recipe": recipe})
    )


def test_the_number_of_clips_and_the_remedy_are_named() -> None:
    summary = {"counts": {"kept": 9, "kept_with_audio": 1}, "recipe": {"cut": {"audio": "drop"}}}
    (line,) = default_words(summary)
    assert "the sources of 1 kept clip have sound; --audio keep writes it" in line
    assert default_words({}) == []


def test_kept_clips_with_sound_are_counted_and_said(
    tmp_path: Path, curate: Curate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins silence as sound, and clips without audio, or whose audio was not measured, as none."""
    clips = candidates_table(5, audio_coverage=[1.0, 0.0, None, 0.2, 0.9], motion=[1.0] * 4 + [0.0])
    recipe = Recipe.model_validate(
        {"dedup": {"enabled": False}, "filters": {"motion": {"min": 0.5}}}
    )
    summary = made_out(tmp_path / "out", clips, recipe)
    counts = summary["counts"]
    assert (counts["kept"], counts["kept_with_audio"]) == (4, 2)
    page = (tmp_path / "out" / "report" / "index.html").read_text()
    lines = default_words(summary)
    assert len(lines) == 2
    assert all(line in page for line in lines)
    # The command prints them too, before it says where the results are.
    (tmp_path / "a.mp4").touch()
    monkeypatch.setattr("curator.runs.start.start_run", lambda *_, **__: summary)
    printed = curate("run", tmp_path / "a.mp4", tmp_path / "out").splitlines()
    at = printed.index(lines[0])
    assert printed[at : at + 2] == lines
    assert printed[at + 2].endswith("WebDataset tars")

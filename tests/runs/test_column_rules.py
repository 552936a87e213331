"""Rules on columns of annotators: which clips they reject, and what later runs compute again."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from captioned import work_here
from place import QVGA, SHORT, Place, write_films

from curator.cli import main
from curator.tools.commands.arguments import EXIT_OK

EXAMPLES = Path(__file__).parents[2] / "examples"
LIGHT = "stages=[light_columns:LightColumns]"


class Annotated(Place):
    """Three films of a clip each."""

    settings = (*SHORT, "shard.lengths=[17]", "shard.val_share=0")

    def by_brightness(self) -> list[dict[str, Any]]:
        """The rows of `clips`, the darkest first."""
        return sorted(self.table("clips"), key=lambda row: row["brightness"])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Annotators work in this process, from a folder of their own."""
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("light_columns.py", "mean_latents.py"):
        shutil.copy(EXAMPLES / name, folder / name)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    work_here(monkeypatch)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Annotated:
    """A run without annotators; not to be changed."""
    folder = tmp_path_factory.mktemp("ruled")
    place = Annotated(write_films(folder / "in", (60, 60, 60), fps=30, **QVGA), folder / "out")
    place.run()
    return place


@pytest.fixture
def place(finished: Annotated, tmp_path: Path) -> Annotated:
    """A copy of the finished run: analyzed and cut."""
    return finished.copy(tmp_path)


def test_a_rule_on_a_column_rejects_and_other_bounds_compute_nothing(
    place: Annotated, capsys: pytest.CaptureFixture[str]
) -> None:
    place.run(LIGHT)
    values = [row["brightness"] for row in place.by_brightness()]
    between = (values[0] + values[1]) / 2
    place.run(LIGHT, f"filters.brightness.min={between}")
    rows = place.by_brightness()
    assert [row["reason"] for row in rows] == ["brightness_too_low", None, None]
    for _ in range(2):
        again = place.run(LIGHT, f"filters.brightness.min={between}")
        assert again["work"]["clips_cut"] == again["work"].get("light_made", 0) == 0
    looser = place.run(LIGHT, f"filters.brightness.min={values[0] / 2}")
    assert looser["work"]["clips_cut"] == looser["work"].get("light_made", 0) == 0
    assert looser["counts"]["kept"] == 3
    assert main(["verify", str(place.out)]) == EXIT_OK, capsys.readouterr().out


def test_explain_tune_and_recaption_see_the_columns_of_written_clips(
    place: Annotated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins also that the setting which `explain` names keeps the clip."""
    place.run(LIGHT)
    first, second, third = (row["brightness"] for row in place.by_brightness())
    between = f"filters.brightness.min={(first + second) / 2}"
    place.run(LIGHT, between)
    dark, light, _ = place.by_brightness()
    capsys.readouterr()
    assert main(["explain", str(place.out), light["clip_id"]]) == EXIT_OK
    assert re.search(r"^brightness +0\.\d+ +min 0\.\d+ +ok$", capsys.readouterr().out, re.M)
    assert main(["explain", str(place.out), dark["clip_id"]]) == EXIT_OK
    told = capsys.readouterr().out
    assert "rejected: brightness_too_low (" in told
    assert re.search(r"^brightness .* rejects: brightness_too_low$", told, re.M)
    (remedy,) = re.findall(r"^  --set (filters.brightness.min=\S+)$", told, re.M)

    for rules in ([], ["--rules-only"]):
        assert main(["tune", str(place.out), f"brightness.min={third}", *rules]) == EXIT_OK
        told = capsys.readouterr().out
        assert "kept -> rejected  1  as 1 brightness_too_low" in told
        assert main(["tune", str(place.out), "brightness.min=0", *rules]) == EXIT_OK
        assert "rejected -> kept  1  were 1 brightness_too_low" in capsys.readouterr().out

    assert main(["recaption", str(place.out), "--set", "caption.enabled=false"]) == EXIT_OK
    assert place.by_brightness()[0]["brightness"] == first
    (rule,) = (rule for rule in place.summary()["rules"] if rule["rule"] == "brightness")
    assert (rule["first"], rule["any"]) == (1, 1)
    assert place.run(LIGHT, remedy)["counts"]["kept"] == 3
    assert place.summary()["work"]["clips_cut"] == 0


def dry_run(place: Annotated, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """The line of a dry run about annotators."""
    capsys.readouterr()
    assert place.code(*more, "--dry-run") == EXIT_OK
    told = capsys.readouterr().out
    (line,) = re.findall(r"annotators to compute: (.*)$", told, re.MULTILINE)
    return line


BOTH = "stages=[light_columns:LightColumns, mean_latents:MeanLatents]"


def test_a_dry_run_counts_the_values_of_each_annotator(
    place: Annotated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(place, capsys, LIGHT) == (
        "light_columns of 3 clips; before duplicates and selection"
    )
    place.run(LIGHT)
    bound = "filters.brightness.min=0"
    assert dry_run(place, capsys, BOTH, bound) == (
        "light_columns of 0 clips, mean_latents of 3 clips; before duplicates and selection, and "
        "before rules on their columns"
    )
    place.run(BOTH)
    assert dry_run(place, capsys, BOTH, "cut.crf=30", "cut.mode=encode") == (
        "light_columns of 3 clips, mean_latents of 3 clips; before duplicates and selection"
    )
    empty = replace(place, out=tmp_path / "empty")
    assert dry_run(empty, capsys, BOTH) == (
        "light_columns, mean_latents, of each clip that is written"
    )

"""The example of a captioner in a whole small run: its answers are treated like any other's."""

import json
import sys
from pathlib import Path

import pytest
from captioned import SETTINGS, Captioned
from films import write_film
from served import FakeServer

from curator.cli import main
from curator.stages.caption.captioners.captioner_contract import captioner_extensions
from curator.tools.commands.arguments import EXIT_OK

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "captioner:MeanColour"


class Coloured(Captioned):
    """A run by the example."""

    @property
    def settings(self) -> tuple[str, ...]:
        return (*SETTINGS, f"caption.captioner={NAME}", "caption.lengths=[medium]",
                "caption.window_frames=24", "caption.window_remainder=12", "caption.frames=2",
                "caption.read_text=false")  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Coloured:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES), prepend=":")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "captioner", raising=False)
    (tmp_path / "in").mkdir()
    write_film(tmp_path / "in" / "1.mp4", 1, 90)
    return Coloured(tmp_path / "in", tmp_path / "out", FakeServer(tmp_path))


def test_a_captioner_of_ones_own_in_one_file(
    place: Coloured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins a whole run in the worker, that nothing is asked twice, and what a new version asks."""
    summary = place.run()
    rows = [row for rows in place.annotations().values() for row in rows]
    assert rows
    assert {row["failure"] for row in rows} == {None}
    assert {row["model"] for row in rows} == {NAME}
    for row in rows:
        assert row["medium"].startswith("The scene is mostly ")
    for clip in place.clips():
        windows = json.loads(place.sample(clip, "json"))["annotation"]["windows"]
        assert clip["caption"] == " ".join(window["medium"] for window in windows)
        assert place.sample(clip, "txt").decode() == clip["caption"]
    assert summary["work"]["caption_windows_asked"] == len(rows)
    before = place.files()
    assert place.run()["work"]["caption_windows_asked"] == 0
    assert place.files() == before
    (extension,) = captioner_extensions(NAME)
    assert extension.origin["class"] == NAME
    assert extension.origin["version"] == "1"
    monkeypatch.setattr(extension.target, "version", 2)
    assert place.recaption("caption.seed=0")["work"]["caption_windows_asked"] == len(rows)
    assert main(["verify", str(place.out)]) == EXIT_OK

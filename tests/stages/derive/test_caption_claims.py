"""The annotator `caption_claims` in a run: what it reads of a captioner's answers."""

import json
from pathlib import Path

import pytest
from captioned import SETTINGS, Captioned, work_here
from films import write_film
from served import FakeServer

from curator.tools.commands.arguments import EXIT_OK

CAPTIONER = """
from curator.stages.caption.captioners.captioner_contract import Captioner

SCENE = {
    "subjects": [{"description": "A board", "action": "stands"}],
    "background_setting": "A field",
    "lighting": {"conditions": "even"},
    "aesthetics": {"composition": "centred", "color_scheme": "muted"},
    "cinematography": {"camera_motion": "unclear", "framing": "wide", "camera_angle": "low"},
    "style_medium": "A vertical video.",
    "actions": [],
    "segments": [],
}

class Analyst(Captioner):
    version = 1

    def answer(self, request, frames):
        is_analysis = "subjects" in request.schema["properties"]
        return SCENE if is_analysis else {"long": "A board stands on a field."}
"""


class Analysed(Captioned):
    """A run with the prompt `cosmos3`, one window for each clip."""

    @property
    def settings(self) -> tuple[str, ...]:
        return (*SETTINGS, "stages=[caption_claims]", "caption.captioner=analyst:Analyst",
                "caption.prompt=cosmos3", "caption.lengths=[long]", "caption.text=long",
                "caption.window_s=61", "caption.frames=2")  # fmt: skip


@pytest.mark.long
def test_claims_of_the_analysis_count_and_those_of_a_removed_answer_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins that structured fields are checked, though the caption is the narrative alone."""
    work_here(monkeypatch)
    (tmp_path / "analyst.py").write_text(CAPTIONER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "in").mkdir()
    write_film(tmp_path / "in" / "1.mp4", 1, 90)
    place = Analysed(tmp_path / "in", tmp_path / "out", FakeServer(tmp_path))
    place.run()
    clips = place.clips()
    assert clips
    for clip in clips:
        assert clip["caption"] == "A board stands on a field."
        (claim,) = json.loads(clip["caption_claims"])
        assert (claim["kind"], claim["verdict"]) == ("orientation", "contradicted")
        assert (clip["caption_contradictions"], clip["caption_support"]) == (1, 0.0)
    # The structured fields are in no column, so that only a run knows them.
    capsys.readouterr()
    assert place.code("--dry-run") == EXIT_OK
    assert "caption_claims of at most" in capsys.readouterr().out
    place.recaption("caption.captioner=measured")
    assert [clip["caption_contradictions"] for clip in place.clips()] == [0] * len(clips)
    assert place.code("--dry-run", "caption.captioner=measured") == EXIT_OK
    assert "caption_claims of 0 clips" in capsys.readouterr().out

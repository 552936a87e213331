"""A run that is killed while it annotates: what was stored is found again, and nothing is lost."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_annotators import EXAMPLE, Annotated, finished, place

__all__ = ["finished", "place"]

KILLER = f"""
import os, signal
from pathlib import Path
from dataclasses import replace
from {EXAMPLE.stem} import MeanLatents
from curator.family import Windows

class Killer(MeanLatents):
    windows = Windows(frames=16, every=12) if os.environ["FORM"] == "windows" else None
    families = tuple(
        replace(family, place="side" if os.environ["FORM"] == "side" else "sample")
        for family in MeanLatents.families
    )

    def process(self, unit):
        began = Path(os.environ["BEGAN"])
        with began.open("a") as file:
            file.write(unit[0].facts.clip_id + "\\n")
        if len(set(began.read_text().split())) == 3 and "KILLS" in os.environ:
            os.kill(int(os.environ["KILLS"]), signal.SIGKILL)
            os._exit(1)
        return super().process(unit)
"""
RUN = """
import os
from curator import scheduler
from curator.cli import main
os.environ["KILLS"] = str(os.getpid())
scheduler.UNIT_CLIPS = 1
raise SystemExit(main({arguments!r}))
"""
STAGE = "stages=[{use: killer:Killer}]"


@pytest.mark.long
@pytest.mark.parametrize("form", ["clips", "windows", "side"])
def test_a_killed_run_makes_the_rest_and_the_same_tars(
    finished: Annotated,
    place: Annotated,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    """The run before had no annotator, so the killed process only annotates."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "killer.py").write_text(KILLER)
    monkeypatch.syspath_prepend(str(own))
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(own), str(EXAMPLE.parent))))
    began = tmp_path / "began"
    monkeypatch.setenv("BEGAN", str(began))
    # The class of the other case may be loaded.
    monkeypatch.delitem(sys.modules, "killer", raising=False)
    monkeypatch.setenv("FORM", form)
    out = place.out
    whole = Annotated(place.sources, shutil.copytree(finished.out, tmp_path / "whole"))
    script = RUN.format(arguments=place.arguments(STAGE))
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    first = began.read_text().split()
    assert len(set(first)) == 3
    stored = list((out / "values" / "latents").glob("*.parquet"))
    assert len(stored) == 2, "a part for each unit that was done"
    assert "latents_made" not in place.summary()["work"]

    # The lease of the killed process is on this machine, so it is known to be over.
    summary = place.run(STAGE)
    assert summary["work"]["latents_made"] == 1
    again = began.read_text().split()[len(first) :]
    assert set(again) == {first[-1]}, "only the clip on which the process was killed"
    whole.run(STAGE)
    assert place.tars() == whole.tars()
    values, others = place.values(), whole.values()
    assert values.keys() == others.keys()
    assert all(np.array_equal(values[key], others[key]) for key in values)

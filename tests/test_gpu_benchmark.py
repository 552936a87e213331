"""The benchmark of the GPU path calls code that has changed without it."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import software_driver

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_parts_measure_films_and_compare_tracks(
    tmp_path: Path,
    module: Any,  # noqa: ANN401
) -> None:
    """Pins how the benchmark calls the analysis, which has changed without it."""
    from film_makers import write_video
    from film_shots import moving_texture

    films = [tmp_path / "a.mp4", tmp_path / "b.mp4"]
    for film in films:
        write_video(film, moving_texture(90, width_px=96, height_px=64))
    parts = module("gpu_parts")
    (found,) = parts._analyze_all(time.time, [*map(str, films)], "cpu", "dis", None)
    assert (found["rate"][-1][1], found["n_sources"], found["notes"]) == (90, 1, [])
    # The second has done 30 of its 60 frames when the first ends.
    assert parts._rate([[(0, 0), (1, 40), (2, 90)], [(0, 0), (4, 60)]]) == (90 + 30) / 2
    (path, track) = next(parts._tracks(time.time, [str(films[0])], "cpu", "dis"))
    compared = parts._compared(path, track, track)
    assert compared["clips"] == compared["same_decisions"] == compared["same_tags"] == 1


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("PyNvVideoCodec") is None,
    reason="PyNvVideoCodec is not installed; it has no wheel for this platform",
)
@pytest.mark.skipif(software_driver.compiler() is None, reason="no C compiler")
def test_the_first_minutes_are_tried_whole_over_a_device_in_software(tmp_path: Path) -> None:
    """Pins that each part finds what it is for, so that time on hardware goes to measurements."""
    from film_makers import write_video
    from film_shots import moving_texture

    films, out = tmp_path / "films", tmp_path / "out"
    films.mkdir()
    for name in ("h264", "short"):
        shown = moving_texture(45, width_px=192, height_px=144)
        write_video(films / f"{name}.mp4", shown, gop=20, bframes=2)
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--only", "first", "--workers", "1"]
    command += ["--films", str(films), "--out", str(out), "--seconds", "9", "--n-films", "1"]
    environment = os.environ | {"GPU_SOFTWARE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == ["machine", "films", "probe", "same", "locked", "limit", "analyze"]
    problems = {
        (part, what): said
        for part, findings in found.items()
        for what, said in findings.items()
        if {"failed", "left out", "said"} & said.keys()
    }
    assert not problems
    assert len(found["probe"]["a decoder begins"]["ms"]) == 6
    same = found["same"]["gpu"]
    assert same["sources"] == 1
    assert same["same_decisions"] == same["clips"] > 0
    assert set(found["locked"]) == {"a locked process", "part"}
    # No film in HEVC is made here: that takes longer than all that is measured of it.
    assert set(found["limit"]) == {"h264, 1 processes", "part"}
    analyzed = found["analyze"]["h264, 1 processes"]
    assert analyzed["notes"] == []
    assert "overlay" in analyzed["of_them"]
    assert (out / "results.md").exists()

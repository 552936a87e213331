"""The benchmark of the GPU path calls code that has changed without it."""

import importlib
import time
from pathlib import Path

import pytest
from film_makers import write_video
from film_shots import moving_texture

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_parts_measure_films_and_compare_tracks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins how the benchmark calls the analysis."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    parts = importlib.import_module("gpu_parts")
    films = [tmp_path / "a.mp4", tmp_path / "b.mp4"]
    for film in films:
        write_video(film, moving_texture(90, width_px=96, height_px=64))
    (found,) = parts._analyze_all(time.time, [*map(str, films)], "cpu", "dis", None)
    assert (found["rate"][-1][1], found["n_sources"], found["notes"]) == (90, 1, [])
    # The second has done 30 of its 60 frames when the first ends.
    assert parts._rate([[(0, 0), (1, 40), (2, 90)], [(0, 0), (4, 60)]]) == (90 + 30) / 2
    (path, track) = next(parts._tracks(time.time, [str(films[0])], "cpu", "dis"))
    compared = parts._compared(path, track, track)
    assert compared["clips"] == compared["same_decisions"] == compared["same_tags"] == 1

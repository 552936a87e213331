"""A run of the recipe that `curate fit --solve` prints gives what was predicted."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from film_makers import write_video
from film_shots import moving_texture

from curator.cli import main
from curator.tools.commands.arguments import EXIT_OK
from curator.tools.commands.fit_solving import recipe_text

RECIPE = """
shard: {resolutions: [64], val_share: 0}
dedup: {enabled: false}
caption: {enabled: false}
analyze: {text: false}
"""
FILMS = (("24", 75), ("25", 181), ("30", 357), ("30000/1001", 49), ("vfr", 260))


def write_films(folder: Path) -> None:
    folder.mkdir()
    for number, (rate, n_frames) in enumerate(FILMS):
        path = folder / f"{number}.mp4"
        frames = moving_texture(n_frames, width_px=160, height_px=90, seed=number)
        if rate == "vfr":
            steps = np.random.default_rng(2).integers(25, 50, n_frames)
            write_video(path, frames, pts=np.cumsum(steps).tolist(), time_base=Fraction(1, 1000))
        else:
            write_video(path, frames, fps=Fraction(rate))


@pytest.mark.long
def test_a_run_decodes_no_source_that_its_plan_decoded(tmp_path: Path) -> None:
    """Pins that the sample's measurements stay in OUT, and change no result."""
    films, recipe = tmp_path / "films", tmp_path / "recipe.yaml"
    write_films(films)
    recipe.write_text(RECIPE)
    made: dict[str, tuple[int, list[dict[str, Any]]]] = {}
    for name, plans in (("planned", True), ("whole", False)):
        command = [str(films), str(tmp_path / name), "--recipe", str(recipe)]
        assert not plans or main(["plan", *command, "--sample", "0.15"]) == EXIT_OK
        assert main(["run", *command]) == EXIT_OK
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        clips = pq.read_table(tmp_path / name / "clips").sort_by("clip_id").to_pylist()
        made[name] = summary["work"]["sources_analyzed"], clips
    assert made["whole"][0] == len(FILMS)
    assert 0 < made["planned"][0] < len(FILMS)
    assert made["planned"][1] == made["whole"][1]


@pytest.mark.long
def test_a_solution_comes_true(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pins the predicted share to that of the new output, in two points, for five trainers."""

    def fitted(*words: str) -> Any:  # noqa: ANN401
        capsys.readouterr()
        assert main(["fit", *words, "--json"]) == EXIT_OK
        return json.loads(capsys.readouterr().out)

    films, out, recipe = (tmp_path / name for name in ("films", "out", "recipe.yaml"))
    write_films(films)
    recipe.write_text(RECIPE)
    assert main(["run", str(films), str(out), "--recipe", str(recipe)]) == EXIT_OK
    for trainer in ("wan-diffsynth", "ltx2", "diffusion-pipe", "musubi", "automodel"):
        solved = fitted(str(out), "--for", trainer, "--solve")
        recipe.write_text(recipe_text(solved["base"], solved["changes"]))
        # The same folder for all: each run decodes nothing again, and replaces the clips.
        made = tmp_path / "made"
        assert main(["run", str(films), str(made), "--recipe", str(recipe)]) == EXIT_OK
        (of,) = solved["trainers"]
        (now,) = fitted(str(made), "--for", trainer, "--solve")["trainers"]
        predicted, total_s = of["after"]["well_share"], solved["footage_s"]
        assert predicted > of["before"]["well_share"]
        assert now["before"]["well_s"] / total_s == pytest.approx(predicted, abs=0.02)
        if (
            len(solved["changes"]["propose"]["windows"]) == 1
            and "overlap" not in recipe.read_text()
        ):
            (facts,) = fitted(str(made), "--for", trainer)
            assert facts["seen_s"] / total_s == pytest.approx(predicted, abs=0.02)

"""A source that kills the process that decodes it ends as failed, and the others are done."""

import os
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from film_makers import write_video
from film_shots import moving_texture

from curator import pipeline
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.recipe import load_recipe
from curator.runs.curation import Run
from curator.stages.analyze.stage import Analyzed, AnalyzeStage
from curator.storage import open_store
from curator.tables.track_items import AnalyzeItem


class DyingAnalyzeStage(AnalyzeStage):
    """Aborts its process on one source, as a crash in a decoder does."""

    def process(self, unit: AnalyzeItem) -> Analyzed:
        if "deadly" in unit.uri:
            os.abort()
        return super().process(unit)


def test_a_source_that_kills_its_worker_twice_fails_and_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{Path(__file__).parents[1]}")
    (tmp_path / "in").mkdir()
    for number in range(3):
        name = "deadly.mp4" if number == 1 else f"sound {number}.mp4"
        frames = moving_texture(30, seed=number)
        write_video(tmp_path / "in" / name, frames, fps=Fraction(25))
    monkeypatch.setattr(pipeline, "AnalyzeStage", DyingAnalyzeStage)
    store = open_store(str(tmp_path / "out"))
    with Progress(live=False) as progress, Engine(address=None, workers=None) as engine:
        run = Run(store, load_recipe("quickstart"), engine, progress)
        summary = run.execute([str(tmp_path / "in")], limit=None)
    assert summary["counts"]["done"] == 2
    assert summary["counts"]["by_error"] == {"worker_died": 1}
    rows = pq.read_table(tmp_path / "out" / "sources").to_pylist()
    (dead,) = [row for row in rows if row["outcome"] == "failed"]
    assert dead["error_stage"] == "analyze"
    assert dead["uri"].endswith("deadly.mp4")
    assert "died 2 times" in dead["error_message"]

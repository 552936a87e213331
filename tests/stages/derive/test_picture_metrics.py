"""The annotator `picture_metrics`: columns of named networks, from a run to a rule."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from tiny_onnx import node, save_onnx

from curator.errors import RecipeError
from curator.models.catalogue import ModelEntry
from curator.pipeline import graph_of
from curator.recipe import load_recipe
from curator.stage import ClipFacts, RequestedFrames, SampledClip
from curator.stages.derive.picture_metrics import PictureMetrics, PictureMetricsConfig

ENTRY = """
{name}:
  kind: picture
  about: mean level
  picture: {{runs: onnx, side_px: 8, lower_is_better: {lower}}}
  file: m.onnx
  licence: none
"""


NODES = [
    node("ReduceMean", ["x"], "level", (1, 2, 3)),
    node("Div", ["level", "level"], "one"),
    node("Mul", ["level", "one"], "y"),
]
"""The mean level, 0 to 1; no number for black."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "catalogue.yaml").write_text(
        ENTRY.format(name="level-1.5", lower="false") + ENTRY.format(name="dark", lower="true")
    )
    for name in ("level-1.5", "dark"):
        (tmp_path / name).mkdir()
        save_onnx(tmp_path / name / "m.onnx", NODES, shape=("n", 3, 8, 8), outputs=("n",))
    return tmp_path


def stage(folder: Path, *models: str) -> PictureMetrics:
    return PictureMetrics(PictureMetricsConfig(models=models, models_folder=str(folder)))


def clip(*levels: int) -> SampledClip:
    facts = ClipFacts(
        clip_id="0" * 24, source_id="0" * 32, n_frames=len(levels), fps=Fraction(1),
        width=24, height=16, columns={},
    )  # fmt: skip
    pixels = np.stack([np.full((16, 24, 3), level, np.uint8) for level in levels])
    shown = RequestedFrames(numbers=tuple(range(len(levels))), pixels=pixels)
    return SampledClip(facts=facts, requested=(shown,))


def test_a_model_gives_mean_and_worst_of_the_numbers_it_has(folder: Path) -> None:
    """Pins the direction of the worst value, the columns' names, and frames without a number."""
    made = stage(folder, "level-1.5", "dark")
    made.preflight()
    made.setup()
    first, second = made.process([clip(51, 0, 153), clip(0)])
    expected = {"level_1_5": 0.4, "level_1_5_worst": 0.2, "dark": 0.4, "dark_worst": 0.6}
    assert first == pytest.approx(expected)
    assert second == dict.fromkeys(expected)
    columns = [c for family in made.declared_families() for c in family.content.columns]
    assert columns == ["level_1_5", "level_1_5_worst", "dark", "dark_worst"]


def test_the_file_and_its_reading_are_in_the_fingerprint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stage(folder, "dark").models()
    text = (folder / "catalogue.yaml").read_text()
    (folder / "catalogue.yaml").write_text(text.replace("side_px: 8", "side_px: 8, output: 1"))
    assert stage(folder, "dark").models() != before
    assert isinstance(stage(folder, "dark")._entries[0], ModelEntry)


def test_the_models_of_the_recipe_are_those_of_the_stage(folder: Path) -> None:
    changes = ["stages=[{use: picture_metrics, config: {models: [dark]}}]", f"models={folder}"]
    (made,) = graph_of(load_recipe("quickstart", changes)).annotators()
    made.preflight()


def test_unknown_and_repeated_models_are_refused(folder: Path) -> None:
    # A snapshot can be read without the catalogue, so a run checks names when it begins.
    unknown = stage(folder, "darc")
    assert list(unknown.families[0].content.columns) == ["darc", "darc_worst"]
    with pytest.raises(RecipeError, match=r"picture model 'darc'.*did you mean 'dark'"):
        unknown.preflight()
    with pytest.raises(RecipeError, match="expected each name once"):
        stage(folder, "dark", "dark")
    with pytest.raises(RecipeError, match="no other name with -worst"):
        stage(folder, "dark", "dark-worst")

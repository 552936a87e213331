"""`examples/edge_share.py`: a measure in a file of one's own, by its name in a recipe."""

import json
from pathlib import Path

import numpy as np
import pytest
from judged import decide
from samples import made_signals, made_track

from curator.cli import main
from curator.errors import RecipeError
from curator.measures.measure_contract import SamplePictures
from curator.recipe import Recipe, load_recipe, measures_of, with_changes
from curator.records.clips import Span
from curator.stages.propose.candidate_row import candidate_of
from curator.tables.clip_rows import candidates_table

EXAMPLES = Path(__file__).parents[2] / "examples"
MEASURE = "edge_share:EdgeShare"
NAMED = f"measures=[{MEASURE}]"


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def pictures(picture: np.ndarray) -> SamplePictures:
    return SamplePictures(picture_HWC=picture, small_HWC=picture, seconds=0.0)


def test_it_tells_a_wall_from_a_crowd() -> None:
    (measure,) = measures_of(load_recipe("quickstart", [NAMED])).users
    measure.setup()
    wall = np.full((180, 320, 3), 90, np.uint8)
    crowd = np.random.default_rng(0).integers(0, 2, (45, 80, 1), np.uint8) * np.uint8(255)
    crowd = crowd.repeat(4, 0).repeat(4, 1).repeat(3, 2)
    assert measure.measure(pictures(wall)) == {"edge_share": 0.0}
    assert measure.measure(pictures(crowd))["edge_share"] > 0.1
    assert set(measure.measure(pictures(wall))) == set(measure.signals)


def rows(recipe: Recipe, values: list[float]) -> list[dict[str, object]]:
    """Clips of constant signals, judged."""
    candidates = [
        candidate_of(
            made_track(signals=made_signals(20, edge_share=value)),
            Span(start_frame=0, end_frame=150, shot=0),
            "a.mp4",
            aggregates=recipe.scores.root,
            measures=measures_of(recipe),
            crop_borders=False,
        )
        for value in values
    ]
    table = candidates_table(candidates, measures_of(recipe).specs)
    decided = decide(
        table, recipe.filters.root, min_s=2.0, shard=recipe.shard, measures=measures_of(recipe)
    )
    return decided.clips.to_pylist()


def test_rules_bound_its_scores_and_reasons_derive_from_their_names() -> None:
    """Pins columns, derived and named reasons, and that a recipe says how samples are taken."""
    recipe = Recipe.model_validate(
        {
            "measures": [MEASURE],
            "scores": {"edge_share": "max", "empty_share": 0.1},
            "filters": {"edge_share": {"min": 0.03}, "empty_share": {"max": 0.5}},
        }
    )
    empty, busy = rows(recipe, [0.02, 0.2])
    assert (busy["decision"], busy["edge_share"], busy["empty_share"]) == (
        "kept", pytest.approx(0.2), 0.0
    )  # fmt: skip
    assert empty["reasons"] == ["edge_share_too_low", "mostly_empty"]


def test_a_recipe_without_it_has_no_such_score() -> None:
    """Pins that the set is of the recipe, whichever was read before, and the nearest key's name."""
    recipe = load_recipe("quickstart", [NAMED, "filters.edge_share.min=0.02"])
    assert with_changes(recipe, ["filters.edge_share.min=0.03"]).measures == (MEASURE,)
    with pytest.raises(RecipeError, match="unknown score 'edge_share'"):
        load_recipe("quickstart", ["filters.edge_share.min=0.02"])
    assert "edge_share" in measures_of(recipe).specs


def test_a_measure_that_is_not_there_names_the_recipe_and_the_key() -> None:
    with pytest.raises(RecipeError, match=r"^--set: measures: 'edge_shar:EdgeShare' cannot be imp"):
        load_recipe("quickstart", ["measures=[edge_shar:EdgeShare]"])
    with pytest.raises(RecipeError, match="unknown class of edge_share 'EdgeShar'; did you mean"):
        load_recipe("quickstart", ["measures=[edge_share:EdgeShar]"])


def test_curate_scores_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps({"measures": [MEASURE]}))
    assert main(["scores", "mostly", "--recipe", str(path)]) == 2
    assert "unknown score 'mostly'" in capsys.readouterr().err
    assert main(["scores", "empty_share", "--recipe", str(path)]) == 0
    said = capsys.readouterr().out
    assert "reasons: empty_share_too_low, mostly_empty" in said
    assert "share below 0.01 over samples" in said
    assert main(["scores", "--markdown", "--recipe", str(path)]) == 0
    assert "\n## edges\n" in capsys.readouterr().out

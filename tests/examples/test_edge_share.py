"""`edge_share.py` and `flicker.py` of `examples/`: measures of one's own, alone and in a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filtered_clips import decide
from place import QVGA, Place, write_films
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
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES}:{EXAMPLES.parent}")


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
    """Clips of constant signals, filtered."""
    measures, span = measures_of(recipe), Span(start_frame=0, end_frame=150, shot=0)
    settings: Any = {"aggregates": recipe.scores.root, "measures": measures, "crop_borders": False}
    tracks = [made_track(signals=made_signals(20, edge_share=value)) for value in values]
    candidates = [candidate_of(track, span, "a.mp4", **settings) for track in tracks]
    table = candidates_table(candidates, measures.specs)
    decided = decide(table, recipe.filters.root, min_s=2.0, shard=recipe.shard, measures=measures)
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


def test_a_measure_that_is_not_there_names_the_recipe_and_the_key() -> None:
    """Pins that the set is of the recipe, whichever was read before, and the nearest key's name."""
    recipe = load_recipe("quickstart", [NAMED, "filters.edge_share.min=0.02"])
    assert with_changes(recipe, ["filters.edge_share.min=0.03"]).measures == (MEASURE,)
    assert "edge_share" in measures_of(recipe).specs
    for change, message in {
        "filters.edge_share.min=0.02": "unknown score 'edge_share'",
        "measures=[edge_shar:EdgeShare]": r"^--set: measures: 'edge_shar:EdgeShare' cannot be imp",
        "measures=[edge_share:EdgeShar]": "unknown class of edge_share 'EdgeShar'; did you mean",
    }.items():
        with pytest.raises(RecipeError, match=message):
            load_recipe("quickstart", [change])


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


BOTH = "measures=[edge_share:EdgeShare, flicker:Flicker]"


class Measured(Place):
    """A film."""

    settings = ("filters.short_side_px.min=60", "propose.min_s=1.0", "shard.resolutions=[64, 120]",
                "filters.motion.min=null")  # fmt: skip

    def clip(self) -> dict[str, Any]:
        (clip,) = self.table("clips")
        return clip


def test_a_run_measures_filters_and_writes_the_score_of_a_user(tmp_path: Path) -> None:
    """Pins columns, reason, JSON and report, reruns without a decode, and a run without it."""
    place = Measured(write_films(tmp_path / "in", (90,), fps=30, **QVGA), tmp_path / "out")
    assert "decode" in place.run()["cpu_seconds"]
    place.run(BOTH)
    clip = place.clip()
    assert (clip["decision"], 0 <= clip["empty_share"] <= 1) == ("kept", True)
    assert 0 < clip["edge_share"] < 1
    assert 0 < clip["flicker"] < 0.1
    sample = json.loads(place.sample(clip, "json"))
    assert sample["scores"]["edge_share"] == pytest.approx(clip["edge_share"], rel=1e-3)
    report = (place.out / "report" / "index.html").read_text()
    assert "share of the picture that is edges, median over samples" in report
    assert "step of brightness between neighbouring pictures" in report

    again = place.run(BOTH, "filters.edge_share.min=0.99", "scores.edge_share=max",
                      "filters.flicker.max=0")  # fmt: skip
    assert "decode" not in again["cpu_seconds"]
    clip = place.clip()
    assert (clip["decision"], clip["reason"]) == ("rejected", "edge_share_too_low")
    assert clip["reasons"][-1] == "flickers"
    assert main(["explain", str(place.out), clip["clip_id"][:8]]) == 0

    assert "decode" not in place.run()["cpu_seconds"]
    assert "edge_share" not in place.clip()

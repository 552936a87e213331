"""Which recipe a second run uses, and what it says about changes before it works."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from film_makers import text_file

import curator
from curator.cli import main
from curator.errors import RecipeError, UsageError
from curator.recipe import Recipe, load_recipe, recipe_used, with_changes
from curator.runs.output_recipe import choose_recipe
from curator.runs.recipe_changes import consequences, recipe_changes
from curator.tables.json_objects import sealed_json, to_json
from curator.tools.commands.arguments import EXIT_OK, EXIT_USAGE

OWN = "about: mine\nfilters: {motion: {min: 0.4}}\nrun: {mode: growing}\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A finished run of a recipe of its own over a file that is no video: all of it is quick."""
    (tmp_path / "in").mkdir()
    text_file(tmp_path / "in" / "a.mp4")
    (tmp_path / "own.yaml").write_text(OWN)
    assert run(tmp_path, "--recipe", str(tmp_path / "own.yaml")) == EXIT_OK
    return tmp_path


def run(place: Path, *more: str) -> int:
    return main(["run", str(place / "in"), str(place / "out"), "--max-failed", "1", *more])


def used(place: Path) -> dict[str, Any]:
    """The recipe of the output."""
    recipe: dict[str, Any] = json.loads((place / "out" / "summary.json").read_text())["recipe"]
    return recipe


def test_a_plain_run_keeps_the_recipe_of_the_output(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = used(place)
    assert (before["about"], before["run"]["mode"]) == ("mine", "growing")
    assert run(place) == EXIT_OK
    assert used(place) == before
    assert "changes" not in caplog.text


def test_a_key_changes_on_top_of_it_and_that_is_said_first(
    place: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins key, old value, new value and consequence, and that a dry run says so too."""
    before = used(place)
    change = ("--set", "filters.motion.min=0.3")
    assert run(place, *change, "--dry-run") == EXIT_OK
    said = "filters.motion.min: 0.4 -> 0.3 (clips are filtered again, and those"
    assert said in caplog.text
    assert used(place) == before
    caplog.clear()
    assert run(place, *change) == EXIT_OK
    assert said in caplog.text
    assert "about:" not in caplog.text
    before["filters"]["motion"]["min"] = 0.3
    assert used(place) == before


def test_a_recipe_that_is_named_replaces_it(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run(place, "--recipe", "quickstart") == EXIT_OK
    assert "run.mode: growing -> exact (all clips are decided about again" in caplog.text
    assert used(place)["about"] != "mine"
    assert used(place)["run"]["mode"] == "exact"


def test_from_python_it_is_the_same(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = used(place)
    summary = curator.run(place / "in", place / "out")
    assert summary["recipe"] == before
    summary = curator.run(place / "in", place / "out", overrides=["run.mode=exact"])
    assert summary["recipe"]["run"]["mode"] == "exact"
    assert "run.mode: growing -> exact" in caplog.text
    assert curator.run(place / "in", place / "out", "quickstart")["recipe"]["about"] != "mine"


def test_recaption_says_what_changes(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["recaption", str(place / "out"), "--set", "caption.enabled=false"]) == EXIT_OK
    assert "caption.enabled: true -> false (captions are made again" in caplog.text


def test_a_damaged_summary_does_not_bring_another_recipe(place: Path) -> None:
    """Pins the copy of the recipe, and that a run without any of both asks for a name."""
    out = str(place / "out")
    before = choose_recipe(out, None, ()).recipe
    summary = place / "out" / "summary.json"
    summary.write_bytes(summary.read_bytes().replace(b"growing", b"exactly"))
    assert choose_recipe(out, None, ()).recipe == before
    for name in ("summary.json", "config.json"):
        (place / "out" / name).write_text("{}}")
    shutil.rmtree(place / "out" / "snapshots")
    with pytest.raises(UsageError, match="no record of their recipe: name the recipe with --rec"):
        choose_recipe(out, None, ())


def test_a_recipe_that_cannot_be_read_must_be_named(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pins an output of another version, whose recipe has keys that this one does not know."""
    summary = place / "out" / "summary.json"
    data = json.loads(summary.read_text())
    data["recipe"]["caption"] |= {"batch_tokens": 9, "judge": None}
    assert recipe_used(data, "out").caption.captioner == "measured"
    data["recipe"]["propose"]["gone"] = 1
    summary.write_bytes(sealed_json(data, to_json, "summary.json"))
    assert run(place) == EXIT_USAGE
    error = capsys.readouterr().err
    assert "with a recipe that this version cannot read (propose.gone" in error
    assert "run it again with --recipe" in error
    # A class that is not there, which is no matter of versions.
    data["recipe"] |= {"propose": {}, "measures": ["mine.sharp:EdgeShare"]}
    summary.write_bytes(sealed_json(data, to_json, "summary.json"))
    assert main(["tune", str(place / "out"), "motion.min=0.1"]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert "version" not in error
    remedies = "make class EdgeShare of module mine.sharp importable: ", "with another recipe"
    assert 0 < error.index(remedies[0]) < error.index(remedies[1])


def test_what_a_recipe_leaves_to_the_size_follows_a_later_size() -> None:
    """Pins classes and `min: trained` of a stored recipe, and that what was set stays as it was."""

    def stored(*overrides: str) -> Recipe:
        recipe = load_recipe("quickstart", overrides)
        return recipe_used({"recipe": json.loads(recipe.model_dump_json())}, "out")

    for size, least_px in (("256p", 256), ("[720p, 256p]", 256), ("480p", 480)):
        for before in ((), ("cut.size=[720p, 144p]",)):
            other = with_changes(stored(*before), [f"cut.size={size}"])
            assert other == load_recipe("quickstart", [f"cut.size={size}"])
            assert other.filters.root["short_side_px"].min == least_px
    own = "shard.resolutions=[144, 480]", "filters.short_side_px.min=300"
    for recipe in (stored(*own), with_changes(stored(), own)):
        other = with_changes(recipe, ["cut.size=256p"])
        assert other.shard.resolutions == (144, 480)
        assert other.filters.root["short_side_px"].min == 300
    with pytest.raises(RecipeError, match=r"'follow_size=\[\]': curate fills this key in"):
        with_changes(stored(), ["follow_size=[]"])
    # A copy of a stored recipe is a recipe like others: what is changed in it counts.
    copied = json.loads(stored().model_dump_json())
    copied["shard"]["resolutions"] = [144]
    assert load_recipe(copied).shard.resolutions == (144,)
    one = with_changes(stored(*own), ["filters.short_side_px.min=trained"])
    assert with_changes(one, ["cut.size=256p"]).filters.root["short_side_px"].min == 256


def test_each_section_says_what_a_change_of_it_does() -> None:
    effects = consequences(Recipe())
    assert {*Recipe.model_fields} - {"about", "follow_size"} <= set(effects)
    assert all(effects.values())


def test_entries_of_lists_are_said_as_a_recipe_has_them() -> None:
    one = Recipe.model_validate({"stages": ["mine:One"]})
    config = {"use": "mine:Two", "after": "dedup", "config": {"px": 3, "exact": True}}
    two = Recipe.model_validate({"stages": ["mine:One", config]})
    (change,) = recipe_changes(one, two)
    said = "stages: [mine:One] -> [mine:One, {use: mine:Two, after: dedup, config: {px: 3, "
    assert change.startswith(f"{said}exact: true}}}}]")


def test_an_entry_that_one_recipe_has_is_one_change_without_its_defaults() -> None:
    """Pins a rule that is added, removed and changed, and one whose name has a dot."""
    one = Recipe.model_validate({"filters": {"meta.rating": {"min": 2, "why": "good"}}})
    two = Recipe.model_validate({"filters": {"motion": {"min": 0.3}}})
    effect = "(clips are filtered again, and those that are newly kept are cut)"
    assert list(recipe_changes(one, two)) == [
        f"filters.motion: null -> {{min: 0.3}} {effect}",
        f"filters.meta.rating: {{min: 2.0, why: good}} -> null {effect}",
    ]
    three = Recipe.model_validate({"filters": {"motion": {"min": 0.3, "severity": "flag"}}})
    assert list(recipe_changes(two, three)) == [f"filters.motion.severity: reject -> flag {effect}"]

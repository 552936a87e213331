"""A recipe that names another as its base has all keys of it except those that it changes."""

from pathlib import Path

import pytest

from curator.errors import RecipeError
from curator.recipe import load_recipe


def test_keys_of_the_base_stay_where_nothing_changes_them(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text("base: quickstart\nabout: ours\nfilters: {logo: null}\n")
    own = tmp_path / "own.yaml"
    own.write_text("base: team.yaml\nfilters: {motion: {min: 0.5}}\ncut: {size: 720p}\n")
    recipe, base = load_recipe(str(own)), load_recipe("quickstart")
    assert recipe.cut.size == (1280, 720)
    assert recipe.filters.root["motion"].min == 0.5
    assert recipe.filters.root["motion"].max == base.filters.root["motion"].max
    assert [*recipe.filters.root] == [name for name in base.filters.root if name != "logo"]
    assert recipe.about == "ours"
    assert load_recipe({"base": "quickstart"}) == base


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: quickstrat", "quickstart"),
        ("base: 3", "base is 3; expected the name of a recipe"),
        ("base: own.yaml", "or a cycle"),
        ("base: quickstart\ncut: {sizes: 1}", "unknown key 'sizes'"),
    ],
)
def test_a_wrong_base_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(RecipeError, match=said):
        load_recipe(str(tmp_path / "own.yaml"))

"""Chooses the recipe of a run into an output.

It imports neither stages nor Arrow, so a wrong key is reported before they load.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from curator.errors import DamagedError, StorageError, UsageError, raised_as
from curator.recipe import (
    DEFAULT_RECIPE,
    Overrides,
    Recipe,
    load_recipe,
    recipe_used,
    with_changes,
)
from curator.storage import Store, open_store
from curator.tables.out_layout import MANIFEST
from curator.tables.output_format import find_settings, read_summary

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRecipe:
    """The recipe of a run, and that of the last finished run into its output, if there is one."""

    recipe: Recipe
    before: Recipe | None


def choose_recipe(
    out: str, name: str | Mapping[str, Any] | None, overrides: Overrides
) -> ChosenRecipe:
    """Chooses the recipe of a run: the named recipe, else the output's, else the default.

    Args:
        out: Output root.
        name: Name, path of a YAML file, or its contents, as for `load_recipe`; None keeps the
            recipe of the output.
        overrides: Changes to this recipe.

    Raises:
        RecipeError: A key or value is wrong.
        UsageError: The output cannot be opened, or has another format; or `name` is None, and the
            recipe of the output cannot be read.
    """
    with raised_as(UsageError, StorageError):
        store = open_store(out)
        settings = _settings(store)
    before = None
    try:
        # A process uses the measures of the last recipe read, so the run's recipe is read last.
        before = _stored_recipe(store, settings)
    except UsageError as error:
        if name is None:
            raise
        logger.warning("the changes to the recipe are unknown: %s", error)
    if name is None and before is not None:
        return ChosenRecipe(recipe=with_changes(before, overrides), before=before)
    recipe = load_recipe(DEFAULT_RECIPE if name is None else name, overrides)
    return ChosenRecipe(recipe=recipe, before=before)


def _stored_recipe(store: Store, settings: Mapping[str, Any]) -> Recipe | None:
    """Returns the recipe of the last finished run; None for an output without one."""
    if settings:
        return recipe_used(settings, store.uri)
    with raised_as(UsageError, StorageError):
        if store.exists(MANIFEST):
            raise UsageError(
                f"{store.uri} has shards, but no record of their recipe: name the recipe with "
                "--recipe"
            )
    return None


def _settings(store: Store) -> Mapping[str, Any]:
    """Returns the summary of the last commit or, if the summary is lost, `config.json`."""
    for read in (read_summary, find_settings):
        # A damaged object is no error here, because the run writes the object again.
        with suppress(DamagedError):
            if settings := read(store):
                return settings
    return {}

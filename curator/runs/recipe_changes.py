"""Lists the changes of a recipe to the recipe of an output, and their effects on the next run."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from curator.pipeline import built_in_stages
from curator.recipe import FOLLOW_SIZE, Recipe
from curator.records.clips import OF_FORM
from curator.stage import FILTERED_AGAIN

logger = logging.getLogger(__name__)

_OF_NO_STAGE = {
    "run": "this key applies to the new sources of this run",
    "run.marks": FILTERED_AGAIN,
    **{key: FILTERED_AGAIN for key, _ in OF_FORM.values()},
    "run.mode": "all clips are decided about again, except in mode growing without clusters",
    "stages": "changed stages filter, cut or annotate clips again; values of stages that are left "
    "out leave the samples",
    "rights": "sources that it refuses lose their clips; sources that it allows now are analyzed",
    "train_for": "the summary of the run says what other trainers see",
    "models": "weights are read from this place",
}
"""Effects of a change on the next run, by section or key of the recipe."""


def consequences(recipe: Recipe) -> dict[str, str]:
    """Returns the effects of a change on the next run, by section or key of the recipe."""
    by_section = {
        section: stage.change_effect
        for stage in built_in_stages(recipe)
        for section in stage.sections
        if stage.change_effect
    }
    return {**by_section, **_OF_NO_STAGE}


def log_changes(uri: str, before: Recipe, recipe: Recipe) -> None:
    """Logs the changes to the recipe of an output, and their effects on a run."""
    changes = list(recipe_changes(before, recipe))
    if changes:
        lines = "".join(f"\n  {change}" for change in changes)
        logger.warning("the recipe of %s changes:%s", uri, lines)


def recipe_changes(before: Recipe, recipe: Recipe) -> Iterator[str]:
    """Yields a line for each key with another value: the change, and its effect on a run.

    An entry that only one of the recipes has, such as a rule, is one key; its settings that are the
    default are left out. The keys `about` and `follow_size` have no effect.
    """
    effects = consequences(recipe)
    old, new = (version.model_dump(mode="json") for version in (before, recipe))
    for path in _changed(old, new):
        if path not in (("about",), (FOLLOW_SIZE,)):
            was, now = (_shown(_value_at(version, path)) for version in (before, recipe))
            key = ".".join(path)
            yield f"{key}: {was} -> {now} ({effects.get(key) or effects[path[0]]})"


def _changed(
    old: Mapping[str, Any], new: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yields the path of each value that differs, except mappings that both have."""
    for name in {**new, **old}:
        was, now = old.get(name), new.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _changed(was, now, (*above, name))
        elif was != now:
            yield (*above, name)


def _value_at(recipe: Recipe, path: Sequence[str]) -> Any:  # noqa: ANN401 - of any key
    """Returns the value at a path, a mapping without defaults; None if the recipe lacks the key."""

    def of(values: Any) -> Any:  # noqa: ANN401
        for name in path:
            values = values.get(name) if isinstance(values, Mapping) else None
        return values

    value = of(recipe.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return of(recipe.model_dump(mode="json", exclude_defaults=True)) or {}
    return value


def _shown(value: object) -> str:
    """Returns a value as a recipe writes it; mappings lose keys with null or empty values."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        entries = {name: item for name, item in value.items() if item not in (None, {})}
        if entries.keys() == {"use"}:
            return str(entries["use"])
        return f"{{{', '.join(f'{name}: {_shown(item)}' for name, item in entries.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)

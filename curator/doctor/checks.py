"""All checks, each after those that it depends on."""

from collections.abc import Sequence
from dataclasses import dataclass

from curator.doctor.diagnosis import Group, Needs, Row, State, can_run
from curator.doctor.gpu import gpu_rows
from curator.doctor.host import Host
from curator.doctor.machine_check import machine_rows
from curator.doctor.packages import ASKED, are_sound, ask_all, package_rows
from curator.storage.object_service import scheme_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The outcome of all checks."""

    recipe: str
    rows: tuple[Row, ...]
    """In the order of `Group`."""

    @property
    def can_run(self) -> bool:
        """Whether the recipe can run here."""
        return can_run(self.rows)


def examine(
    sources: Sequence[str] = (),
    out: str | None = None,
    *,
    recipe: str,
    overrides: Sequence[str] = (),
    models: str | None = None,
    host: Host | None = None,
) -> Diagnosis:
    """Checks everything; writes nothing that stays.

    `sources`, `out` and `recipe` are those of `curate run`, where given; `models` replaces the
    recipe's place of weights.
    """
    host = host or Host()
    answers = ask_all(host, ASKED)
    places = [*sources, *([out] if out is not None else [])]
    if are_sound(answers):
        needs, rows = _with_recipe(host, sources, out, recipe, overrides, models)
    else:
        # A broken package may crash the process that imports it.
        needs = Needs(s3=any(scheme_of(place) == "s3" for place in places))
        found = "recipe, models and storage were not checked: a package does not work"
        remedy = "see the rows of packages"
        rows = [Group.RECIPE.row(recipe, State.BROKEN, found, remedy, needed=True)]
    rows += machine_rows(host, out)
    rows += package_rows(host, answers, needs)
    rows += gpu_rows(host, answers["faiss"], needs)
    ordered = sorted(rows, key=lambda row: list(Group).index(row.group))
    return Diagnosis(recipe=recipe, rows=tuple(ordered))


def _with_recipe(
    host: Host,
    sources: Sequence[str],
    out: str | None,
    name: str,
    overrides: Sequence[str],
    models: str | None,
) -> tuple[Needs, list[Row]]:
    from curator.doctor import recipe_check
    from curator.doctor.places import s3_rows, storage_rows

    recipe, row = recipe_check.read_recipe(name, overrides, models)
    places = [*sources, *([out] if out is not None else [])]
    mirror = recipe_check.mirror_of(recipe) if recipe is not None else None
    on_s3 = [place for place in (*places, mirror) if place is not None and scheme_of(place) == "s3"]
    rows = s3_rows(host, on_s3) if on_s3 else []
    s3_answers = not any(found.stops for found in rows)
    rows += storage_rows(sources, out, s3_answers=s3_answers)
    if recipe is None:
        return recipe_check.needs_of(None, places), [*rows, row]
    rows += recipe_check.model_rows(recipe, s3_answers=s3_answers)
    if s3_answers or mirror is None:
        # The catalogue of models is in the mirror too.
        rows += recipe_check.recipe_rows(recipe, name) or [row]
    return recipe_check.needs_of(recipe, places), rows

"""All checks, in the order in which one allows the next."""

from collections.abc import Sequence
from dataclasses import dataclass

from curator.doctor.diagnosis import Group, Needs, Row, State, can_run
from curator.doctor.gpu import gpu_rows
from curator.doctor.host import Host
from curator.doctor.machine_check import machine_rows
from curator.doctor.packages import ASKED, are_sound, ask_all, package_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        recipe: The recipe's name.
        rows: By group, in the order of `Group`.
    """

    recipe: str
    rows: tuple[Row, ...]

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
    """Looks at everything; writes nothing that stays.

    Args:
        sources: As for `curate run`; may be empty.
        out: Output root; None if none was named.
        recipe: Name or file.
        overrides: As for `load_recipe`.
        models: Place of weights, instead of the recipe's.
        host: Where to look; None for this machine.
    """
    host = host or Host()
    answers = ask_all(host, ASKED)
    places = [*sources, *([out] if out is not None else [])]
    if are_sound(answers):
        needs, rows = _with_recipe(host, sources, out, recipe, overrides, models)
    else:
        # What a broken package does to a process that imports it may be worse than an error.
        needs = Needs(s3=any(place.startswith("s3://") for place in places))
        rows = [_not_read(recipe)]
    rows += machine_rows(host, out)
    rows += package_rows(host, answers, needs)
    rows += gpu_rows(host, answers["faiss"], needs)
    order = list(Group)
    return Diagnosis(
        recipe=recipe, rows=tuple(sorted(rows, key=lambda row: order.index(row.group)))
    )


def _with_recipe(
    host: Host,
    sources: Sequence[str],
    out: str | None,
    name: str,
    overrides: Sequence[str],
    models: str | None,
) -> tuple[Needs, list[Row]]:
    from curator.doctor.places import S3, s3_rows, storage_rows
    from curator.doctor.recipe_check import (
        mirror_of,
        model_rows,
        needs_of,
        read_recipe,
        recipe_rows,
    )

    recipe, row = read_recipe(name, overrides, models)
    places = [*sources, *([out] if out is not None else [])]
    mirror = mirror_of(recipe) if recipe is not None else None
    on_s3 = [place for place in (*places, mirror) if place is not None and place.startswith(S3)]
    rows = s3_rows(host, on_s3) if on_s3 else []
    s3_answers = not any(found.stops for found in rows)
    rows += storage_rows(sources, out, s3_answers=s3_answers)
    if recipe is None:
        return needs_of(None, places), [*rows, row]
    rows += model_rows(recipe, s3_answers=s3_answers)
    if s3_answers or mirror is None:
        # The catalogue of models lies in the mirror too.
        rows += recipe_rows(recipe, name) or [row]
    return needs_of(recipe, places), rows


def _not_read(name: str) -> Row:
    return Row(
        group=Group.RECIPE,
        name=name,
        state=State.BROKEN,
        found="recipe, models and storage were not looked at: a package does not work",
        remedy="see the rows of packages",
        needed=True,
    )

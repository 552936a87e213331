"""Checks that a run can start, before any work."""

import json
import logging
import os
from collections.abc import Sequence

from curator.errors import ModelError, StorageError, UsageError
from curator.executor.host_resources import available_gpus
from curator.measures.clip_semantics import check_content
from curator.models.scene_network import SCENE_WEIGHTS
from curator.models.text_detector import TEXT_WEIGHTS
from curator.models.weight_store import ModelStore
from curator.recipe import Recipe, learned_score_of, measures_of, semantics_of
from curator.stages.analyze.device_choice import device_here
from curator.stages.scan.source_listing import ListedSource, list_sources
from curator.storage import Store, open_store
from curator.storage.base import has_scheme
from curator.storage.file_walk import is_pattern
from curator.storage.object_service import scheme_of
from curator.tables.clip_rank import LEAST
from curator.tables.out_layout import CONFIG, OWN_FOLDERS, foreign_objects, has_results
from curator.tables.parts import SUMMARY

logger = logging.getLogger(__name__)


def preflight(
    sources: Sequence[str], out: str, *, ray_address: str | None, shared_out: bool, writes: bool
) -> Store:
    """Checks places; the recipe has been checked when it was loaded.

    Args:
        sources: As the user named them.
        out: Output root.
        ray_address: Cluster to run on, or None for this machine alone.
        shared_out: The user says that all nodes see the same folders.
        writes: Whether something will be written.

    Returns:
        The output root.

    Raises:
        UsageError: A place does not exist, a cluster could not reach it, the output root cannot
            be written, or originals lie where outputs go.
    """
    store = open_store(out)
    _check_apart(sources, store.uri)
    check_shared((*sources, out), ray_address=ray_address, shared_out=shared_out)
    list_sources(sources, limit=1)
    _check_foreign(sources, store)
    if writes:
        check_writable(store)
    return store


def check_shared(places: Sequence[str], *, ray_address: str | None, shared_out: bool) -> None:
    """Checks that the nodes of a cluster can see what a run reads and writes.

    Args:
        places: As the user named them.
        ray_address: Cluster to run on, or None for this machine alone.
        shared_out: The user says that all nodes see the same folders.

    Raises:
        UsageError: One is a folder of this machine.
    """
    if ray_address is None or shared_out:
        return
    local = [place for place in places if scheme_of(place) is None]
    if local:
        raise UsageError(
            f"{local[0]!r} is on this machine and the cluster {ray_address!r} may not see it; "
            "use s3://bucket/prefix, or add --shared-out if every node has the same path"
        )


def check_writable(store: Store) -> None:
    """Checks that an output root can be written, before any work.

    Raises:
        UsageError: It cannot.
    """
    try:
        store.check_writable()
    except StorageError as error:
        raise UsageError(str(error)) from error


def _check_apart(sources: Sequence[str], out: str) -> None:
    """Refuses an output root that is a source folder, or has sources where outputs go.

    Raises:
        UsageError: Says which, and what to do.
    """
    root = _place(out)
    for source in sources:
        place = _place(source)
        if place == root and (is_pattern(source) or not os.path.isfile(source)):
            raise UsageError(
                f"OUT {out!r} is the folder of the source {source!r}; outputs would lie among the "
                f"originals: choose another OUT, such as {out.rstrip('/') + '-out'!r}"
            )
        if place.startswith(f"{root.rstrip('/')}/"):
            folder = place[len(root.rstrip("/")) + 1 :].split("/")[0]
            if folder in OWN_FOLDERS or place in (f"{root}/{SUMMARY}", f"{root}/{CONFIG}"):
                raise _inside(source, folder, out)


def _inside(source: str, folder: str, out: str) -> UsageError:
    return UsageError(
        f"the source {source!r} lies in {folder!r} of OUT {out!r}, where outputs go and old ones "
        "are deleted: choose another OUT, or move the source"
    )


def _check_foreign(sources: Sequence[str], store: Store) -> None:
    """Refuses an output root where results would lie among what others put there.

    Once a run has finished there, such objects are let be, unless one is a source: that is looked
    for in the whole listing, which few outputs need.

    Raises:
        UsageError: Says what lies there, and what to do.
    """
    others = foreign_objects(store)
    is_finished = _is_ours(store, SUMMARY, "curate_version")
    if not is_finished:
        _is_ours(store, CONFIG, "fingerprints")
        if others:
            raise UsageError(
                f"OUT {store.uri!r} has {len(others)} objects that curate did not write in folders "
                f"for results, such as {others[0]!r}: choose another OUT, or move them elsewhere"
            )
    if not others:
        return
    root = _place(store.uri).rstrip("/") + "/"
    for item in list_sources(sources):
        if isinstance(item, ListedSource) and has_scheme(item.uri) == has_scheme(root):
            place = item.uri if has_scheme(root) else os.path.realpath(item.uri)
            folder = place.removeprefix(root).split("/")[0]
            if place.startswith(root) and folder in OWN_FOLDERS:
                raise _inside(item.uri, folder, store.uri)


def _is_ours(store: Store, name: str, key: str) -> bool:
    """Whether an object that a run writes is there; one between results of runs may be damaged.

    Raises:
        UsageError: It is there, and is not of a run.
    """
    entry = store.read_versioned(name)
    if entry is None:
        return False
    try:
        value = json.loads(entry[1])
    except ValueError:
        value = None
    if (not isinstance(value, dict) or key not in value) and not has_results(store):
        raise UsageError(
            f"OUT {store.uri!r} has a {name} that curate did not write, and that a run would write "
            "over: choose another OUT, or move it elsewhere"
        )
    return True


def _place(named: str) -> str:
    """Where something lies, links followed; of a pattern the folder before its first mark."""
    segments = named.split("/")
    marks = [i for i, segment in enumerate(segments) if is_pattern(segment)]
    if marks and (has_scheme(named) or not os.path.lexists(named)):
        named = "/".join(segments[: marks[0]]) or ("/" if named.startswith("/") else ".")
    return named.rstrip("/") if has_scheme(named) else os.path.realpath(named)


def check_captions(recipe: Recipe, *, asks_server: bool) -> None:
    """Checks that the captioner that a recipe names can be asked.

    Args:
        recipe: What will be run.
        asks_server: Whether a server is asked a first question now; else it is before the first of
            the run, which may have none.

    Raises:
        UsageError: The server does not answer or has no such model, the model's files or a package
            are not there, or a prompt cannot be read.
    """
    name = recipe.caption.embedding
    if name is not None:
        from curator.models.text_encoder import check_transformers

        try:
            check_transformers()
            models = ModelStore.at(recipe.models)
            models.find(models.catalogue.find(name, "text"))
        except ModelError as error:
            raise UsageError(f"caption.embedding is {name}: {error}") from error
    if recipe.caption.asks:
        # Imported here: recipes that ask no model need nothing of it.
        from curator.stages.caption.stage import check_captioner

        check_captioner(recipe.caption, asks_service=asks_server)


def check_measured(recipe: Recipe) -> None:
    """Checks that what the recipe's rules ask for will be measured, and that its models are here.

    Args:
        recipe: What will be run.

    Raises:
        UsageError: A rule has bounds for a score that is switched off, or a model is missing.
    """
    learned_score_of(recipe)
    for name, score in recipe.filters.rejecting().items():
        key = measures_of(recipe).spec_of(score).needs
        if key is None:
            continue
        section, _, leaf = key.partition(".")
        if not getattr(getattr(recipe, section), leaf):
            raise UsageError(
                f"filters.{name} asks for a score that is not measured with {key} = false; add "
                f"--set {key}=true, or leave the rule out"
            )
    if recipe.dedup.enabled and not recipe.analyze.scenes:
        logger.warning(
            "analyze.scenes is false, so no duplicates are found; add --set analyze.scenes=true, "
            "or --set dedup.enabled=false to leave duplicates in"
        )
    packaged = {TEXT_WEIGHTS.path: recipe.analyze.text, SCENE_WEIGHTS.path: recipe.analyze.scenes}
    for find, is_needed in packaged.items():
        try:
            if is_needed:
                find()
        except ModelError as error:
            raise UsageError(str(error)) from error


def check_device(recipe: Recipe) -> None:
    """Checks that this machine's GPU can be used, where the recipe requires one.

    Raises:
        UsageError: There is no GPU, or driver and packages do not fit.
    """
    if recipe.analyze.device == "gpu":
        device_here("gpu", available_gpus())


def check_cpu_scores(recipe: Recipe, *, ray_address: str | None) -> None:
    """Checks that no rule uses a score that is absent where sources are decoded.

    Args:
        recipe: What will be run.
        ray_address: Cluster to run on, which may have GPUs; None for this machine alone.

    Raises:
        UsageError: A GPU may decode, and the recipe uses a score that only CPUs give.
    """
    rules = recipe.filters.root.items()
    used = {f"filters.{name}": rule.score or name for name, rule in rules if rule.bounds}
    used |= {f"select.by {name}": name for name in recipe.select.by}
    used |= {f"dedup.prefer {name}": name.removeprefix(LEAST) for name in recipe.dedup.prefer}
    specs = measures_of(recipe).specs
    absent = [key for key, score in used.items() if score in specs and specs[score].cpu_only]
    asked = recipe.analyze.device
    if not absent or asked == "cpu":
        return
    may_decode = asked == "gpu" or ray_address is not None
    if may_decode or device_here(asked, available_gpus())[0] == "gpu":
        raise UsageError(
            f"{absent[0]} asks for a score that a GPU's video engine does not give, and "
            f"analyze.device is {asked}, so that a GPU may decode; add --set analyze.device=cpu, "
            "or leave it out"
        )


def check_models(recipe: Recipe) -> None:
    """Checks that the recipe's models are here, and that each score it asks for is made.

    Raises:
        UsageError: Says which key to set, or which model to pull.
    """
    try:
        semantics = semantics_of(recipe)
    except ModelError as error:
        raise UsageError(str(error)) from error
    semantics.check(recipe.filters.rejecting(), recipe.select.by)
    if recipe.shard.by_content_type:
        try:
            check_content(recipe.semantic, recipe.analyze.clip, key="shard.by_content_type")
        except ModelError as error:
            raise UsageError(str(error)) from error
    if recipe.shard.embedding == "clip" and recipe.analyze.clip is None:
        raise UsageError(
            "shard.embedding=clip asks for embeddings of a CLIP model; set analyze.clip, or "
            "shard.embedding=scene"
        )

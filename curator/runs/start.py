"""Starts a run for the command line and for Python: all checks first, then the run."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from curator.errors import (
    DamagedError,
    ModelError,
    RecipeError,
    StorageError,
    UsageError,
    raised_as,
)
from curator.executor.engine import Engine
from curator.executor.host_resources import available_gpus
from curator.executor.progress import Progress
from curator.executor.ray_reach import check_reachable
from curator.measures.clip_semantics import check_content
from curator.measures.rule_config import SHORT_SIDE, TRAINED
from curator.models.scene_network import SCENE_WEIGHTS
from curator.models.text_detector import TEXT_WEIGHTS
from curator.models.weight_store import ModelStore
from curator.number_text import amount
from curator.pipeline import graph_of
from curator.recipe import (
    Recipe,
    least_trained_px,
    measures_of,
)
from curator.recipe_models import learned_score_of, semantics_of
from curator.records.clips import LEAST
from curator.records.sources import Medium
from curator.runs.lease import Lease
from curator.runs.output_recipe import ChosenRecipe
from curator.runs.progress_report import reported
from curator.runs.recipe_changes import log_changes
from curator.runs.reference_clips import check_recognition, other_output
from curator.runs.repair import ALL, with_repair
from curator.runs.run_context import RunLog
from curator.stages.analyze.gpu_engines import device_here
from curator.stages.scan.listing_records import ListedSource
from curator.stages.scan.source_listing import list_sources
from curator.stages.shard.config import ShardConfig
from curator.storage import Store, open_store
from curator.storage.base import has_scheme
from curator.storage.file_walk import is_pattern
from curator.storage.object_service import scheme_of
from curator.tables.out_layout import (
    CONFIG,
    OWN_FOLDERS,
    REPLIES,
    SUMMARY,
    foreign_objects,
    has_results,
)
from curator.tables.removal_records import read_removals
from curator.tools.telemetry.spans import exported_spans

logger = logging.getLogger(__name__)


def check_run(
    sources: Sequence[str],
    out: str,
    chosen: ChosenRecipe,
    *,
    ray_address: str | None,
    shared_out: bool,
    writes: bool = True,
) -> Store:
    """Checks recipe, places, models and servers before any work; returns the output root.

    Logs the changes to the recipe of the output.

    Args:
        sources: Sources as the user named them.
        out: Output root.
        chosen: Recipe of the run, which `choose_recipe` returned.
        ray_address: Cluster to run on; None for this machine.
        shared_out: Whether the user says that all nodes see the same folders.
        writes: Whether the run writes.

    Raises:
        RecipeError: A trainer of the recipe, or its place in the graph, is wrong.
        UsageError: A place, a model, a package, a GPU or a server is missing, or the recipe would
            let removed footage come back.
    """
    with _before_work():
        if chosen.before is not None:
            log_changes(open_store(out).uri, chosen.before, chosen.recipe)
        return _checked(
            sources,
            out,
            chosen.recipe,
            ray_address=ray_address,
            shared_out=shared_out,
            writes=writes,
        )


@contextmanager
def _before_work() -> Iterator[None]:
    """Raises `UsageError` for an error of a store: nothing was begun that could be resumed."""
    try:
        yield
    except DamagedError:
        raise
    except StorageError as error:
        raise UsageError(str(error)) from error


def _checked(
    sources: Sequence[str],
    out: str,
    loaded: Recipe,
    *,
    ray_address: str | None,
    shared_out: bool,
    writes: bool,
) -> Store:
    check_measured(loaded)
    check_cpu_scores(loaded, ray_address=ray_address)
    check_models(loaded)
    graph = graph_of(loaded)
    with raised_as(RecipeError, ValueError, of="train_for: "):
        for entry in loaded.train_for:
            entry.load()
    check_cluster((*sources, out), ray_address=ray_address, shared_out=shared_out)
    store = check_places(sources, out, writes=writes, media=loaded.scan.accepted)
    check_recognition(loaded, read_removals(store))
    for other in loaded.dedup.against:
        other_output(other, store)
    # A rerun may have nothing to decode or caption, so its GPU or server may be gone.
    is_first = not store.exists(SUMMARY)
    if is_first and ray_address is None and loaded.analyze.device == "gpu":
        device_here("gpu", available_gpus())
    if is_first:
        with raised_as(UsageError, ModelError):
            for stage in (graph["scan"], graph["cut"], *graph.annotators()):
                stage.preflight()
    # A repair has the replies of earlier runs, even if it lacks their summary.
    has_replies = next(iter(store.list(f"{REPLIES}/")), None) is not None
    check_captions(loaded, asks_server=loaded.caption.asks and is_first and not has_replies)
    if (advice := least_size_advice(loaded)) is not None:
        logger.warning("%s", advice)
    return store


def least_size_advice(recipe: Recipe) -> str | None:
    """Returns a warning if rules reject footage that is larger than what is trained; else None.

    What is trained is the smallest size that the recipe sets, or of `shard.resolutions`.
    """
    key, least_px = least_trained_px(recipe.cut, recipe.propose, recipe.shard)
    if key == "shard.resolutions" and recipe.shard.resolutions == ShardConfig().resolutions:
        return None
    for name, rule in recipe.filters.root.items():
        is_size = (rule.score or name) == SHORT_SIDE and rule.severity == "reject"
        if is_size and isinstance(rule.min, int | float) and rule.min > least_px:
            return (
                f"filters.{name}.min is {rule.min:g} px, and {key} has {least_px} px: footage "
                "between the two is rejected although it is large enough to train on; to keep it, "
                f"set filters.{name}.min to {TRAINED}"
            )
    return None


def start_run(
    store: Store,
    recipe: Recipe,
    sources: Sequence[str],
    engine: Engine,
    progress: Progress,
    lease: Lease,
    *,
    limit: int | None,
    replace: bool,
    memory_bytes: int | None = None,
    watch: Callable[[RunLog], None] = lambda log: None,
) -> dict[str, Any]:
    """Runs in a root that `lease` holds; returns the contents of `summary.json`.

    `memory_bytes` limits the memory for columns of clips; None for a share of this machine's
    memory. `watch` gets the log of the run when the run begins, and again after a repair.
    """
    lease.follow(engine.heartbeat)
    if not store.exists(SUMMARY):
        # A first run has sources to probe. The worker loads while this process loads.
        engine.preload(("curator.stages.scan.stage",))
    from curator.runs.curation import Run

    def run() -> dict[str, Any]:
        whole = Run(store, recipe, engine, progress, check=lease.check, memory_bytes=memory_bytes)
        watch(whole.log)
        return whole.execute(sources, limit=limit, replace=replace)

    with (
        exported_spans(progress, engine.unit_times),
        reported(store, progress, partial(lease.check, beats=False)),
    ):
        return with_repair(store, run, ALL, check=lease.check)


def check_places(
    sources: Sequence[str],
    out: str,
    *,
    writes: bool,
    media: Set[Medium] = frozenset({Medium.VIDEO}),
) -> Store:
    """Checks sources, which are of `media`, and output root; returns the output root.

    Raises `UsageError` if a place does not exist, if `writes` and the root cannot be written, or if
    originals are where outputs go.
    """
    store = open_store(out)
    _check_apart(sources, store.uri)
    _check_nested(store.uri)
    list_sources(sources, limit=1, media=media)
    _check_foreign(sources, store)
    if writes:
        check_writable(store)
    return store


def check_cluster(places: Sequence[str], *, ray_address: str | None, shared_out: bool) -> None:
    """Checks that a cluster answers, and sees the folders that a run names.

    Raises `UsageError` if it does not, or if a folder may be on this machine only.
    """
    if ray_address is None:
        return
    local = [place for place in places if scheme_of(place) is None]
    if local and not shared_out:
        raise UsageError(
            f"{local[0]!r} is on this machine, and the cluster {ray_address!r} may not see it; "
            "use s3://bucket/prefix, or add --shared-out if every node has the same path"
        )
    check_reachable(ray_address)


def check_writable(store: Store) -> None:
    """Raises `UsageError` for an output root that cannot be written."""
    with raised_as(UsageError, StorageError):
        store.check_writable()


def _check_apart(sources: Sequence[str], out: str) -> None:
    """Refuses an output root that is a source folder, or has sources where outputs go."""
    root = _place(out)
    for source in sources:
        place = _place(source)
        if place == root and (is_pattern(source) or not os.path.isfile(source)):
            raise UsageError(
                f"OUT {out!r} is the folder of the source {source!r}, so the run would write among "
                f"the originals: choose another OUT, such as {out.rstrip('/') + '-out'!r}"
            )
        if place.startswith(f"{root.rstrip('/')}/"):
            folder = place[len(root.rstrip("/")) + 1 :].split("/")[0]
            if folder in OWN_FOLDERS or place in (f"{root}/{SUMMARY}", f"{root}/{CONFIG}"):
                raise _inside(source, folder, out)


def _check_nested(out: str) -> None:
    """Refuses an output root within the folders for results of another one."""
    segments = _place(out).rstrip("/").split("/")
    for number, name in enumerate(segments):
        parent = "/".join(segments[:number])
        # A bucket, as the root, is no folder of results.
        if name in OWN_FOLDERS and number > (2 if has_scheme(out) else 1):
            # Whoever may write OUT need not have the right to read above it.
            with suppress(StorageError):
                if open_store(parent).exists(CONFIG) and has_results(open_store(parent)):
                    raise UsageError(
                        f"OUT {out!r} is in {name!r} of the output {parent!r}, whose runs write "
                        "and delete results there: choose another OUT"
                    )


def _inside(source: str, folder: str, out: str) -> UsageError:
    return UsageError(
        f"the source {source!r} is in {folder!r} of OUT {out!r}, where runs write and delete "
        "results: choose another OUT, or move the source"
    )


def _check_foreign(sources: Sequence[str], store: Store) -> None:
    """Refuses an output root with objects of other programs in the folders for results.

    After a finished run, only sources among these objects are refused. The check then lists all
    sources, which few outputs need.
    """
    others = foreign_objects(store)
    is_finished = _is_ours(store, SUMMARY, "curate_version")
    if not is_finished:
        _is_ours(store, CONFIG, "fingerprints")
        if others:
            raise UsageError(
                f"the folders for results in OUT {store.uri!r} have {amount(len(others), 'object')}"
                f" that curate did not write, such as {others[0]!r}: choose another OUT, or move "
                "these objects elsewhere"
            )
    if not others:
        return
    root = _place(store.uri).rstrip("/") + "/"
    for item in list_sources(sources, media=frozenset(Medium)):
        if isinstance(item, ListedSource) and has_scheme(item.uri) == has_scheme(root):
            place = item.uri if has_scheme(root) else os.path.realpath(item.uri)
            folder = place.removeprefix(root).split("/")[0]
            if place.startswith(root) and folder in OWN_FOLDERS:
                raise _inside(item.uri, folder, store.uri)


def _is_ours(store: Store, name: str, key: str) -> bool:
    """Returns whether an object that a run writes exists; refuses one of another program.

    If OUT has results of runs, the object may be damaged.
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
            f"OUT {store.uri!r} has a {name} that curate did not write, and a run would overwrite "
            "this file: choose another OUT, or move the file elsewhere"
        )
    return True


def _place(named: str) -> str:
    """Returns a place with links resolved; for a pattern, the folder before its first wildcard."""
    segments = named.split("/")
    marks = [i for i, segment in enumerate(segments) if is_pattern(segment)]
    if marks and (has_scheme(named) or not os.path.lexists(named)):
        named = "/".join(segments[: marks[0]]) or ("/" if named.startswith("/") else ".")
    return named.rstrip("/") if has_scheme(named) else os.path.realpath(named)


def check_captions(recipe: Recipe, *, asks_server: bool) -> None:
    """Checks that the captioner of a recipe works.

    With `asks_server`, a server gets a first request now; else before the first caption of the run,
    if there is any. Raises `UsageError` if a server does not answer or lacks the model, if files or
    a package are missing, or if a prompt cannot be read.
    """
    name = recipe.caption.embedding
    if name is not None:
        from curator.models.text_encoder import check_transformers

        with raised_as(UsageError, ModelError, of=f"caption.embedding is {name}: "):
            check_transformers()
            models = ModelStore.at(recipe.models)
            models.find(models.catalogue.find(name, "text"))
    if recipe.caption.asks:
        # Imported here, because other recipes do not need it.
        from curator.stages.caption.stage import check_captioner

        check_captioner(recipe.caption, asks_service=asks_server)


def check_measured(recipe: Recipe) -> None:
    """Checks that the run measures the scores of the recipe's rules, and that its models are here.

    Raises `UsageError` if a rule has bounds of a score that is off, or a model is missing. A rule
    with `unmeasured: keep` says itself what becomes of clips without the score.
    """
    learned_score_of(recipe)
    for name, score in recipe.filters.rejecting().items():
        key = measures_of(recipe).spec_of(score).needs
        if key is None or recipe.filters.root[name].unmeasured == "keep":
            continue
        section, _, leaf = key.partition(".")
        if not getattr(getattr(recipe, section), leaf):
            raise UsageError(
                f"filters.{name} needs a score that is not measured with {key} = false; add "
                f"--set {key}=true, or leave the rule out"
            )
    if recipe.dedup.enabled and not recipe.analyze.scenes:
        logger.warning(
            "analyze.scenes is false, so the run finds no duplicates; add --set "
            "analyze.scenes=true, or --set dedup.enabled=false to keep duplicates"
        )
    with raised_as(UsageError, ModelError):
        if recipe.analyze.text:
            TEXT_WEIGHTS.path()
        if recipe.analyze.scenes:
            SCENE_WEIGHTS.path()


def check_cpu_scores(recipe: Recipe, *, ray_address: str | None) -> None:
    """Raises `UsageError` if a rule needs a score that only CPUs give, and a GPU may decode.

    A cluster at `ray_address` may have GPUs.
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
            f"{absent[0]} needs a score that a GPU's video engine does not give, and a GPU may "
            f"decode because analyze.device is {asked}; add --set analyze.device=cpu, or leave "
            f"{absent[0]} out"
        )


def check_models(recipe: Recipe) -> None:
    """Checks that the recipe's models are here, and that the run makes each score of the recipe.

    Raises `UsageError`, which names the key to set or the model to pull.
    """
    with raised_as(UsageError, ModelError):
        semantics = semantics_of(recipe)
    semantics.check(recipe.filters.rejecting(), recipe.select.by)
    if recipe.shard.by_content_type:
        with raised_as(UsageError, ModelError):
            check_content(recipe.semantic, recipe.analyze.clip, key="shard.by_content_type")
    if recipe.shard.embedding == "clip" and recipe.analyze.clip is None:
        raise UsageError(
            "shard.embedding=clip needs embeddings of a CLIP model; set analyze.clip, or "
            "shard.embedding=scene"
        )

"""How a run starts, from the command line and from Python: all checks, then the run itself."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.pipeline import graph_of
from curator.recipe import Recipe
from curator.runs.elsewhere import other_output
from curator.runs.lease import Lease
from curator.runs.output_recipe import recipe_for
from curator.runs.preflight import (
    check_captions,
    check_cpu_scores,
    check_device,
    check_measured,
    check_models,
    preflight,
)
from curator.runs.progress_report import reported
from curator.runs.repair import ALL, with_repair
from curator.runs.run_context import RunLog
from curator.storage import Store, open_store
from curator.tables.parts import SUMMARY
from curator.telemetry.spans import exported_spans


def check_run(
    sources: Sequence[str],
    out: str,
    *,
    recipe: str | None,
    overrides: Sequence[str],
    ray_address: str | None,
    shared_out: bool,
    writes: bool = True,
) -> tuple[Store, Recipe]:
    """Checks recipe, places, models and servers, before any work.

    Args:
        sources: As the user named them.
        out: Output root.
        recipe: Name, or path of a YAML file; None for that of the output, or where nothing has
            run yet, `quickstart`.
        overrides: `key=value` each.
        ray_address: Cluster to run on, or None for this machine alone.
        shared_out: The user says that all nodes see the same folders.
        writes: Whether something will be written.

    Raises:
        RecipeError: A key or value of the recipe is wrong.
        UsageError: A place, a model, a package, a GPU or a server is missing.
    """
    loaded = recipe_for(open_store(out), recipe, overrides)
    check_measured(loaded)
    check_cpu_scores(loaded, ray_address=ray_address)
    check_models(loaded)
    graph_of(loaded)
    store = preflight(sources, out, ray_address=ray_address, shared_out=shared_out, writes=writes)
    for other in loaded.dedup.against:
        other_output(other, store)
    # A rerun may have nothing to decode or ask: its GPU or server may be gone.
    is_first = not store.exists(SUMMARY)
    if is_first and ray_address is None:
        check_device(loaded)
    check_captions(loaded, asks_server=loaded.caption.asks and is_first)
    return store, loaded


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
    """Runs what `check_run` checked, in a root that is held; returns what `summary.json` holds.

    `memory_bytes` is what columns of clips may take; None for a share of this machine. `watch` gets
    what the run does, before it begins and again where it starts over after a repair.
    """
    lease.follow(engine.heartbeat)
    if not store.exists(SUMMARY):
        # A first run has something to probe; the process for it loads while this one does.
        engine.preload(("curator.stages.scan.stage",))
    from curator.runs.curation import Run

    def run() -> dict[str, Any]:
        whole = Run(store, recipe, engine, progress, check=lease.check, memory_bytes=memory_bytes)
        watch(whole.log)
        return whole.execute(sources, limit=limit, replace=replace)

    with (
        exported_spans(progress, engine.timeline),
        reported(store, progress, partial(lease.check, beats=False)),
    ):
        return with_repair(store, run, ALL, check=lease.check)

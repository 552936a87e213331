"""How a run starts that `preflight.check_run` checked, from the command line and from Python."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.recipe import Recipe
from curator.runs.lease import Lease
from curator.runs.progress_report import reported
from curator.runs.repair import ALL, with_repair
from curator.runs.run_context import RunLog
from curator.storage import Store
from curator.tables.parts import SUMMARY
from curator.telemetry.spans import exported_spans


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
    """Runs in a root that is held; returns what `summary.json` holds.

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

"""Annotates the clips of a finished run anew: a pass over a snapshot, from `caption` on.

Clips stay as they are: pictures come out of the written MP4s, tars whose captions change are put
together anew from the same bytes, and all other tables and tracks stay.
"""

from collections.abc import Callable, Sequence
from typing import Any

from curator.errors import UsageError
from curator.executor.cpu_accounting import mark_processes
from curator.executor.engine import Engine
from curator.executor.host_resources import default_memory_bytes
from curator.executor.progress import Progress
from curator.pipeline import graph_of
from curator.recipe import measures_of, recipe_used, with_changes
from curator.runs.marked_clips import MarkedClips, honoured_marks
from curator.runs.object_repair import repair_objects
from curator.runs.one_pass import Pass, PassScope, RunContext
from curator.runs.output_recipe import log_changes
from curator.runs.run_log import RunLog
from curator.runs.snapshot_scope import Snapshot
from curator.stages.commit.commit_run import alone
from curator.stages.cut.cut_driver import cut_facts
from curator.storage import Store
from curator.tables.output_format import read_current_summary
from curator.tables.removal_records import finished_removals

SECTION = "caption"
UNASKED = frozenset({"captioner", "enabled", "embedding"})
"""Keys of `caption` that say something where no model is asked."""


class Recaption:
    """New annotations for the clips that a finished run kept.

    Args:
        store: Output root.
        changes: `key=value` each; keys of the section `caption` alone.
        engine: Where frames are taken, and models in workers run.
        progress: Where it is shown.
        check: Raises if this run may not write to the root any more.
        memory_bytes: What the columns of clips may take; None for a share of this machine.

    Raises:
        UsageError: There is no finished run, or a change is not one of `caption`.
        RecipeError: A change is wrong.
    """

    def __init__(
        self,
        store: Store,
        changes: Sequence[str],
        engine: Engine,
        progress: Progress,
        *,
        check: Callable[[], None] = alone,
        memory_bytes: int | None = None,
    ) -> None:
        for change in changes:
            if change.split("=")[0].strip().split(".")[0] != SECTION:
                raise UsageError(
                    f"--set {change!r}: only keys of {SECTION} can change without touching clips; "
                    "`curate run` takes all keys"
                )
        self._store, self._engine, self._progress = store, engine, progress
        self._check, self._memory_bytes = check, memory_bytes or default_memory_bytes()
        self._removals = finished_removals(store)
        repair_objects(store, check=check, makes_again=False)
        self._previous = read_current_summary(store)
        before = recipe_used(self._previous, store.uri)
        self.recipe = with_changes(before, changes)
        caption = self.recipe.caption
        unasked = [c for c in changes if c.split("=")[0].strip().split(".")[-1] not in UNASKED]
        if caption.enabled and caption.captioner == "measured" and unasked:
            raise UsageError(
                f"--set {unasked[0]!r} would change nothing: caption.captioner is measured, which "
                "asks no model; set caption.captioner to openai or transformers"
            )
        log_changes(store.uri, before, self.recipe)
        mark_processes()

    def execute(self) -> dict[str, Any]:
        """Does it.

        Returns:
            What `summary.json` holds.

        Raises:
            UsageError: A tar is missing or damaged.
        """
        store, recipe, previous = self._store, self.recipe, self._previous
        graph = graph_of(recipe).since(SECTION)
        scores = measures_of(recipe).specs
        columns = [*graph.columns(), *MarkedClips(honoured_marks(store, recipe)).columns()]
        snapshot = Snapshot.of(store, previous, graph, columns, scores, self._memory_bytes)
        run = RunContext(
            store=store,
            recipe=recipe,
            engine=self._engine,
            graph=graph,
            log=RunLog(
                progress=self._progress,
                listed_ns=previous["listed_ns"],
                n_skipped_names=previous["counts"]["skipped_names"],
                cut=cut_facts((), recipe.cut.crf),
            ),
            memory_bytes=self._memory_bytes,
            check=self._check,
            removals=self._removals,
        )
        scope = PassScope(
            sources=snapshot.sources,
            candidates=snapshot.candidates,
            reusable=snapshot.reusable,
            reuses=previous,
            snapshot=snapshot,
        )
        return dict(Pass(run, scope, previous).execute().summary)

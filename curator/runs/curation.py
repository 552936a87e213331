"""One run: listing, scan and content ids, then a pass for each generation that needs a pass.

docs/design/generations.md explains generations.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import REFUSED, DamagedError, ErrorCode
from curator.executor.cpu_accounting import mark_processes
from curator.executor.engine import Engine
from curator.executor.host_resources import default_memory_bytes
from curator.executor.progress import Progress
from curator.pipeline import graph_of
from curator.recipe import Recipe
from curator.records.clips import LEAST
from curator.runs.commit_run import no_lease_check
from curator.runs.dropped_clips import DropCheck
from curator.runs.generations import CARRIED, Generations, carry, last_sources, why_stale
from curator.runs.measuring import Ahead
from curator.runs.one_pass import GenerationRun, Results, RunScope, earlier_results
from curator.runs.progress_report import expected_of, read_plan
from curator.runs.reference_clips import check_recognition, exclude_removed_sources
from curator.runs.repair import repair_objects
from curator.runs.run_context import RunContext, RunLog
from curator.scheduler import RowScheduler, UnitRunner
from curator.stages.analyze.identity_driver import Identifying
from curator.stages.scan.source_listing import ListedSources, list_sources
from curator.stages.shard.reusable_shards import ReusableShards
from curator.storage import Store
from curator.storage.metadata_columns import PREFIX
from curator.tables.family_store import FamilyRows
from curator.tables.output_format import earlier_state
from curator.tables.removal_records import finished_removals
from curator.tables.schemas import metadata_fields
from curator.tables.source_rights import refuse_by_rights
from curator.tables.source_spans import SourceSpans
from curator.tables.source_table import SourceTable

logger = logging.getLogger(__name__)

PLANNED = "clips", "cpu_s", "stage_s", "sample"
"""Keys of a plan that the summary keeps."""
_NO_FAILURES = frozenset(map(str, REFUSED | {ErrorCode.REMOVED}))
"""Codes of sources that a run leaves out on purpose."""
SMALL_BYTES = 64 << 20
"""Up to this size, sources are likely small work. Before the scan, only their size is known."""


class Run:
    """A run of one recipe over some sources, into an output root.

    `check` raises if this run may not write there any more. `memory_bytes` limits the memory for
    columns of clips; None for a share of this machine's memory.
    """

    def __init__(
        self,
        store: Store,
        recipe: Recipe,
        engine: Engine,
        progress: Progress,
        *,
        check: Callable[[], None] = no_lease_check,
        memory_bytes: int | None = None,
    ) -> None:
        self._sources = SourceTable()
        self.log = RunLog(progress=progress, sources=self._sources.sums)
        """Time and work of the run until now."""
        self.context = RunContext(
            store=store,
            recipe=recipe,
            engine=engine,
            graph=graph_of(recipe),
            log=self.log,
            memory_bytes=memory_bytes or default_memory_bytes(),
            check=check,
            removals=finished_removals(store),
        )
        """The state that passes share."""
        # The checks before the lease may not have seen a removal that ended meanwhile.
        check_recognition(recipe, self.context.removals)
        # Hashes match now: `finished_removals` has refused an output with an unfinished removal.
        repair_objects(store, check=check)
        self._previous = earlier_state(store)
        plan = read_plan(store, recipe)
        steps = self.context.graph.steps()
        progress.expect(expected_of(plan, self._previous, steps), steps)
        if not self._previous:
            self.log.plan = {key: plan[key] for key in PLANNED if plan}
        self._unlisted: list[str] = []
        """Addresses that could not be listed or read."""
        mark_processes()

    def execute(
        self, arguments: Sequence[str], *, limit: int | None, replace: bool = False
    ) -> dict[str, Any]:
        """Runs the stages of the graph; returns the contents of `summary.json`.

        Args:
            arguments: Sources as the user named them.
            limit: Maximum number of sources; None for all.
            replace: Whether these sources replace the sources of earlier runs; else the run adds
                them.

        Raises:
            UsageError: The shards would lose clips that must stay.
        """
        run = self.context
        run.check()
        self._scan(arguments, limit)
        drop_check = self._drop_check = DropCheck(
            run.store, self._previous, replace=replace, unlisted=self._unlisted
        )
        last = last_sources(run.store, self._previous)
        earlier = last.filter(pc.equal(last["outcome"], "done"))
        self._warn_of_vanished(last)
        if not replace:
            self._warn_of_failed(last)
            drop_check.refuse_unread(self._sources)
        # Before others join, because a refused source does not stand in for a copy of it.
        self._refuse_by_rights()
        if not replace:
            # Sources of earlier runs stay if this run does not name them.
            stays = pc.is_in(last["error_code"], value_set=pa.array(sorted(map(str, REFUSED))))
            stays = pc.or_(pc.equal(last["outcome"], "done"), stays)
            run.log.counts[CARRIED] = carry(last.filter(stays), self._sources, run.metadata)
            self._refuse_by_rights()
        self._check_metadata()
        generations = Generations.of(self._sources, earlier, run.recipe.run, run.metadata)
        if run.recipe.run.mode == "growing":
            return self._grown(generations, earlier)
        drop_check.after_scan(self._sources)
        return self._whole(generations)

    def _warn_of_failed(self, last: pa.Table) -> None:
        """Warns of failed sources of earlier runs that this run leaves out."""
        is_failed = pc.and_(
            pc.equal(last["outcome"], "failed"),
            pc.invert(pc.is_in(last["error_code"], value_set=pa.array(sorted(_NO_FAILURES)))),
        )
        uris = last.filter(is_failed)["uri"].to_pylist()
        if n_left_out := len(uris) - len(self._sources.contents_of(uris)):
            logger.warning(
                "failed sources of earlier runs that this run does not name: %d; the table sources "
                "no longer lists them",
                n_left_out,
            )

    def _warn_of_vanished(self, last: pa.Table) -> None:
        """Warns of columns of metadata that sources of this run had in the last run."""
        names = [field.name for field in metadata_fields(last.schema)]
        for name in names:
            if name in self.context.metadata.schema().names:
                continue
            contents = self._sources.by_content()["source_id"].combine_chunks()
            ids = last.filter(pc.is_valid(last[name]))["source_id"]
            if n_sources := pc.sum(pc.is_in(ids, value_set=contents)).as_py():
                logger.warning(
                    "%s is gone: %d of these sources had it in the last run, and no manifest or "
                    "sidecar has it now; their rows lose the value",
                    name, n_sources,
                )  # fmt: skip

    def scanned(self, arguments: Sequence[str], *, limit: int | None) -> SourceTable:
        """Lists and probes sources, and stops there; takes the arguments of `execute`."""
        self._scan(arguments, limit)
        self._refuse_by_rights()
        self._check_metadata()
        return self._sources

    def _refuse_by_rights(self) -> None:
        refuse_by_rights(self._sources, self.context.metadata, self.context.recipe.rights)

    def _whole(self, generations: Generations) -> dict[str, Any]:
        """For each new generation, decides about all clips up to this generation."""
        previous = self._previous
        numbers = generations.new or (generations.last_earlier,)
        for number, after in zip_longest(numbers, numbers[1:]):
            scope = self._scope(previous, sources=self._sources.up_to(number), ahead=after)
            previous = dict(self._passed(scope, number, generations).summary)
        return previous

    def _grown(self, generations: Generations, earlier: pa.Table) -> dict[str, Any]:
        """Decides about each new generation alone, and about earlier ones too if they are stale."""
        previous, run = self._previous, self.context
        scope = self._scope(previous, sources=self._sources)
        before: Results | None = None
        if previous:
            why = why_stale(
                run.store,
                previous,
                self._sources,
                run.metadata,
                earlier,
                scope.reusable,
                run.decided_with,
            )
            if why is None:
                n_kept = self._sources.settle(earlier)
                before = earlier_results(run.store, previous, n_kept)
                scope.candidates.keep_remainders(previous)
            else:
                logger.warning("all clips are decided about again: %s", why)
                self._drop_check.after_scan(self._sources)
        last, carried = generations.last_earlier, () if before is not None else generations.earlier
        numbers = (*carried, *generations.new) or (last + 1,)
        for number, after in zip_longest(numbers, numbers[1:]):
            if number > last:
                # A new generation has no clips yet.
                scope = changed(scope, reuses={}, reusable=ReusableShards(run.store, {}))
            scope = changed(
                scope,
                sources=self._sources.up_to(number),
                previous=previous,
                generation=number,
                before=before,
                publishes=number >= last,
                ahead=self._ahead(after, previous) if after is not None and after > last else None,
            )
            before = self._passed(scope, number, generations)
            if scope.publishes:
                previous = dict(before.summary)
        assert before is not None, "there is at least one pass"
        return dict(before.summary)

    def _scope(
        self, previous: Mapping[str, Any], *, sources: SourceTable, ahead: int | None = None
    ) -> RunScope:
        """Returns the scope of a pass that may reuse results of the newest snapshot."""
        return RunScope(
            sources=sources,
            candidates=self.context.candidates(previous),
            previous=previous,
            reuses=previous,
            reusable=ReusableShards(self.context.store, previous),
            drop_check=self._drop_check,
            ahead=self._ahead(ahead, previous) if ahead is not None else None,
        )

    def _ahead(self, number: int, previous: Mapping[str, Any]) -> Ahead:
        """Returns the analysis of a generation that runs during the pass before it."""
        sources = list(self._sources.to_analyze(number))
        return Ahead(self.context, sources, self.context.candidates(previous))

    def _passed(self, scope: RunScope, number: int, generations: Generations) -> Results:
        """Runs a pass, and waits for the analysis ahead."""
        self.log.progress.generation(*generations.place(number))
        try:
            results = GenerationRun(self.context, scope).execute()
        except DamagedError:
            # The run starts over, and two analyses of the same sources must not write at once.
            if scope.ahead is not None:
                scope.ahead.join(self.log)
            raise
        if scope.ahead is not None:
            scope.ahead.join(self.log)
        return results

    def _scan(self, arguments: Sequence[str], limit: int | None) -> None:
        run, log, begun = self.context, self.log, time.monotonic()
        stage = run.graph["scan"]
        log.listed_ns = time.time_ns()
        runner = UnitRunner(run.engine, log.progress)
        sidecar_meta = stage.config.sidecar_meta
        media = stage.config.accepted
        listed = list_sources(arguments, limit=limit, sidecar_meta=sidecar_meta, media=media)
        spans = SourceSpans(run.metadata)
        listing = ListedSources(listed, self._sources, spans, self._unlisted, media)
        rows = FamilyRows(stage, run.store, removals=run.removals, may_write=True)
        scan = RowScheduler(rows, lambda rows: self._add_probes(listing.without_others(rows)))
        log.progress.stage("list")
        new = scan.begin(listing)
        log.progress.stage("scan")
        scan.finish(runner)
        spans.finish(self._sources)
        listing.warn()
        log.progress.sources(len(self._sources))
        n_bytes = sum(source.n_bytes for source in new or ())
        is_small = n_bytes <= SMALL_BYTES and run.engine.is_small(len(new or ()), 0)
        if not self._previous and new and is_small:
            # The process for small work loads modules now that the analysis needs later.
            run.engine.preload(("torch", "cv2", "curator.stages.analyze.stage"))
        Identifying(
            run.store,
            run.recipe.analyze,
            runner,
            log.progress,
            sources=self._sources,
            previous=self._previous,
            since_ns=log.listed_ns,
        ).run()
        exclude_removed_sources(self._sources, run.removals)
        if apart := self._sources.copies_with_other_spans():
            logger.warning(
                "sources with the bytes of another source, and other spans: %d, such as %s: the "
                "spans of %s count; name all spans of a file under one address",
                len(apart), *apart[0],
            )  # fmt: skip
        log.n_skipped_names = listing.n_skipped_names
        log.counts["sources_scanned"] = scan.n_made
        log.cpu_s.update(runner.cpu_s)
        log.seconds["list"] = round(listing.list_s, 3)
        log.seconds["scan"] = round(time.monotonic() - begun - listing.list_s, 3)

    def _add_probes(self, rows: pa.Table) -> None:
        self._sources.add_probes(rows)
        self.log.progress.sources(len(self._sources))

    def _check_metadata(self) -> None:
        recipe, metadata = self.context.recipe, self.context.metadata
        metadata.warn()
        numbers, texts = recipe.filters.metadata()
        named = [*recipe.select.by, *(name.removeprefix(LEAST) for name in recipe.dedup.prefer)]
        named.append(recipe.shard.split_by)
        if recipe.caption.enabled and recipe.caption.column is not None:
            named.append(recipe.caption.column)
        groups = [name for name in named if name.startswith(PREFIX)]
        metadata.check(numbers, [*texts, *groups], recipe.rights.columns)

"""Makes tracks and candidates of sources, for the current pass or ahead for the next pass.

While a pass cuts and commits its clips, a thread analyzes the next generation. The thread only
writes stored state, which the next pass reads like the state of an earlier run. Results are the
same without the analysis ahead.
"""

import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from curator.executor.engine import Placement
from curator.executor.progress import Progress
from curator.executor.unit_worker import UnitResult, stage_step
from curator.executor.worker import Step
from curator.frame_size import parsed_size
from curator.records.clips import Span
from curator.records.columns import field_names
from curator.records.sources import SourceRef
from curator.records.time_spans import span_of
from curator.runs.reference_clips import EXCLUDED_CLIPS
from curator.runs.run_context import RunContext, RunLog
from curator.stage import Resources
from curator.stages.analyze.analysis_driver import Analyzing
from curator.stages.analyze.config import ANALYZED_IN
from curator.stages.propose.clip_spans import ClipPart
from curator.stages.propose.stage import KeepProposed
from curator.tables.candidate_store import (
    Candidates,
    Payload,
    PayloadJoin,
    PayloadJoiner,
    ProposedUnit,
    remainders_fingerprint,
)
from curator.tables.track_parts import AnalyzedUnit

logger = logging.getLogger(__name__)


def measure(
    run: RunContext,
    sources: Sequence[SourceRef],
    candidates: Candidates,
    on_result: Callable[[ProposedUnit], None],
    log: RunLog,
    *,
    all_: bool = True,
    is_ahead: bool = False,
) -> None:
    """Analyzes sources without candidates, and proposes clips in the same processes.

    Args:
        run: The run.
        sources: Sources, each content once.
        candidates: The store of candidates.
        on_result: Gets stored candidates first, and new ones when they are made.
        log: Gets the counts, and shows the progress.
        all_: Whether `candidates` may drop candidates of all other sources.
        is_ahead: Whether a pass works at the same time.
    """
    analyzing = analysis_of(run, log, is_ahead=is_ahead)

    def take_new(proposed: ProposedUnit) -> None:
        if proposed.n_excluded:
            log.counts[EXCLUDED_CLIPS] += proposed.n_excluded
        candidates.add(proposed)
        on_result(proposed)

    for stored in candidates.load(sources, all_=all_):
        on_result(stored)
    missing = [s for s in sources if str(s.source_id) not in candidates.track_part]
    if missing:
        n_known = len(sources) - len(missing)
        analyzing.run(missing, _propose_step(run, analyzing), take_new, n_known=n_known)
    candidates.join_payload(partial(_join_payload, run))
    candidates.flush()
    _add_work(log, analyzing)


def measure_lost(run: RunContext, sources: Iterable[SourceRef]) -> list[str]:
    """Measures lost families of sources whose candidates are stored; returns errors of sources."""
    analyzing, errors = analysis_of(run, run.log), list[str]()
    name = run.graph.writer("tracks").name
    step = Step(make=FailuresOf, settings={}, resources=Resources(cpus=0.5), names=(name,))
    analyzing.run(sources, step, errors.extend)
    _add_work(run.log, analyzing)
    return errors


class FailuresOf:
    """The step of a worker that passes on why sources could not be measured."""

    def __call__(self, unit: UnitResult[Any]) -> UnitResult[Any]:
        """Returns the errors; of segments, the unit itself."""
        done: AnalyzedUnit = unit.results
        results = done if done.segments else [failure.message for _, failure in done.failed]
        return replace(unit, results=results)


def _add_work(log: RunLog, analyzing: Analyzing) -> None:
    counts = analyzing.runner.counts
    arithmetic = {name: n for name, n in counts.items() if name.startswith(ANALYZED_IN)}
    halved = counts["gpu_batches_halved"]
    log.counts.update(analyzing.counts, gpu_batches_halved=halved, **arithmetic)
    log.long_whole.update(analyzing.whole)
    log.cpu_s.update(analyzing.runner.cpu_s)


def remainders(
    run: RunContext, sources: Mapping[str, SourceRef], candidates: Candidates, parts: pa.Table
) -> ProposedUnit:
    """Returns candidates made from parts of clips, scored from stored tracks.

    `parts` has a row per part, with the columns of its clip, `part_start_s` and `part_end_s`;
    `sources` has the sources of these clips by id.
    """

    def propose(some: pa.Table) -> list[ProposedUnit]:
        by_source: dict[str, list[ClipPart]] = {}
        for row in some.to_pylist():
            span = Span(**{name: row[name] for name in field_names(Span)})
            part = ClipPart(
                clip=span,
                start_s=row["part_start_s"],
                end_s=row["part_end_s"],
                within=span_of(row),
                output_px=parsed_size(size) if (size := row["output_size"]) else None,
            )
            by_source.setdefault(row["source_id"], []).append(part)
        units: list[ProposedUnit] = []
        analyzing = analysis_of(run, run.log)
        step = _propose_step(run, analyzing, by_source)
        analyzing.run([sources[source_id] for source_id in by_source], step, units.append)
        run.log.cpu_s.update(analyzing.runner.cpu_s)
        return units

    uris = {name: source.uri for name, source in sources.items()}
    return candidates.remainders(parts, uris, propose, partial(_join_payload, run))


def _join_payload(run: RunContext, into: Mapping[str, Sequence[str]]) -> Iterator[Payload]:
    """Joins payload on workers, or in the child process if no cluster runs."""
    step = Step(
        make=PayloadJoiner,
        settings={"store": run.store},
        resources=Resources(cpus=0.5),
        names=(run.graph.writer("candidates").name,),
    )
    units = [PayloadJoin(into=name, names=tuple(names)) for name, names in into.items()]
    placement: Placement = "ray" if run.engine.is_started else "child"
    yield from run.engine.run([step], units, placement=placement, is_shown=False)


def analysis_of(run: RunContext, log: RunLog, *, is_ahead: bool = False) -> Analyzing:
    """Returns the analysis of a run's sources."""
    return Analyzing(
        run.store,
        run.graph.writer("tracks"),
        run.engine,
        log.progress,
        removals=run.removals,
        is_ahead=is_ahead,
        gpu=run.gpu,
    )


def _propose_step(
    run: RunContext, analyzing: Analyzing, parts: Mapping[str, Sequence[ClipPart]] | None = None
) -> Step:
    stage = run.graph.writer("candidates").with_heads(run.semantics.heads())
    if parts is not None:
        stage = stage.with_parts(parts)
    own = run.fingerprint_of("candidates")
    keep = KeepProposed(
        store=run.store,
        fingerprint=own if parts is None else remainders_fingerprint(own),
        removals=run.removals,
        clip=run.recipe.analyze.clip,
        measures=stage.measures,
    )
    return stage_step(stage, load=analyzing.tracks.load, keep=keep)


class Ahead:
    """Analyzes sources in a thread for the next pass.

    `sources` has each content once. The pass under way must not use the same `candidates`.
    """

    def __init__(
        self, run: RunContext, sources: Sequence[SourceRef], candidates: Candidates
    ) -> None:
        self._run_context, self._sources, self._candidates = run, sources, candidates
        # The display shows the pass under way, so this progress is invisible.
        self._log = RunLog(progress=Progress(io.StringIO(), live=False))
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self._is_begun = False

    def begin(self) -> None:
        """Starts the thread at the first call.

        Without Ray, the thread never starts: the pass under way uses the only worker process.
        """
        if not self._is_begun and self._run_context.engine.is_started:
            self._is_begun = True
            self._thread.start()

    def join(self, log: RunLog) -> None:
        """Waits for the end, and adds the counts to a log."""
        if self._is_begun:
            self._thread.join()
            log.counts.update(self._log.counts)
            log.cpu_s.update(self._log.cpu_s)
            log.long_whole.update(self._log.long_whole)

    def _run(self) -> None:
        run, log = self._run_context, self._log
        try:
            measure(
                run, self._sources, self._candidates, lambda _: None, log, all_=False, is_ahead=True
            )
        except Exception:
            # The pass that needs these sources meets the error again, and reports it.
            logger.debug("a generation was not analyzed ahead", exc_info=True)

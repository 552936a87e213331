"""The driver's side of analysis: which sources have no track yet, and in which units they are done.

Long sources are cut into segments, which are units of their own; when all of a source's segments
are there they are joined. A source that cannot be joined is analyzed whole, and counted by reason.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from curator.errors import SourceError
from curator.executor.engine import Engine
from curator.executor.host_resources import device_of
from curator.executor.packing import pack
from curator.executor.progress import Progress
from curator.executor.worker import Step
from curator.measures.clip_semantics import Semantics
from curator.media.source_segments import NotInSegmentsError, Segment, WholeReason, plan_segments
from curator.models.embedding_heads import Heads
from curator.recipe import Recipe
from curator.records import SourceRef
from curator.stage import WORKER_BYTES, Resources
from curator.stages.analyze.config import analyze_fingerprint
from curator.stages.analyze.segment_join import OVERLAP
from curator.stages.analyze.stage import (
    AnalyzeStep,
    AnalyzeUnit,
    HashUnit,
    JoinStep,
    JoinUnit,
    ProposedUnit,
    ProposeStep,
    SegmentResult,
    SegmentUnit,
    segment_key,
)
from curator.storage import Store, open_source
from curator.tables.parts import Parts

INLINE_UNITS = 64
"""Units of stored tracks up to which arithmetic runs in the driver: cheaper than starting Ray."""
ANALYZE_UNIT_FRAMES = 1800
ANALYZE_UNIT_SOURCES = 32

PlanOutcome = tuple[SourceRef, list[Segment] | WholeReason]


class PlanStep:
    """Plans the segments of a long source."""

    def __init__(self, *, limit_s: float, max_pixels: int) -> None:
        self._limit_s = limit_s
        self._max_pixels = max_pixels

    def __call__(self, source: SourceRef) -> PlanOutcome:
        """Gives the segments, or why there are none."""
        try:
            with open_source(source.uri, expected_version=source.version) as reader:
                return source, plan_segments(
                    reader,
                    source.uri,
                    n_bytes=source.n_bytes,
                    limit_s=self._limit_s,
                    shared_frames=OVERLAP,
                    max_pixels=self._max_pixels,
                )
        except NotInSegmentsError as error:
            return source, error.reason
        except SourceError:
            # The whole analysis meets the same error, and names it.
            return source, WholeReason.FAILED


@dataclass(slots=True, kw_only=True)
class _InSegments:
    """What is known of a source that is analyzed in segments."""

    source: SourceRef
    segments: list[Segment]
    parts: dict[str, str]
    sha256: str | None = None
    failed: WholeReason | None = None

    @property
    def is_complete(self) -> bool:
        return self.sha256 is not None and len(self.parts) == len(self.segments)


@dataclass(slots=True, kw_only=True)
class AnalysisCounts:
    """What an analysis did."""

    n_analyzed: int = 0
    n_segments: int = 0
    n_joined: int = 0
    n_halved: int = 0
    """Batches that did not fit a GPU's memory, and were halved."""
    whole: Counter[str] = field(default_factory=Counter)
    """Long sources that were analyzed whole, by reason."""


class Analyzing:
    """Analyzes what has no track yet, and proposes clips for everything.

    Args:
        store: Output root.
        recipe: Settings.
        engine: Where work is done.
        progress: Where it is shown.
        take: Called with each unit of proposed clips.
        semantics: Models that look at pictures and read embeddings; None for none.
    """

    def __init__(
        self,
        store: Store,
        recipe: Recipe,
        engine: Engine,
        progress: Progress,
        take: Callable[[ProposedUnit], None],
        semantics: Semantics | None = None,
    ) -> None:
        self._semantics = semantics
        self._heads: Heads | None = None
        self._store = store
        self._recipe = recipe
        self._engine = engine
        self._progress = progress
        self._take = take
        clip_stamp = semantics.stamp if semantics is not None else None
        self.stamp = analyze_fingerprint(recipe.analyze, clip_stamp)
        self.counts = AnalysisCounts()
        self.cpu_s: Counter[str] = Counter()
        """CPU-seconds of the workers, by what they did."""

    def run(self, sources: Iterable[SourceRef]) -> None:
        """Gives every source a track, and hands on the clips that are proposed from it.

        Args:
            sources: Each content once, with its id.
        """
        sources = list(sources)
        # Each footer is a read, and so are the heads: with nothing to look for there is none.
        done = Parts(self._store, "tracks", self.stamp).done() if sources else {}
        if sources and self._semantics is not None:
            self._heads = self._semantics.heads()
        stored: dict[str, list[SourceRef]] = {}
        pending: list[SourceRef] = []
        for source in sources:
            if (part := done.get(str(source.source_id))) is not None:
                stored.setdefault(part, []).append(source)
            else:
                pending.append(source)
        self.counts.n_analyzed = len(pending)
        light = [AnalyzeUnit(sources=tuple(refs), part=part) for part, refs in stored.items()]
        self._run(light, is_heavy=False)
        in_segments = self._planned(pending)
        whole = [source for source in pending if source.uri not in in_segments]
        segments = self._segment_units(in_segments)
        self._progress.work(
            len(whole) + self.counts.n_segments,
            sum(source.header_duration_s or 0.0 for source in pending),
        )
        self._run([*segments, *self._units(whole)], in_segments)
        self._join(in_segments)
        failed = [known for known in in_segments.values() if known.failed is not None]
        self.counts.whole.update(str(known.failed) for known in failed)
        self._run(self._units([known.source for known in failed]))

    def _planned(self, pending: Sequence[SourceRef]) -> dict[str, _InSegments]:
        limit_s = self._recipe.analyze.segment_s
        long = [s for s in pending if (s.header_duration_s or 0.0) > limit_s]
        if not long:
            return {}
        step = Step(
            make=PlanStep,
            settings={"limit_s": limit_s, "max_pixels": self._recipe.analyze.max_pixels},
            resources=Resources(cpus=0.5),
        )
        run = self._engine.run_here if len(long) <= INLINE_UNITS else self._engine.run
        done = Parts(self._store, "segments", self.stamp).done()
        planned: dict[str, _InSegments] = {}
        for source, plan in run([step], long):
            if isinstance(plan, WholeReason):
                self.counts.whole[str(plan)] += 1
                continue
            keys = {segment.key: segment_key(source, segment) for segment in plan}
            parts = {key: done[name] for key, name in keys.items() if name in done}
            planned[source.uri] = _InSegments(source=source, segments=plan, parts=parts)
        return planned

    def _segment_units(self, in_segments: dict[str, _InSegments]) -> list[Any]:
        units: list[Any] = []
        for known in in_segments.values():
            units += [
                SegmentUnit(source=known.source, segment=segment)
                for segment in known.segments
                if segment.key not in known.parts
            ]
        self.counts.n_segments = len(units)
        # Hashing is short: it fills the gaps at the end.
        return units + [HashUnit(source=known.source) for known in in_segments.values()]

    def _units(self, sources: Sequence[SourceRef]) -> list[AnalyzeUnit]:
        """Units of whole sources, the longest first, so that none is left alone at the end."""
        ordered = sorted(sources, key=lambda source: (-source.weight, source.uri))
        return [
            AnalyzeUnit(sources=tuple(group))
            for group in pack(
                ordered,
                max_items=self._sources_per_unit(len(ordered)),
                weight=lambda source: source.weight,
                max_weight=ANALYZE_UNIT_FRAMES,
            )
        ]

    def _sources_per_unit(self, n_sources: int) -> int:
        """Enough units to keep all workers busy, few enough to make few objects."""
        per_worker = n_sources // (4 * self._engine.n_workers(max(1, n_sources)))
        return max(1, min(ANALYZE_UNIT_SOURCES, per_worker))

    def _run(
        self,
        units: Sequence[Any],
        in_segments: dict[str, _InSegments] | None = None,
        *,
        is_heavy: bool = True,
    ) -> None:
        if not units:
            return
        engine = self._engine
        runs_here = not is_heavy and len(units) <= INLINE_UNITS
        small = is_heavy and engine.is_small(*_size(units))
        memory = WORKER_BYTES + self._clip_bytes()
        config = self._recipe.analyze
        device = "cpu" if runs_here else device_of(config.device, engine.n_gpus())
        gpus = 1 / config.workers_per_gpu if device == "gpu" else 0.0
        resources = Resources(cpus=1, memory_bytes=memory, gpus=gpus)
        workers = 1 if small else engine.n_workers(len(units), resources)
        analyze = Step(
            make=AnalyzeStep,
            settings={
                "store": self._store,
                "stamp": self.stamp,
                "config": config.model_copy(update={"device": device}),
                "threads": max(1, engine.n_cpus() // workers),
                "log": None if runs_here else engine.ledger(small=small),
                "clip": self._semantics.clip if self._semantics is not None else None,
                "models": self._semantics.store if self._semantics is not None else None,
            },
            resources=resources,
            keeps_state=True,
        )
        with self._progress.polling(engine.progress):
            chain = [analyze, self._propose_step()]
            results = (
                engine.run_here(chain, units)
                if runs_here
                else engine.run(chain, units, small=small)
            )
            for result in results:
                if not runs_here:
                    self.cpu_s.update(result.cpu_s)
                self.counts.n_halved += result.n_halved
                self._note(result, in_segments or {})

    def _clip_bytes(self) -> int:
        """What a worker holds of the CLIP model: its weights at most."""
        semantics = self._semantics
        if semantics is None or semantics.clip is None:
            return 0
        return semantics.store.find(semantics.clip).stat().st_size

    def _join(self, in_segments: dict[str, _InSegments]) -> None:
        units = [
            JoinUnit(
                source=known.source,
                parts=tuple(known.parts[segment.key] for segment in known.segments),
                sha256=str(known.sha256),
            )
            for known in in_segments.values()
            if known.failed is None and known.is_complete
        ]
        step = Step(
            make=JoinStep,
            settings={"store": self._store, "stamp": self.stamp},
            resources=Resources(cpus=0.5),
        )
        run = self._engine.run_here if len(units) <= INLINE_UNITS else self._engine.run
        for result in run([step, self._propose_step()], units):
            self.counts.n_joined += isinstance(result, ProposedUnit)
            self._note(result, in_segments)

    def _propose_step(self) -> Step:
        return Step(
            make=ProposeStep,
            settings={
                "store": self._store,
                "stamp": self.stamp,
                "recipe": self._recipe,
                "heads": self._heads,
            },
            resources=Resources(cpus=0.5),
        )

    def _note(
        self, result: ProposedUnit | SegmentResult, in_segments: dict[str, _InSegments]
    ) -> None:
        if isinstance(result, ProposedUnit):
            self._take(result)
            return
        known = in_segments[result.source.uri]
        known.failed = known.failed or result.whole
        known.sha256 = known.sha256 or result.sha256
        if result.part is not None and result.key is not None:
            known.parts[result.key] = result.part


def _size(units: Sequence[Any]) -> tuple[int, float]:
    """Sources of some units, and their frames of 1080p; segments are never small."""
    if not all(isinstance(unit, AnalyzeUnit) for unit in units):
        return len(units), math.inf
    sources = [source for unit in units for source in unit.sources]
    return len(sources), sum(source.work for source in sources)

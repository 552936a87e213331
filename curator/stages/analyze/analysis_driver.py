"""The driver's side of analysis: finds missing families of sources, and plans units of work.

The sources of a unit lack the same families. Long sources are divided into segments, one per unit,
and the tracks of the segments are joined. A source that cannot be joined is analyzed whole, and
counted by reason.

On nodes with a GPU, workers without the GPU take short sources and sources that its video engines
cannot decode. These sources are the last units, and such workers take the last unit first. A worker
with the GPU takes these units when no others are left.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, compress
from operator import not_
from typing import Any

from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.executor.unit_worker import UnitResult, stage_step
from curator.executor.worker import Step
from curator.media.nvdec_check import nvdec_refusal
from curator.media.source_segments import WholeReason
from curator.packing import pack
from curator.records.sources import SourceRef
from curator.records.tracks import Track
from curator.scheduler import UnitRunner
from curator.stages.analyze.gpu_engines import GpuFacts, GpuProbe, device_here
from curator.stages.analyze.stage import AnalyzeStage, JoinStage, Plan, PlanStage
from curator.storage import NO_HASHES, ContentHashes, Store
from curator.tables.removal_records import Removals
from curator.tables.track_items import (
    FRAMES,
    AnalyzeItem,
    HashItem,
    JoinItem,
    SegmentItem,
    SourceItem,
)
from curator.tables.track_parts import AnalyzedUnit, StoredTrack, TrackParts

INLINE_UNITS = 64  # up to so many units, work without decoding runs in the driver instead of in Ray
ANALYZE_UNIT_FRAMES = 1800
ANALYZE_UNIT_SOURCES = 32
STORE_S = 15.0
"""Interval at which a worker stores finished items of a unit. A killed run then loses little more
than the sources or segments that were being decoded."""


class Analyzing:
    """Measures the missing families of sources, and passes tracks to the next stage.

    `stage` is the stage of the graph. Thumbnails of footage in `removals` are not stored. With
    `is_ahead`, another chain runs at the same time. `gpu` gives facts about the GPUs.
    """

    def __init__(
        self,
        store: Store,
        stage: AnalyzeStage,
        engine: Engine,
        progress: Progress,
        *,
        removals: Removals | None = None,
        is_ahead: bool = False,
        gpu: GpuProbe | None = None,
    ) -> None:
        self._stage, self._engine, self._progress = stage, engine, progress
        self._is_ahead = is_ahead
        self._gpu = gpu or GpuProbe(engine)
        self._facts = GpuFacts()  # empty unless a GPU decodes
        self._why_cpu: str | None = None  # the reason why a GPU of this machine is not used
        families = stage.stored_families()
        self._families = frozenset(family.name for family in families)
        self.tracks = TrackParts(store, families, removals)
        self._keep = partial(self.tracks.keep, stage=stage.name)
        self.runner = UnitRunner(engine, progress)  # has CPU-seconds and counts of workers
        self.counts = Counter(sources_analyzed=0, segments_analyzed=0, sources_joined=0)
        """Numbers for the summary."""
        self.whole = Counter[str]()  # long sources that were analyzed whole, by reason
        # By address: why a source in segments must be analyzed whole, and its hashes.
        self._not_joined: dict[str, WholeReason] = {}
        self._hashes: dict[str, ContentHashes] = {}

    def run(
        self,
        sources: Iterable[SourceRef],
        then: Step,
        on_result: Callable[[Any], None],
        *,
        n_known: int = 0,
    ) -> None:
        """Makes the track of every source, and runs the next stage on the tracks.

        Args:
            sources: Sources with their ids, without duplicates.
            then: The next stage. It gets an `AnalyzedUnit`, in the process that measured.
            on_result: Called with each result of the next stage.
            n_known: Number of other sources, which the progress shows as done.
        """
        self._then, self._on_result = then, on_result
        stored, pending = self._sorted(list(sources))
        self.counts["sources_analyzed"] = len(pending)
        units = [UnitResult(results=AnalyzedUnit(tracks=tuple(t))) for t in stored.values()]
        for result in self._run([then], units):
            on_result(result)
        self._decide_devices(pending)
        segments, joins = self._planned(pending)
        in_segments = {item.uri for item in joins}
        whole = [item for item in pending if item.uri not in in_segments]
        items = [*whole, *chain.from_iterable(segments)]
        self._progress.work(
            len(items),
            sum(map(self._stage.video_s, items)),
            n_before=0 if segments else n_known + sum(map(len, stored.values())),
            noun="part" if segments else "source",
            work_s=sum(map(self._stage.work_s, items)),
        )
        self._measure([*segments, *self._units(whole)])
        self._join(joins)
        self.whole.update(map(str, self._not_joined.values()))
        self._measure(self._units([item for item in pending if item.uri in self._not_joined]))

    def _sorted(
        self, sources: Sequence[SourceRef]
    ) -> tuple[dict[int, list[StoredTrack]], list[SourceItem]]:
        """Returns sources with complete tracks, grouped by stored unit, and all other sources."""
        ids = {str(source.source_id) for source in sources}
        parts_of, failed = self.tracks.stored(ids, may_write=True)
        stored: dict[int, list[StoredTrack]] = {}
        pending: list[SourceItem] = []
        nothing: Mapping[str, str] = {}
        for source in sources:
            source_id = str(source.source_id)
            parts = parts_of.get(source_id, nothing)
            if source_id in failed:
                parts = {FRAMES: parts[FRAMES]}
            elif missing := self._families.difference(parts):
                if FRAMES not in parts:
                    # Stored values of other families refer to frames that are no longer stored.
                    missing, parts = self._families, nothing
                pending.append(SourceItem(source=source, families=missing, parts=parts))
                continue
            key = id(parts_of[source_id])
            stored.setdefault(key, []).append(StoredTrack(source=source, parts=parts))
        return stored, pending

    def _planned(
        self, pending: Sequence[SourceItem]
    ) -> tuple[list[list[AnalyzeItem]], list[JoinItem]]:
        """Returns the units of missing segments of long sources, and the items to join later."""
        config = self._stage.config
        long = [item for item in pending if (item.source.header_duration_s or 0) > config.segment_s]
        if not long:
            return [], []
        parts = {names: self.tracks.segments(names) for names in {item.families for item in long}}
        there = {name for part in parts.values() for name in part.names()}
        step = stage_step(PlanStage(config), keep=_planned)
        units: list[list[AnalyzeItem]] = []
        hashed: list[list[AnalyzeItem]] = []
        joins: list[JoinItem] = []
        for ((item, plan),) in self._run([step], [[item] for item in long]):
            if isinstance(plan, WholeReason):
                self.whole[str(plan)] += 1
                continue
            source, families = item.source, item.families
            segments = [
                SegmentItem(source=source, segment=segment, families=families) for segment in plan
            ]
            names = tuple(parts[families].name_of([segment.key]) for segment in segments)
            units += [[s] for s, name in zip(segments, names, strict=True) if name not in there]
            if FRAMES in families:
                hashed.append([HashItem(source=source)])
            joins.append(
                JoinItem(source=source, families=families, parts=item.parts, segments=names)
            )
        self.counts["segments_analyzed"] = len(units)
        # Hashing is quick, so at the end it keeps workers busy that have no segment left.
        return units + hashed, joins

    def _units(self, items: Sequence[SourceItem]) -> list[list[AnalyzeItem]]:
        """Returns units of whole sources, longest first, so workers finish at about one time."""
        groups: dict[tuple[frozenset[str], bool], list[SourceItem]] = {}
        for item in sorted(items, key=lambda item: (-item.source.weight, item.uri)):
            groups.setdefault((item.families, self._leaves(item)), []).append(item)
        # Many units keep all workers busy; few units make few objects.
        per_worker = len(items) // (4 * self._engine.n_workers(max(1, len(items))))
        return [
            list(group)
            for ordered in groups.values()
            for group in pack(
                ordered,
                max_items=max(1, min(ANALYZE_UNIT_SOURCES, per_worker)),
                weight=lambda item: item.source.weight,
                max_weight=ANALYZE_UNIT_FRAMES,
            )
        ]

    def _measure(self, units: Sequence[Sequence[AnalyzeItem]]) -> None:
        if not units:
            return
        engine, items = self._engine, [item for unit in units for item in unit]
        wholes = [item for item in items if isinstance(item, SourceItem)]
        # Work with segments is never small.
        frames = sum(item.source.work for item in wholes) if len(wholes) == len(items) else math.inf
        small = engine.is_small(len(items), frames)
        families = frozenset().union(
            *(item.families for item in items if not isinstance(item, HashItem))
        )
        devices, why_cpu = self._devices, self._why_cpu
        if why_cpu is not None:
            engine.count_cpu_instead("analyze", why_cpu, len(items))
        left = [self._leaves(unit[0]) for unit in units]
        if any(left) and self._stage.config.device == "auto":
            devices = ["gpu", "cpu"]
            # CPU workers take the last unit first, so the longest of their units comes last.
            units = [*compress(units, map(not_, left)), *reversed([*compress(units, left)])]
        n_units = 1 if small else len(units)
        chains = [[self._measure_step(device, families, n_units), self._then] for device in devices]
        for result in self.runner.run(
            chains[0],
            units,
            placement="child" if small else "ray",
            without_gpu=chains[1] if len(chains) > 1 else None,
            check=nvdec_refusal if devices[0] == "gpu" and engine.joins else None,
            is_shown=not self._is_ahead,
        ):
            self._note(result)

    def _decide_devices(self, pending: Sequence[SourceItem]) -> None:
        """Chooses the devices that decode; probes the GPU, unless the work is small."""
        config, engine = self._stage.config, self._engine
        self._why_cpu = None
        if not engine.joins:
            device, self._why_cpu = device_here(config.device, engine.n_gpus())
            self._devices = [device]
        elif config.device != "auto":
            self._devices = [config.device]
        else:
            self._devices = ["gpu", "cpu"] if engine.may_have_gpus() else ["cpu"]
        frames = sum(item.source.work for item in pending)
        if pending and self._devices[0] == "gpu" and not engine.is_small(len(pending), frames):
            self._facts = self._gpu.facts
            if config.workers_per_gpu is None:
                self._stage = self._stage.with_config(workers_per_gpu=self._gpu.workers())

    def _leaves(self, item: AnalyzeItem) -> bool:
        """Returns whether a worker without a GPU should take an item."""
        return self._devices[0] == "gpu" and self._facts.leaves(item.source)

    def _measure_step(self, device: str, families: frozenset[str], n_units: int) -> Step:
        stage = self._stage.with_config(families, device=device)
        n_workers = self._engine.n_workers(n_units, stage.resources)
        stage = stage.with_threads(self._engine.threads(n_workers))
        keep = partial(_kept, self._keep, self._facts if device == "cpu" else GpuFacts())
        return stage_step(stage, keeps_state=True, keep=keep, store_s=STORE_S, rest="decode")

    def _run(self, steps: Sequence[Step], units: Sequence[object]) -> Iterator[Any]:
        """Runs steps that decode nothing; few units run in this process."""
        is_few = len(units) <= INLINE_UNITS
        return self.runner.run(steps, units, placement="driver" if is_few else "ray")

    def _join(self, items: Sequence[JoinItem]) -> None:
        units = [
            [replace(item, hashes=self._hashes.get(item.uri, NO_HASHES))]
            for item in items
            if item.uri not in self._not_joined
        ]
        load, keep = self.tracks.load_segments, self._keep
        step = stage_step(JoinStage(self._stage.config), load=load, keep=keep)
        for result in self._run([step, self._then], units):
            self.counts["sources_joined"] += not isinstance(result, AnalyzedUnit)
            self._note(result)

    def _note(self, result: Any) -> None:  # noqa: ANN401
        """Passes on a result of the next stage; of segments, keeps hashes and failures to join."""
        if not isinstance(result, AnalyzedUnit):
            self._on_result(result)
            return
        for done in result.segments:
            if done.whole is not None:
                self._not_joined.setdefault(done.source.uri, done.whole)
            if done.hashes is not None:
                self._hashes[done.source.uri] = done.hashes


def _kept(
    keep: Callable[..., Any], facts: GpuFacts, items: Sequence[AnalyzeItem], results: Sequence[Any]
) -> Any:  # noqa: ANN401
    """Stores results; if a GPU would refuse a source, its track gets a note."""
    noted = []
    for item, result in zip(items, results, strict=True):
        note = facts.refusal(item.source)
        if isinstance(result, Track) and note is not None:
            result = replace(result, notes=(*result.notes, note))
        noted.append(result)
    return keep(items, noted)


def _planned(items: Sequence[SourceItem], plans: Sequence[Plan]) -> list[tuple[SourceItem, Plan]]:
    return list(zip(items, plans, strict=True))

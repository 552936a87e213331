"""The driver's side of cutting: finds survivors without a written clip, and locates the others."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.buckets import BucketClasses
from curator.cut_requests import least_frames
from curator.errors import ErrorCode, UsageError
from curator.executor.engine import Engine
from curator.executor.packing import pack
from curator.executor.progress import Progress
from curator.executor.unit_worker import UnitResult, stage_step
from curator.executor.worker import Step
from curator.media.frame_tap import FrameOrder, FrameTaker, StoredFrames, TakenFrames, store_looked
from curator.records.clips import Borders, Clip, Reason, Span, Written
from curator.records.cuts import ClipForm, Crop, Looked
from curator.records.sources import FULL_HD, SourceRef
from curator.records.tracks import SourceFrames
from curator.stage import PixelStage
from curator.stages.cut.stage import (
    ClipToCut,
    CutItem,
    CutOutcome,
    CutStage,
    CutStageConfig,
    LookStage,
)
from curator.storage import Store
from curator.tables.clip_locations import LOCATION_SCHEMA, KeyRows, Location, Locations
from curator.tables.clip_rows import ClipRow, ClipRows, reject
from curator.tables.output_format import existing
from curator.tables.parts import Parts, column_values, columns_to_rows, rows_to_table
from curator.tables.schemas import CUT_SCHEMA, clips_schema
from curator.tables.track_table import table_to_source_frames

CUT_UNIT_S = 30.0
CUT_UNIT_CLIPS = 16
UNITS_PER_WORKER = 4
"""Few clips make smaller units, so that no core waits for another one's last unit."""
CUT_FACTS = tuple(name for name in CUT_SCHEMA.names if name not in ("clip_id", "mp4"))
"""Columns of `clips` that say what was written."""
_FACT_TYPES = {name: clips_schema(()).field(name).type for name in CUT_FACTS}
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CutGroup:
    """Clips of one source to cut, and the part of `tracks` that has its timestamps."""

    source: SourceRef
    track_part: str
    clips: tuple[ClipToCut, ...]
    """In order."""

    def divided(self) -> "list[CutGroup]":
        """A group for each clip, because a worker died on one of them."""
        return [replace(self, clips=(clip,)) for clip in self.clips]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutUnit:
    """The outcomes of a unit, and frames taken from written clips."""

    outcomes: list[CutOutcome]
    frames: Sequence[StoredFrames] = ()


class TrackLoader:
    """Reads the frame times of a unit's sources; those of a long source serve its next units."""

    def __init__(self, store: Store) -> None:
        self._tracks = Parts(store, "tracks", "")
        self._last: tuple[str, SourceFrames] | None = None
        """Part and frame times of the source read last."""

    def __call__(self, unit: Sequence[CutGroup]) -> list[CutItem]:
        """Returns the clips of the unit with their tracks."""
        items = []
        for group in unit:
            source, part, source_id = group.source, group.track_part, str(group.source.source_id)
            if self._last is None or (self._last[0], self._last[1].source_id) != (part, source_id):
                self._last = part, table_to_source_frames(self._tracks.read(part), source_id)
            track = self._last[1]
            items += [CutItem(source=source, track=track, clip=clip) for clip in group.clips]
        return items


class CutKeeper:
    """Stores written clips as one part of `cuts`, and by `taker` the frames taken from them."""

    def __init__(self, store: Store, stamp: str, taker: FrameTaker | None) -> None:
        self._parts = Parts(store, "cuts", stamp)
        self._taker = taker

    def __call__(self, unit: Sequence[CutItem], results: Sequence[CutOutcome]) -> CutUnit:
        """Stores the results of a unit."""
        rows: list[dict[str, Any]] = []
        taken: list[TakenFrames] = []
        outcomes: list[CutOutcome] = []
        for item, result in zip(unit, results, strict=True):
            # What names a clip is that of the unit, whatever a decoder answers.
            clip_id, wish = item.clip.clip_id, item.clip.wish
            outcomes.append(replace(result, clip_id=clip_id, clip=None))
            clip, written = result.clip, result.written
            if clip is None or written is None:
                continue
            rows.append(asdict(written) | {"clip_id": clip_id, "mp4": clip.mp4})
            if clip.looked is not None and wish is not None:
                taken.append(
                    TakenFrames(clip_id=clip_id, wish=wish, looked=clip.looked, written=written)
                )
        # Frames first: a clip that is found written is not decoded again for them.
        frames = self._taker.store(taken) if self._taker is not None else []
        if rows:
            table = rows_to_table(rows, CUT_SCHEMA)
            self._parts.write(table, table["clip_id"].to_pylist(), one_row_groups=True)
        return CutUnit(outcomes=outcomes, frames=frames)


def keep_frames(
    taker: FrameTaker, unit: Sequence[CutItem], results: Sequence[Looked | StoredFrames]
) -> list[StoredFrames]:
    """Stores frames of clips that are not written; failures come last."""
    wanted = [(clip.clip_id, clip.wish) for clip in (item.clip for item in unit) if clip.wish]
    return store_looked(taker, wanted, results)


class Cutting:
    """Cuts survivors that have no written clip.

    Args:
        pixels: Stages that change pixels before the encoder.
        min_s: `propose.min_s`.
        buckets: Section `shard`.
        previous: Summary of the last finished run.
        standing: Gives the bytes of each object of the shards that is what was written.
    """

    def __init__(
        self,
        config: CutStageConfig,
        pixels: Sequence[PixelStage[Any]],
        store: Store,
        engine: Engine,
        progress: Progress,
        *,
        min_s: float,
        buckets: BucketClasses,
        previous: Mapping[str, Any],
        standing: Callable[[], Mapping[str, int]],
    ) -> None:
        self._config = config
        self._pixels = pixels
        self._min_s = min_s
        self._buckets = buckets
        self._store = store
        self._engine = engine
        self._progress = progress
        self._previous = previous
        self._standing = standing
        self.stamp = CutStage(config, pixels).fingerprint({})
        self.n_cut = 0
        """Clips that had to be cut."""
        self.work = cut_facts((), config.cut.crf)
        """How they were written."""
        self.cpu_s: Counter[str] = Counter()
        """CPU-seconds of the workers, by what they did."""

    def cut(
        self,
        clips: ClipRows,
        sources: Mapping[str, SourceRef],
        track_part: Mapping[str, str],
        order: FrameOrder | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> Mapping[str, Location]:
        """Cuts the survivors that no part or shard has yet.

        Kept rows of `clips` get the facts of the written clip, or are rejected if writing failed.
        `track_part` is the part of `tracks` of each source id, `order` the frames that another
        stage wants of clips written now. `begun` is called once the workers have begun, and again
        later.

        Returns:
            The location of each clip.
        """
        self.refuse_hdr(clips)
        written = _WrittenClips(clips)
        self._find_written(written)
        missing = [clip for clip in clips.kept() if clip.number not in written]
        self.n_cut = len(missing)
        outcomes: dict[str, CutOutcome] = {}
        if missing:
            n_written = len(clips.kept_numbers()) - len(missing)
            units = self._run(missing, sources, track_part, order, n_written=n_written)
            if self._engine.joins:
                # There is room for both; on one machine the cut takes its cores first.
                begun()
            with self._progress.polling(self._engine.progress):
                for unit in units:
                    begun()
                    cut: CutUnit = unit.results
                    outcomes |= {outcome.clip_id: outcome for outcome in cut.outcomes}
                    self.cpu_s.update(unit.cpu_s)
                    if order is not None:
                        facts = {o.clip_id: o.written for o in cut.outcomes if o.written}
                        order.take(cut.frames, facts)
            self._find_cut(written, {clip.clip_id for clip in missing})
            for clip in missing:
                failure = outcomes[clip.clip_id].failure
                if failure is not None:
                    changed = failure.code is ErrorCode.CHANGED
                    reason = Reason.SOURCE_CHANGED if changed else Reason.CUT_FAILED
                    reject(clip, reason, detail=failure.message)
        begun()
        self.work = cut_facts(outcomes.values(), self._config.cut.crf)
        return written.apply(self.stamp)

    def look(
        self,
        clips: Sequence[ClipRow],
        order: FrameOrder,
        *,
        sources: Mapping[str, SourceRef],
        track_part: Mapping[str, str],
    ) -> None:
        """Takes frames of proposed clips before they are cut, and encodes nothing."""
        if not clips:
            return
        for unit in self._run(clips, sources, track_part, order, before=True):
            self.cpu_s.update(unit.cpu_s)
            order.take(unit.results, {})

    def refuse_hdr(self, clips: ClipRows) -> None:
        """Rejects PQ and HLG where the recipe does not map them."""
        if self._config.cut.hdr == "reject":
            for number in np.flatnonzero(np.nan_to_num(clips.floats("hdr"))).tolist():
                if clips[number].decision == "kept":
                    reject(clips[number], Reason.HIGH_DYNAMIC_RANGE, detail="cut.hdr is reject")

    def _min_frames(self, clip: Clip) -> int:
        """Returns the fewest frames of a copy: all requested ones, which an encoded clip has."""
        least = self._config.cut.length_frames
        return least or least_frames(clip, min_s=self._min_s, shard=self._buckets)

    def _run(
        self,
        clips: Sequence[ClipRow],
        sources: Mapping[str, SourceRef],
        track_part: Mapping[str, str],
        order: FrameOrder | None,
        *,
        before: bool = False,
        n_written: int = 0,
    ) -> Iterator[UnitResult[Any]]:
        """Plans the work of some clips; it begins when the first result is asked for."""
        engine = self._engine
        total_s = sum(clip.end_s - clip.start_s for clip in clips)
        unit_s = min(CUT_UNIT_S, total_s / (UNITS_PER_WORKER * engine.n_workers(len(clips))))
        units = self.units(clips, sources, track_part, order, unit_s)
        self._progress.work(len(clips), total_s, n_before=n_written)
        pixels = sum(clip.n_frames * clip.width * clip.height for clip in clips)
        # Frames of 1080p to decode, and to encode, which takes twice as long.
        small = engine.is_small(len(clips), 3.0 * float(pixels) / FULL_HD)
        n_workers = 1 if small else engine.n_workers(len(units))
        step = self.step(n_workers, order, before=before)
        if step.resources.gpus and not engine.may_have_gpus():
            raise UsageError(
                "cut.encoder is nvenc, and neither driver nor Ray shows a GPU here; `curate "
                "doctor` says why, --set cut.encoder=x264 does without"
            )
        return engine.run([step], units, small=small)

    def units(
        self,
        clips: Sequence[ClipRow],
        sources: Mapping[str, SourceRef],
        track_part: Mapping[str, str],
        order: FrameOrder | None,
        unit_s: float,
    ) -> list[list[CutGroup]]:
        """Divides clips into units of about `unit_s` seconds; arguments as for `cut`."""
        groups = [
            CutGroup(
                source=sources[chunk[0].source_id],
                track_part=track_part[chunk[0].source_id],
                clips=tuple(self._to_cut(clip, order) for clip in chunk),
            )
            for chunk in _chunks(clips, unit_s)
        ]
        return list(
            pack(
                groups,
                max_items=CUT_UNIT_CLIPS,
                weight=lambda g: sum(clip.span.n_frames for clip in g.clips),
                max_weight=unit_s * 30,
            )
        )

    def step(
        self, n_workers: int, order: FrameOrder | None = None, *, before: bool = False
    ) -> Step:
        """Returns the step that cuts, or with `before` only looks."""
        taker = order.taker if order is not None else None
        make = LookStage if before else CutStage
        stage = make(
            self._config, self._pixels, threads=self._engine.threads(n_workers), taker=taker
        )
        keep: Callable[..., Any] = CutKeeper(self._store, self.stamp, taker)
        if before and taker is not None:
            keep = partial(keep_frames, taker)
        return stage_step(stage, keeps_state=True, load=TrackLoader(self._store), keep=keep)

    def has_written(self) -> bool:
        """Returns whether there are written clips of an earlier run."""
        return bool(self._previous) or bool(Parts(self._store, "cuts", self.stamp).names())

    def _to_cut(self, clip: ClipRow, order: FrameOrder | None) -> ClipToCut:
        cut, form = self._config.cut, None
        if cut.has_form:
            # The row has its size, rate and length.
            size = None if cut.size is None else (clip.width, clip.height)
            form = ClipForm(size=size, fps=cut.rate, n_frames=cut.length_frames)
        return ClipToCut(
            clip_id=clip.clip_id,
            span=Span(start_frame=clip.start_frame, end_frame=clip.end_frame, shot=clip.shot),
            min_frames=self._min_frames(clip),
            crop=_crop_of(clip),
            form=form,
            wish=order.wish(clip) if order is not None else None,
        )

    def _find_written(self, written: "_WrittenClips") -> None:
        """Finds written clips: in parts of `cuts`, or in shards of the last run."""
        self._find_cut(written)
        columns = ("clip_id", *CUT_FACTS, "shard", "mp4_offset", "cut_fingerprint")
        if self._previous.get("fingerprints", {}).get("cuts") != self.stamp:
            # Written with other settings, and perhaps before these columns existed.
            return
        standing = self._standing()
        for name in existing(self._store, self._previous, "clips"):
            table = Parts(self._store, "clips", "").read(name, columns)
            if not set(columns) <= set(table.column_names):
                continue
            # A tar may have been removed or damaged since.
            sizes = [standing.get(shard, -1) for shard in column_values(table["shard"])]
            ends = pc.add(table["mp4_offset"], table["mp4_bytes"])
            is_whole = pc.less_equal(ends, pa.array(sizes, pa.int64()))
            table = table.filter(pc.and_(pc.equal(table["cut_fingerprint"], self.stamp), is_whole))
            written.add(table, self._still_holds, name=table["shard"], offset=table["mp4_offset"])

    def _find_cut(self, written: "_WrittenClips", only: Collection[str] | None = None) -> None:
        """Finds clips in parts of `cuts`; all kept ones, or those of some ids."""

        def holds(facts: Written, clip: Clip) -> bool:
            return (only is None or clip.clip_id in only) and self._still_holds(facts, clip)

        parts = Parts(self._store, "cuts", self.stamp)
        for name in parts.names():
            table = parts.read_columns(name, ("clip_id", *CUT_FACTS))
            numbers = pa.array(range(table.num_rows), pa.int64())
            names = pa.array([name] * table.num_rows, pa.string())
            written.add(table, holds, name=names, row=numbers)

    def _still_holds(self, facts: Written, clip: Clip) -> bool:
        """Returns whether a clip would be written the same way now.

        `min_frames` and the crop come from settings that are in no fingerprint of `cuts`: otherwise
        each change of them would cut everything anew.
        """
        if _crop_of(facts) != _crop_of(clip):
            return False
        is_sized = self._config.cut.size is not None
        if is_sized and (clip.width, clip.height) != (facts.width, facts.height):
            return False
        least = self._min_frames(clip)
        if facts.cut_mode == "copy":
            return facts.n_frames >= least
        return facts.copy_frames is None or facts.copy_frames < least


class CutAhead:
    """Cuts clips while others are not decided about; `Cutting.cut` finds them written.

    What fails is left to it. Workers of a cluster come and go with the work.

    Args:
        cutting: How.
        engine: Where.
        sources: By id.
        track_part: Part of `tracks` of each source id.
    """

    def __init__(
        self,
        cutting: Cutting,
        engine: Engine,
        sources: Mapping[str, SourceRef],
        track_part: Mapping[str, str],
    ) -> None:
        self._cutting, self._sources, self._track_part = cutting, sources, track_part
        self._waiting: list[ClipRow] = []
        self._pool = engine.pool([cutting.step(1)], keeps=False)
        self._outcomes: list[CutOutcome] = []
        self.cpu_s: Counter[str] = Counter()
        """CPU-seconds of the workers, by what they did."""

    def add(self, clips: ClipRows) -> None:
        """Takes kept clips of some sources, and what was cut meanwhile; does not wait."""
        self._cutting.refuse_hdr(clips)
        self._waiting += clips.kept()
        if sum(clip.end_s - clip.start_s for clip in self._waiting) >= CUT_UNIT_S:
            self._submit()
        self._take(self._pool.poll())

    def finish(self) -> list[CutOutcome]:
        """Waits for what was begun, and returns what was written."""
        while self._pool.n_open:
            self._take(self._pool.poll(timeout=1.0))
        self.close()
        return [outcome for outcome in self._outcomes if outcome.written is not None]

    def close(self) -> None:
        """Ends the workers."""
        self._pool.close()

    def _submit(self) -> None:
        waiting, self._waiting = self._waiting, []
        arguments = waiting, self._sources, self._track_part, None
        for unit in self._cutting.units(*arguments, unit_s=CUT_UNIT_S):
            self._pool.submit(unit)

    def _take(self, results: Iterable[UnitResult[CutUnit]]) -> None:
        for result in results:
            self._outcomes += result.results.outcomes
            self.cpu_s.update(result.cpu_s)


class _WrittenClips:
    """The written clips of a run, with their properties and locations."""

    def __init__(self, clips: ClipRows) -> None:
        self._clips = clips
        self._kept = clips.kept_numbers()
        self._rows = KeyRows(pa.chunked_array([clips.kept_ids()]))
        self._is_found = np.zeros(len(clips), np.bool_)
        self._numbers: list[NDArray[np.int64]] = []
        self._tables: list[pa.Table] = []

    def __contains__(self, number: int) -> bool:
        return bool(self._is_found[number])

    def add(
        self,
        table: pa.Table,
        holds: Callable[[Written, Clip], bool],
        **place: pa.Array | pa.ChunkedArray,
    ) -> None:
        """Adds rows of `clip_id` and `CUT_FACTS`; a clip that comes again moves to its last place.

        `holds` says whether a row is of the run's clip; `place` has fields of `Location`.
        """
        found = self._rows.find_all(column_values(table["clip_id"]))
        there = np.flatnonzero(found >= 0)
        numbers, rows = [], []
        for start in range(0, len(there), _ROWS_AT_ONCE):
            some = there[start : start + _ROWS_AT_ONCE]
            facts = columns_to_rows(table.select(CUT_FACTS).take(pa.array(some)))
            of = self._kept[found[some]].tolist()
            for at, number, row in zip(some.tolist(), of, facts, strict=True):
                if holds(Written(**row), self._clips[number]):
                    numbers.append(number)
                    rows.append(at)
        if not rows:
            return
        columns = {name: table[name].cast(_FACT_TYPES[name]) for name in CUT_FACTS}
        columns |= {"clip_id": table["clip_id"], "in_name": place["name"]}
        for name in ("row", "offset"):
            given = place.get(name)
            columns[f"in_{name}"] = pa.nulls(table.num_rows, pa.int64()) if given is None else given
        self._numbers.append(np.array(numbers, np.int64))
        self._tables.append(pa.table(columns).take(pa.array(rows)))
        self._is_found[self._numbers[-1]] = True

    def apply(self, stamp: str) -> Locations:
        """Gives kept clips the facts of their written clips by `stamp`; returns their locations."""
        if not self._tables:
            return Locations(LOCATION_SCHEMA.empty_table())
        numbers = np.concatenate(self._numbers)
        _, last = np.unique(numbers[::-1], return_index=True)
        last = len(numbers) - 1 - last
        table = pa.concat_tables(self._tables).take(pa.array(last))
        self._numbers, self._tables = [], []
        stamps = pa.array([stamp], pa.string()).take(pa.array(np.zeros(len(last), np.int8)))
        facts = table.select(CUT_FACTS).append_column("cut_fingerprint", stamps)
        self._clips.scatter(numbers[last], facts)
        columns = ("clip_id", "in_name", "in_row", "in_offset", "mp4_bytes")
        return Locations(table.select(columns).rename_columns(LOCATION_SCHEMA.names))


def _crop_of(clip: Borders) -> Crop | None:
    x, y, width, height = clip.crop_x, clip.crop_y, clip.crop_width, clip.crop_height
    if x is None or y is None or width is None or height is None:
        return None
    return Crop(x=x, y=y, width=width, height=height)


def cut_facts(outcomes: Iterable[CutOutcome], crf: int) -> dict[str, Any]:
    """Returns facts about the written clips of a run, for the summary."""
    made = [(outcome, outcome.written) for outcome in outcomes if outcome.written is not None]
    copied = [(o, w) for o, w in made if w.cut_mode == "copy"]
    encoded = [(o, w) for o, w in made if w.cut_mode == "encode"]
    not_copied = Counter(str(o.not_copied) for o, _ in encoded if o.not_copied is not None)
    return {
        "copied": len(copied),
        "encoded": len(encoded),
        "copied_s": round(sum(w.end_s - w.start_s for _, w in copied), 3),
        "encoded_s": round(sum(w.end_s - w.start_s for _, w in encoded), 3),
        "copy_worker_s": round(sum(o.worker_s for o, _ in copied), 3),
        "encode_worker_s": round(sum(o.worker_s for o, _ in encoded), 3),
        "not_copied": dict(sorted(not_copied.items())),
        "encoded_coarser": sum(w.crf is not None and w.crf > crf for _, w in encoded),
        "audio": dict(sorted(Counter(str(w.audio) for _, w in made).items())),
    }


def _chunks(clips: Sequence[ClipRow], unit_s: float) -> Iterator[list[ClipRow]]:
    """Groups clips of one source each, up to a unit."""
    by_source: dict[str, list[ClipRow]] = {}
    for clip in clips:
        by_source.setdefault(clip.source_id, []).append(clip)
    for own in by_source.values():
        yield from pack(
            own,
            max_items=CUT_UNIT_CLIPS,
            weight=lambda clip: clip.end_s - clip.start_s,
            max_weight=unit_s,
        )

"""The driver's side of cutting: finds written clips of earlier runs, and cuts the other clips."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.buckets import BucketClasses
from curator.cut_requests import least_frames
from curator.errors import ErrorCode, UsageError
from curator.executor.engine import Engine
from curator.executor.fleet import Fleet
from curator.executor.progress import Progress
from curator.executor.unit_worker import UnitResult, stage_step
from curator.executor.worker import Step
from curator.packing import pack
from curator.records.clips import Borders, CutMode, Reason, Span, format_of
from curator.records.cuts import CROP_COLUMNS, Crop, FreshClip, StoredFrames
from curator.records.sources import FULL_HD, Failure, Medium, SourceRef
from curator.records.tracks import SourceFrames
from curator.scheduler import UnitRunner
from curator.stages.cut.config import CutConfig
from curator.stages.cut.stage import (
    ClipToCut,
    CutItem,
    CutOutcome,
    CutStage,
    decoded_together,
)
from curator.storage import Store
from curator.tables.clip_locations import LOCATION_SCHEMA, KeyIndex, Location, Locations
from curator.tables.clip_rows import ClipRow, ClipRows, fields_of, reject
from curator.tables.long_columns import joined_chunks, take_rows
from curator.tables.out_layout import CUTS
from curator.tables.output_format import existing
from curator.tables.parts import Parts
from curator.tables.schemas import CUT_SCHEMA, clips_schema
from curator.tables.track_table import table_to_source_frames

CUT_UNIT_S = 30.0
CUT_UNIT_CLIPS = 16
UNITS_PER_WORKER = 4
"""Few clips are divided into smaller units, so all workers finish at about the same time."""
CLIP_S, ENCODE_FRAME_S = 0.3, 0.1
"""Work of a clip that is copied, and more for each frame of 1080p that is encoded, in the unit of
`SourceRef.analysis_s` (benchmarks/results/end_times.md)."""
ENCODED_SHARE = 0.4
"""Share of the frames that are encoded among clips whose codec may be copied."""
FORESEEN_CLIPS = 2048
"""Sources and clips by which the work of the cut is estimated during the analysis."""
PRIOR_OF_SOURCE_S = 2.0
"""Weight of all sources in what is expected of the clips of a source, in seconds of analysis."""
PRIOR_S, PRIOR_SOURCES = 10.0, 1.0
"""Weight of `ENCODED_SHARE`, in seconds of analysis, and of a typical cut, in sources."""
KEPT_SHARE, TYPICAL_CLIP_S = 0.4, 5.0
"""Share of video that is kept by a typical cut, and the length of its clips."""
CUT_FACTS = tuple(name for name in CUT_SCHEMA.names if name not in ("clip_id", "mp4"))
"""Columns of `clips` that describe the written clip."""
HOW_SCHEMA = pa.schema(
    [
        ("worker_s", pa.float64()),
        ("not_copied", pa.string()),
        ("is_decoded", pa.bool_()),
        ("decoded_frames", pa.int64()),
    ]
)
WRITTEN_SCHEMA = pa.schema(
    [
        *(clips_schema(()).field(name) for name in ("clip_id", *CUT_FACTS)),
        *(LOCATION_SCHEMA.field(name) for name in ("name", "row", "offset")),
        *HOW_SCHEMA,
    ]
)
"""Row of a written clip: its facts and location, and `HOW_SCHEMA` if this run wrote the clip."""
_FORM = ("width", "height", "n_frames", "fps_fraction", "window_frames", "medium", "moment")
_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class CutUnit:
    """The results of the clips of a unit.

    Attributes:
        written: Rows of `WRITTEN_SCHEMA`.
        failures: Failures by clip id.
        fresh: Written clips for the next step of the chain, which drops them.
        frames: Frames that the next step stored.
    """

    written: pa.Table = field(default_factory=WRITTEN_SCHEMA.empty_table)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    fresh: Sequence[FreshClip] = ()
    frames: Sequence[StoredFrames] = ()

    def facts(self) -> dict[str, dict[str, Any]]:
        """Returns the facts of written clips by clip id."""
        rows = self.written.select(["clip_id", *CUT_FACTS]).to_pylist()
        return {row.pop("clip_id"): row for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """What another stage does with clips in the process that wrote them.

    Attributes:
        note: Returns what the worker needs to know about a clip.
        step: Returns the step after the cut, by the number of decoder threads. It gets a `CutUnit`
            with `fresh` clips, and returns the unit without them. None for no such step.
    """

    note: Callable[[ClipRow], Any]
    step: Callable[[int], Step] | None


@dataclass(slots=True)
class ForeseenCut:
    """Estimates the work of the cut by the first clips, while sources are analyzed.

    All fields are seconds of analysis, the unit of `SourceRef.analysis_s`.

    Attributes:
        typical_s: Work of the cut of all sources, if they are typical.
        n_sources: Their number.
        seen_s: The part of `typical_s` with the sources seen so far.
        sure_s: Work of cutting their clips, without encodes of clips that may be copied.
        may_copy_s: Work of encoding clips whose header allows a copy.
        encoded_s: The part of `may_copy_s` with frames that key frames do not allow to be copied.
        of_source: `encoded_s` and `may_copy_s` by source; a source's clips are mostly alike.
    """

    typical_s: float
    n_sources: int
    n_seen: int = 0
    seen_s: float = 0.0
    sure_s: float = 0.0
    may_copy_s: float = 0.0
    encoded_s: float = 0.0
    of_source: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def wants_more(self) -> bool:
        """Whether more sources and clips would make the estimate better."""
        return self.n_seen < FORESEEN_CLIPS

    @property
    def encoded_share(self) -> float:
        """Estimated share of encodes among the work of clips whose header allows a copy."""
        return (self.encoded_s + ENCODED_SHARE * PRIOR_S) / (self.may_copy_s + PRIOR_S)

    def share_of(self, source_id: str) -> float:
        """Returns the same for a source."""
        encoded_s, may_copy_s = self.of_source.get(source_id, (0.0, 0.0))
        return (encoded_s + self.encoded_share * PRIOR_OF_SOURCE_S) / (
            may_copy_s + PRIOR_OF_SOURCE_S
        )

    @property
    def work_s(self) -> float:
        """Estimated work of the cut of all sources: of those to come as of those seen."""
        cut_s = self.sure_s + self.encoded_share * self.may_copy_s
        to_come_s = max(0.0, self.typical_s - self.seen_s)
        prior_s = PRIOR_SOURCES * self.typical_s / max(1, self.n_sources)
        return cut_s + to_come_s * (cut_s + prior_s) / max(1e-9, self.seen_s + prior_s)

    def add(
        self, source_id: str, n_frames: float, n_pixels: int, *, may_copy: bool, encoded: float
    ) -> None:
        """Adds a clip that will likely be kept; if it may be copied, with a share of encodes."""
        work_s = encode_s(n_frames, n_pixels)
        self.sure_s += CLIP_S + (0.0 if may_copy else work_s)
        if may_copy:
            encoded_s = encoded * work_s
            self.may_copy_s += work_s
            self.encoded_s += encoded_s
            before = self.of_source.get(source_id, (0.0, 0.0))
            self.of_source[source_id] = before[0] + encoded_s, before[1] + work_s


def encode_s(n_frames: float, n_pixels: int) -> float:
    """Estimates the work of encoding frames, in seconds of analysis."""
    return ENCODE_FRAME_S * n_frames * n_pixels / FULL_HD


def typical_cut_s(source: SourceRef, n_pixels: int, *, may_copy: bool) -> float:
    """Estimates the work of cutting a typical share of a source, in seconds of analysis."""
    clips_s = CLIP_S * (source.header_duration_s or 0.0) / TYPICAL_CLIP_S
    encoded_share = ENCODED_SHARE if may_copy else 1.0
    return KEPT_SHARE * (clips_s + encoded_share * encode_s(source.weight, n_pixels))


class TrackLoader:
    """Reads the frame times of sources; keeps those of the last source for the next unit."""

    def __init__(self, store: Store, config: CutConfig) -> None:
        self._tracks = Parts(store, "tracks", "")
        self._config = config
        self._last: tuple[tuple[str, str], SourceFrames] | None = None
        """Part, id and frame times of the source that was read last."""

    def __call__(self, unit: Sequence[ClipToCut]) -> list[CutItem]:
        """Returns the clips of the unit with the frame times of their sources."""
        items = []
        for clip in unit:
            part, source_id = place = clip.track_part, str(clip.source.source_id)
            if self._last is None or self._last[0] != place:
                self._last = place, table_to_source_frames(self._tracks.read(part), source_id)
            items.append(CutItem(clip=clip, track=self._last[1]))
        return decoded_together(items, self._config)


@dataclass(frozen=True, slots=True)
class CutKeeper:
    """Stores the written clips of a unit as one part of `cuts`.

    With `passes_on`, the clips also go to the next step of the chain, in the same process.
    """

    parts: Parts
    passes_on: bool = False

    def __call__(self, unit: Sequence[CutItem], results: Sequence[CutOutcome]) -> CutUnit:
        """Stores the results of a unit."""
        rows: list[dict[str, Any]] = []
        fresh: list[FreshClip] = []
        failures: dict[str, Failure] = {}
        for item, result in zip(unit, results, strict=True):
            # The id comes from the unit, because a result may come from a sandbox.
            clip_id, written = item.clip.clip_id, result.written
            if result.failure is not None:
                failures[clip_id] = result.failure
            if written is not None:
                how = {name: getattr(result, name) for name in HOW_SCHEMA.names}
                rows.append(asdict(written) | how | {"clip_id": clip_id, "mp4": result.mp4})
                fresh.append(FreshClip(note=item.clip.note, written=written, mp4=result.mp4))
        if not rows:
            return CutUnit(failures=failures)
        table = pa.Table.from_pylist(rows, schema=pa.unify_schemas([CUT_SCHEMA, HOW_SCHEMA]))
        clip_ids = table["clip_id"].to_pylist()
        name = self.parts.write(table.select(CUT_SCHEMA.names), clip_ids, one_row_groups=True)
        return CutUnit(
            written=_in_part(table, name),
            failures=failures,
            fresh=fresh if self.passes_on else (),
        )


@dataclass
class Cutting:
    """Cuts the kept clips of a pass, unless a written clip can be reused.

    Attributes:
        track_part: Part of `tracks` by source id; other code may add sources.
        min_s: `propose.min_s`.
        buckets: Section `shard` of the recipe.
        previous: Summary of the last finished run.
        reusable: Returns the size in bytes of each intact object of the shards.
    """

    stage: CutStage
    store: Store
    engine: Engine
    progress: Progress
    track_part: Mapping[str, str]
    min_s: float
    buckets: BucketClasses
    previous: Mapping[str, Any]
    reusable: Callable[[], Mapping[str, int]]

    def __post_init__(self) -> None:
        self._config = self.stage.config.cut
        self.fingerprint = self.stage.fingerprint({})
        self._parts = Parts(self.store, CUTS, self.fingerprint)
        self._runner = UnitRunner(self.engine, self.progress)
        self.cpu_s = self._runner.cpu_s
        """CPU-seconds of the workers, by kind of work."""
        self._earlier: list[pa.Table] = []
        """Clips that earlier runs wrote."""
        self._made: list[pa.Table] = []
        """Clips that this run wrote."""
        self._failures: dict[str, Failure] = {}
        self.foreseen: ForeseenCut | None = None
        """Estimate of the work; None if earlier runs wrote some of the clips."""
        self._waiting: list[ClipRow] = []
        self._pool: Fleet | None = None

    def ahead(self, clips: ClipRows, sources: Mapping[str, SourceRef]) -> None:
        """Begins to cut the kept clips of some sources before other sources are decided.

        Does not wait for results. `cut` later finds the written clips, and retries failures. On a
        cluster, the number of workers follows the amount of work.
        """
        if self._pool is None:
            self._pool = self.engine.pool(
                [self._step(self.engine.threads(1), passes_on=False)], keeps=False
            )
        self.refuse_hdr(clips)
        self._waiting += clips.kept()
        if sum(map(_seconds, self._waiting)) >= CUT_UNIT_S:
            for unit in self._units(self._waiting, sources, None, CUT_UNIT_S):
                self._pool.submit(unit)
            self._waiting = []
        self._collect(self._pool.poll())

    def cut(
        self,
        clips: ClipRows,
        sources: Mapping[str, SourceRef],
        then: FollowUp | None = None,
        *,
        rejects: Callable[[pa.Table], pa.Array] | None = None,
    ) -> Iterator[CutUnit]:
        """Cuts the kept clips that no part of `cuts` and no shard has; yields the results.

        Args:
            clips: Clips of the run.
            sources: Sources of the kept clips, by id.
            then: Gets the clips of a unit in the worker that wrote them.
            rejects: Gets rows of `WRITTEN_SCHEMA` of clips that the last run wrote and rejected,
                and returns those that it rejects again, bool [rows].
        """
        self.refuse_hdr(clips)
        while self._pool is not None and self._pool.n_open:
            self._collect(self._pool.poll(timeout=1.0))
        self.close()
        self._failures.clear()
        written = pa.concat_tables([WRITTEN_SCHEMA.empty_table(), *self._written(clips)])
        is_there = pc.is_valid(written["name"])
        if rejects is not None:
            self._reject_again(clips, written.filter(pc.invert(is_there)), rejects)
        self._earlier = [written.filter(is_there)]
        kept, there = clips.kept_numbers(), self._earlier[0]["clip_id"]
        is_missing = ~pc.is_in(clips.kept_ids(), value_set=there).to_numpy(False)
        missing = [clips[number] for number in kept[is_missing].tolist()]
        for unit in self._run(missing, sources, then, n_before=len(kept) - len(missing)):
            self._made.append(unit.written)
            self._failures |= unit.failures
            yield unit

    def foresee(self, sources: Sequence[SourceRef]) -> None:
        """Begins to estimate the work of the cut, before sources are analyzed."""
        self.foreseen = ForeseenCut(sum(map(self._typical_s, sources)), len(sources))
        self.progress.foresee(self.stage.step, self.foreseen.work_s)

    def see(
        self,
        clips: Iterable[ClipRow],
        sources: Mapping[str, SourceRef],
        key_gaps_s: Mapping[str, tuple[float, float]],
    ) -> None:
        """Improves the estimate by clips that will likely be kept, of analyzed `sources`.

        `key_gaps_s` is that of `ProposedUnit`.
        """
        seen = self.foreseen
        assert seen is not None
        for clip in clips:
            n_pixels = clip.width * clip.height
            may_copy = self._may_copy_clip(clip, sources[clip.source_id])
            encoded = self._encoded(_seconds(clip), *key_gaps_s.get(clip.clip_id, (0.0, 0.0)))
            seen.add(clip.source_id, clip.n_frames, n_pixels, may_copy=may_copy, encoded=encoded)
            seen.n_seen += 1
        seen.n_seen += len(sources)
        seen.seen_s += sum(map(self._typical_s, sources.values()))
        self.progress.foresee(self.stage.step, seen.work_s)

    def _typical_s(self, source: SourceRef) -> float:
        config, own = self._config, (source.width, source.height)
        work_s = 0.0
        for size in config.sizes or (config.one_size,):
            width, height = size if isinstance(size, tuple) else own
            n_pixels = source.n_pixels or FULL_HD
            if width is not None and height is not None:
                n_pixels = width * height
            may_copy = self._may_copy(source, width, height)
            work_s += typical_cut_s(source, n_pixels, may_copy=may_copy)
        return work_s

    def _work_s(self, clip: ClipRow, source: SourceRef) -> float:
        seen = self.foreseen
        share = ENCODED_SHARE if seen is None else seen.share_of(clip.source_id)
        share = share if self._may_copy_clip(clip, source) else 1.0
        return CLIP_S + share * encode_s(clip.n_frames, clip.width * clip.height)

    def _may_copy_clip(self, clip: ClipRow, source: SourceRef) -> bool:
        is_sized = clip.output_size is not None
        return clip.crop_x is None and self._may_copy(
            source, clip.width, clip.height, is_sized=is_sized
        )

    def _may_copy(
        self, source: SourceRef, width: int | None, height: int | None, *, is_sized: bool = False
    ) -> bool:
        """Returns whether settings and header allow a copy."""
        config = self._config
        if config.mode != "auto" or self.stage.pixels or config.rate is not None:
            return False
        has_size = config.size is not None or is_sized
        if has_size and (width, height) != (source.width, source.height):
            return False
        return source.codec in config.copy_codecs and source.pixel_format in (None, "yuv420p")

    def _encoded(self, seconds: float, first_s: float, longest_s: float) -> float:
        """Returns the share of a clip that its key frames do not allow to be copied."""
        config, most_s = self._config, self._config.copy_max_gap_s
        if most_s is not None and longest_s > most_s:
            return 1.0
        if first_s <= min(config.copy_give_up_s, config.copy_give_up_share * seconds):
            return 0.0
        return min(1.0, first_s / max(seconds, 1e-9)) if config.encode_head else 1.0

    def finish(self, clips: ClipRows) -> Mapping[str, Location]:
        """Sets the facts of written clips, and rejects clips that could not be written.

        Returns:
            The location of each clip.
        """
        tables = [WRITTEN_SCHEMA.empty_table(), *self._earlier, *self._made]
        table = joined_chunks(pa.concat_tables(tables))
        at = pc.index_in(table["clip_id"], value_set=clips.kept_ids()).fill_null(-1).to_numpy()
        # If a clip was written twice, the last location is used.
        places, last = np.unique(at[::-1], return_index=True)
        last = len(at) - 1 - last[places >= 0]
        table = take_rows(table, pa.array(last))
        self._set_facts(clips, clips.kept_numbers()[places[places >= 0]], table)
        for clip in clips.kept() if self._failures else ():
            failure = self._failures.get(clip.clip_id)
            if failure is not None:
                changed = failure.code is ErrorCode.CHANGED
                reason = Reason.SOURCE_CHANGED if changed else Reason.CUT_FAILED
                reject(clip, reason, detail=failure.message)
        columns = ("clip_id", "name", "row", "offset", "mp4_bytes")
        return Locations(table.select(columns).rename_columns(LOCATION_SCHEMA.names))

    def _reject_again(
        self, clips: ClipRows, written: pa.Table, rejects: Callable[[pa.Table], pa.Array]
    ) -> None:
        """Rejects clips that the last run rejected after it wrote them, instead of cutting them."""
        rejected = written.filter(rejects(written))
        at = pc.index_in(rejected["clip_id"], value_set=clips.column("clip_id"))
        self._set_facts(clips, at.to_numpy(), rejected)

    def _set_facts(self, clips: ClipRows, numbers: NDArray[np.int64], written: pa.Table) -> None:
        facts = written.select(CUT_FACTS)
        facts = facts.append_column("cut_fingerprint", pa.repeat(self.fingerprint, len(written)))
        clips.scatter(numbers, facts)

    @property
    def n_cut(self) -> int:
        """Number of clips that this run cut, or failed to cut."""
        return sum(map(len, self._made)) + len(self._failures)

    @property
    def work(self) -> dict[str, Any]:
        """Facts for the summary about the clips that this run cut."""
        return cut_facts(self._made, self._config.crf)

    def refuse_hdr(self, clips: ClipRows) -> None:
        """Rejects PQ and HLG clips if `cut.hdr` is reject."""
        if self._config.hdr == "reject":
            for number in np.flatnonzero(np.nan_to_num(clips.floats("hdr"))).tolist():
                if clips[number].decision == "kept":
                    reject(clips[number], Reason.HIGH_DYNAMIC_RANGE, detail="cut.hdr is reject")

    def has_written(self) -> bool:
        """Returns whether an earlier run finished or wrote clips."""
        return bool(self.previous) or bool(self._parts.names())

    def close(self) -> None:
        """Ends the workers that `ahead` started."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _collect(self, results: Iterable[UnitResult[CutUnit]]) -> None:
        for result in results:
            self._made.append(result.results.written)
            self.cpu_s.update(result.cpu_s)

    def _run(
        self,
        clips: Sequence[ClipRow],
        sources: Mapping[str, SourceRef],
        then: FollowUp | None,
        n_before: int,
    ) -> Iterator[CutUnit]:
        """Cuts some clips; the work begins when the caller requests a result."""
        if not clips:
            return
        engine = self.engine
        total_s = sum(map(_seconds, clips))
        footage_s = sum(seconds for _, seconds in pieces_of_footage(clips))
        unit_s = min(CUT_UNIT_S, footage_s / (UNITS_PER_WORKER * engine.n_workers(len(clips))))
        units = list(self._units(clips, sources, then, unit_s))
        work_s = sum(self._work_s(clip, sources[clip.source_id]) for clip in clips)
        self.progress.work(len(clips), total_s, n_before=n_before, work_s=work_s)
        pixels = sum(clip.n_frames * clip.width * clip.height for clip in clips)
        # The work in frames of 1080p: encoding a frame takes twice as long as decoding it.
        small = engine.is_small(len(clips), 3.0 * float(pixels) / FULL_HD)
        threads = engine.threads(1 if small else engine.n_workers(len(units)))
        after = [] if then is None or then.step is None else [then.step(threads)]
        step = self._step(threads, passes_on=bool(after))
        if step.resources.gpus and not engine.may_have_gpus():
            raise UsageError(
                "cut.encoder is nvenc, and neither the driver nor Ray finds a GPU; `curate doctor` "
                "shows the reason; --set cut.encoder=x264 needs no GPU"
            )
        yield from self._runner.run([step, *after], units, placement="child" if small else "ray")

    def _units(
        self,
        clips: Sequence[ClipRow],
        sources: Mapping[str, SourceRef],
        then: FollowUp | None,
        unit_s: float,
    ) -> Iterator[list[ClipToCut]]:
        """Divides clips, in the order of their sources, into units of about `unit_s` seconds."""
        pieces, weight = pieces_of_footage(clips), lambda piece: float(piece[1])
        for unit in pack(pieces, max_items=CUT_UNIT_CLIPS, weight=weight, max_weight=unit_s):
            yield [self._to_cut(clip, sources, then) for piece, _ in unit for clip in piece]

    def _step(self, threads: int, *, passes_on: bool) -> Step:
        return stage_step(
            CutStage(self.stage.config, self.stage.pixels, threads=threads),
            keeps_state=True,
            load=TrackLoader(self.store, self._config),
            keep=CutKeeper(self._parts, passes_on),
        )

    def _to_cut(
        self, clip: ClipRow, sources: Mapping[str, SourceRef], then: FollowUp | None
    ) -> ClipToCut:
        return ClipToCut(
            source=sources[clip.source_id],
            track_part=self.track_part[clip.source_id],
            clip_id=clip.clip_id,
            span=Span(start_frame=clip.start_frame, end_frame=clip.end_frame, shot=clip.shot),
            min_frames=self._least(*(getattr(clip, name) for name in _FORM)),
            crop=_crop_of(clip),
            # If the recipe sets a size, the row already has the size to write.
            size=(clip.width, clip.height)
            if self._config.size is not None or clip.output_size is not None
            else None,
            note=then.note(clip) if then is not None else None,
            work_s=self._work_s(clip, sources[clip.source_id]),
            window=None
            if clip.window_frames is None
            else (clip.n_frames, Fraction(clip.fps_fraction)),
        )

    def _least(
        self,
        width: int,
        height: int,
        n_frames: int,
        fps: str,
        window_frames: int | None,
        medium: Medium,
        moment: str | None,
    ) -> int:
        """Returns the minimum number of frames of a copy: all frames of a window or a moment."""
        if medium == Medium.IMAGE:
            return 1
        is_exact = window_frames is not None or moment is not None
        least = n_frames if is_exact else self._config.length_frames
        return least or least_frames(
            width, height, n_frames, fps, min_s=self.min_s, shard=self.buckets
        )

    def _written(self, clips: ClipRows) -> list[pa.Table]:
        """Returns written clips to reuse, from parts of `cuts` or from shards of the last run.

        Clips that the last run rejected after it wrote them have no `name`.
        """
        columns = ("clip_id", *_FORM, *CROP_COLUMNS, "output_size")
        kept = clips.table(fields_of(clips.schema, columns))
        kept = take_rows(kept, pa.array(clips.kept_numbers()))
        rows, own_tables = KeyIndex(kept["clip_id"]), []
        stored = pack(
            self._stored(), max_items=_ROWS_AT_ONCE, weight=len, max_weight=float(_ROWS_AT_ONCE)
        )
        for tables in stored:
            table = pa.concat_tables(tables)
            at = rows.find_all(table["clip_id"].to_pylist())
            table = joined_chunks(table.filter(pa.array(at >= 0)))
            if table.num_rows:
                serves = self.still_valid(take_rows(kept, pa.array(at[at >= 0])), table)
                own_tables.append(table.filter(serves))
        return own_tables

    def _stored(self) -> Iterator[pa.Table]:
        """Yields written clips of earlier runs with the same fingerprint."""
        columns = ("clip_id", *CUT_FACTS)
        for name in self._parts.names():
            yield _in_part(self._parts.read_columns(name, columns), name)
        if self.previous.get("fingerprints", {}).get("cuts") != self.fingerprint:
            # The last run had other settings.
            return
        columns, reusable = (*columns, "shard", "mp4_offset", "cut_fingerprint"), self.reusable()
        for name in existing(self.store, self.previous, "clips"):
            table = Parts(self.store, "clips", "").read(name, columns)
            # A tar may have been removed or damaged since the last run.
            sizes = [reusable.get(shard, -1) for shard in table["shard"].to_pylist()]
            ends = pc.add(table["mp4_offset"], table["mp4_bytes"])
            # A clip without a tar was rejected after it was written.
            is_usable = pc.fill_null(pc.less_equal(ends, pa.array(sizes, pa.int64())), True)
            table = table.filter(
                pc.and_(pc.equal(table["cut_fingerprint"], self.fingerprint), is_usable)
            )
            yield _placed(table, name=table["shard"], offset=table["mp4_offset"])

    def still_valid(self, clips: pa.Table, stored: pa.Table) -> pa.Array:
        """Returns which stored clips equal those that this run would write.

        `min_frames` and the crop depend on settings outside of the fingerprint of `cuts`, so a
        change of these settings repeats only the clips that it affects.
        """
        is_same = np.logical_and.reduce(
            [_filled(clips[name]) == _filled(stored[name]) for name in CROP_COLUMNS]
        )
        is_sized = clips["output_size"].is_valid().to_numpy() | (self._config.size is not None)
        for name in ("width", "height"):
            is_same &= ~is_sized | (_filled(clips[name]) == _filled(stored[name]))
        forms = list(zip(*(clips[name].to_pylist() for name in _FORM), strict=True))
        least_of = {form: self._least(*form) for form in set(forms)}
        least = np.array([least_of[form] for form in forms])
        # An encoded clip has all frames, whatever the minimum.
        is_long = pc.equal(stored["cut_mode"], "encode").to_numpy()
        is_long |= _filled(stored["n_frames"]) >= least
        # -1 means that the clip cannot be copied, whatever the minimum.
        is_short = _filled(stored["copy_frames"]) < least
        return pa.array(is_same & is_long & is_short)


def _seconds(clip: ClipRow) -> float:
    return clip.end_s - clip.start_s


def pieces_of_footage(clips: Sequence[ClipRow]) -> Iterator[tuple[list[ClipRow], float]]:
    """Divides clips into pieces that one unit cuts, so that their source is decoded once.

    Yields the clips of a piece in the order of their starts, and the seconds of footage that no
    piece before shows. Clips that end within the footage of a piece belong to the piece.
    """
    places: dict[str, int] = {}
    for clip in clips:
        places.setdefault(clip.source_id, len(places))
    piece: list[ClipRow] = []
    source, reached_s, seconds = "", 0.0, 0.0
    for clip in sorted(clips, key=lambda clip: (places[clip.source_id], clip.start_frame)):
        if clip.source_id != source:
            source, reached_s = clip.source_id, clip.start_s
        more_s = clip.end_s - max(clip.start_s, reached_s)
        if piece and (more_s > 0 or piece[0].source_id != source):
            yield piece, seconds
            piece = []
        if not piece:
            seconds = max(0.0, more_s)
        piece.append(clip)
        reached_s = max(reached_s, clip.end_s)
    if piece:
        yield piece, seconds


def _in_part(table: pa.Table, name: str) -> pa.Table:
    """Returns rows of `WRITTEN_SCHEMA` for the rows of a part of `cuts`."""
    return _placed(table, name=pa.repeat(name, len(table)), row=pa.array(range(len(table))))


def _placed(table: pa.Table, **place: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Returns rows of `WRITTEN_SCHEMA`; missing columns are null."""
    # Parts from before still images lack the format.
    given = {"format": pa.repeat(format_of(None), len(table))}
    given |= dict(zip(table.column_names, table.columns, strict=True)) | place
    columns = [given.get(field.name, pa.nulls(len(table), field.type)) for field in WRITTEN_SCHEMA]
    return pa.table(columns, names=WRITTEN_SCHEMA.names).cast(WRITTEN_SCHEMA)


def _filled(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Returns a column of non-negative numbers, with -1 for null."""
    return np.asarray(column.fill_null(-1).to_numpy(), np.int64)


def _crop_of(clip: Borders) -> Crop | None:
    x, y, width, height = clip.crop_x, clip.crop_y, clip.crop_width, clip.crop_height
    if x is None or y is None or width is None or height is None:
        return None
    return Crop(x=x, y=y, width=width, height=height)


_DONE: dict[str, str] = {"copy": "copied", "encode_head": "encoded_head", "encode": "encoded"}


def cut_facts(written: Sequence[pa.Table], crf: int) -> dict[str, Any]:
    """Returns facts for the summary about `written` clips, rows of `WRITTEN_SCHEMA`."""
    table = pa.concat_tables([WRITTEN_SCHEMA.empty_table(), *written])
    of_mode = {mode: pc.equal(table["cut_mode"], mode) for mode in get_args(CutMode)}
    is_copy = of_mode["copy"]
    seconds = pc.subtract(table["end_s"], table["start_s"])

    def sums(form: str, column: pa.ChunkedArray, names: Mapping[str, str]) -> dict[str, float]:
        return {
            form.format(names.get(mode, mode)): round(pc.sum(column.filter(rows)).as_py() or 0, 3)
            for mode, rows in of_mode.items()
        }

    return {
        **sums("{}", pa.chunked_array([pa.repeat(1, len(table))]), _DONE),
        **sums("{}_s", seconds, _DONE),
        **sums("{}_worker_s", table["worker_s"], {}),
        "decoded_frames": pc.sum(table["decoded_frames"]).as_py() or 0,
        "copies_decoded": pc.sum(pc.and_(is_copy, table["is_decoded"])).as_py() or 0,
        "not_copied": _counts(table["not_copied"].drop_null()),
        "encoded_coarser": pc.sum(pc.greater(table["crf"], crf)).as_py() or 0,
        "audio": _counts(table["audio"]),
    }


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    return dict(sorted(Counter(column.to_pylist()).items()))

"""What a worker does with one unit of work: thin classes around the stages' functions.

A unit holds several small sources or one large one. Whatever goes wrong with one source ends in
that source's row; the others of its unit go on.
"""

import faulthandler
import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curator.errors import CutError, ErrorCode, ShardError, SourceError
from curator.lake import Parts, rows_to_table
from curator.models.perceptual import aggregate
from curator.models.transnet import ShotNetwork
from curator.recipe import Recipe
from curator.records import Failure, Shot, Span, Track
from curator.stages.analyze import AnalyzeConfig, analyze_source
from curator.stages.clips import clip_row, cut_request
from curator.stages.cut import ClipCutter, CutConfig
from curator.stages.filters import samples_of
from curator.stages.propose import find_shots, propose_clips
from curator.stages.scan import SCAN_SCHEMA, scan_key, scan_source
from curator.stages.shard import Sample, ShardPlan, write_shard
from curator.storage import Store, open_source
from curator.tables import SHOTS_SCHEMA
from curator.tracks import table_to_tracks, tracks_to_table

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
"""A source whose worker died this often is given up."""

RETRIED = frozenset(
    {
        ErrorCode.VANISHED,
        ErrorCode.CHANGED,
        ErrorCode.UNREADABLE,
        ErrorCode.WORKER_DIED,
        ErrorCode.INTERNAL,
    }
)
"""Failures that another run may not see again: they are not stored as done."""


class AttemptLog(Protocol):
    """Counts attempts outside this process."""

    def begin(self, key: str) -> int:
        """Number of this attempt, from 1."""
        ...

    def end(self, key: str, seconds: float) -> None:
        """The attempt ended without killing the worker."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRef:
    """A source as it was listed."""

    uri: str
    n_bytes: int
    version: str
    source_id: str | None = None


class ScanStep:
    """Probes a unit of sources, stores the probes, and returns their rows."""

    def __init__(self, *, store: Store, stamp: str) -> None:
        self._parts = Parts(store, "scan", stamp)

    def __call__(self, unit: Sequence[SourceRef]) -> pa.Table:
        """Probes a unit; returns rows of `SCAN_SCHEMA`."""
        rows = [self._scan(source) for source in unit]
        table = rows_to_table(rows, SCAN_SCHEMA)
        done = [
            scan_key(source.uri, source.version)
            for source, row in zip(unit, rows, strict=True)
            if row.get("error_code") not in RETRIED
        ]
        if done:
            self._parts.write(table, done)
        return table

    def _scan(self, source: SourceRef) -> dict[str, Any]:
        try:
            return scan_source(source.uri, source.n_bytes, source.version)
        except Exception as error:  # noqa: BLE001 - becomes the source's failed outcome
            failure = _internal(source.uri, "scan", error)
            return {
                "uri": source.uri,
                "bytes": source.n_bytes,
                "version": source.version,
                "error_stage": failure.stage,
                "error_code": str(failure.code),
                "error_message": failure.message,
            }


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeUnit:
    """Sources to analyze, or a part of `tracks` that has them."""

    sources: tuple[SourceRef, ...]
    part: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedUnit:
    """Where the tracks of some sources are; `failed` holds what will be tried again."""

    sources: tuple[SourceRef, ...]
    part: str | None
    failed: tuple[Failure, ...]


class AnalyzeStep:
    """Decodes the sources of a unit and stores their tracks as one part."""

    def __init__(
        self,
        *,
        store: Store,
        stamp: str,
        config: AnalyzeConfig,
        threads: int,
        log: AttemptLog | None,
    ) -> None:
        self._parts = Parts(store, "tracks", stamp)
        self._config = config
        self._threads = threads
        self._log = log
        self._network: ShotNetwork | None = None

    def __call__(self, unit: AnalyzeUnit) -> AnalyzedUnit:
        """Analyzes a unit, or passes on the part that has it already."""
        if unit.part is not None:
            return AnalyzedUnit(sources=unit.sources, part=unit.part, failed=())
        results = [self._analyze(source) for source in unit.sources]
        kept = [
            (str(source.source_id), result)
            for source, result in zip(unit.sources, results, strict=True)
            if isinstance(result, Track) or result.code not in RETRIED
        ]
        part = None
        if kept:
            part = self._parts.write(tracks_to_table(kept), [key for key, _ in kept])
        failed = tuple(r for r in results if isinstance(r, Failure) and r.code in RETRIED)
        return AnalyzedUnit(sources=unit.sources, part=part, failed=failed)

    def _analyze(self, source: SourceRef) -> Track | Failure:
        key = f"analyze {source.uri}"
        if self._log is not None and self._log.begin(key) > MAX_ATTEMPTS:
            self._log.end(key, 0.0)
            return Failure(
                uri=source.uri,
                stage="analyze",
                code=ErrorCode.WORKER_DIED,
                message=f"{source.uri}: the worker died {MAX_ATTEMPTS} times while decoding it: a "
                "crash, too little memory, or longer than analyze.max_decode_s = "
                f"{self._config.max_decode_s:g} s; try it alone with --workers 1",
            )
        result = self._guarded(source)
        if self._log is not None:
            self._log.end(key, result.duration_s if isinstance(result, Track) else 0.0)
        return result

    def _guarded(self, source: SourceRef) -> Track | Failure:
        if self._network is None:
            self._network = _network(self._threads)
        try:
            with (
                _watchdog(self._config.max_decode_s, armed=self._log is not None),
                open_source(source.uri, expected_version=source.version) as reader,
            ):
                return analyze_source(
                    reader,
                    source.uri,
                    source_id=str(source.source_id),
                    n_bytes=source.n_bytes,
                    network=self._network,
                    config=self._config,
                    decoder_threads=self._threads,
                )
        except SourceError as error:
            return Failure(uri=source.uri, stage="analyze", code=error.code, message=error.message)
        except Exception as error:  # noqa: BLE001 - becomes the source's failed outcome
            return _internal(source.uri, "analyze", error)


def _network(threads: int) -> ShotNetwork:
    import cv2

    cv2.setNumThreads(1)
    return ShotNetwork(threads=threads)


@contextmanager
def _watchdog(limit_s: float, *, armed: bool) -> Iterator[None]:
    """Ends this process if the block takes too long: no signal reaches a stuck decoder."""
    if not armed:
        yield
        return
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _internal(uri: str, stage: str, error: Exception) -> Failure:
    logger.exception("%s of %r failed", stage, uri)
    return Failure(
        uri=uri,
        stage=stage,
        code=ErrorCode.INTERNAL,
        message=f"{uri}: {type(error).__name__}: {error}; please report it",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedUnit:
    """Shots, clips and measured facts of some sources, and the part that has their tracks."""

    part: str | None
    sources: list[dict[str, Any]]
    shots: pa.Table
    clips: list[dict[str, Any]]
    embeddings: list[tuple[str, np.ndarray]]
    thumbnails: list[tuple[str, bytes]]


class ProposeStep:
    """Reads tracks and makes shots, clips, scores and decisions of them."""

    def __init__(self, *, store: Store, stamp: str, recipe: Recipe) -> None:
        self._parts = Parts(store, "tracks", stamp)
        self._recipe = recipe

    def __call__(self, unit: AnalyzedUnit) -> ProposedUnit:
        """Makes the rows of a unit."""
        uris = {str(source.source_id): source.uri for source in unit.sources}
        made = ProposedUnit(
            part=unit.part,
            sources=[],
            shots=SHOTS_SCHEMA.empty_table(),
            clips=[],
            embeddings=[],
            thumbnails=[],
        )
        shots: list[dict[str, Any]] = []
        for failure in unit.failed:
            made.sources.append(_failed_source(failure))
        if unit.part is not None:
            for source_id, result in table_to_tracks(self._parts.read(unit.part), uris):
                if isinstance(result, Failure):
                    made.sources.append(_failed_source(result))
                else:
                    self._add(made, shots, result, uris[source_id])
        return replace(made, shots=rows_to_table(shots, SHOTS_SCHEMA))

    def _add(
        self, made: ProposedUnit, shot_rows: list[dict[str, Any]], track: Track, uri: str
    ) -> None:
        recipe = self._recipe
        shots = find_shots(track.shot_probability, track.transition_probability, recipe.propose)
        spans = propose_clips(track, shots, recipe.propose)
        shot_rows += [_shot_row(track, number, shot) for number, shot in enumerate(shots)]
        for span in spans:
            row = clip_row(
                track,
                span,
                uri,
                propose=recipe.propose,
                rules=recipe.filters.root,
                shard=recipe.shard,
            )
            made.clips.append(row)
            vector = aggregate(track.descriptor[samples_of(track, span)])
            if vector is not None:
                made.embeddings.append((row["clip_id"], vector))
            thumbnail = _thumbnail(track, span)
            if thumbnail is not None:
                made.thumbnails.append((row["clip_id"], thumbnail))
        made.sources.append(_source_facts(track, uri, len(shots), len(spans)))


def _thumbnail(track: Track, span: Span) -> bytes | None:
    inside = (track.thumbnail_frame >= span.start_frame) & (track.thumbnail_frame < span.end_frame)
    indices = np.flatnonzero(inside)
    return track.thumbnails[int(indices[len(indices) // 2])] if len(indices) else None


def _shot_row(track: Track, number: int, shot: Shot) -> dict[str, Any]:
    return {
        "source_id": track.source_id,
        "shot": number,
        "start_frame": shot.start_frame,
        "end_frame": shot.end_frame,
        "start_s": track.seconds(int(track.frame_pts[shot.start_frame])),
        "end_s": track.seconds(track.pts_of_end(shot.end_frame)),
        "transition_in": shot.transition_in,
        "transition_out": shot.transition_out,
    }


def _source_facts(track: Track, uri: str, n_shots: int, n_clips: int) -> dict[str, Any]:
    return {
        "uri": uri,
        "sha256": track.sha256,
        "width": track.width,
        "height": track.height,
        "rotation_deg": track.rotation_deg,
        "pixel_aspect": str(track.pixel_aspect),
        "duration_s": track.duration_s,
        "n_frames": track.n_frames,
        "fps": float(track.fps),
        "is_vfr": track.is_vfr,
        "is_hdr": track.is_hdr,
        "is_interlaced": track.is_interlaced,
        "n_decode_errors": track.n_decode_errors,
        "n_shots": n_shots,
        "n_clips": n_clips,
        "notes": [str(note) for note in track.notes],
        "outcome": "done",
    }


def _failed_source(failure: Failure) -> dict[str, Any]:
    return {
        "uri": failure.uri,
        "outcome": "failed",
        "error_stage": failure.stage,
        "error_code": str(failure.code),
        "error_message": failure.message,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CutGroup:
    """Clips of one source to cut, and the part of `tracks` that has its timestamps."""

    source: SourceRef
    track_part: str
    spans: tuple[tuple[str, Span], ...]
    """Clip id and span of each, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOutcome:
    """A clip that was written to a part of `cuts`, or why it was not."""

    clip_id: str
    error: str | None = None
    n_frames: int = 0
    width: int = 0
    height: int = 0
    mp4_bytes: int = 0
    mp4_sha256: str = ""


CUT_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("n_frames", pa.int32()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("mp4_bytes", pa.int64()),
        ("mp4_sha256", pa.string()),
        ("mp4", pa.binary()),
    ]
)
"""Row of `cuts`: one row group per clip, so that one can be read without the others."""


class CutStep:
    """Writes the clips of a unit and stores them as one part of `cuts`."""

    def __init__(
        self,
        *,
        store: Store,
        stamp: str,
        track_stamp: str,
        config: CutConfig,
        max_pixels: int,
        threads: int,
        log: AttemptLog | None,
    ) -> None:
        self._parts = Parts(store, "cuts", stamp)
        self._tracks = Parts(store, "tracks", track_stamp)
        self._config = config
        self._max_pixels = max_pixels
        self._threads = threads
        self._log = log

    def __call__(self, unit: Sequence[CutGroup]) -> list[CutOutcome]:
        """Writes the clips of a unit; returns one outcome for each."""
        outcomes: list[CutOutcome] = []
        rows: list[dict[str, Any]] = []
        for group in unit:
            for outcome, mp4 in self._group(group):
                outcomes.append(outcome)
                if mp4 is not None:
                    rows.append({name: getattr(outcome, name) for name in CUT_SCHEMA.names[:-1]})
                    rows[-1]["mp4"] = mp4
        if rows:
            table = rows_to_table(rows, CUT_SCHEMA)
            self._parts.write(table, table["clip_id"].to_pylist(), one_row_groups=True)
        return outcomes

    def _group(self, group: CutGroup) -> Iterator[tuple[CutOutcome, bytes | None]]:
        source = group.source
        source_id = str(source.source_id)
        table = self._tracks.read(group.track_part)
        ((_, track),) = table_to_tracks(table, {source_id: source.uri})
        if not isinstance(track, Track):
            raise TypeError(f"{source.uri} has clips and no track")
        for clip, span in group.spans:
            key = f"cut {clip}"
            if self._log is not None and self._log.begin(key) > MAX_ATTEMPTS:
                yield CutOutcome(clip_id=clip, error="the worker died twice while writing it"), None
            else:
                yield self._clip(source, track, clip, span)
            if self._log is not None:
                self._log.end(key, track.seconds(track.pts_of_end(span.end_frame)))

    def _clip(
        self, source: SourceRef, track: Track, clip: str, span: Span
    ) -> tuple[CutOutcome, bytes | None]:
        try:
            with open_source(source.uri, expected_version=source.version) as reader:
                cut = ClipCutter(
                    reader,
                    source.uri,
                    n_bytes=source.n_bytes,
                    config=self._config,
                    max_pixels=self._max_pixels,
                    decoder_threads=self._threads,
                ).cut(cut_request(track, clip, span))
        except (CutError, SourceError) as error:
            return CutOutcome(clip_id=clip, error=str(error)), None
        except Exception as error:  # noqa: BLE001 - becomes the clip's rejected outcome
            return CutOutcome(clip_id=clip, error=_internal(source.uri, "cut", error).message), None
        outcome = CutOutcome(
            clip_id=clip,
            n_frames=cut.n_frames,
            width=cut.width,
            height=cut.height,
            mp4_bytes=len(cut.mp4),
            mp4_sha256=cut.sha256,
        )
        return outcome, cut.mp4


class ShardStep:
    """Assembles one tar from clips that are encoded already."""

    def __init__(self, *, store: Store) -> None:
        self._store = store

    def __call__(self, plan: ShardPlan) -> tuple[str, int]:
        """Writes a tar unless it stands; returns its name and the bytes written."""
        if self._store.exists(plan.name):
            return plan.name, 0
        with self._store.create(plan.name) as output:
            return plan.name, write_shard(plan, output, self._read)

    def _read(self, sample: Sample) -> bytes:
        where = sample.location
        with self._store.open(where.name) as reader:
            if where.row is not None:
                table = pq.ParquetFile(reader).read_row_group(where.row, columns=["mp4"])
                mp4: bytes = table["mp4"][0].as_py()
            else:
                assert where.offset is not None
                reader.seek(where.offset)
                mp4 = reader.read(where.n_bytes)
        if len(mp4) != sample.mp4_bytes or hashlib.sha256(mp4).hexdigest() != sample.mp4_sha256:
            raise ShardError(
                f"{self._store.uri}/{where.name}: clip {sample.key} has {len(mp4)} bytes that are "
                f"not those written (sha256 {sample.mp4_sha256}); delete the object and run again"
            )
        return mp4

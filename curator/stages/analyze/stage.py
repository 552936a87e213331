"""Steps that look at sources: measuring, and the arithmetic on what was measured."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.errors import ErrorCode, SourceError
from curator.executor.attempts import (
    MAX_ATTEMPTS,
    RETRIED,
    CpuClock,
    internal_failure,
    watchdog,
)
from curator.executor.ledger import AttemptLedger
from curator.measures.clip_view import ClipView, samples_of
from curator.media.source_segments import NotInSegmentsError, Segment, WholeReason
from curator.models.catalogue import ModelEntry
from curator.models.embedding_heads import Heads, normalised
from curator.models.perceptual import CLIP_DIM, PERCEPTUAL_MODEL, aggregate
from curator.models.weight_store import ModelStore
from curator.recipe import Recipe
from curator.records import Failure, Shot, SourceRef, Span, Track, field_names
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import HeaderClaims, analyze_source
from curator.stages.analyze.instruments import instruments_of
from curator.stages.analyze.measurer import Instruments
from curator.stages.analyze.segment_join import analyze_segment, join_segments
from curator.stages.propose.candidate_row import candidate_row
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.shot_boundaries import find_shots
from curator.storage import HashingReader, Store, open_source
from curator.tables.parts import Parts, rows_to_table
from curator.tables.schemas import (
    PICTURES_SCHEMA,
    SHOTS_SCHEMA,
    candidates_schema,
    embeddings_schema,
)
from curator.tables.source_table import MEASURED_SCHEMA
from curator.tables.track_table import table_to_tracks, tracks_to_table


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeUnit:
    """Sources to analyze whole, or a part of `tracks` that has them."""

    sources: tuple[SourceRef, ...]
    part: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentUnit:
    """One segment of a source to analyze."""

    source: SourceRef
    segment: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class HashUnit:
    """A source in segments, whose SHA-256 no segment can take by itself."""

    source: SourceRef


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinUnit:
    """The parts of `segments` that make up a source."""

    source: SourceRef
    parts: tuple[str, ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedUnit:
    """Where the tracks of some sources are; `failed` holds what will be tried again."""

    sources: tuple[SourceRef, ...]
    part: str | None
    failed: tuple[Failure, ...]
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    n_halved: int = 0
    """Batches that did not fit a GPU's memory, and were halved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResult:
    """What became of a segment, a hash or a join; `whole` says why the source cannot be joined."""

    source: SourceRef
    key: str | None = None
    """The segment's name within its source, where `part` has it."""
    part: str | None = None
    sha256: str | None = None
    whole: WholeReason | None = None
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    n_halved: int = 0
    """Batches that did not fit a GPU's memory, and were halved."""


def segment_key(source: SourceRef, segment: Segment) -> str:
    """Key under which a segment counts as done."""
    return f"{source.source_id} {segment.key}"


class AnalyzeStep:
    """Decodes the sources of a unit, or a segment of one, and stores the tracks as one part."""

    def __init__(
        self,
        *,
        store: Store,
        stamp: str,
        config: AnalyzeConfig,
        threads: int,
        log: AttemptLedger | None,
        clip: ModelEntry | None = None,
        models: ModelStore | None = None,
    ) -> None:
        self._clip_entry, self._models = clip, models
        self._instruments: Instruments | None = None
        self._n_halved = 0
        self._parts = Parts(store, "tracks", stamp)
        self._segments = Parts(store, "segments", stamp)
        self._config = config
        self._threads = threads
        self._log = log
        self._clock = CpuClock()

    def __call__(self, unit: AnalyzeUnit | SegmentUnit | HashUnit) -> AnalyzedUnit | SegmentResult:
        """Analyzes a unit, or passes on the part that has it already."""
        if isinstance(unit, SegmentUnit) or (isinstance(unit, AnalyzeUnit) and unit.part is None):
            self._ready()
        spent = self._clock.begin()
        match unit:
            case AnalyzeUnit():
                result: AnalyzedUnit | SegmentResult = self._whole(unit, spent)
            case SegmentUnit():
                result = self._segment(unit, spent)
            case HashUnit():
                result = self._hash(unit)
        cpu_s = self._clock.end(spent, rest="hash" if isinstance(unit, HashUnit) else "decode")
        return replace(result, cpu_s=cpu_s, n_halved=self._newly_halved())

    def _newly_halved(self) -> int:
        total = self._instruments.n_halved() if self._instruments is not None else 0
        new, self._n_halved = total - self._n_halved, total
        return new

    def _whole(self, unit: AnalyzeUnit, spent: dict[str, float]) -> AnalyzedUnit:
        if unit.part is not None:
            return AnalyzedUnit(sources=unit.sources, part=unit.part, failed=())
        results = [self._analyze(source, spent) for source in unit.sources]
        begun_s = time.thread_time()
        kept = [
            (str(source.source_id), result)
            for source, result in zip(unit.sources, results, strict=True)
            if isinstance(result, Track) or result.code not in RETRIED
        ]
        part = None
        if kept:
            part = self._parts.write(tracks_to_table(kept), [key for key, _ in kept])
        failed = tuple(r for r in results if isinstance(r, Failure) and r.code in RETRIED)
        spent["store"] = spent.get("store", 0.0) + time.thread_time() - begun_s
        return AnalyzedUnit(sources=unit.sources, part=part, failed=failed)

    def _analyze(self, source: SourceRef, spent: dict[str, float]) -> Track | Failure:
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
        result = self._guarded(source, spent)
        if self._log is not None:
            self._log.end(key, result.duration_s if isinstance(result, Track) else 0.0)
        return result

    def _guarded(self, source: SourceRef, spent: dict[str, float]) -> Track | Failure:
        try:
            with self._opened(source) as reader:
                return analyze_source(
                    reader,
                    source.uri,
                    source_id=str(source.source_id),
                    n_bytes=source.n_bytes,
                    instruments=self._ready(),
                    config=self._config,
                    decoder_threads=self._threads,
                    spent=spent,
                )
        except SourceError as error:
            return Failure(uri=source.uri, stage="analyze", code=error.code, message=error.message)
        except Exception as error:  # noqa: BLE001 - becomes the source's failed outcome
            return internal_failure(source.uri, "analyze", error)

    def _segment(self, unit: SegmentUnit, spent: dict[str, float]) -> SegmentResult:
        source, key = unit.source, segment_key(unit.source, unit.segment)
        if self._log is not None and self._log.begin(key) > MAX_ATTEMPTS:
            self._log.end(key, 0.0)
            return SegmentResult(source=source, whole=WholeReason.FAILED)
        seconds = 0.0
        try:
            with self._opened(source) as reader:
                track = analyze_segment(
                    reader,
                    source.uri,
                    unit.segment,
                    source_id=str(source.source_id),
                    n_bytes=source.n_bytes,
                    instruments=self._ready(),
                    config=self._config,
                    decoder_threads=self._threads,
                    spent=spent,
                )
            seconds = track.duration_s
            begun_s = time.thread_time()
            part = self._segments.write(tracks_to_table([(str(source.source_id), track)]), [key])
            spent["store"] = time.thread_time() - begun_s
            return SegmentResult(source=source, key=unit.segment.key, part=part)
        except NotInSegmentsError as error:
            return SegmentResult(source=source, whole=error.reason)
        except SourceError:
            # The whole analysis meets the same error, and names it.
            return SegmentResult(source=source, whole=WholeReason.FAILED)
        except Exception as error:  # noqa: BLE001 - the whole analysis ends in the source's row
            internal_failure(source.uri, "analyze", error)
            return SegmentResult(source=source, whole=WholeReason.FAILED)
        finally:
            if self._log is not None:
                self._log.end(key, seconds)

    def _hash(self, unit: HashUnit) -> SegmentResult:
        try:
            with self._opened(unit.source) as reader:
                return SegmentResult(source=unit.source, sha256=HashingReader(reader).finish())
        except SourceError:
            return SegmentResult(source=unit.source, whole=WholeReason.FAILED)

    @contextmanager
    def _opened(self, source: SourceRef) -> Iterator[BinaryIO]:
        with (
            watchdog(self._config.max_decode_s, armed=self._log is not None),
            open_source(source.uri, expected_version=source.version) as reader,
        ):
            yield reader

    def _ready(self) -> Instruments:
        if self._instruments is None:
            self._instruments = instruments_of(self._config, self._clip_entry, self._models)
        return self._instruments


class JoinStep:
    """Joins the segments of a source and stores its track as one part."""

    def __init__(self, *, store: Store, stamp: str) -> None:
        self._parts = Parts(store, "tracks", stamp)
        self._segments = Parts(store, "segments", stamp)

    def __call__(self, unit: JoinUnit) -> AnalyzedUnit | SegmentResult:
        """Joins a source."""
        source = unit.source
        source_id = str(source.source_id)
        tracks = [self._read(part, source) for part in unit.parts]
        header = HeaderClaims(n_frames=source.header_n_frames, duration_s=source.header_duration_s)
        try:
            track = join_segments(tracks, unit.sha256, header)
        except NotInSegmentsError as error:
            return SegmentResult(source=source, whole=error.reason)
        part = self._parts.write(tracks_to_table([(source_id, track)]), [source_id])
        return AnalyzedUnit(sources=(source,), part=part, failed=())

    def _read(self, part: str, source: SourceRef) -> Track:
        ((_, track),) = table_to_tracks(
            self._segments.read(part), {str(source.source_id): source.uri}
        )
        if not isinstance(track, Track):
            raise TypeError(f"{part} holds no track of {source.uri}")
        return track


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedUnit:
    """Shots, candidate clips and measured facts of some sources."""

    part: str | None
    """The part that has their tracks; None where `sources` tell it, and where there is none."""
    sources: pa.Table
    """Columns of `sources`; rows with a `source_id` hold for good, the others for this run."""
    shots: pa.Table
    clips: pa.Table
    """Rows of `candidates_schema`."""
    vectors: pa.Table
    """Rows of `embeddings_schema`."""
    clip_vectors: pa.Table = field(default_factory=lambda: embeddings_schema(1).empty_table())
    """Rows of `embeddings_schema` by the CLIP model; none without one."""
    pictures: pa.Table
    """Rows of `PICTURES_SCHEMA`."""
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    n_halved: int = 0
    """Batches that did not fit a GPU's memory, and were halved."""


class ProposeStep:
    """Reads tracks and makes shots, clips and scores of them."""

    def __init__(
        self, *, store: Store, stamp: str, recipe: Recipe, heads: Heads | None = None
    ) -> None:
        self._heads = heads
        self._parts = Parts(store, "tracks", stamp)
        self._recipe = recipe

    def __call__(self, unit: AnalyzedUnit | SegmentResult) -> ProposedUnit | SegmentResult:
        """Makes the rows of a unit; passes on what has no whole track yet."""
        if isinstance(unit, SegmentResult):
            return unit
        uris = {str(source.source_id): source.uri for source in unit.sources}
        made = _Rows()
        for failure in unit.failed:
            made.sources.append(_failed_source(failure))
        if unit.part is not None:
            for source_id, result in table_to_tracks(self._parts.read(unit.part), uris):
                if isinstance(result, Failure):
                    made.sources.append(_failed_source(result) | {"source_id": source_id})
                else:
                    made.join(self._rows(result, uris[source_id]))
        made_unit = made.unit(unit.part, unit.cpu_s, self._recipe.analyze.clip)
        return replace(made_unit, n_halved=unit.n_halved)

    def _rows(self, track: Track, uri: str) -> "_Rows":
        made = _Rows()
        try:
            self._add(made, track, uri)
        except Exception as error:  # noqa: BLE001 - becomes the source's failed outcome
            return _Rows(sources=[_failed_source(internal_failure(uri, "propose", error))])
        return made

    def _add(self, made: "_Rows", track: Track, uri: str) -> None:
        recipe = self._recipe
        shots = find_shots(track, recipe.propose)
        spans = propose_clips(track, shots, recipe.propose)
        made.shots += [_shot_row(track, number, shot) for number, shot in enumerate(shots)]
        for span in spans:
            row = candidate_row(
                track,
                span,
                uri,
                aggregates=recipe.scores.root,
                crop_borders=recipe.propose.crop_borders,
                heads=self._heads,
            )
            made.clips.append(row)
            vector = aggregate(track.descriptor[samples_of(track, span)])
            if vector is not None:
                made.vectors.append((row["clip_id"], vector))
            looks_ND = ClipView(track, span).embeddings_ND  # noqa: N806 - shape letters
            if len(looks_ND):
                mean_1D = normalised(looks_ND).mean(axis=0, keepdims=True)  # noqa: N806
                look = normalised(mean_1D)[0].astype(np.float32)
                made.clip_vectors.append((row["clip_id"], look))
            thumbnail = _thumbnail(track, span)
            if thumbnail is not None:
                made.pictures.append({"clip_id": row["clip_id"], "jpeg": thumbnail})
        made.sources.append(_source_facts(track, uri, len(shots), len(spans)))


@dataclass(slots=True, kw_only=True)
class _Rows:
    """What a unit gives, row by row."""

    sources: list[dict[str, Any]] = field(default_factory=list)
    shots: list[dict[str, Any]] = field(default_factory=list)
    clips: list[dict[str, Any]] = field(default_factory=list)
    vectors: list[tuple[str, NDArray[np.float32]]] = field(default_factory=list)
    clip_vectors: list[tuple[str, NDArray[np.float32]]] = field(default_factory=list)
    pictures: list[dict[str, Any]] = field(default_factory=list)

    def join(self, other: "_Rows") -> None:
        for name in field_names(_Rows):
            getattr(self, name).extend(getattr(other, name))

    def unit(self, part: str | None, cpu_s: Mapping[str, float], clip: str | None) -> ProposedUnit:
        return ProposedUnit(
            part=part,
            sources=pa.Table.from_pylist(self.sources, MEASURED_SCHEMA),
            shots=rows_to_table(self.shots, SHOTS_SCHEMA),
            clips=rows_to_table(self.clips, candidates_schema()),
            vectors=vectors_table(self.vectors),
            clip_vectors=vectors_table(self.clip_vectors, model=clip, least_dim=1),
            pictures=rows_to_table(self.pictures, PICTURES_SCHEMA),
            cpu_s=cpu_s,
        )


def vectors_table(
    vectors: Sequence[tuple[str, NDArray[np.float32]]],
    *,
    model: str | None = PERCEPTUAL_MODEL,
    least_dim: int = CLIP_DIM,
) -> pa.Table:
    """Rows of `embeddings` for clips and their vectors, float32 [D] each.

    Args:
        vectors: By the ids of clips.
        model: What made them.
        least_dim: Length of vectors in a table that has none.
    """
    dim = len(vectors[0][1]) if vectors else least_dim
    flat = np.concatenate([vector for _, vector in vectors]) if vectors else np.zeros(0, np.float32)
    return pa.table(
        [
            pa.array([name for name, _ in vectors], pa.string()),
            pa.array([model] * len(vectors), pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), dim),
        ],
        schema=embeddings_schema(dim),
    )


def joined_vectors(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of several tables of `embeddings`; see `like_vectors`."""
    return pa.concat_tables(like_vectors(tables)).combine_chunks()


def like_vectors(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Tables of `embeddings` of one schema; those without rows need not be of the same length.

    Args:
        tables: One at least.
    """
    filled = [table for table in tables if table.num_rows] or tables[:1]
    schema = embeddings_schema(filled[0]["vector"].type.list_size)
    # What comes from Parquet names the elements of lists otherwise.
    return [table.cast(schema) for table in filled]


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
        "source_id": track.source_id,
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

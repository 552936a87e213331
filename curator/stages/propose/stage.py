"""The stage that makes shots, candidate clips and their scores from tracks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView, How
from curator.measures.score_list import BUILT_IN, Measures
from curator.models.embedding_heads import Heads, normalised
from curator.records.clips import REMAINDER, Candidate, Shot, Span, Window
from curator.records.columns import field_names
from curator.records.moments import UNALIGNED, Moment
from curator.records.sources import Failure, Note, SourceRef
from curator.records.time_spans import TimeSpan
from curator.records.tracks import KEY, Track
from curator.stage import Phase, Resources, Scope, Stage
from curator.stages.propose.candidate_row import candidate_of, footage_row, pictures_row
from curator.stages.propose.clip_spans import ClipPart, propose_clips
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.manifest_spans import divided, frames_of, moment_spans
from curator.stages.propose.shot_boundaries import find_shots
from curator.storage import Store
from curator.tables.candidate_store import (
    PAYLOAD,
    PLACES_KEY,
    ProposedUnit,
    removed_clips,
    subtract_counts,
    write_payload,
)
from curator.tables.clip_rows import candidates_table
from curator.tables.clip_vectors import vectors_table
from curator.tables.parts import rows_to_table
from curator.tables.removal_records import Removals
from curator.tables.schemas import FOOTAGE_SCHEMA, PICTURES_SCHEMA, SHOTS_SCHEMA
from curator.tables.source_table import MEASURED_SCHEMA
from curator.tables.track_items import TrackItem

Rows = list[dict[str, Any]]
Vectors = list[tuple[str, NDArray[np.float32]]]  # pairs of clip id and vector, float32 [D]


@dataclass(slots=True, kw_only=True)
class ProposedRows:
    """The rows of one source."""

    sources: Rows = field(default_factory=list)
    shots: Rows = field(default_factory=list)
    clips: list[Candidate] = field(default_factory=list)
    vectors: Vectors = field(default_factory=list)
    clip_vectors: Vectors = field(default_factory=list)
    footage: Rows = field(default_factory=list)
    pictures: Rows = field(default_factory=list)


class ProposeStage(Stage[ProposeConfig, TrackItem, ProposedRows]):
    """Finds the shots in tracks, divides shots into candidate clips, and scores the clips.

    `aggregates` overrides, by score, how a `ScoreSpec` combines samples. `heads_fingerprint`
    identifies the heads that `with_heads` gets. `sizes` are widths and heights: each span, except
    windows with a size of their own, becomes a clip for each of them.
    """

    name = "propose"
    version = 19
    phase = Phase.MEASURE
    scope = Scope.SOURCE
    reads = ("tracks",)
    writes = ("candidates", "shots", "embeddings")
    config_type = ProposeConfig
    change_effect = "clips are proposed and scored again, and new clips are cut"
    step = "analyze"
    # A worker mostly waits for parts of tracks.
    resources = Resources(cpus=0.5)

    def __init__(
        self,
        config: ProposeConfig,
        *,
        aggregates: Mapping[str, How] | None = None,
        heads_fingerprint: str | None = None,
        measures: Measures = BUILT_IN,
        sizes: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__(config)
        self._sizes = tuple(sizes)
        self._aggregates = dict(aggregates or {})
        self._heads: Heads | None = None
        self._heads_fingerprint = heads_fingerprint
        self._parts: Mapping[str, Sequence[ClipPart]] | None = None
        self.measures = measures

    def with_heads(self, heads: Heads | None) -> Self:
        """Returns a copy for workers, which makes scores from CLIP embeddings by these heads."""
        stage = copy(self)
        stage._heads = heads
        return stage

    def with_parts(self, parts: Mapping[str, Sequence[ClipPart]]) -> Self:
        """Returns a copy that only makes clips from `parts`, which are listed by source id."""
        stage = copy(self)
        stage._parts = parts
        return stage

    def models(self) -> tuple[object, ...]:
        """Returns the aggregates, the fingerprints of heads and measures, and the sizes."""
        measures = self.measures.fingerprint()
        return self._aggregates, self._heads_fingerprint, measures, self._sizes

    def process(self, unit: TrackItem) -> ProposedRows:
        """Makes the rows of one source."""
        track, uri = unit.track, unit.uri
        if self._parts is not None:
            return self._remainders(track, unit.source, self._parts)
        if isinstance(track, Failure):
            # A failure that is not stored gets no id, so the next run tries the source again.
            ids = {} if unit.frames_part is None else {"source_id": unit.source.source_id}
            return ProposedRows(sources=[_failed_source(track) | ids])
        named = unit.source.spans
        if unit.source.is_image:
            shots = [Shot(start_frame=0, end_frame=1, transition_in="none", transition_out="none")]
        else:
            shots = find_shots(track, self.config)
        shots, within = divided(track, shots, named)
        rig, moments = unit.source.rig, dict[Span, Moment]()
        if unit.source.is_image:
            spans = [Span(start_frame=0, end_frame=1, shot=0)]
        elif rig is not None and rig.refusal is None:
            moments = moment_spans(track, shots, rig.moments)
            others = propose_clips(track, shots, self.config) if rig.spans else []
            others = [span for span in others if within[span.shot] not in rig.spans]
            spans = sorted([*moments, *others], key=lambda span: span.start_frame)
        else:
            spans = propose_clips(track, shots, self.config)
        if named:
            spans = [span for span in spans if within[span.shot] is not None]
        if rig is not None and rig.refusal is not None:
            moments = {s: UNALIGNED for s in spans if not rig.spans or within[s.shot] in rig.spans}
        sized = [(span, size) for span in spans for size in self._sizes_of(span)]
        facts = _source_facts(track, uri, len(shots), len(sized))
        facts["clock"] = None if rig is None else rig.clock
        if any(start == end for start, end in frames_of(track, named)):
            facts["notes"] = [*facts["notes"], str(Note.SPAN_OUTSIDE)]
        made = ProposedRows(
            sources=[facts],
            shots=[_shot_row(track, number, shot) for number, shot in enumerate(shots)],
        )
        for span, size in sized:
            self._add(made, track, span, unit.source, within[span.shot], moments.get(span), size)
        return made

    def _sizes_of(self, span: Span) -> Sequence[tuple[int, int] | None]:
        """Returns the sizes of the clips of a span; None for the size of all clips."""
        own = span.output_px if isinstance(span, Window) else None
        return (own,) if own is not None else self._sizes or (None,)

    def _remainders(
        self, track: Track | Failure, source: SourceRef, parts: Mapping[str, Sequence[ClipPart]]
    ) -> ProposedRows:
        made = ProposedRows()
        if isinstance(track, Track):
            for part in parts[track.source_id]:
                span = part.span(track)
                self._add(made, track, span, source, part.within, output_px=part.output_px)
        for clip in made.clips:
            clip.tags = [*clip.tags, REMAINDER]
        return made

    def _add(
        self,
        made: ProposedRows,
        track: Track,
        span: Span,
        source: SourceRef,
        within: TimeSpan | None,
        moment: Moment | None = None,
        output_px: tuple[int, int] | None = None,
    ) -> None:
        clip = candidate_of(
            track,
            span,
            source.uri,
            measures=self.measures,
            aggregates=self._aggregates,
            crop_borders=self.config.crop_borders,
            heads=self._heads,
            medium=source.medium,
            within=within,
            moment=moment,
            output_px=output_px,
        )
        made.clips.append(clip)
        view = ClipView(track, span)
        vectors_ND = track.scene_vector[view.holds(track.scene_frame)]
        if (vector := _mean_direction(vectors_ND)) is not None:
            made.vectors.append((clip.clip_id, vector))
        if (vector := _mean_direction(view.embeddings_ND)) is not None:
            made.clip_vectors.append((clip.clip_id, vector))
        made.footage.append({"clip_id": clip.clip_id} | footage_row(view))
        made.pictures.append({"clip_id": clip.clip_id} | pictures_row(view))

    def failed(self, unit: TrackItem, failure: Failure) -> ProposedRows:
        """Returns the row of a source that failed in this stage; the next run tries it again."""
        return ProposedRows(sources=[_failed_source(failure)])


@dataclass(frozen=True, kw_only=True)
class KeepProposed:
    """Makes tables from the rows of a unit, and stores its payload, in the worker.

    Attributes:
        fingerprint: Fingerprint of the candidates, for the payload's name.
        removals: Removed footage; clips that show it are left out.
        clip: Name of the CLIP model, if any.
    """

    store: Store
    fingerprint: str
    removals: Removals
    clip: str | None = None
    measures: Measures = BUILT_IN

    def __call__(self, items: Sequence[TrackItem], results: Sequence[ProposedRows]) -> ProposedUnit:
        """Returns the tables of all sources of the unit, without the payload."""
        rows = ProposedRows()
        for result in results:
            for name in field_names(ProposedRows):
                getattr(rows, name).extend(getattr(result, name))
        parts = {str(item.source.source_id): item.frames_part for item in items}
        tracks = {name: part for name, part in parts.items() if part is not None}
        sources = pa.Table.from_pylist(rows.sources, MEASURED_SCHEMA)
        keys = {item.source.source_id: item.source.places_key for item in items}
        keys_of = [keys.get(name) for name in sources["source_id"].to_pylist()]
        sources = sources.append_column(PLACES_KEY, pa.array(keys_of, pa.string()))
        clips = candidates_table(rows.clips, self.measures.specs)
        of_clips = {
            "vectors": vectors_table(rows.vectors),
            "clip_vectors": vectors_table(rows.clip_vectors, model=self.clip, least_dim=1),
            "footage": rows_to_table(rows.footage, FOOTAGE_SCHEMA),
            "pictures": rows_to_table(rows.pictures, PICTURES_SCHEMA),
        }
        is_gone = removed_clips(self.store, clips, tracks.values(), self.removals)
        if is_gone.any():
            gone, clips = (clips.filter(pa.array(mask)) for mask in (is_gone, ~is_gone))
            ids = gone["clip_id"].combine_chunks()
            of_clips = {
                name: table.filter(pc.invert(pc.is_in(table["clip_id"], value_set=ids)))
                for name, table in of_clips.items()
            }
            sources = subtract_counts(sources, "n_clips", Counter(gone["source_id"].to_pylist()))
        shown = [of_clips.pop(kind) for kind in PAYLOAD]
        return ProposedUnit(
            track_parts=tracks,
            sources=sources,
            shots=rows_to_table(rows.shots, SHOTS_SCHEMA),
            clips=clips,
            **of_clips,
            payload=write_payload(self.store, self.fingerprint, *shown),
            key_gaps_s=_key_gaps_s(items, clips),
            n_excluded=int(is_gone.sum()),
        )


def _mean_direction(vectors_ND: NDArray[np.float16]) -> NDArray[np.float32] | None:
    """Returns the unit mean of the vectors, float32 [D]; None if all vectors are zero."""
    described = vectors_ND[np.any(vectors_ND != 0, axis=1)] if len(vectors_ND) else vectors_ND
    if not len(described):
        return None
    mean = normalised(described).mean(axis=0, keepdims=True)
    vector: NDArray[np.float32] = normalised(mean)[0].astype(np.float32)
    return vector


def _key_gaps_s(items: Sequence[TrackItem], clips: pa.Table) -> dict[str, tuple[float, float]]:
    """Returns `ProposedUnit.key_gaps_s` of clips."""
    tracks = {t.source_id: t for item in items if isinstance(t := item.track, Track)}
    columns = (clips[n].to_pylist() for n in ("clip_id", "source_id", "start_frame", "end_frame"))
    gaps_s = {}
    for clip_id, source_id, start, end in zip(*columns, strict=True):
        if (track := tracks.get(source_id)) is None:
            continue
        at = start + np.flatnonzero(track.frame_flags[start:end] & KEY)
        begin, *keys_s = (track.seconds(int(pts)) for pts in track.frame_pts[[start, *at]])
        times_s = [*keys_s, track.seconds(track.pts_of_end(end))]
        gaps_s[clip_id] = times_s[0] - begin, max(np.diff(times_s), default=0.0)
    return gaps_s


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
    same = (
        "source_id", "sha256", "width", "height", "rotation_deg", "duration_s", "n_frames",
        "is_vfr", "is_hdr", "is_interlaced", "n_decode_errors",
    )  # fmt: skip
    return {name: getattr(track, name) for name in same} | {
        "uri": uri,
        "pixel_aspect": str(track.pixel_aspect),
        "fps": float(track.fps),
        "n_shots": n_shots,
        "n_clips": n_clips,
        "notes": [str(note) for note in track.notes],
        "outcome": "done",
    }


def _failed_source(failure: Failure) -> dict[str, Any]:
    return {"uri": failure.uri, "outcome": "failed"} | failure.columns()

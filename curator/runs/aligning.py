"""Finds the groups of cameras of a run, their clocks, and the moments at which they are cut."""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from curator.errors import UsageError
from curator.executor.engine import Placement
from curator.executor.worker import Step
from curator.matching.clock_series import clock_series
from curator.matching.common_clock import GroupClock, common_clock
from curator.records.moments import Moment, Rig
from curator.records.sources import Medium, SourceRef
from curator.records.time_spans import TimeSpan, spans_from_json
from curator.records.tracks import Track
from curator.runs.measuring import analysis_of, measure_lost
from curator.runs.run_context import RunContext
from curator.stage import Resources
from curator.stages.cameras.config import CamerasConfig
from curator.stages.propose.config import ProposeConfig
from curator.stages.propose.manifest_spans import divided
from curator.stages.propose.moment_list import Camera, moments_of
from curator.stages.propose.shot_boundaries import find_shots
from curator.storage.metadata_columns import GROUP
from curator.tables.source_table import SourceTable
from curator.tables.track_parts import StoredTrack, TrackParts

logger = logging.getLogger(__name__)

_SPANS = (
    "spans: cameras.clock=content aligns sources that are one recording each, and a source of the "
    "group has spans; set cameras.clock=given if the spans of a group begin at one instant"
)
_FEW_GROUPS = 4
"""Groups that this process aligns itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraGroup:
    """A group to align: its name, and by source id the track and the span of each camera."""

    name: str
    tracks: tuple[StoredTrack, ...]
    spans: Mapping[str, TimeSpan | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedGroup:
    """By source id, the moments of each camera, what its clock is, and why it has none."""

    moments: Mapping[str, Sequence[Moment]]
    clocks: Mapping[str, str]
    refused: Mapping[str, str]


def aligned(run: RunContext, sources: Sequence[SourceRef], table: SourceTable) -> list[SourceRef]:
    """Returns sources with the moments of their groups; analyzes the sources of groups first.

    Groups are those of the manifest; a group with one source has no moments. A source whose spans
    are of several groups is a camera of each.
    """
    groups = dict(_groups(run, sources, table))
    of = {str(source.source_id): source for source in sources}
    members = [of[name] for name in dict.fromkeys(n for spans in groups.values() for n in spans)]
    if not members:
        return list(sources)
    measure_lost(run, members)
    tracks = analysis_of(run, run.log).tracks
    parts, failed = tracks.stored({str(member.source_id) for member in members})
    units = [
        CameraGroup(
            name=name,
            tracks=tuple(
                StoredTrack(source=of[n], parts=parts[n])
                for n in spans
                if n in parts and n not in failed
            ),
            spans=spans,
        )
        for name, spans in groups.items()
    ]
    step = Step(
        make=Aligning,
        settings={"tracks": tracks, "config": run.recipe.propose, "cameras": run.recipe.cameras},
        resources=Resources(cpus=1),
        names=(run.graph.writer("candidates").name,),
    )
    placement: Placement = "driver" if len(units) <= _FEW_GROUPS else "ray"
    moments, clocks = defaultdict[str, list[Moment]](list), dict[str, str]()
    refused: dict[str, str] = {}
    for group in run.engine.run([step], units, placement=placement, is_shown=False):
        for name, own in group.moments.items():
            moments[name] += own
        clocks |= group.clocks
        refused |= group.refused
    if refused:
        name = min(refused)
        logger.warning(
            "sources without a common clock with their group: %d, such as %s: %s; "
            "the column clock of sources has all reasons",
            len(refused), of[name].uri, refused[name],
        )  # fmt: skip
    covered = defaultdict[str, list[TimeSpan]](list)
    for spans in groups.values():
        for name, span in spans.items():
            covered[name] += [] if span is None else [span]
    rigs = {
        name: Rig(
            moments=tuple(sorted(moments[name], key=lambda m: m.at)),
            spans=tuple(covered[name]),
            clock=clock,
            refusal=refused.get(name),
        )
        for name, clock in clocks.items()
    }
    return [replace(s, rig=rigs.get(str(s.source_id))) for s in sources]


def _groups(
    run: RunContext, sources: Sequence[SourceRef], table: SourceTable
) -> Iterator[tuple[str, dict[str, TimeSpan | None]]]:
    """Yields groups with several sources: by source id, the span that is of the group.

    Raises `UsageError` if two spans of a source are of one such group.
    """
    if GROUP not in run.metadata.schema().names:
        return
    contents = run.metadata.joined(table.by_content(), "uri")
    rows = contents.select(["source_id", "spans", GROUP]).to_pylist()
    described = {row["source_id"]: row for row in rows}
    groups = defaultdict[str, dict[str, TimeSpan | None]](dict)
    repeated: dict[str, tuple[str, TimeSpan | None, TimeSpan]] = {}
    for source in sources:
        if source.medium != Medium.VIDEO:
            continue
        source_id = str(source.source_id)
        row = described[source_id]
        spans = spans_from_json(row["spans"])
        for span, values in spans.items():
            if (group := values.get(GROUP)) is None:
                continue
            if (other := groups[str(group)].setdefault(source_id, span)) != span:
                repeated.setdefault(str(group), (source.uri, other, span))
        if not spans and row[GROUP] is not None:
            groups[str(row[GROUP])][source_id] = None
    for name, members in groups.items():
        if len(members) > 1 and name in repeated:
            uri, one, other = repeated[name]
            raise UsageError(
                f"{uri}: its spans from {one} and from {other} are both of the group {name!r}, and "
                "with cameras.clock one span of each camera begins at the instant of a group; give "
                "each episode a group of its own, or set cameras.clock=off"
            )
        if len(members) > 1:
            yield name, members


class Aligning:
    """The step of a worker that finds the moments of a group."""

    def __init__(self, tracks: TrackParts, config: ProposeConfig, cameras: CamerasConfig) -> None:
        self._tracks, self._config, self._cameras = tracks, config, cameras

    def __call__(self, unit: CameraGroup) -> AlignedGroup:
        """Returns the moments of all cameras with a clock."""
        items = {str(item.source.source_id): item for item in self._tracks.read(unit.tracks)}
        tracks = {name: i.track for name, i in items.items() if isinstance(i.track, Track)}
        cameras: dict[str, Camera] = {}
        refused: dict[str, str] = {}
        found: GroupClock | None = None
        if self._cameras.clock == "content" and any(unit.spans.values()):
            refused = dict.fromkeys(tracks, _SPANS)
        elif self._cameras.clock == "content" and len(tracks) > 1:
            found = common_clock(
                {name: clock_series(track) for name, track in tracks.items()},
                max_offset_s=self._cameras.max_offset_s,
                max_drift_ppm=self._cameras.max_drift_ppm,
            )
            uris = {name: items[name].uri for name in tracks}
            refused = {name: _with_uris(str(r), uris) for name, r in found.refusals.items()}
        for name, track in tracks.items():
            if name in refused:
                continue
            span = unit.spans[name]
            shots, within = divided(
                track, find_shots(track, self._config), items[name].source.spans
            )
            if span is not None:
                shots = [s for s, of in zip(shots, within, strict=True) if of == span]
            cameras[name] = Camera(
                track=track,
                shots=shots,
                clock=None if found is None else found.clocks[name],
                start_s=0.0 if span is None else span.start_s,
            )
        moments = moments_of(unit.name, cameras, self._config) if cameras else {}
        clocks = {name: json.dumps({"refused": why}) for name, why in refused.items()}
        for name, camera in cameras.items():
            own = (
                {"given_start_s": camera.start_s} if camera.clock is None else asdict(camera.clock)
            )
            clocks[name] = json.dumps({"group": unit.name, **own})
        return AlignedGroup(moments=moments, clocks=clocks, refused=refused)


def _with_uris(text: str, uris: Mapping[str, str]) -> str:
    for name, uri in uris.items():
        text = text.replace(name, uri)
    return text

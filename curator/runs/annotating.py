"""Hands the kept clips of a run, or of a snapshot, to the scheduler for its annotators."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.pipeline import Graph
from curator.records.clips import Clip
from curator.scheduler import Annotated, Scheduler
from curator.stage import ClipFacts, StageConfig
from curator.stages.sample_frames.stage import SampleFramesStage
from curator.stages.shard.standing_shards import StandingShards
from curator.stages.shard.tar_reader import declared_members
from curator.storage import Store
from curator.tables.checksums import find_json
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRows, reject
from curator.tables.family_store import FamilyStore
from curator.tables.out_layout import MANIFEST
from curator.tables.sample_members import StoredMember


class Annotating:
    """The members of clips that annotators make; none where a graph has none.

    Args:
        graph: Whose annotators run.
        previous: Summary of the last finished run, whose tars may hold values; empty without one.
        standing: Its tars.
    """

    def __init__(
        self,
        store: Store,
        graph: Graph,
        engine: Engine,
        progress: Progress,
        *,
        previous: Mapping[str, Any],
        standing: StandingShards,
    ) -> None:
        self._graph = graph
        self._store = store
        self._previous, self._standing = previous, standing
        self._families = FamilyStore(store)
        self._scheduler = Scheduler(
            self._families,
            engine,
            progress,
            decode=lambda threads: SampleFramesStage(StageConfig(), threads=threads),
            in_tars=self._in_tars,
        )
        self._made = Annotated(members={}, rejected={})

    @property
    def cpu_s(self) -> Counter[str]:
        """CPU-seconds of the workers."""
        return self._made.cpu_s

    @property
    def counts(self) -> dict[str, int]:
        """Values that were made, and clips that lack some, for `work` of the summary."""
        made = {f"{name}_made": n for name, n in self._made.n_made.items()}
        return made | {f"{name}_lacking": n for name, n in self._made.lacking.items()}

    def annotate(self, clips: ClipRows, locations: Mapping[str, Location]) -> None:
        """Makes what is missing; rejects clips on which a required annotator fails."""
        stages = self._graph.annotators()
        if not stages:
            return
        columns = sorted({name for stage in stages for name in stage.columns})
        given = [
            (
                ClipFacts(
                    clip_id=clip.clip_id,
                    source_id=clip.source_id,
                    n_frames=clip.n_frames,
                    fps=Fraction(clip.fps_fraction),
                    width=clip.width,
                    height=clip.height,
                    columns={name: clip.value(name) for name in columns},
                ),
                clip.mp4_sha256,
                locations[clip.clip_id],
            )
            for clip in clips.kept()
        ]
        self._made = self._scheduler.annotate(stages, given)
        for clip in clips.kept() if self._made.rejected else ():
            if clip.clip_id in self._made.rejected:
                name, error = self._made.rejected[clip.clip_id]
                reject(clip, f"{name}_failed", detail=error)

    def members(self, clip: Clip) -> Sequence[StoredMember]:
        """Returns the members of a clip."""
        return self._made.members.get(clip.clip_id, ())

    def _in_tars(self, versions: Any) -> Any:  # noqa: ANN401 - see `FamilyStore.in_tars`
        if not self._previous:
            return iter(())
        declared = declared_members(find_json(self._store, MANIFEST))
        find = partial(self._families.in_tars, versions, self._previous)
        return find(declared, self._standing.sizes)


def joined(
    sources: Sequence[Callable[[Clip], Sequence[StoredMember]]],
) -> Callable[[Clip], Sequence[StoredMember]]:
    """Returns a function that gives the members of a clip from all of some functions."""
    return lambda clip: [member for members in sources for member in members(clip)]

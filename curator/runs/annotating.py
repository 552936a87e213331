"""Hands the kept clips of a run, or of a snapshot, to the scheduler for its annotators."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa

from curator.errors import DamagedError, ShardError
from curator.executor.engine import Engine
from curator.executor.progress import Progress
from curator.pipeline import Graph
from curator.records.clips import Clip
from curator.scheduler import Scheduler
from curator.stage import ClipFacts, StageConfig
from curator.stages.cut.written_frames import SampleFramesStage
from curator.stages.shard.standing_shards import StandingShards
from curator.stages.shard.tar_reader import declared_members
from curator.storage import Store
from curator.tables.checksums import find_json
from curator.tables.clip_locations import Location
from curator.tables.clip_rows import ClipRows, reject
from curator.tables.family_store import FamilyStore, values_in_tars
from curator.tables.out_layout import MANIFEST
from curator.tables.sample_members import Members, StoredMember

logger = logging.getLogger(__name__)


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
        self._engine, self._progress = engine, progress
        self._members = Members(pa.array([], pa.string()))
        self.cpu_s: Counter[str] = Counter()
        """CPU-seconds of the workers."""
        self.counts: dict[str, int] = {}
        """Values that were made, and clips that lack some, for `work` of the summary."""

    def annotate(self, clips: ClipRows, locations: Mapping[str, Location]) -> None:
        """Makes what is missing; rejects clips on which a required annotator fails."""
        stages = self._graph.annotators()
        if not stages:
            return
        scheduler = Scheduler(
            FamilyStore(self._store, self._in_tars()),
            self._engine,
            self._progress,
            decode=lambda threads: SampleFramesStage(StageConfig(), threads=threads),
        )
        columns = sorted({name for stage in stages for name in stage.columns})
        made = scheduler.annotate(stages, _Written(clips, locations, columns))
        self._members = made.members
        self.counts |= {f"{name}_made": n for name, n in made.n_made.items()}
        self.counts |= {f"{name}_lacking": n for name, n in made.lacking.items()}
        self.cpu_s.update(made.cpu_s)
        for clip in clips.kept() if made.rejected else ():
            if clip.clip_id in made.rejected:
                name, error = made.rejected[clip.clip_id]
                reject(clip, f"{name}_failed", detail=error)

    def members(self, clip: Clip) -> Sequence[StoredMember]:
        """Returns the members of a clip."""
        return self._members.of(clip.clip_id)

    def _in_tars(self) -> dict[str, pa.Table]:
        if not self._previous:
            return {}
        try:
            declared = declared_members(find_json(self._store, MANIFEST))
        except (DamagedError, ShardError) as error:
            # The commit writes it again; until then the tars' values are made anew.
            logger.warning("values in tars are not used again: %s", error)
            return {}
        return values_in_tars(self._store, self._previous, declared, self._standing.sizes)


class _Written:
    """The kept clips as annotators see them, with these columns."""

    def __init__(
        self, clips: ClipRows, locations: Mapping[str, Location], columns: Sequence[str]
    ) -> None:
        self._clips, self._locations, self._columns = clips, locations, columns
        self._numbers = clips.kept_numbers()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> tuple[ClipFacts, str, Location]:
        clip = self._clips[int(self._numbers[number])]
        facts = ClipFacts(
            clip_id=clip.clip_id,
            source_id=clip.source_id,
            n_frames=clip.n_frames,
            fps=Fraction(clip.fps_fraction),
            width=clip.width,
            height=clip.height,
            columns={name: clip.value(name) for name in self._columns},
        )
        return facts, clip.mp4_sha256, self._locations[clip.clip_id]

    def ids(self) -> pa.Array:
        return self._clips.kept_ids()

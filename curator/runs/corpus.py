"""The clips of a run while it goes on: candidates first, then rows with decisions.

What the rules reject, and columns that no later stage changes, are on the local disk as soon as
they exceed a share of the memory.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import CuratorError
from curator.measures.score_list import spec_of
from curator.stage import AnyStage, ClipFilter
from curator.stages.dedup.earlier_clips import reject_copies
from curator.stages.dedup.pair_search import PairSearch
from curator.stages.dedup.pair_store import StoredPairs, remove_duplicates
from curator.stages.dedup.stage import DedupStage
from curator.stages.filter.judging import RuleCount, total_counts
from curator.stages.filter.rules import Sides
from curator.stages.filter.stage import FilterStage
from curator.stages.propose.stage import ProposedUnit
from curator.tables.clip_rows import ClipRows, reject
from curator.tables.clip_store import ClipStore
from curator.tables.clip_vectors import StoredVectors, vectors_table
from curator.tables.disk_table import SortedRows
from curator.tables.schemas import (
    SHOTS_SCHEMA,
    candidates_schema,
    clips_schema,
    embeddings_schema,
    score_column,
)

logger = logging.getLogger(__name__)

CLIP_ORDER = ("source_id", "start_pts", "end_pts")
SHOT_ORDER = ("source_id", "shot")
N_HELD = 8
"""Things that share the memory: candidates, clips of either kind, shots, vectors of two models, and
what is put together of them."""
MAX_ROOM_BYTES = 1 << 30
"""An Arrow array of texts ends at 2 GiB."""


def room_of(memory_bytes: int) -> int:
    """Returns the share of the memory that each of the things may take that are held at a time."""
    return min(MAX_ROOM_BYTES, memory_bytes // N_HELD)


class Corpus:
    """Shots, clips and vectors of all sources.

    Args:
        formed: Gives candidates the size, rate and length that they are written with, and the
            metadata of their sources.
        memory_bytes: What may be held in memory; the rest is on the local disk.
    """

    def __init__(self, formed: Callable[[pa.Table], pa.Table], memory_bytes: int) -> None:
        self._formed = formed
        self._room_bytes = room_of(memory_bytes)
        self.shots = SortedRows(SHOTS_SCHEMA, SHOT_ORDER, self._room_bytes)
        self._candidates: SortedRows | None = None
        self.vectors = StoredVectors(vectors_table([]), self._room_bytes)
        """Perceptual vectors of all clips."""
        self.clip_vectors = StoredVectors(embeddings_schema(1).empty_table(), self._room_bytes)
        """Embeddings of all clips by the CLIP model; none without one."""
        self.clips = ClipStore(clips_schema(), self._room_bytes)
        self.rules: list[RuleCount] = []
        self.quantiles: dict[str, Sides] = {}
        """Bounds by quantile as numbers, by rule."""

    @property
    def rows(self) -> ClipRows:
        """The clips that the rules keep."""
        return self.clips.rows

    def add(self, proposed: ProposedUnit) -> pa.Table:
        """Takes the candidates of some sources; returns them as they would be written.

        Raises:
            StorageError: Writing to the local disk failed.
        """
        clips = self._formed(proposed.clips)
        if self._candidates is None:
            self._candidates = SortedRows(self._empty().schema, CLIP_ORDER, self._room_bytes)
        self._candidates.add(clips)
        self.shots.add(proposed.shots)
        self.vectors.add(proposed.vectors)
        self.clip_vectors.add(proposed.clip_vectors)
        return clips

    def passing(self, stage: FilterStage, clips: pa.Table) -> ClipRows:
        """Returns the clips that the rules keep, where none depends on other clips.

        Args:
            stage: The rules.
            clips: Candidates, as `add` returns them.
        """
        decided = stage.process(clips).clips.drop_columns(["seconds"])
        passed = ClipStore(decided.schema, self._room_bytes)
        passed.add(decided)
        return passed.rows

    def judge(self, stage: FilterStage, frozen: Mapping[str, Sides] | None = None) -> None:
        """Judges all candidates, which become `clips`.

        Args:
            stage: The rules.
            frozen: Bounds by quantile that earlier clips were held to; None for those of these.
        """
        candidates, self._candidates = self._candidates, None
        if candidates is None:
            candidates = SortedRows(self._empty().schema, CLIP_ORDER, self._room_bytes)
        bounds = stage.bounds(candidates, frozen)
        self.quantiles = stage.by_quantile(bounds)
        # Without clips there are counts of rules all the same.
        none = stage.judge(self._empty(), bounds)
        counts = [none.rules]
        cpu_only = {one.rule: one.score for one in bounds if spec_of(one.score).cpu_only}
        absent: Counter[str] = Counter()
        self.clips = ClipStore(none.clips.drop_columns(["seconds"]).schema, self._room_bytes)
        for block in candidates.blocks():
            decided = stage.judge(block, bounds)
            self.clips.add(decided.clips)
            counts.append(decided.rules)
            for rule, score in cpu_only.items():
                absent[rule] += decided.clips[score_column(score)].null_count
        for rule, n in (+absent).items():
            logger.warning(
                "filters.%s: %d clips have no %s, because a GPU decoded them or their codec does "
                "not say it; tracks of a GPU stay so: analyze them into another OUT on CPUs",
                rule, n, cpu_only[rule],
            )  # fmt: skip
        self.rules = total_counts(counts, bounds)

    def _empty(self) -> pa.Table:
        return self._formed(candidates_schema().empty_table())


def decide(
    stage: AnyStage,
    clips: ClipRows,
    vectors: StoredVectors,
    pairs: StoredPairs | None,
    *,
    writes: bool = True,
    earlier: Callable[[], Sequence[str]] | None = None,
    n_earlier: int = 0,
    search: PairSearch | None = None,
) -> None:
    """Runs a stage that rejects clips.

    Args:
        stage: One of `Graph.deciding`.
        clips: The clips that the rules keep; those that the stage rejects are marked.
        vectors: Perceptual vectors of all clips.
        pairs: Similar pairs that earlier runs stored; None for none.
        writes: Whether new pairs are stored.
        earlier: Gives objects with vectors of clips of earlier generations; None for none.
        n_earlier: Number of these clips.
        search: Finds alike vectors; None to do that in this process.
    """
    if isinstance(stage, DedupStage):
        if stage.config.enabled:
            search = search or PairSearch()
            if earlier is not None and len(clips.kept_numbers()):
                reject_copies(stage, clips, vectors, earlier(), n_earlier, search)
            remove_duplicates(stage, clips, vectors, pairs, writes=writes, search=search)
    elif isinstance(stage, ClipFilter):
        _filter(stage, clips)
    else:
        stage.process(clips)


def _filter(stage: ClipFilter[object], clips: ClipRows) -> None:  # type: ignore[type-var]
    """Rejects clips as a stage of a user's own says."""
    is_kept = pc.equal(clips.column("decision"), "kept")
    ids = clips.column("clip_id")
    stage.setup()
    try:
        rejections = list(stage.process(clips.table().filter(is_kept)))
    except CuratorError:
        raise
    except Exception as error:
        raise CuratorError(
            f"stage {stage.name} of the recipe's `stages` fails: {type(error).__name__}: {error}; "
            "nothing was changed"
        ) from error
    for rejection in rejections:
        rows = np.flatnonzero(pc.and_(pc.equal(ids, rejection.clip_id), is_kept))
        for row in rows.tolist():
            reject(clips[row], rejection.reason, detail=rejection.detail)

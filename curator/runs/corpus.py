"""The clips of a run while it goes on: candidates first, then rows with decisions.

The driver's memory grows with clips, not with pixels.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curator.errors import CuratorError
from curator.pipeline import AnyStage
from curator.stage import ClipFilter
from curator.stages.dedup.pair_store import StoredPairs, remove_duplicates
from curator.stages.dedup.stage import DedupStage
from curator.stages.filter.judging import RuleCount
from curator.stages.filter.stage import FilterStage
from curator.stages.propose.stage import ProposedUnit
from curator.tables.clip_rows import ClipRows, reject, sorted_columns
from curator.tables.clip_vectors import like_vectors, vectors_table
from curator.tables.schemas import (
    SHOTS_SCHEMA,
    candidates_schema,
    clips_schema,
    embeddings_schema,
)

CLIP_ORDER = ("source_id", "start_pts", "end_pts")


class Corpus:
    """Shots, clips and vectors of all sources.

    Args:
        formed: Gives candidates the size, rate and length that they are written with, and the
            metadata of their sources.
    """

    def __init__(self, formed: Callable[[pa.Table], pa.Table]) -> None:
        self._formed = formed
        self._shots = [SHOTS_SCHEMA.empty_table()]
        self._candidates: list[pa.Table] = []
        self._vectors = [vectors_table([])]
        self._clip_vectors = [embeddings_schema(1).empty_table()]
        self.clips = _rows_of(candidates_schema().empty_table())
        self.rules: list[RuleCount] = []

    def add(self, proposed: ProposedUnit) -> pa.Table:
        """Takes the candidates of some sources; returns them as they would be written."""
        clips = self._formed(proposed.clips)
        self._shots.append(proposed.shots)
        self._candidates.append(clips)
        self._vectors.append(proposed.vectors)
        self._clip_vectors.append(proposed.clip_vectors)
        return clips

    def judge(self, stage: FilterStage) -> None:
        """Judges all candidates, which become the rows of `clips`."""
        self._candidates.append(self._formed(candidates_schema().empty_table()))
        decided = stage.process(sorted_columns(self._candidates, CLIP_ORDER))
        self.rules, self.clips = decided.rules, _rows_of(decided.clips)

    def shots(self) -> pa.Table:
        """All shots, in their order."""
        return sorted_columns(self._shots, ("source_id", "shot"))

    def vectors(self) -> pa.Table:
        """Perceptual vectors of all clips, by id."""
        self._vectors = [sorted_columns(like_vectors(self._vectors), ["clip_id"])]
        return self._vectors[0]

    def clip_vectors(self) -> pa.Table:
        """Embeddings of all clips by the CLIP model, by id; none without one."""
        self._clip_vectors = [sorted_columns(like_vectors(self._clip_vectors), ["clip_id"])]
        return self._clip_vectors[0]


def decide(
    stage: AnyStage,
    clips: ClipRows,
    vectors: Callable[[], pa.Table],
    pairs: StoredPairs | None,
    *,
    writes: bool = True,
) -> None:
    """Runs a stage that rejects clips.

    Args:
        stage: One of `Graph.deciding`.
        clips: All clips; those that the stage rejects are marked.
        vectors: Gives rows of `embeddings` of all clips.
        pairs: Similar pairs that earlier runs stored; None for none.
        writes: Whether new pairs are stored.
    """
    if isinstance(stage, DedupStage):
        if stage.config.enabled:
            remove_duplicates(stage, clips, vectors(), pairs, writes=writes)
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


def _rows_of(candidates: pa.Table) -> ClipRows:
    return ClipRows(candidates.drop_columns(["seconds"]), clips_schema())

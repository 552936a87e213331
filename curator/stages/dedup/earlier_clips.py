"""Rejects clips that show the footage of a clip that an earlier generation keeps.

Each new clip is compared with each earlier one, whatever their number: memory goes with what is
new, and the vectors of the earlier ones pass by an object at a time.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from curator.records.clips import Reason
from curator.stages.dedup.pair_search import PairSearch
from curator.stages.dedup.stage import DedupStage
from curator.tables.clip_rows import ClipRows, reject
from curator.tables.clip_vectors import StoredVectors


def reject_copies(
    stage: DedupStage,
    clips: ClipRows,
    vectors: StoredVectors,
    earlier: Sequence[str],
    n_earlier: int,
    search: PairSearch,
) -> None:
    """Marks kept clips that are duplicates of clips of earlier generations, which all stay.

    Args:
        stage: The search for duplicates.
        clips: Clips of this generation.
        vectors: Their vectors.
        earlier: Objects of `kept_vectors`, in any order.
        n_earlier: Number of clips in them.
        search: Finds alike vectors.
    """
    least = stage.config.similarity
    kept, ids = clips.kept_numbers(), clips.kept_ids()
    is_known = vectors.known(ids)
    kept, ids = kept[is_known], ids.filter(pa.array(is_known))
    found = search.nearest(vectors.matrix(ids), earlier, n_earlier, least=least)
    for row in np.flatnonzero(found.cosine >= least).tolist():
        clip = clips[int(kept[row])]
        reject(clip, Reason.DUPLICATE)
        clip.reason_score = clip.duplicate_similarity = float(found.cosine[row])
        clip.reason_threshold = least
        clip.duplicate_of = found.clip_id[row]

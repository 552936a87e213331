"""The stage that rejects clips that show the footage of a better clip."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.records.clips import Reason
from curator.stage import ClipVectors, Corpus, CorpusStage, Decisions, Left, Work
from curator.stages.dedup.cluster_search import search_clusters
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.pair_search import nearest_earlier
from curator.stages.dedup.retention import Duplicates, find_duplicates, rank_order
from curator.stages.dedup.similar_pairs import NearDuplicatePairs, compare, duplicates_of
from curator.tables.kept_vectors import KEPT

PAIRS = "alike"
"""Family: similar pairs."""


class DedupStage(CorpusStage[DedupConfig]):
    """Rejects clips that show the footage of a better clip.

    Clips of earlier generations all stay. Each new clip is compared with each of them, whatever
    their number: memory goes with what is new, and the vectors of the earlier ones pass by an
    object at a time.
    """

    name = "dedup"
    version = 1
    reads = ("clips", "embeddings")
    writes = ("clips", PAIRS)
    config_type = DedupConfig
    needs_all = "of clips that show the same footage the best one stays"
    needs_earlier = ", or the one that an earlier generation kept"

    @property
    def is_on(self) -> bool:
        """Whether duplicates are searched."""
        return self.config.enabled

    def decide(self, corpus: Corpus, work: Work, /) -> Iterator[Decisions | Left]:
        """Rejects duplicates of earlier clips first, then those of better clips."""
        if not self.config.enabled or not corpus.num_rows:
            return
        vectors, ids = corpus.vectors("embeddings"), corpus["clip_id"].combine_chunks()
        rows = np.flatnonzero(vectors.known(ids))
        ids = ids.take(pa.array(rows))
        earlier = corpus.earlier(KEPT)
        if earlier is not None:
            least = self.config.similarity
            nearest = nearest_earlier(vectors.matrix(ids), work, earlier, least=least)
            is_copy = nearest.cosine >= least
            of = [nearest.clip_id[number] for number in np.flatnonzero(is_copy).tolist()]
            yield self._rejected(rows[is_copy], nearest.cosine[is_copy], of)
            rows, ids = rows[~is_copy], ids.filter(pa.array(~is_copy))
        if not len(rows):
            return
        earlier_pairs = NearDuplicatePairs.of(corpus.read(PAIRS), self.config.similarity)
        duplicates, pairs = self._find(ids, _order(corpus, rows), vectors, earlier_pairs, work)
        copies = np.flatnonzero(duplicates.is_duplicate)
        of = ids.take(pa.array(duplicates.duplicate_of[copies]))
        yield self._rejected(rows[copies], duplicates.similarity[copies].astype(np.float64), of)
        if pairs is not None and pairs is not earlier_pairs:
            yield Left(PAIRS, pairs.table())

    def _rejected(
        self, rows: NDArray[np.int64], similarity: NDArray[np.float64], of: Sequence[str] | pa.Array
    ) -> Decisions:
        columns = {
            "reason": [str(Reason.DUPLICATE)] * len(rows),
            "reason_score": similarity,
            "reason_threshold": np.full(len(rows), self.config.similarity),
            "duplicate_similarity": similarity,
            "duplicate_of": of,
        }
        return Decisions(rows, pa.table(columns))

    def _find(
        self,
        ids: pa.Array,
        order: NDArray[np.int64],
        vectors: ClipVectors,
        earlier: NearDuplicatePairs,
        work: Work,
    ) -> tuple[Duplicates, NearDuplicatePairs | None]:
        """Returns duplicates, and the pairs known now; None where keeping them is useless."""
        config = self.config
        if len(ids) <= config.exact_below:
            pairs = _completed(earlier, ids, vectors, config, work)
            if pairs is not None:
                duplicates = duplicates_of(pairs.among(ids), order, similarity=config.similarity)
                return duplicates, pairs
        options = config.model_dump(include={"similarity", "exact_below", "probes"})
        if len(ids) > config.exact_below:
            return search_clusters(vectors.matrix(ids), order, work, options), None
        return find_duplicates(vectors.matrix(ids), order, **options), None


def _order(corpus: Corpus, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the places in `rows` of the clips from best to worst, int64 [N]."""

    def values(name: str) -> NDArray[Any]:
        taken: NDArray[Any] = corpus[name].fill_null(0).to_numpy()[rows]
        return taken

    return rank_order(
        pixels=values("width").astype(np.int64) * values("height"),
        bits_per_pixel=values("bits_per_pixel"),
        n_frames=values("n_frames"),
    )


def _completed(
    earlier: NearDuplicatePairs,
    ids: pa.Array,
    vectors: ClipVectors,
    config: DedupConfig,
    work: Work,
) -> NearDuplicatePairs | None:
    """Adds the pairs of new clips to the known ones; None if there are too many."""
    new = ids.filter(pc.invert(pc.is_in(ids, value_set=earlier.ids)))
    if len(new) == 0:
        return earlier
    # Clips of removed sources, and clips in excess that are not needed now, are dropped.
    if len(earlier.ids) + len(new) > config.exact_below:
        earlier = earlier.among(earlier.ids.filter(pc.is_in(earlier.ids, value_set=ids)))
    earlier = earlier.among(earlier.ids.filter(pa.array(vectors.known(earlier.ids))))
    joined = pa.concat_arrays([earlier.ids, new])
    return compare(earlier, joined, vectors.matrix(joined), work)

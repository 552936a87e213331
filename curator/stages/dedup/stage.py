"""The stage that rejects clips whose footage another clip shows that stays."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.fingerprints import fingerprint
from curator.records.clips import Reason
from curator.stage import Corpus, CorpusStage, Decisions, Elsewhere, Left, Work
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.footage_search import find_pairs
from curator.stages.dedup.near_duplicates import NearDuplicatePairs
from curator.stages.dedup.retention import Ranked, dropped_clips
from curator.tables.clip_rank import criterion, rank_order

PAIRS = "alike"
"""Family: verified pairs."""
MATCHING = 1
"""Version of what is a pair: raised when the same clips would give other pairs."""
_FACTS = ("offset_s", "overlap_s", "similarity")


class DedupStage(CorpusStage[DedupConfig]):
    """Rejects clips whose footage another clip shows that stays.

    Clips of earlier generations, of other outputs, and footage that was removed are compared too:
    all of them stay as they are. Only what was not compared yet is searched.
    """

    name = "dedup"
    version = 2
    reads = ("clips", "candidates")
    writes = ("clips", PAIRS)
    config_type = DedupConfig
    needs_all = "of clips that show the same footage the best one stays"
    needs_earlier = ", or the one that an earlier generation kept"

    @property
    def is_on(self) -> bool:
        """Whether duplicates are searched."""
        return self.config.enabled

    def decide(self, corpus: Corpus, work: Work, /) -> Iterator[Decisions | Left]:
        """Rejects what is elsewhere first, then clips of whose footage a better clip has enough."""
        if not self.config.enabled or not corpus.num_rows:
            return
        ids, places = corpus["clip_id"].combine_chunks(), corpus.elsewhere()
        pairs, is_new = self._pairs(corpus, ids, places, work)
        table, numbers = pairs.pairs, _Numbers(ids)
        is_left = np.ones(len(ids), np.bool_)
        for decisions in self._elsewhere(table, pairs.places, places, numbers):
            is_left[decisions.rows] = False
            yield decisions
        yield self._among(corpus, table, numbers, is_left, ids)
        if is_new:
            yield Left(PAIRS, pairs.table())

    def _pairs(
        self, corpus: Corpus, ids: pa.Array, places: Sequence[Elsewhere], work: Work
    ) -> tuple[NearDuplicatePairs, bool]:
        """Returns all pairs, and whether they are others than those that are stored."""
        config = self.config
        stored = NearDuplicatePairs.of(corpus.read(PAIRS), search_settings(config))
        keys = [place.key for place in places]
        new = ids.filter(pc.invert(pc.is_in(ids, value_set=stored.compared)))
        if not len(new) and set(keys) <= set(stored.places):
            return stored, False
        # Clips that a rule rejects now count too: it may keep them again.
        compared = pa.concat_arrays([stored.compared, new])
        found = find_pairs(
            corpus.footage(),
            compared,
            new,
            places,
            work,
            known_places=stored.places,
            similarity=config.similarity,
            neighbours=config.neighbours,
        )
        return stored.with_new(compared, keys, found), True

    def _elsewhere(
        self,
        pairs: pa.Table,
        keys: Sequence[str],
        places: Sequence[Elsewhere],
        numbers: "_Numbers",
    ) -> Iterator[Decisions]:
        """Rejects clips whose footage another place has; the first place counts."""
        is_done = np.zeros(numbers.n, np.bool_)
        for place in places:
            if place.key not in keys:
                continue
            own = pairs.filter(pc.equal(pairs["place"], keys.index(place.key)))
            own = own.filter(pc.greater_equal(own["share"], np.float32(self.config.min_share)))
            clips = numbers.of(own["clip_id"])
            by_share = np.lexsort((own["other"].to_numpy(), -own["share"].to_numpy()))
            by_share = by_share[(clips >= 0)[by_share]]
            rows, first = np.unique(clips[by_share], return_index=True)
            first, rows = first[~is_done[rows]], rows[~is_done[rows]]
            is_done[rows] = True
            if len(rows):
                own = own.take(pa.array(by_share[first]))
                details = [
                    f"{place.name}: {name}" if place.name else None
                    for name in own["other"].to_pylist()
                ]
                of = own["other"] if place.reason == Reason.DUPLICATE else [None] * len(rows)
                yield self._rejected(rows, own, of, place.reason, details)

    def _among(
        self,
        corpus: Corpus,
        pairs: pa.Table,
        numbers: "_Numbers",
        is_left: NDArray[np.bool_],
        ids: pa.Array,
    ) -> Decisions:
        own = pairs.filter(pc.equal(pairs["place"], -1))
        first, second = numbers.of(own["clip_id"]), numbers.of(own["other"])
        both = (first >= 0) & (second >= 0)
        both &= is_left[first] & is_left[second]
        own, first, second = own.filter(pa.array(both)), first[both], second[both]
        shares = [own[name].to_numpy().astype(np.float64) for name in ("share", "share_of_other")]
        # Shares are stored in float32.
        least = float(np.float32(self.config.min_share))
        ranked = _ranked(corpus, self.config)
        dropped = dropped_clips(ranked, first, second, *shares, min_share=least)
        rows = np.array(sorted(dropped), np.int64)
        at = np.array([dropped[row][1] for row in rows.tolist()], np.int64)
        named = ids.take(pa.array([dropped[row][0] for row in rows.tolist()], pa.int64()))
        found = _seen_from(own.take(pa.array(at)), rows == first[at])
        return self._rejected(rows, found, named, Reason.DUPLICATE, [None] * len(rows))

    def _rejected(
        self,
        rows: NDArray[np.int64],
        pairs: pa.Table,
        of: Sequence[str | None] | pa.Array,
        reason: str,
        details: Sequence[str | None],
    ) -> Decisions:
        columns = {
            "reason": [str(reason)] * len(rows),
            "reason_score": pairs["share"].cast(pa.float64()),
            "reason_threshold": np.full(len(rows), self.config.min_share),
            "reason_detail": pa.array(details, pa.string()),
            "duplicate_of": pa.array(of, pa.string()) if isinstance(of, list) else of,
            "duplicate_similarity": pairs["similarity"].cast(pa.float64()),
            "duplicate_offset_s": pairs["offset_s"].cast(pa.float64()),
            "duplicate_overlap_s": pairs["overlap_s"].cast(pa.float64()),
        }
        return Decisions(rows, pa.table(columns))


def search_settings(config: DedupConfig) -> str:
    """Returns what stored pairs depend on."""
    return fingerprint(MATCHING, config.similarity, config.neighbours)


class _Numbers:
    """Numbers of clips by id."""

    def __init__(self, ids: pa.Array) -> None:
        self._ids = ids
        self.n = len(ids)

    def of(self, names: pa.ChunkedArray) -> NDArray[np.int64]:
        """Returns the number of each, int64 [P]; -1 of others."""
        numbers = pc.index_in(names, value_set=self._ids).fill_null(-1)
        found: NDArray[np.int64] = numbers.to_numpy().astype(np.int64)
        return found


def _seen_from(pairs: pa.Table, is_first: NDArray[np.bool_]) -> pa.Table:
    """Returns pairs as the dropped clip sees them: its share, and where the other one has it.

    `offset_s` is the second of the clip that stays at which the dropped one begins.
    """
    swapped = pa.array(~is_first)
    speed = pairs["speed"]
    offset = pc.if_else(swapped, pc.divide(pc.negate(pairs["offset_s"]), speed), pairs["offset_s"])
    share = pc.if_else(swapped, pairs["share_of_other"], pairs["share"])
    overlap = pc.if_else(swapped, pc.multiply(pairs["overlap_s"], speed), pairs["overlap_s"])
    return pa.table({
        "share": share,
        # Not -0.
        "offset_s": pc.add(offset, np.float32(0)),
        "overlap_s": overlap,
        "similarity": pairs["similarity"],
    })  # fmt: skip


def _ranked(corpus: Corpus, config: DedupConfig) -> Ranked:
    return Ranked(
        order=rank_order([criterion(corpus, name) for name in config.prefer]),
        pixels=criterion(corpus, "pixels").astype(np.int64),
        n_frames=criterion(corpus, "length").astype(np.int64),
    )

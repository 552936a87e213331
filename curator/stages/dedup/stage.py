"""The stage that rejects a clip if a better clip shows the same footage."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.matching.verify_pair import ALL_EDITS
from curator.number_text import percent
from curator.records.clips import Reason
from curator.stage import (
    CarriedState,
    Corpus,
    CorpusStage,
    Decisions,
    ReferenceClips,
    Remainders,
    StageReason,
    Work,
)
from curator.stages.dedup.config import DedupConfig
from curator.stages.dedup.near_duplicates import Takes, find_pairs
from curator.stages.dedup.retention import (
    NO_LENGTH,
    Division,
    Ranked,
    ShortestClip,
    ShownParts,
    divisions,
    dropped_clips,
)
from curator.tables.clip_groups import AreViews, ClipGroups, group_texts, moment_numbers
from curator.tables.clip_rank import criterion, rank_order
from curator.tables.duplicate_pairs import PAIRS, NearDuplicatePairs, Pair
from curator.tables.parts import with_column
from curator.tables.window_spans import WindowSpans

# Removed footage is searched by these, whatever the recipe says: benchmarks/results/removed.md.
REMOVED_COSINE, _REMOVED_NEIGHBOURS = 0.45, 16
# benchmarks/results/duplicates.md: 5% of the offsets of crops have errors of 0.3 s.
_SAID_S = 0.5  # shortest lost footage that a row mentions


class DedupStage(CorpusStage[DedupConfig]):
    """Rejects a clip if a better clip shows the same footage.

    Clips of one group from different sources are cameras of one moment, and no duplicates.

    Clips are also compared with clips of earlier generations and of other outputs, and with removed
    footage; all of these stay as they are. Pairs that were compared before are not compared again.

    No setting of the recipe weakens the comparison with removed footage: a disabled stage makes it
    too, and `similarity` and `neighbours` do not apply to it.

    `shortest` is the shortest clip that can be kept. With `divides`, parts of clips may become
    clips. A growing run does not divide, because its earlier generations stay. Decisions of an
    exact run are valid in a growing run, so the fingerprint does not depend on `divides`.
    """

    name = "dedup"
    version = 6
    reads = ("clips", "candidates")
    writes = ("clips", PAIRS)
    config_type = DedupConfig
    change_effect = "the run decides again which duplicates stay"
    time_share = 4.0
    needs_all = "the best of the clips that show the same footage stays"
    needs_earlier = ", or the clip that an earlier generation kept"

    def __init__(
        self, config: DedupConfig, shortest: ShortestClip = NO_LENGTH, *, divides: bool = True
    ) -> None:
        super().__init__(config)
        self._shortest, self._divides = shortest, divides and config.remainders

    @property
    def compares_clips(self) -> bool:
        """Whether the recipe enables the search."""
        return self.config.enabled

    def settings(self) -> dict[str, object]:
        """Returns its section of the recipe, and the settings of other sections."""
        lengths = self._shortest.seconds, self._shortest.n_frames
        return {"dedup": super().settings(), "shortest": lengths}

    def reasons(self) -> Iterator[StageReason]:
        """Yields the reasons of footage of other places, and of other clips."""
        yield StageReason(name=Reason.REMOVED_BEFORE, is_listed=False)
        if self.is_on:
            has_others = bool(self.config.against)
            yield StageReason(name=Reason.DUPLICATE_ELSEWHERE, is_listed=has_others)
            words = f"a clip that stays shows {percent(self.config.min_share)} of it or more"
            yield StageReason(name=Reason.DUPLICATE, words=words)
            yield StageReason(name=Reason.DIVIDED, is_listed=False)

    def decide(
        self, corpus: Corpus, work: Work, /
    ) -> Iterator[Decisions | CarriedState | Remainders | str]:
        """Rejects clips with footage of reference clips, then clips with a better duplicate."""
        if not corpus.num_rows:
            return
        is_on, every = self.config.enabled, corpus.reference_clips()
        places = [p for p in every if is_on or p.reason == Reason.REMOVED_BEFORE]
        if not is_on and not places:
            return
        ids = corpus["clip_id"].combine_chunks()
        windows = WindowSpans.of(corpus)
        stored, is_new = self._pairs(corpus, ids, windows, places, work)
        pairs = _NumberedPairs(stored.pairs, ids)
        is_window = np.zeros(len(ids), np.bool_)
        if windows is not None:
            pairs, is_window = pairs.without(windows.are_views), windows.is_window
        # Cameras of a moment have the same frames, so a clip of one is not divided.
        moments = moment_numbers(corpus)
        is_window = is_window if moments is None else is_window | (moments >= 0)
        pairs = pairs.without_cameras(corpus, stored.places, places)
        is_left, is_removed = np.ones(len(ids), np.bool_), np.zeros(len(ids), np.bool_)
        rejected, partly = [], set[int]()
        for decisions in self._of_references(pairs, stored.places, places):
            is_left[decisions.rows] = False
            if decisions.columns["reason"][0].as_py() == Reason.REMOVED_BEFORE:
                is_removed[decisions.rows] = True
                share = decisions.columns["reason_score"].to_numpy()
                partly.update(decisions.rows[share < np.float32(self.config.min_share)].tolist())
            rejected.append(decisions)
        ranked = _ranked(corpus, self.config, windows)
        rejected.append(self._among(ranked, pairs, is_left))
        is_left[rejected[-1].rows] = False
        by_row = self._divisions(corpus, ranked, pairs, is_left, is_removed, partly, is_window)
        divided = {clip: d for clip, d in by_row.items() if is_left[clip] and not d.is_whole}
        # The clips that duplicate them went too, and retain none of their footage.
        staying = [clip for clip, division in by_row.items() if division.is_whole]
        by_row = {c: division for c, division in by_row.items() if not division.is_whole}
        rejected = [_without(decisions, staying) for decisions in rejected]
        for kind, reason in ((~is_window, Reason.DIVIDED), (is_window, Reason.DUPLICATE)):
            some = {clip: division for clip, division in divided.items() if kind[clip]}
            rejected.append(self._divided(pairs, some, reason))
        yield from (_with_details(decisions, by_row) for decisions in rejected)
        pieces = [(clip, *piece) for clip, division in by_row.items() for piece in division.pieces]
        if pieces:
            rows, start_s, end_s = (np.array(column) for column in zip(*pieces, strict=True))
            yield Remainders(rows, start_s, end_s)
        if is_new:
            yield CarriedState(PAIRS, stored.table())

    def _pairs(
        self,
        corpus: Corpus,
        ids: pa.Array,
        windows: WindowSpans | None,
        places: Sequence[ReferenceClips],
        work: Work,
    ) -> tuple[NearDuplicatePairs, bool]:
        """Returns all pairs, and whether they differ from the stored pairs."""
        config = self.config
        stored = NearDuplicatePairs.of(corpus.read(PAIRS), config.search_fingerprint)
        keys = [place.key for place in places]
        new = ids.filter(pc.invert(pc.is_in(ids, value_set=stored.compared)))
        if not len(new) and set(keys) <= set(stored.places):
            return stored, False
        # Pairs of clips that a rule rejects now stay stored: a later recipe may keep these clips.
        compared = pa.concat_arrays([stored.compared, new])
        find = partial(find_pairs, corpus.footage(), known_places=stored.places)
        removed, others = (
            [place for place in places if (place.reason == Reason.REMOVED_BEFORE) == is_removed]
            for is_removed in (True, False)
        )
        pairs: list[Iterator[Pair]] = []
        if removed:
            pairs.append(
                find(
                    compared,
                    new,
                    removed,
                    work,
                    similarity=REMOVED_COSINE,
                    neighbours=_REMOVED_NEIGHBOURS,
                    among=False,
                    edits=ALL_EDITS,
                )
            )
        has_takes = windows is not None and windows.is_window.any()
        takes = _takes(corpus, ids, windows) if windows is not None and has_takes else None
        for own, some in _by_size(ids, windows, compared, new) if config.enabled else ():
            pairs.append(
                find(
                    own,
                    some,
                    others,
                    work,
                    similarity=config.similarity,
                    neighbours=config.neighbours,
                    takes=takes,
                )
            )
        # Clips of an unknown size are compared with a place once per size.
        found = {(p.clip_id, p.other, p.place): p for p in chain.from_iterable(pairs)}
        return stored.with_new(compared, keys, found.values()), True

    def _of_references(
        self, pairs: "_NumberedPairs", keys: Sequence[str], places: Sequence[ReferenceClips]
    ) -> Iterator[Decisions]:
        """Rejects clips with enough footage of another place, or any part of removed footage."""
        is_done = np.zeros(len(pairs.ids), np.bool_)
        share = pairs.table["share"].to_numpy()
        for place in places:
            if place.key not in keys:
                continue
            least = 0.0 if place.reason == Reason.REMOVED_BEFORE else self.config.min_share
            is_own = (pairs.place == keys.index(place.key)) & (pairs.first >= 0)
            at = np.flatnonzero(is_own & (share >= np.float32(least)))
            at = at[np.lexsort((pairs.table["other"].take(at).to_numpy(), -share[at]))]
            rows, largest = np.unique(pairs.first[at], return_index=True)
            at, rows = at[largest[~is_done[rows]]], rows[~is_done[rows]]
            is_done[rows] = True
            if len(rows):
                own = pairs.table.take(pa.array(at))
                others = own["other"].to_pylist()
                details = [f"{place.name}: {name}" if place.name else None for name in others]
                of = own["other"] if place.reason == Reason.DUPLICATE else [None] * len(rows)
                yield self._rejected(rows, own, of, place.reason, details)

    def _among(
        self, ranked: Ranked, pairs: "_NumberedPairs", is_left: NDArray[np.bool_]
    ) -> Decisions:
        first, second = pairs.first, pairs.second
        both = (pairs.place == -1) & (first >= 0) & (second >= 0)
        at = np.flatnonzero(both & is_left[first] & is_left[second])
        own = pairs.table.take(pa.array(at))
        shares = [own[name].to_numpy().astype(np.float64) for name in ("share", "share_of_other")]
        # Shares are stored in float32.
        least = float(np.float32(self.config.min_share))
        dropped = dropped_clips(ranked, first[at], second[at], *shares, min_share=least)
        rows = np.array(sorted(dropped), np.int64)
        of, which = (
            np.array([dropped[row][side] for row in rows.tolist()], np.int64) for side in (0, 1)
        )
        shown = _seen_from(own.take(pa.array(which)), rows == first[at][which])
        return self._rejected(rows, shown, pairs.ids.take(pa.array(of)), Reason.DUPLICATE)

    def _divisions(
        self,
        corpus: Corpus,
        ranked: Ranked,
        pairs: "_NumberedPairs",
        is_left: NDArray[np.bool_],
        is_removed: NDArray[np.bool_],
        partly: Collection[int],
        is_window: NDArray[np.bool_],
    ) -> dict[int, Division]:
        """Divides rejected clips, and clips that stay if they share a part with a better clip.

        Of the clips that show removed footage (`is_removed`), only those that show it `partly` are
        divided, and only if both ends of the shared part are known.
        """
        counts = np.append(~is_removed, False)
        counts[list(partly)] = True
        numbers = (np.where(counts[side], side, -1) for side in (pairs.first, pairs.second))
        shown = ShownParts(pairs.table, *numbers)
        among = shown.clips
        order = [clip for clip in ranked.order.tolist() if clip in among]
        clip_s = (corpus["end_s"].to_numpy() - corpus["start_s"].to_numpy()).astype(np.float64)
        shortest_s = np.full(len(clip_s), np.inf)
        if self._divides:
            shortest_s = self._shortest.seconds_at(corpus["written_fps"].to_numpy())
        going = [
            clip
            for clip in order
            if not is_left[clip]
            and (not is_removed[clip] or shown.is_known_elsewhere(clip, float(clip_s[clip])))
        ]
        staying = [clip for clip in order if is_left[clip]]
        max_lost = 1 - self.config.min_share
        return divisions(staying, going, shown, clip_s, shortest_s, is_window, max_lost=max_lost)

    def _divided(
        self, pairs: "_NumberedPairs", by_row: dict[int, Division], reason: Reason
    ) -> Decisions:
        """Rejects clips of which clips that stay show parts; names the one that shows the most.

        A window has no parts of its own. Its share is that of all clips together.
        """
        rows = np.array(sorted(by_row), np.int64)
        largest = [part for row in rows.tolist() if (part := by_row[row].largest) is not None]
        of = [pairs.ids[part.other].as_py() if part.other >= 0 else None for part in largest]
        at = np.array([part.pair for part in largest], np.int64)
        own = _seen_from(pairs.table.take(pa.array(at)), pairs.first[at] == rows)
        if reason == Reason.DUPLICATE:
            shares = pa.array([by_row[row].shared_share for row in rows.tolist()], pa.float32())
            own = with_column(own, "share", shares)
        return self._rejected(rows, own, of, reason)

    def _rejected(
        self,
        rows: NDArray[np.int64],
        pairs: pa.Table,
        of: Sequence[str | None] | pa.Array,
        reason: str,
        details: Sequence[str | None] | None = None,
    ) -> Decisions:
        is_by_share = reason not in (Reason.DIVIDED, Reason.REMOVED_BEFORE)
        least = self.config.min_share if is_by_share else None
        columns = {
            "reason": [str(reason)] * len(rows),
            "reason_score": pairs["share"].cast(pa.float64()),
            "reason_threshold": pa.array([least] * len(rows), pa.float64()),
            "reason_detail": pa.array(details or [None] * len(rows), pa.string()),
            "duplicate_of": pa.array(of, pa.string()) if isinstance(of, list) else of,
            "duplicate_similarity": pairs["similarity"].cast(pa.float64()),
            "duplicate_offset_s": pairs["offset_s"].cast(pa.float64()),
            "duplicate_overlap_s": pairs["overlap_s"].cast(pa.float64()),
        }
        return Decisions(rows, pa.table(columns))


def _without(decisions: Decisions, clips: Collection[int]) -> Decisions:
    """Returns the decisions that are not about some clips."""
    others = np.flatnonzero(~np.isin(decisions.rows, list(clips)))
    return Decisions(decisions.rows[others], decisions.columns.take(pa.array(others)))


def _with_details(decisions: Decisions, by_row: dict[int, Division]) -> Decisions:
    """Adds to each reason the outcome of the footage that only the rejected clip shows."""
    columns = decisions.columns
    details = []
    pairs = zip(decisions.rows.tolist(), columns["reason_detail"].to_pylist(), strict=True)
    for row, detail in pairs:
        lines = [detail] if detail else []
        if (division := by_row.get(row)) is not None and division.pieces:
            own_s, n = sum(end - start for start, end in division.pieces), len(division.pieces)
            lines.append(f"{own_s:.1f} s that only it has are {n} clip{'s' * (n > 1)} of its own")
        if division is not None and division.lost_s >= _SAID_S:
            lines.append(f"{division.lost_s:.1f} s that only it has are left out")
        details.append("; ".join(lines) or None)
    columns = with_column(columns, "reason_detail", pa.array(details, pa.string()))
    return Decisions(decisions.rows, columns)


class _NumberedPairs:
    """Rows of `PAIRS_SCHEMA` with the numbers of their clips, int64 [P]; -1 for other clips."""

    def __init__(self, table: pa.Table, ids: pa.Array) -> None:
        self.table, self.ids = table, ids
        self.place: NDArray[np.int32] = table["place"].to_numpy()
        self.first, self.second = (
            pc.index_in(table[name], value_set=ids).fill_null(-1).to_numpy().astype(np.int64)
            for name in ("clip_id", "other")
        )

    def without(self, are_views: AreViews) -> "_NumberedPairs":
        """Returns the pairs without those of two clips that show the same on purpose."""
        is_own = (self.place == -1) & (self.first >= 0) & (self.second >= 0)
        is_view = is_own & are_views(self.first, self.second)
        return _NumberedPairs(self.table.filter(pa.array(~is_view)), self.ids)

    def without_cameras(
        self, corpus: Corpus, keys: Sequence[str], places: Sequence[ReferenceClips]
    ) -> "_NumberedPairs":
        """Returns the pairs without those of clips of one group; `keys` has the place of a pair."""
        groups = ClipGroups.of(corpus)
        own = group_texts(corpus)
        if groups is None or own is None:
            return self
        pairs = self.without(groups.are_views)
        for place in places:
            if place.groups is None or place.clip_ids is None or place.key not in keys:
                continue
            other = place.groups.take(
                pc.index_in(pairs.table["other"], value_set=place.clip_ids).combine_chunks()
            )
            first = own.take(pa.array(pairs.first, mask=pairs.first < 0))
            is_same = pc.fill_null(pc.equal(first, other), False)
            is_same = is_same.to_numpy(zero_copy_only=False) & (
                pairs.place == keys.index(place.key)
            )
            pairs = _NumberedPairs(pairs.table.filter(pa.array(~is_same)), pairs.ids)
        return pairs


def _takes(corpus: Corpus, ids: pa.Array, windows: WindowSpans) -> Takes:
    is_described = corpus.vectors("embeddings").known(ids)
    if not is_described.any():  # the recipe computes no vectors
        is_described = np.ones(len(ids), np.bool_)
    return Takes(ids, windows.takes(), windows.start_s, is_described)


def _by_size(
    ids: pa.Array, windows: WindowSpans | None, compared: pa.Array, new: pa.Array
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yields the clips to compare with each other, and the new ones.

    Only windows of one size are compared. Others would hide copies among the nearest neighbours.
    Clips of `compared` that are not in the corpus have an unknown size.
    """
    if windows is None:
        yield compared, new
        return
    for size in np.unique(windows.size).tolist():
        others = ids.filter(pa.array(windows.size != size))
        own, some = (
            names.filter(pc.invert(pc.is_in(names, value_set=others))) for names in (compared, new)
        )
        yield own, some


def _seen_from(pairs: pa.Table, is_first: NDArray[np.bool_]) -> pa.Table:
    """Returns pairs from the side of the dropped clip, which is `clip_id` if `is_first`."""
    swapped = pa.array(~is_first)
    speed = pairs["speed"]
    offset = pc.if_else(swapped, pc.divide(pc.negate(pairs["offset_s"]), speed), pairs["offset_s"])
    share = pc.if_else(swapped, pairs["share_of_other"], pairs["share"])
    overlap = pc.if_else(swapped, pc.multiply(pairs["overlap_s"], speed), pairs["overlap_s"])
    return pa.table({
        "share": share,
        # Adding 0 turns -0 into 0.
        "offset_s": pc.add(offset, np.float32(0)),
        "overlap_s": overlap,
        "similarity": pairs["similarity"],
    })  # fmt: skip


def _ranked(corpus: Corpus, config: DedupConfig, windows: WindowSpans | None) -> Ranked:
    """Ranks clips; windows have the rank of their take, and clips of cameras that of their moment.

    Ranks of single windows would alternate between two copies of a take. Of both, windows would
    stay that others show by halves. In the same way, two copies of a moment would both be left
    without some of their cameras.
    """
    # A clip marked `keep` ranks above all others with the same footage.
    is_marked = corpus.marked("keep", corpus["clip_id"]).astype(np.float64)
    order = rank_order([is_marked, *(criterion(corpus, name) for name in config.prefer)])
    moments = moment_numbers(corpus)
    if windows is not None or moments is not None:
        rank = np.argsort(order)
        take = np.arange(len(order)) if windows is None else windows.takes()
        if moments is not None:
            take = np.where(moments >= 0, moments + take.max(initial=0) + 1, take)
            take = np.unique(take, return_inverse=True)[1].reshape(-1)
        mean_rank = np.bincount(take, rank) / np.maximum(np.bincount(take), 1)
        order = np.lexsort((rank, take, mean_rank[take], -is_marked))
    return Ranked(
        order=order,
        pixels=criterion(corpus, "pixels").astype(np.int64),
        n_frames=criterion(corpus, "length").astype(np.int64),
    )

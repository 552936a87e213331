"""All pairs of similar clips, so that a rerun compares only new clips.

The rules, which a rerun changes, decide which clip of a pair is retained, but not whether the two
are similar. So pairs are kept: with them the search for duplicates among compared clips is
arithmetic on a few numbers, and only a new clip is compared with the others.

Shape letters: N clips, D embedding dimensions, P pairs.
"""
# ruff: noqa: N803 - shape letters

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.stage import Work
from curator.stages.dedup.pair_search import pairs_among
from curator.stages.dedup.retention import Duplicates, Retention, check_order

_LISTS = [("near", pa.list_(pa.int32())), ("cosine", pa.list_(pa.float64()))]
NEAR_DUPLICATES_SCHEMA = pa.schema([("clip_id", pa.string()), *_LISTS])
"""A row per clip that was compared with all rows before it; `near` are the numbers of those of them
that are alike."""
_LEAST = b"curate.least_cosine"
PAIRS_PER_CLIP = 32
"""Pairs for each clip beyond which they are not kept: a corpus of copies of a few clips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicatePairs:
    """Clips that were compared with each other, and the similar pairs among them.

    Attributes:
        ids: string[N], the clips.
        least: Cosine similarity from which pairs are held.
        first: int64[P], position of a clip in `ids`.
        second: int64[P], position of an earlier clip.
        cosine: float64[P], their cosine similarity, rounded to six digits.
    """

    ids: pa.Array
    least: float
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    cosine: NDArray[np.float64]

    @classmethod
    def of(cls, table: pa.Table | None, least: float) -> "NearDuplicatePairs":
        """Returns stored pairs of at least a cosine; none if these begin above it."""
        floor = float((table.schema.metadata or {})[_LEAST]) if table is not None else np.inf
        if table is None or floor > least:
            return no_pairs(least)
        near, cosine = (table[column].combine_chunks() for column in ("near", "cosine"))
        return cls(
            ids=table["clip_id"].combine_chunks(),
            least=floor,
            first=pc.list_parent_indices(near).to_numpy().astype(np.int64),
            second=near.flatten().to_numpy().astype(np.int64),
            cosine=cosine.flatten().to_numpy(),
        )

    def table(self) -> pa.Table:
        """Returns them as `of` takes them."""
        order = np.lexsort((self.second, self.first))
        counts = np.bincount(self.first, minlength=len(self.ids))
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        values = pa.array(self.second[order], pa.int32()), pa.array(self.cosine[order])
        lists = [pa.ListArray.from_arrays(offsets, value) for value in values]
        schema = NEAR_DUPLICATES_SCHEMA.with_metadata({_LEAST: repr(self.least)})
        return pa.table([self.ids, *lists], schema=schema)

    def among(self, ids: pa.Array) -> "NearDuplicatePairs":
        """Returns the pairs of some clips alone, in the order of `ids`.

        Raises:
            ValueError: One of them was not compared.
        """
        found = pc.index_in(ids, value_set=self.ids)
        if found.null_count:
            raise ValueError(f"{found.null_count} clips were not compared with the others")
        position = np.full(len(self.ids), -1, dtype=np.int64)
        position[found.to_numpy()] = np.arange(len(ids))
        a, b = position[self.first], position[self.second]
        both = (a >= 0) & (b >= 0)
        a, b = a[both], b[both]
        cosine = self.cosine[both]
        return replace(
            self, ids=ids, first=np.maximum(a, b), second=np.minimum(a, b), cosine=cosine
        )


def no_pairs(least: float) -> NearDuplicatePairs:
    """Returns the result of no comparison."""
    none = np.zeros(0, dtype=np.int64)
    ids = pa.array([], pa.string())
    return NearDuplicatePairs(ids=ids, least=least, first=none, second=none, cosine=np.zeros(0))


def compare(
    earlier: NearDuplicatePairs,
    ids: pa.Array,
    vectors_ND: NDArray[np.float32] | NDArray[np.float16],
    work: Work,
) -> NearDuplicatePairs | None:
    """Compares new clips with those that were compared before, and with each other.

    Args:
        earlier: Earlier comparisons: its clips are the first of `ids`, in the same order.
        ids: All clips, each once.
        vectors_ND: float32 or float16 [N, D], L2-normalised embedding of each.
        work: Where they are compared.

    Returns:
        All pairs; None if there are more than `PAIRS_PER_CLIP` for each clip.

    Raises:
        ValueError: The vectors are not finite or not normalised.
    """
    n_known = len(earlier.first)
    new_pairs = pairs_among(
        vectors_ND,
        work,
        since=len(earlier.ids),
        least=earlier.least,
        most=PAIRS_PER_CLIP * len(ids) - n_known,
    )
    if new_pairs is None:
        return None
    first, second, cosine = new_pairs
    return replace(
        earlier,
        ids=ids,
        first=np.concatenate([earlier.first, first]),
        second=np.concatenate([earlier.second, second]),
        cosine=np.concatenate([earlier.cosine, cosine]),
    )


def duplicates_of(
    pairs: NearDuplicatePairs, order: NDArray[np.int64], *, similarity: float
) -> Duplicates:
    """Finds clips whose footage a better clip shows, as `find_duplicates` does.

    `order` is int64 [N], positions in `pairs.ids` from the best clip to the worst.

    Returns:
        One entry per clip, in the order of `pairs.ids`.

    Raises:
        ValueError: Pairs of that similarity were not held, or the order is not of these clips.
    """
    n = len(pairs.ids)
    check_order(order, n)
    if similarity < pairs.least:
        raise ValueError(f"pairs are held from {pairs.least}, {similarity} was asked for")
    rank = np.argsort(order)
    near = pairs.cosine >= similarity
    cosine = pairs.cosine[near]
    a, b = rank[pairs.first[near]], rank[pairs.second[near]]
    worse, better = np.maximum(a, b), np.minimum(a, b)
    by_worse = np.argsort(worse, kind="stable")
    items, starts, counts = np.unique(worse[by_worse], return_index=True, return_counts=True)
    retention = Retention(n, similarity)
    for item, start, count in zip(items.tolist(), starts, counts, strict=True):
        at = by_worse[start : start + count]
        retention.decide(item, better[at], cosine[at])
    return retention.in_order(order)

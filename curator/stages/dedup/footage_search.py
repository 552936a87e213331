"""Finds pairs of clips that show the same footage.

An index of the vectors of pictures proposes pairs of clips. Each pair is then verified by its
pictures and luma, on workers where there are many. The pairs are the same wherever that is done.
"""
# ruff: noqa: N803, N806 - shape letters

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.matching.clip_footage import ClipFootage
from curator.matching.verify_pair import Match, verify_pair
from curator.stage import Footage, Work
from curator.stages.dedup.near_duplicates import Pair
from curator.tables.footage_store import block_vectors
from curator.vectors.neighbour_pairs import neighbour_pairs
from curator.vectors.vector_index import VectorIndex

VERIFY_S = 0.02
"""CPU-seconds for a pair, about."""
# benchmarks/results/vector_index.md: what the codes of an index change.
CODE_SLACK = 0.05
"""By which cosines of codes may be below those of vectors."""
_UNIT_PAIRS = 256
_SAMPLE = 100_000
"""Vectors from which the cells of an index are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Clips elsewhere with which new ones are compared: all of them stay.

    Attributes:
        key: Changes with its clips; empty for clips that are compared now.
        footage: Of its clips.
        clip_ids: string[N], those that count; None for all.
    """

    key: str = ""
    footage: Footage
    clip_ids: pa.Array | None = None


Named = tuple[int, str]
"""Number of a place, 0 for this output, and the id of a clip."""
IsWanted = Callable[[pa.ChunkedArray], NDArray[np.bool_]]
"""Says which ids of clips count."""


@dataclass(frozen=True, slots=True)
class VerifyPairs:
    """Verifies pairs of clips; can be pickled.

    Attributes:
        footage: Of each place.
    """

    footage: tuple[Footage, ...]

    def __call__(
        self, array: NDArray[np.float32], unit: Sequence[tuple[Named, Named]]
    ) -> list[tuple[Named, Named, Match]]:
        """Returns the verified pairs of a unit."""
        del array
        known: dict[Named, ClipFootage] = {}
        for place, footage in enumerate(self.footage):
            wanted = {clip for pair in unit for at, clip in pair if at == place}
            known |= {(place, name): one for name, one in footage.clips(sorted(wanted)).items()}
        found = []
        for a, b in unit:
            if a in known and b in known and (match := verify_pair(known[a], known[b])) is not None:
                found.append((a, b, match))
        return found


def find_pairs(
    own: Place,
    new: pa.Array,
    places: Sequence[Place],
    work: Work,
    *,
    known_places: Collection[str],
    similarity: float,
    neighbours: int,
) -> Iterator[Pair]:
    """Finds pairs that were not compared: of a new clip, or of a clip of a new place.

    Args:
        own: Clips of this output.
        new: string[N], ids of those that were not compared with any other.
        places: Others, with which all clips of this output are compared.
        work: Where pairs are verified.
        known_places: Keys of those with which all but the new clips were compared.
        similarity: Cosine of two pictures from which their clips are compared.
        neighbours: Most similar clips of each picture that are looked at.
    """
    new_places = {at for at, one in enumerate(places, 1) if one.key not in known_places}
    if not len(new) and not new_places:
        return
    if not places and own.clip_ids is not None and len(own.clip_ids) < 2:
        return
    indexed = _Indexed()
    for at, place in enumerate(places, 1):
        indexed.add(at, place.footage, _are_in(place.clip_ids))
    since = indexed.n_vectors
    is_own, is_new = _are_in(own.clip_ids), _are_in(new)
    indexed.add(0, own.footage, lambda ids: is_own(ids) & ~is_new(ids))
    n_compared = len(indexed.names)
    since = since if new_places else indexed.n_vectors
    indexed.add(0, own.footage, is_new)
    proposed = sorted(
        (indexed.names[a], indexed.names[b])
        for a, b in indexed.pairs(work, similarity, neighbours, since)
        if max(a, b) >= n_compared or {indexed.names[a][0], indexed.names[b][0]} & new_places
    )
    # Two clips of other places are no concern of this output.
    proposed = [(a, b) for a, b in proposed if a[0] == 0]
    units = [proposed[at : at + _UNIT_PAIRS] for at in range(0, len(proposed), _UNIT_PAIRS)]
    verify = VerifyPairs((own.footage, *(place.footage for place in places)))
    nothing = np.zeros((0, 1), np.float32)
    for found in work(verify, nothing, units, cpu_s=VERIFY_S * len(proposed)):
        for (_, clip_id), (at, other), match in found:
            key = places[at - 1].key if at else ""
            yield Pair(clip_id=clip_id, other=other, place=key, match=match)


@dataclass(slots=True)
class _Indexed:
    """An index of the vectors of clips, which are numbered in the order in which they come."""

    names: list[Named] = field(default_factory=list)
    index: VectorIndex | None = None

    @property
    def n_vectors(self) -> int:
        """Vectors so far."""
        return self.index.n_vectors if self.index is not None else 0

    def add(self, place: int, footage: Footage, wanted: IsWanted) -> None:
        """Adds the wanted clips of a place."""
        for block in footage.blocks():
            block = block.filter(pa.array(wanted(block["clip_id"])))
            vectors_ND, owners = block_vectors(block)
            if len(vectors_ND):
                if self.index is None:
                    self.index = _index(vectors_ND, len(getattr(footage, "parts", ())))
                self.index.add(vectors_ND, owners + len(self.names))
            self.names += [(place, name) for name in block["clip_id"].to_pylist()]

    def pairs(
        self, work: Work, similarity: float, neighbours: int, since: int
    ) -> list[tuple[int, int]]:
        """Returns pairs of clips with similar pictures, the clip of this output first."""
        if self.index is None:
            return []
        least = max(similarity - CODE_SLACK, CODE_SLACK)
        found = neighbour_pairs(self.index, work, least=least, k=neighbours, since=since)
        unlike = np.unique(np.sort(found.owners, axis=1), axis=0).tolist()
        return [(a, b) if self.names[a] <= self.names[b] else (b, a) for a, b in unlike]


def _index(vectors_ND: NDArray[np.float32], n_parts: int) -> VectorIndex:
    step = max(1, len(vectors_ND) // _SAMPLE)
    return VectorIndex.trained(vectors_ND[::step], len(vectors_ND) * max(1, n_parts))


def _are_in(ids: pa.Array | None) -> IsWanted:
    """Returns what says which values are among some; None for all."""

    def are_in(values: pa.ChunkedArray) -> NDArray[np.bool_]:
        if ids is None:
            return np.ones(len(values), np.bool_)
        mask: NDArray[np.bool_] = np.array(pc.is_in(values, value_set=ids))
        return mask

    return are_in

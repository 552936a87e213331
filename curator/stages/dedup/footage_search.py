"""Finds pairs of clips that show the same footage.

An index of the vectors of pictures proposes pairs of clips. Each pair is then verified by its
pictures and luma, on workers where there are many. The pairs are the same wherever that is done.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curator.matching.clip_footage import ClipFootage
from curator.matching.verify_pair import Match, verify_pair
from curator.stage import Elsewhere, Footage, Work
from curator.stages.dedup.near_duplicates import Pair
from curator.tables.footage_index import FootageIndex
from curator.vectors.neighbour_pairs import NeighbourSearch
from curator.vectors.vector_codes import blocks

VERIFY_S = 0.02  # CPU-seconds for a pair, about
# benchmarks/results/vector_index.md: what the codes of an index change.
CODE_SLACK = 0.05  # by which cosines of codes may be below those of vectors
_UNIT_PAIRS = 256

Named = tuple[int, str]  # number of a place, 0 for this output, and the id of a clip


@dataclass(frozen=True, slots=True)
class VerifyPairs:
    """Verifies pairs of clips; can be pickled."""

    footage: tuple[Footage, ...]  # of each place

    def __call__(
        self, array: NDArray[np.float32], unit: Sequence[tuple[Named, Named]]
    ) -> list[tuple[Named, Named, Match]]:
        """Returns the verified pairs of a unit."""
        del array
        clips: dict[Named, ClipFootage] = {}
        for place, footage in enumerate(self.footage):
            wanted = {clip for pair in unit for at, clip in pair if at == place}
            clips |= {(place, name): clip for name, clip in footage.clips(sorted(wanted)).items()}
        matches = []
        for a, b in unit:
            if a in clips and b in clips and (match := verify_pair(clips[a], clips[b])) is not None:
                matches.append((a, b, match))
        return matches


def find_pairs(
    own: Footage,
    ids: pa.Array,
    new: pa.Array,
    places: Sequence[Elsewhere],
    work: Work,
    *,
    known_places: Collection[str],
    similarity: float,
    neighbours: int,
) -> Iterator[Pair]:
    """Finds pairs that were not compared: of a new clip, or of a clip of a new place.

    Args:
        own: Footage of the clips of this output, and perhaps of others.
        ids: string[N], its clips.
        new: string[N], those that were not compared with any other.
        places: Others, with which all clips of this output are compared.
        work: Where pairs are verified.
        known_places: Keys of those with which all but the new clips were compared.
        similarity: Cosine of two pictures from which their clips are compared.
        neighbours: Most similar clips of each picture that are looked at.
    """
    new_places = [at for at, place in enumerate(places, 1) if place.key not in known_places]
    if not len(new) and not new_places:
        return
    if not places and len(ids) < 2:
        return
    footages = (own, *(place.footage for place in places))
    clip_ids = [ids, *(place.clip_ids for place in places)]
    n_clips = sum(len(some) for some in clip_ids if some is not None)
    indexed = FootageIndex(footages, work, n_clips=n_clips)
    place_of = _places(indexed, clip_ids)
    owners = _proposed(
        indexed, place_of, new, new_places, work, similarity=similarity, k=neighbours
    )
    units = (_named(indexed, place_of, owners[at]) for at in blocks(len(owners), _UNIT_PAIRS))
    nothing = np.zeros((0, 1), np.float32)
    for matches in work(VerifyPairs(footages), nothing, units, cpu_s=VERIFY_S * len(owners)):
        for (_, clip_id), (place, other), match in matches:
            key = places[place - 1].key if place else ""
            yield Pair(clip_id=clip_id, other=other, place=key, match=match)


def _places(indexed: FootageIndex, clip_ids: Sequence[pa.Array | None]) -> NDArray[np.int16]:
    """Returns the place of each owner, int16 [O]; -1 of clips that do not count."""
    place_of = np.full(indexed.n_owners, -1, np.int16)
    for place, ids in reversed(list(enumerate(clip_ids))):
        place_of[indexed.mask(place, ids)] = place
    return place_of


def _proposed(
    indexed: FootageIndex,
    place_of: NDArray[np.int16],
    new: pa.Array,
    new_places: Sequence[int],
    work: Work,
    *,
    similarity: float,
    k: int,
) -> NDArray[np.int64]:
    """Returns pairs of clips with similar pictures, by owners, int64 [P, 2]."""
    if indexed.index is None:
        return np.zeros((0, 2), np.int64)
    is_new = indexed.mask(0, new)
    is_asking = place_of == 0 if new_places else is_new
    search = NeighbourSearch(
        index=indexed.index,
        least=max(similarity - CODE_SLACK, CODE_SLACK),
        k=k,
        since=indexed.first_number(is_asking),
        asking=is_asking,
        allowed=place_of >= 0,
    )
    owners = search.owners(work)
    is_of_new_place = np.isin(place_of, new_places)
    # Two clips of other places are no concern of this output.
    is_wanted = (place_of == 0)[owners].any(axis=1)
    is_wanted &= (is_new | is_of_new_place)[owners].any(axis=1)
    wanted: NDArray[np.int64] = owners[is_wanted]
    return wanted


def _named(
    indexed: FootageIndex, place_of: NDArray[np.int16], owners: NDArray[np.int64]
) -> list[tuple[Named, Named]]:
    """Returns pairs by their names, the clip of this output first."""
    first, second = (
        list(zip(place_of[side].tolist(), indexed.clip_ids(side), strict=True)) for side in owners.T
    )
    return [(min(a, b), max(a, b)) for a, b in zip(first, second, strict=True)]

"""Finds pairs of clips that show the same footage.

An index of the vectors of pictures proposes pairs. A comparison of pictures and luma then verifies
each pair, on workers if there are many pairs. The result does not depend on the workers.

Pairs do not depend on the rules and preferences that a rerun may change. So pairs are stored: after
a change of a preference or share, a run compares only new clips.

Windows of one take are compared as one clip, because a window may be too short for a vector, and
for a verification. The footage that two takes share then gives the pairs of their windows.

Shape letters: N clips, P pairs, O owners in an index (clips with vectors).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curator.matching.clip_footage import ClipFootage, joined
from curator.matching.verify_pair import COMMON_EDITS, Edits, Match, verify_pair
from curator.media.opencv import for_small_pictures
from curator.stage import Footage, ReferenceClips, Work
from curator.tables.duplicate_pairs import Pair
from curator.tables.footage_index import FootageIndex
from curator.tables.footage_store import NO_FOOTAGE, described_footage
from curator.vectors.neighbour_pairs import NeighbourSearch
from curator.vectors.vector_codes import blocks

_VERIFY_S = 0.02  # about, CPU-seconds per pair
# benchmarks/results/vector_index.md has the effect of the index's codes on cosines.
_CODE_SLACK = 0.05  # a cosine of codes may be lower than the cosine of the vectors by this
_UNIT_PAIRS = 256
_N_OWN = 2
"""Footages of this output: stored ones, and ones that got vectors for this search."""

_MIN_SHARED_S = 0.1  # least overlap of two windows of takes that show the same footage

Members = tuple[tuple[str, float], ...]
"""Ids of the windows of a take, and their begins in the take in seconds. A clip is one member."""
_Take = tuple[int, Members]  # number of a footage (below `_N_OWN` for this output), its windows
_Named = tuple[int, str]  # number of a footage, id of a clip
Windows = list[tuple[ClipFootage, float]]
"""Footage of the windows of a take, and their begins in the take in seconds."""


class Takes:
    """Windows in takes, which have numbers; other clips are takes of their own.

    `undescribed` are the windows of takes without a vector. They get vectors of their pictures.
    """

    def __init__(
        self,
        ids: pa.Array,
        take: NDArray[np.int64],
        start_s: NDArray[np.float64],
        is_described: NDArray[np.bool_],
    ) -> None:
        order = np.lexsort((start_s, take))
        self._ids = ids.take(pa.array(order))
        self._take, self._start_s = take[order], start_s[order]
        has_vector = np.isin(self._take, take[is_described])
        self.undescribed = self._ids.filter(pa.array(~has_vector))

    def take_of(self, ids: pa.Array) -> NDArray[np.int64]:
        """Returns the take of each clip, -1 for clips that are in no take, int64 [N]."""
        rows = pc.index_in(ids, value_set=self._ids).fill_null(-1).to_numpy().astype(np.int64)
        return np.where(rows >= 0, self._take[rows], -1)

    def members(self, take: int) -> Members:
        """Returns the windows of a take."""
        a, b = np.searchsorted(self._take, [take, take + 1])
        start_s = self._start_s[a:b] - self._start_s[a]
        return tuple(zip(self._ids[a:b].to_pylist(), start_s.tolist(), strict=True))


def find_pairs(
    own: Footage,
    ids: pa.Array,
    new: pa.Array,
    places: Sequence[ReferenceClips],
    work: Work,
    *,
    known_places: Collection[str],
    similarity: float,
    neighbours: int,
    among: bool = True,
    edits: Edits = COMMON_EDITS,
    takes: Takes | None = None,
) -> Iterator[Pair]:
    """Finds pairs that earlier searches did not compare: of a new clip, or of a new place.

    Args:
        own: Footage of this output, perhaps of more clips than `ids`.
        ids: string [N], the clips of this output.
        new: string [M], the clips in `ids` that were never compared.
        places: Other places; clips of this output are compared with all of them.
        work: Runs the verification of pairs.
        known_places: Keys of places with which all clips but `new` were compared.
        similarity: Cosine of two pictures from which their clips are compared.
        neighbours: Number of most similar clips that are compared, for each picture.
        among: Whether clips of this output are compared with each other too. If not, they do not
            count among the neighbours, so that no number of similar clips hides a clip of a place,
            and clips without a vector get vectors of their pictures.
        edits: What clips of this output may be, besides the common edits.
        takes: The takes of clips that are windows; None without windows.
    """
    new_places = [at for at, p in enumerate(places, _N_OWN) if p.key not in known_places]
    if not (len(new) or new_places) or not (places or (among and len(ids) > 1)):
        return
    named = ids if new_places else new
    if among and takes is not None:
        named = named.filter(pc.is_in(named, value_set=takes.undescribed))
    is_described = among and (takes is None or not len(named))
    described = NO_FOOTAGE if is_described else described_footage(own, named)
    footages = (own, described, *(place.footage for place in places))
    clip_ids = [ids, named, *(place.clip_ids for place in places)]
    n_clips = sum(len(some) for some in clip_ids if some is not None)
    indexed = FootageIndex(footages, work, n_clips=n_clips)
    if indexed.index is None:
        return
    # The number of each owner's place, int16 [O]; -1 for clips that are not compared.
    place_of = np.full(indexed.n_owners, -1, np.int16)
    for number, some in reversed(list(enumerate(clip_ids))):
        place_of[indexed.mask(number, some)] = number
    is_new = indexed.mask(0, new) | indexed.mask(1, new)
    is_own = (place_of >= 0) & (place_of < _N_OWN)
    group_of, members_of = _groups(indexed, place_of, takes)
    is_new = _of_groups(is_new, group_of)
    is_asking = is_own if new_places else is_new
    search = NeighbourSearch(
        index=indexed.index,
        least=max(similarity - _CODE_SLACK, _CODE_SLACK),
        k=neighbours,
        since=indexed.first_number(is_asking),
        asking=is_asking,
        allowed=place_of >= (0 if among else _N_OWN),
        group_of=group_of,
    )
    owners = search.owners(work)
    # A pair needs a clip of this output, and a clip that is new or of a new place.
    is_wanted = is_own[owners].any(axis=1)
    is_wanted &= (is_new | np.isin(place_of, new_places))[owners].any(axis=1)
    owners = owners[is_wanted]
    units = (
        _named(indexed, place_of, members_of, owners[at]) for at in blocks(len(owners), _UNIT_PAIRS)
    )
    new_ids = set(new.to_pylist()) if takes is not None else set[str]()
    verify, nothing = partial(_verified, footages, edits), np.zeros((0, 1), np.float32)
    for matches in work(verify, nothing, units, cpu_s=_VERIFY_S * len(owners)):
        for (_, clip_id), (number, other), match in matches:
            # The other windows of a take were compared before.
            is_news = takes is None or number in new_places or not new_ids.isdisjoint(
                (clip_id, other) if number < _N_OWN else (clip_id,)
            )  # fmt: skip
            if not is_news:
                continue
            key = places[number - _N_OWN].key if number >= _N_OWN else ""
            yield Pair(clip_id=clip_id, other=other, place=key, match=match)


def _groups(
    indexed: FootageIndex, place_of: NDArray[np.int16], takes: Takes | None
) -> tuple[NDArray[np.int64] | None, Mapping[int, Members]]:
    """Returns the first owner of each owner's take, int64 [O], and the takes of first owners."""
    if takes is None:
        return None, {}
    group_of = np.arange(indexed.n_owners)
    members_of: dict[int, Members] = {}
    for place in range(_N_OWN):
        owners = np.flatnonzero(place_of == place)
        take = takes.take_of(pa.array(indexed.clip_ids(owners), pa.string()))
        owners, take = owners[take >= 0], take[take >= 0]
        numbers, first, group = np.unique(take, return_index=True, return_inverse=True)
        group_of[owners] = owners[first][group.reshape(-1)]
        members = map(takes.members, numbers.tolist())
        members_of |= zip(owners[first].tolist(), members, strict=True)
    return group_of, members_of


def _of_groups(mask: NDArray[np.bool_], group_of: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """Returns whether `mask` has any owner of each owner's group, bool [O]."""
    if group_of is None:
        return mask
    has_any = np.zeros(len(mask), np.bool_)
    has_any[group_of[mask]] = True
    return has_any[group_of]


def _named(
    indexed: FootageIndex,
    place_of: NDArray[np.int16],
    members_of: Mapping[int, Members],
    owners: NDArray[np.int64],
) -> list[tuple[_Take, _Take]]:
    """Returns pairs of owners as place and windows, the clip of this output first."""
    first, second = (
        [
            (place, members_of.get(owner) or ((name, 0.0),))
            for place, owner, name in zip(
                place_of[side].tolist(), side.tolist(), indexed.clip_ids(side), strict=True
            )
        ]
        for side in owners.T
    )
    return [(min(a, b), max(a, b)) for a, b in zip(first, second, strict=True)]


@for_small_pictures()
def _verified(
    footages: Sequence[Footage],
    edits: Edits,
    _: NDArray[np.float32],
    unit: Sequence[tuple[_Take, _Take]],
) -> list[tuple[_Named, _Named, Match]]:
    """Returns the pairs of a unit that show the same footage; `footages` are those of places."""
    clips: dict[_Named, ClipFootage] = {}
    for place, footage in enumerate(footages):
        wanted = {name for pair in unit for at, of in pair if at == place for name, _ in of}
        clips |= {(place, name): clip for name, clip in footage.clips(sorted(wanted)).items()}

    @lru_cache(maxsize=len(unit))
    def windows(take: _Take) -> Windows:
        place, members = take
        known = [(clips[place, name], at_s) for name, at_s in members if (place, name) in clips]
        return [(clip, at_s - known[0][1]) for clip, at_s in known]

    @lru_cache(maxsize=len(unit))
    def whole(take: _Take) -> ClipFootage | None:
        return joined(windows(take)) if windows(take) else None

    matches = []
    for a, b in unit:
        one, other = whole(a), whole(b)
        match = None if one is None or other is None else verify_pair(one, other, edits)
        if match is not None:
            for first, second, shared in _by_window(match, windows(a), windows(b)):
                matches.append(((a[0], first), (b[0], second), shared))
    return matches


def _by_window(match: Match, a: Windows, b: Windows) -> Iterator[tuple[str, str, Match]]:
    """Yields the windows of two takes that show the same part of the footage that takes share."""
    if len(a) == len(b) == 1:
        yield a[0][0].clip_id, b[0][0].clip_id, match
        return
    end_s = match.start_s + match.overlap_s
    for one, one_s in a:
        for other, other_s in b:
            in_a_s = [(at_s - match.offset_s) / match.speed
                      for at_s in (other_s, other_s + other.duration_s)]  # fmt: skip
            first_s = max(match.start_s, one_s, in_a_s[0])
            overlap_s = min(end_s, one_s + one.duration_s, in_a_s[1]) - first_s
            if overlap_s >= _MIN_SHARED_S:
                yield (
                    one.clip_id,
                    other.clip_id,
                    replace(
                        match,
                        offset_s=match.speed * one_s + match.offset_s - other_s,
                        start_s=first_s - one_s,
                        overlap_s=overlap_s,
                        share_a=min(1.0, overlap_s / one.duration_s),
                        share_b=min(1.0, overlap_s * match.speed / other.duration_s),
                    ),
                )

"""Decides which of the clips with the same footage stay, and which parts of the others stay.

The decision visits clips from best to worst, and drops a clip if a clip that stays shows enough of
it. In a chain A ~ B ~ C in which A and C differ, only B is dropped: B drops no other clip. The
result is the maximal independent set in the order of ranks. Only the set of clips determines it,
not their order or the number of workers.

Then a clip is dropped if a longer clip of lower rank, with at least as many pixels, shows enough of
it. Otherwise the footage would stay twice.

Then clips are divided: first the clips that stay, from best to worst, then the dropped clips. Each
clip loses the footage that earlier clips retain. A dropped clip retains the rest. A clip that stays
is divided only if the division loses little footage. So no footage is retained twice.

Shape letters: N clips, P pairs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Piece = tuple[float, float]  # begin and end, in seconds from the first frame of a clip
ELSEWHERE = -1  # number of any clip of another place: all of it stays
# matching/verify_pair.py moves ends within 0.6 s of a whole overlap to the whole overlap.
_WHOLE_SLACK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The facts that decide which clip of a pair stays."""

    order: NDArray[np.int64]  # int64 [N], numbers of clips from best to worst
    pixels: NDArray[np.int64]  # int64 [N]
    n_frames: NDArray[np.int64]  # int64 [N]


def dropped_clips(
    ranked: Ranked,
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    share_first: NDArray[np.float64],
    share_second: NDArray[np.float64],
    *,
    min_share: float,
) -> dict[int, tuple[int, int]]:
    """Decides which clips are dropped.

    `first` and `second` are the numbers of the clips of each pair, int64 [P]. `share_first` is the
    share of the first clip that the second clip shows, `share_second` the converse, float64 [P].
    A clip can be dropped if its share is at least `min_share`.

    Returns:
        By dropped clip: the clip that stays and shows the most of it, and the number of their pair.
        Among clips that show as much, the better clip.
    """
    shown_by: defaultdict[int, list[tuple[float, int, int]]] = defaultdict(list)
    rank = np.argsort(ranked.order)
    shares = ((first, second, share_first), (second, first, share_second))
    for clips, others, share in shares:
        for pair in np.flatnonzero(share >= min_share).tolist():
            shown_by[int(clips[pair])].append((-float(share[pair]), int(others[pair]), pair))
    dropped: dict[int, tuple[int, int]] = {}

    def drop(clip: int, shown: Sequence[tuple[float, int, int]]) -> None:
        staying = [(share, rank[other], other, pair) for share, other, pair in shown
                   if other not in dropped]  # fmt: skip
        if staying:
            dropped[clip] = min(staying)[2:]

    for clip in sorted(shown_by, key=rank.__getitem__):
        drop(clip, [entry for entry in shown_by[clip] if rank[entry[1]] < rank[clip]])
    retained = [clip for clip in shown_by if clip not in dropped]
    # The longest first, so that a dropped clip drops no other clip.
    for clip in sorted(retained, key=lambda row: (-int(ranked.n_frames[row]), rank[row])):
        longer = [
            entry
            for entry in shown_by[clip]
            if ranked.pixels[entry[1]] >= ranked.pixels[clip]
            and ranked.n_frames[entry[1]] > ranked.n_frames[clip]
        ]
        drop(clip, longer)
    # If the clip that dropped another clip is dropped, the other clip is decided again.
    gone = {clip for clip, (other, _) in dropped.items() if other in dropped}
    for clip in sorted(gone, key=rank.__getitem__):
        del dropped[clip]
        drop(clip, shown_by[clip])
    return dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestClip:
    """Length of the shortest clip that can be kept."""

    seconds: float
    n_frames: int

    def seconds_at(self, fps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the length at each frame rate, in seconds, float64 [N]."""
        return np.maximum(self.seconds, self.n_frames / np.maximum(fps, 1e-3))


NO_LENGTH = ShortestClip(seconds=0.0, n_frames=1)  # any clip can be kept


@dataclass(frozen=True, slots=True)
class Shown:
    """Another clip that shows a part of a clip: `time_other = speed * time + offset_s`."""

    other: int  # number of the other clip, or `ELSEWHERE`
    offset_s: float  # time of the clip's first frame in the other clip
    speed: float  # seconds of the other clip per second of the clip
    overlap_s: float  # length of the shared part, in seconds of the clip
    other_s: float  # length of the other clip
    pair: int  # number of the pair

    def pieces(self, retained: Sequence[Piece], clip_s: float) -> list[Piece]:
        """Returns pieces of the other clip as spans of the clip, within its length `clip_s`."""
        moved = [[(at - self.offset_s) / self.speed for at in piece] for piece in retained]
        cut = ((max(0.0, start), min(clip_s, end)) for start, end in moved)
        return [(start, end) for start, end in cut if end > start]

    def is_whole(self, clip_s: float) -> bool:
        """Whether the overlap is as long as lengths and offset allow: its ends are then known."""
        ((start, end),) = self.pieces([(0.0, self.other_s)], clip_s) or [(0.0, 0.0)]
        return self.overlap_s >= end - start - _WHOLE_SLACK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The parts of a clip that are retained."""

    pieces: list[Piece]  # each at least as long as the shortest clip
    shared_s: float  # seconds that other clips retain
    lost_s: float  # seconds in parts that are too short for a clip
    largest: Shown | None  # the clip that retains the most of this clip
    is_whole: bool  # whether one piece is the clip, but for a few frames: the clip itself stays

    @property
    def shared_share(self) -> float:
        """Share of the clip that other clips retain, if it has no pieces."""
        return self.shared_s / max(self.shared_s + self.lost_s, 1e-9)


class ShownParts:
    """The clips that show parts of each clip, from rows of `PAIRS_SCHEMA`.

    `first` and `second` are the numbers of `clip_id` and `other`, int64 [P]; -1 for clips to ignore
    and for clips of other places.
    """

    def __init__(
        self, pairs: pa.Table, first: NDArray[np.int64], second: NDArray[np.int64]
    ) -> None:
        names = ("offset_s", "speed", "overlap_s", "share", "share_of_other")
        offset_s, speed, overlap_s, share, share_other = (
            pairs[name].to_numpy().astype(np.float64) for name in names
        )
        is_elsewhere = pairs["place"].to_numpy() >= 0
        usable = (first >= 0) & (is_elsewhere | (second >= 0))
        usable &= np.minimum(np.minimum(share, share_other), overlap_s) > 0
        both = np.flatnonzero(usable), np.flatnonzero(usable & ~is_elsewhere)
        others = np.where(is_elsewhere, ELSEWHERE, second)
        with np.errstate(divide="ignore", invalid="ignore"):
            seen = [offset_s, speed, overlap_s, overlap_s * speed / share_other]
            turned = [-offset_s / speed, 1 / speed, overlap_s * speed, overlap_s / share]
        clips = np.concatenate([first[both[0]], second[both[1]]])
        columns = [(others, first), *zip(seen, turned, strict=True)]
        order = np.argsort(clips, kind="stable")
        self._clips = clips[order]
        self._columns = [
            np.concatenate([column[rows] for column, rows in zip(pair, both, strict=True)])[order]
            for pair in columns
        ] + [np.concatenate(both)[order]]

    @property
    def clips(self) -> set[int]:
        """Numbers of the clips of which another clip shows a part."""
        return set(self._clips.tolist())

    def of(self, clip: int) -> list[Shown]:
        """Returns the clips that show parts of a clip."""
        a, b = np.searchsorted(self._clips, [clip, clip + 1])
        values = (column[a:b].tolist() for column in self._columns)
        return [Shown(*row) for row in zip(*values, strict=True)]

    def is_known_elsewhere(self, clip: int, clip_s: float) -> bool:
        """Whether both ends of each part that another place shows are known."""
        return all(part.is_whole(clip_s) for part in self.of(clip) if part.other == ELSEWHERE)


def divisions(
    staying: Iterable[int],
    going: Iterable[int],
    shown: ShownParts,
    clip_s: NDArray[np.float64],
    shortest_s: NDArray[np.float64],
    is_window: NDArray[np.bool_],
    *,
    max_lost: float,
) -> dict[int, Division]:
    """Divides dropped clips, and clips that stay if the division loses little.

    No part of a window is a clip, because it would be shorter. So a window that stays is dropped if
    the clips that show parts of it show nearly all of it together.

    Args:
        staying: Numbers of clips that stay, from best to worst.
        going: Numbers of dropped clips, from best to worst.
        shown: The clips that show parts of them.
        clip_s: float64 [N], lengths of clips.
        shortest_s: float64 [N], shortest piece of each clip that becomes a clip.
        is_window: bool [N], clips of which no part becomes a clip.
        max_lost: Largest share of a clip that may be lost if a clip that stays is divided.
    """
    retained: dict[int, list[Piece]] = {}
    by_clip: dict[int, Division] = {}
    for clips, may_stay in ((staying, True), (going, False)):
        for clip in clips:
            own_s = float(clip_s[clip])
            counting = [
                part
                for part in shown.of(clip)
                if (part.other in retained or part.other == ELSEWHERE)
                and (not may_stay or part.is_whole(own_s))
            ]
            least_s = own_s - _WHOLE_SLACK_S if is_window[clip] else float(shortest_s[clip])
            one = _division(counting, retained, own_s, least_s)
            is_enough = bool(is_window[clip]) or one.shared_s >= least_s
            is_worth_it = is_enough and one.lost_s <= max_lost * own_s
            if may_stay and not is_worth_it:
                retained[clip] = [(0.0, own_s)]
            else:
                retained[clip] = [(0.0, own_s)] if one.is_whole else one.pieces
                by_clip[clip] = one
    return by_clip


def _division(
    shown: Sequence[Shown], retained: Mapping[int, list[Piece]], clip_s: float, shortest_s: float
) -> Division:
    of = [part.pieces(retained.get(part.other, [(0.0, part.other_s)]), clip_s) for part in shown]
    left, at, shared_s = [], 0.0, 0.0
    for start, end in sorted(piece for pieces in of for piece in pieces):
        if start > at:
            left.append((at, start))
        shared_s += max(0.0, end - max(at, start))
        at = max(at, end)
    if clip_s > at:
        left.append((at, clip_s))
    pieces = [piece for piece in left if piece[1] - piece[0] >= shortest_s - 1e-6]
    lost_s = sum(b - a for a, b in left) - sum(b - a for a, b in pieces)
    sizes = [sum(b - a for a, b in pieces_of) for pieces_of in of]
    largest = shown[int(np.argmax(sizes))] if sizes else None
    is_whole = any(end - start > clip_s - _WHOLE_SLACK_S for start, end in pieces)
    return Division(
        pieces=pieces, shared_s=shared_s, lost_s=lost_s, largest=largest, is_whole=is_whole
    )

"""Which clips stay of those that show the same footage.

Clips are visited from best to worst. A clip is dropped if a clip that stays shows enough of it. So
a chain A ~ B ~ C in which A and C differ loses B only: similarity to a dropped clip drops nothing.
The result is the maximal independent set in the order of ranks. It depends on the set of clips
alone, and not on their order or the number of workers.

Then a shorter clip goes that ranks above the longer clip that has all of it, if the longer one has
as many pixels: else its footage would stay twice.

Shape letters: N clips, P pairs.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """What decides which clip of a pair stays."""

    order: NDArray[np.int64]  # int64 [N], numbers of clips from the one to retain to the worst
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

    `first` and `second` are the numbers of the clips of each pair, int64 [P]; `share_first` is the
    share of the first clip that the second one shows, and `share_second` the converse, float64 [P].
    From `min_share` on a clip is dropped.

    Returns:
        For each dropped clip, the clip that stays and shows the most of it, and their pair; of
        equals the better clip.
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
    # The longest first, so that what a dropped clip had drops nothing.
    for clip in sorted(retained, key=lambda row: (-int(ranked.n_frames[row]), rank[row])):
        longer = [
            entry
            for entry in shown_by[clip]
            if ranked.pixels[entry[1]] >= ranked.pixels[clip]
            and ranked.n_frames[entry[1]] > ranked.n_frames[clip]
        ]
        drop(clip, longer)
    # Where the clip that was named goes after all, another is named, or the clip stays.
    gone = {clip for clip, (other, _) in dropped.items() if other in dropped}
    for clip in sorted(gone, key=rank.__getitem__):
        del dropped[clip]
        drop(clip, shown_by[clip])
    return dropped

"""Whether a clip may hold a boundary that was not taken for one.

Transitions are those at a probability of 0.5, whatever the recipe's bound; where the network alone
finds the shots, any boundary of the head within the clip counts.
"""

from curator.measures.boundaries import Boundary, boundaries, raised
from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import ScoreSpec

FAMILY = "consistency"

UNLIKE_COSINE, UNLIKE_ODDS = 0.2, 1.5
"""Below this cosine both sides have nothing in common, and the log odds of a doubt rise by so much.

A pan has nothing in common with itself either, so that only doubts rise and no shot is cut for it.
"""


def _shot_doubt(clip: ClipView) -> float | None:
    if not len(clip.track.boundary_probability):
        return None
    start, end = clip.span.start_frame, clip.span.end_frame
    # A boundary at the last frame is the clip's own end.
    return max(map(_doubt, boundaries(clip.track, slice(start, end - 1))), default=0.0)


def _doubt(boundary: Boundary) -> float:
    is_unlike = boundary.likeness is not None and boundary.likeness < UNLIKE_COSINE
    return raised(boundary.probability, UNLIKE_ODDS) if is_unlike else boundary.probability


SCORES = {
    "shot_doubt": ScoreSpec(
        unit="probability",
        range="0 to 1",
        meaning="highest probability of a shot boundary within the clip, of those that were not "
        "taken for one; more where both sides have nothing in common; 0.2 keeps only clips of "
        "which the head is sure",
        outside="shot_doubt",
        of=_shot_doubt,
    )
}

"""Whether two clips show the same footage: alignment in time, then geometry, then movement."""

from dataclasses import dataclass

from curator.matching.clip_footage import ClipFootage

__all__ = ["Match", "verify_pair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The same footage in clips a and b: `time_b = speed * time_a + offset_s`.

    Attributes:
        offset_s: Time in b of a's first frame, in seconds of b; negative where b begins later.
        speed: Seconds of b per second of a: 0.8 where b plays 1.25 times as fast.
        overlap_s: Length of what both show, in seconds of a.
        share_a: Part of a that b shows, 0 to 1.
        share_b: Part of b that a shows, 0 to 1.
        mirrored: One of them is mirrored.
        similarity: Median cosine of picture vectors at the same time of the footage, 0 to 1.
        n_inliers: Keypoints that agree in the best aligned pictures.
    """

    offset_s: float
    speed: float
    overlap_s: float
    share_a: float
    share_b: float
    mirrored: bool
    similarity: float
    n_inliers: int


def verify_pair(a: ClipFootage, b: ClipFootage) -> Match | None:
    """Compares two clips; None where they do not show the same footage."""
    raise NotImplementedError

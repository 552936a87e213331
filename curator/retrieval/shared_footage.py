"""What a video and clips both show, from verified pairs of the video's spans and clips."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from curator.matching.clip_footage import ClipFootage
from curator.matching.verify_pair import verify_pair

SAME_OFFSET_S = 0.5
"""Spans of a video show the same part of a clip where their offsets differ by no more."""

PairsOfSpans = list[tuple[float, ClipFootage, int]]
"""The second of the video at which a span begins, its footage, and the row of a clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFootage:
    """Footage that a video and a clip both show: `time_clip = speed * time_video + offset_s`.

    Attributes:
        query_s: Second of the video at which it begins.
        at_s: Second of the clip at which it begins.
        overlap_s: Its length, in seconds of the video.
        offset_s: Second of the clip at which the video begins; negative where the clip begins
            later than the video.
        speed: Seconds of the clip per second of the video: 0.8 where the clip is 1.25 times as
            fast.
        mirrored: One of them is mirrored.
    """

    query_s: float
    at_s: float
    overlap_s: float
    offset_s: float
    speed: float
    mirrored: bool


def verified_pairs(
    pairs: PairsOfSpans, clips: Mapping[int, ClipFootage]
) -> dict[int, SharedFootage]:
    """Verifies spans and clips; returns what is shared, by the clip's row."""
    by_row: dict[int, list[SharedFootage]] = {}
    for begin_s, span, row in pairs:
        match = verify_pair(span, clips[row]) if row in clips else None
        if match is not None:
            from_s = max(0.0, -match.offset_s / match.speed)
            shared = SharedFootage(
                query_s=begin_s + from_s,
                at_s=max(0.0, match.offset_s),
                overlap_s=match.overlap_s,
                offset_s=match.offset_s - match.speed * begin_s,
                speed=match.speed,
                mirrored=match.mirrored,
            )
            by_row.setdefault(row, []).append(shared)
    return {row: joined_spans(some) for row, some in by_row.items()}


def joined_spans(some: Sequence[SharedFootage]) -> SharedFootage:
    """Joins what consecutive spans show of one clip to its longest part."""
    longest = max(some, key=lambda span: span.overlap_s)
    same = [
        span
        for span in some
        if span.mirrored == longest.mirrored
        and abs(span.at_s - span.query_s * longest.speed - longest.offset_s) <= SAME_OFFSET_S
    ]
    first = min(same, key=lambda span: span.query_s)
    return SharedFootage(
        query_s=first.query_s,
        at_s=first.at_s,
        overlap_s=sum(span.overlap_s for span in same),
        offset_s=longest.offset_s,
        speed=longest.speed,
        mirrored=longest.mirrored,
    )

"""Judges clips one by one, to compare the judging of whole tables with."""

from collections.abc import Mapping, Sequence

from curator.stages.filter.rules import Bounds, Verdict, judge_rule


def judge(scores: Mapping[str, float | None], bounds: Sequence[Bounds]) -> list[Verdict]:
    """Reasons against one clip, in the order of the rules; none when it passes all that reject."""
    found = [(bound, judge_rule(scores[bound.score], bound)) for bound in bounds]
    return [v for bound, v in found if v is not None and bound.severity == "reject"]


def flags(scores: Mapping[str, float | None], bounds: Sequence[Bounds]) -> list[str]:
    """Tags that rules put on one clip; none for a score that it has not: nothing is known of it."""
    found = [(bound, judge_rule(scores[bound.score], bound)) for bound in bounds]
    return list(
        dict.fromkeys(
            bound.tag(v.reason)
            for bound, v in found
            if v is not None and bound.severity == "flag" and v.score is not None
        )
    )

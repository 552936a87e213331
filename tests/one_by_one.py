"""Filters clips one by one, to compare the filtering of whole tables with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from curator.measures.rules import Bounds
from curator.measures.score_list import BUILT_IN
from curator.records.clips import Reason


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One reason against a clip."""

    reason: str
    score: float | None
    threshold: float


def verdicts_on(scores: Mapping[str, float | None], bounds: Sequence[Bounds]) -> list[Verdict]:
    """Reasons against one clip, in the order of the rules; none when it passes all that reject."""
    found = [(bound, _verdict(scores[bound.score], bound)) for bound in bounds]
    return [v for bound, v in found if v is not None and bound.severity == "reject"]


def flags(scores: Mapping[str, float | None], bounds: Sequence[Bounds]) -> list[str]:
    """Tags that rules put on one clip; none for a score that it has not: nothing is known of it."""
    found = [(bound, _verdict(scores[bound.score], bound)) for bound in bounds]
    return list(
        dict.fromkeys(
            bound.tag(v.reason)
            for bound, v in found
            if v is not None and bound.severity == "flag" and v.score is not None
        )
    )


def _verdict(score: float | None, bound: Bounds) -> Verdict | None:
    """A rule's reason against a score, whatever its severity."""
    spec = BUILT_IN.spec_of(bound.score)
    least = bound.min if bound.min is not None else bound.max
    if least is None or (score is None and bound.unmeasured == "keep"):
        return None
    if score is None:
        return Verdict(reason=Reason.NOT_MEASURED, score=None, threshold=least)
    if bound.min is not None and score < bound.min:
        return Verdict(reason=spec.low, score=score, threshold=bound.min)
    if bound.max is not None and score > bound.max:
        return Verdict(reason=spec.high, score=score, threshold=bound.max)
    return None

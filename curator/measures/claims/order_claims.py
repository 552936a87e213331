"""Claims about the order of the camera's movements, and about fades at the ends of the clip."""

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from curator.measures.claims import camera_claims
from curator.measures.claims.claim_records import (
    UNMEASURED,
    ClaimKind,
    Found,
    Judgement,
    Measured,
    Verdict,
    compiled,
)
from curator.measures.claims.sentences import Sentence

_THEN = re.compile(
    r"\b(?:then|before|later|after(?:wards?| which| that)|followed by|finally|subsequently|next)\b"
)
_REVERSED = re.compile(r"\bafter\b")
_FADES = compiled(
    {
        "fade_in": (
            r"fad(?:es?|ing)[- ]in(?: from (?:a )?black)?",
            r"fad(?:es?|ing) (?:up )?from (?:a )?(?:black|darkness)",
            r"(?:emerges?|appears?) from (?:a )?(?:black|darkness)",
            r"(?:opening|first) frames? (?:is|are) (?:\w+ )?black",
            r"(?:starts|begins|opens) (?:in|with|on) (?:a )?black",
        ),
        "fade_out": (
            r"fad(?:es?|ing)(?:[- ]out| (?:in)?to (?:a )?(?:black|darkness))",
            r"ends (?:in|on|with) (?:a )?black",
        ),
    }
)  # fmt: skip
_AT_END_S, _BLACK, _SEEN = 0.3, 0.04, 0.12


def find(sentence: Sentence) -> Iterator[Found]:
    """Yields `move>move` for two movements in the order that the caption gives, and fades."""
    found = [each for each in camera_claims.find(sentence) if not each.is_negated]
    found = [each._replace(value=camera_claims.ALONG.get(each.value, each.value)) for each in found]
    moves = [each for each in found if each.value in camera_claims.SIGNAL]
    for first, second in pairwise(moves):
        between = sentence.plain[first.end : second.start]
        if first.value != second.value and _THEN.search(between):
            yield Found(f"{first.value}>{second.value}", first.start, second.end)
        elif first.value != second.value and _REVERSED.search(between):
            yield Found(f"{second.value}>{first.value}", first.start, second.end)
    for value, pattern in _FADES:
        for match in pattern.finditer(sentence.plain):
            if not sentence.is_hedged(*match.span()):
                yield Found(value, *match.span(), sentence.is_negated(*match.span()))


def judge(value: str, measured: Measured) -> Judgement:
    """Judges fades by the luma of frames, and orders by the times at which movements happen."""
    return _fade(value, measured) if value.startswith("fade") else _order(value, measured)


def _fade(value: str, measured: Measured) -> Judgement:
    luma = measured.frames("luma_mean")
    if not len(luma):
        return UNMEASURED
    n_end = max(1, round(len(luma) * min(1.0, _AT_END_S / max(measured.seconds, 1e-9))))
    middle = len(luma) // 2
    ends, half = (
        (luma[:n_end], luma[: middle + 1]) if value == "fade_in" else (luma[-n_end:], luma[middle:])
    )
    verdict = Verdict.UNKNOWN
    if ends.min() <= _BLACK < _SEEN <= luma.max():
        verdict = Verdict.CONFIRMED
    elif ends.min() > max(_BLACK, 0.7 * float(np.median(half))):
        verdict = Verdict.CONTRADICTED
    where = "first" if value == "fade_in" else "last"
    return Judgement(
        verdict, f"luma of the {where} frames {ends.min():.2f}, at most {luma.max():.2f}"
    )


def _order(value: str, measured: Measured) -> Judgement:
    before, after = (_middle(measured, move) for move in value.split(">"))
    if before is None or after is None:
        return Judgement(Verdict.UNKNOWN, "a movement is not found")
    (first, first_spread), (second, second_spread) = before, after
    words = f"movements at {first:.1f} s and {second:.1f} s"
    if abs(second - first) < max(1.0, 0.5 * (first_spread + second_spread)):
        return Judgement(Verdict.UNKNOWN, words)
    return Judgement(Verdict.CONFIRMED if first < second else Verdict.CONTRADICTED, words)


def _middle(measured: Measured, move: str) -> tuple[float, float] | None:
    """Returns the mean time of a movement and its spread, in seconds; None if it never happens."""
    rates = camera_claims.rates(measured, move)
    if not len(rates):
        return None
    is_moving = np.nan_to_num(rates) >= 1
    if is_moving.sum() < 2:
        return None
    times_s = measured.samples("sample_s")[is_moving]
    return float(times_s.mean()), float(times_s.std())


KIND = ClaimKind(
    name="order",
    find=find,
    judge=judge,
    signals=("luma_mean", "pan_rate", "tilt_rate", "zoom_rate"),
)

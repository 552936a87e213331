"""Claims about the length of the clip in seconds."""

import re
from collections.abc import Iterator

from curator.measures.claims.claim_records import (
    ClaimKind,
    Found,
    Judgement,
    Measured,
    Verdict,
)
from curator.measures.claims.sentences import NUMBER, Sentence, number_of

_UNIT = r"(?P<unit>seconds?|secs?\b|s\b|minutes?)"
_CLIP = r"(?:clip|video|footage|shot|recording|film|animation|scene|take|sequence|timelapse)"
_ABOUT = r"(?P<about>(?:about|around|roughly|approximately|nearly|almost|only|just|some) )?"
_LENGTH = rf"{_ABOUT}(?P<number>half a|{NUMBER})(?:[- ]|(?<=\d)){_UNIT}"
PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\b(?:lasts?|runs|takes|spans|(?:duration|length)(?: \w+)? (?:is|of))(?: for)? {_LENGTH}",
        rf"\b{_LENGTH}[- ](?:long\b|(?:\w+[- ])?{_CLIP}\b|of (?:video|footage|film)\b|in length\b)",
        rf"\b{_CLIP} (?:of|is) {_LENGTH}",
        rf"^\W*{_LENGTH}\W*$",
    )
)
_IN_SECONDS = {"m": 60.0, "s": 1.0}


def find(sentence: Sentence) -> Iterator[Found]:
    """Yields lengths in seconds; a `~` follows those that the caption gives roughly."""
    end = -1
    for pattern in PATTERNS:
        for match in pattern.finditer(sentence.plain):
            if match.start() < end or sentence.is_hedged(*match.span()):
                continue
            end = match.end()
            number = 0.5 if match["number"] == "half a" else number_of(match["number"])
            seconds = number * _IN_SECONDS[match["unit"][0]]
            about = "~" if match["about"] or match["unit"].startswith("m") else ""
            yield Found(f"{seconds:g}{about}", *match.span(), sentence.is_negated(*match.span()))


def judge(value: str, measured: Measured) -> Judgement:
    """Confirms lengths within 0.75 s or 10%, and contradicts those off by 1.5 s and 30%."""
    claimed, factor = float(value.rstrip("~")), 1.5 if value.endswith("~") else 1.0
    off = abs(measured.seconds - claimed)
    verdict = Verdict.UNKNOWN
    if off <= factor * max(0.75, 0.1 * measured.seconds):
        verdict = Verdict.CONFIRMED
    elif off > factor * max(1.5, 0.3 * measured.seconds):
        verdict = Verdict.CONTRADICTED
    return Judgement(verdict, f"{measured.seconds:.1f} s")


KIND = ClaimKind(name="duration", find=find, judge=judge)

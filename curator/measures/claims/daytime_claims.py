"""Claims about day and night, which the brightness of the picture can contradict."""

from curator.measures.claims.claim_records import (
    ClaimKind,
    Judgement,
    Measured,
    Verdict,
    by_luma,
    by_patterns,
)

_IS = r"(?:it|time|time of day|setting|scene|lighting) (?:is|was)"
PATTERNS = {
    "night": (
        r"at (?:late )?night", r"at midnight", rf"{_IS} (?:late |a )?(?:\w+ )?night",
        r"night[- ]?time", r"after (?:nightfall|dark)", r"(?:moonlit|starry|dark) night",
        r"(?:middle of the|during the|by|late at) night",
        r"night (?:scene|sky|drive|shot|footage|street|setting|view|cityscape)", r"nocturnal",
        r"(?:\A|(?<=, ))(?:\w+ )?night(?=\W*\Z|,)",
    ),
    "day": (
        r"day[- ]?time", r"day ?light", r"in (?:\w+ )?daylight", rf"{_IS} (?:\w+ )?day",
        r"(?:during the|by|the middle of the) day", r"sunny (?:day|afternoon|morning|scene)",
        r"sunlit", r"(?:bright|clear),? (?:sunny )?day", r"at noon", r"midday",
        r"in (?:bright |full |direct |strong )?sun(?:light|shine)",
        r"(?:\A|(?<=, ))(?:\w+ )?day(?=\W*\Z|,)",
    ),
}  # fmt: skip
_BOUNDS = {
    "night": ((0.0, 0.22), (0.0, 0.38), Verdict.CONFIRMED),
    "day": ((0.35, 1.0), (0.16, 1.0), Verdict.CONTRADICTED),
}
"""Luma that fits, luma outside which the word is contradicted, and the verdict about a picture that
is mostly dark."""


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by luma, about 0.25 for streets at night, and by the share of dark pixels."""
    return by_luma(measured, *_BOUNDS[value])


KIND = ClaimKind(
    name="daytime",
    find=by_patterns(PATTERNS),
    judge=judge,
    scores=("luma",),
    signals=("luma_mean",),
)

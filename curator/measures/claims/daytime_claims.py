"""Claims about day and night, which the brightness of the picture can contradict."""

from curator.measures.claims.claim_records import (
    ClaimKind,
    Judgement,
    Measured,
    by_luma,
    by_patterns,
)

PATTERNS = {
    "night": (
        r"at (?:late )?night", r"at midnight", r"it (?:is|was) (?:late |a )?(?:\w+ )?night",
        r"night[- ]?time", r"after (?:nightfall|dark)", r"(?:moonlit|starry|dark) night",
        r"(?:middle of the|during the|by|late at) night", r"night (?:scene|sky|drive|shot)",
    ),
    "day": (
        r"daytime", r"day ?light", r"in (?:\w+ )?daylight", r"it (?:is|was) day",
        r"(?:during the|by|in the middle of the) day", r"sunny (?:day|afternoon)", r"sunlit",
        r"(?:bright|clear),? (?:sunny )?day", r"at noon",
    ),
}  # fmt: skip
_BOUNDS = {"night": ((0.0, 0.22), (0.0, 0.38)), "day": ((0.35, 1.0), (0.16, 1.0))}
"""Luma that fits, and luma outside which the word is contradicted."""


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by the mean luma: streets at night with many lights measure about 0.25."""
    confirms, allows = _BOUNDS[value]
    return by_luma(measured, confirms, allows)


KIND = ClaimKind(
    name="daytime",
    find=by_patterns(PATTERNS),
    judge=judge,
    scores=("luma",),
    signals=("luma_mean",),
)

"""Claims about the brightness of the whole picture."""

from curator.measures.claims.claim_records import (
    ClaimKind,
    Judgement,
    Measured,
    Verdict,
    by_luma,
    by_patterns,
)

_WHOLE = (
    r"(?:scene|room|hall|picture|image|video|clip|footage|shot|frame|lighting|light|setting|"
    r"interior|environment|brightness|recording|studio|screen|space|street|atmosphere)"
)
_VERY = r"(?:very |quite |extremely |rather |fairly |completely |entirely |so |too )*"
_IS = r"(?:is|are|looks|remains|stays|appears|was)"
_DARK, _BRIGHT = r"(?:dark|darkened|underexposed|gloomy)", r"(?:bright|overexposed|dazzling)"


_COLOURED = r"(?! (?:blue|green|red|gr[ae]y))"


def _of(word: str) -> tuple[str, ...]:
    """Returns patterns of a word that describes the whole picture."""
    return (
        rf"{word}(?:, | and | )(?:\w+,? )?{_WHOLE}(?! (?:bulb|blue|green|red|gr[ae]y))",
        rf"{_WHOLE}(?: conditions?| levels?)? (?:{_IS}|has|have) (?:an? )?{_VERY}{word}{_COLOURED}",
        rf"{word} (?:overall )?(?:appearance|mood|tone|ambian?ence|exposure)",
    )


PATTERNS = {
    "black": (
        rf"(?:screen|frame|picture|image) {_IS} {_VERY}black(?! and)",
        r"(?<!to a )(?<!to )(?<!from a )(?<!from )black screen",
    ),
    "dark": (*_of(_DARK), r"in (?!from )(?:\w+ ){0,2}darkness", r"in the dark"),
    "dim": (
        *_of("dim"), r"(?:dimly|poorly)[- ](?:lit|illuminated)",
        r"light(?:ing)? is (?:\w+ly )?(?:low|weak|faint)", r"low[- ]light",
        r"(?:low|little) (?:overall )?(?:brightness|light)",
    ),
    "bright": (
        *_of(_BRIGHT), r"bright(?:ly)?[- ](?:lit|illuminated)",
        r"well[- ](?:lit|illuminated)", r"over-?exposed",
        r"(?:bathed|flooded) in (?:\w+ )?light", r"high (?:overall )?brightness",
    ),
}  # fmt: skip
_BOUNDS = {
    "black": ((0.0, 0.03), (0.0, 0.15), Verdict.UNKNOWN),
    "dark": ((0.0, 0.2), (0.0, 0.4), Verdict.CONFIRMED),
    "dim": ((0.0, 0.35), (0.0, 0.5), Verdict.CONFIRMED),
    "bright": ((0.5, 1.0), (0.25, 1.0), Verdict.CONTRADICTED),
}
"""Luma that confirms a word, luma outside which it is contradicted, and the verdict about a picture
that is mostly dark."""


_BLACK = 0.04
"""Luma of black frames, of which a caption may speak in a clip that is not black."""


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by the mean luma over all frames, and by the share of dark pixels."""
    judgement = by_luma(measured, *_BOUNDS[value])
    is_black_once = value == "black" and min(measured.frames("luma_mean"), default=1.0) <= _BLACK
    is_against = judgement.verdict is Verdict.CONTRADICTED
    return (
        judgement._replace(verdict=Verdict.UNKNOWN) if is_black_once and is_against else judgement
    )


KIND = ClaimKind(
    name="brightness",
    find=by_patterns(PATTERNS),
    judge=judge,
    scores=("luma",),
    signals=("luma_mean",),
)

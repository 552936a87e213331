"""Claims about the brightness of the whole picture."""

from curator.measures.claims.claim_records import (
    ClaimKind,
    Judgement,
    Measured,
    by_luma,
    by_patterns,
)

_WHOLE = (
    r"(?:scene|room|hall|picture|image|video|clip|footage|shot|frame|lighting|light|setting|"
    r"interior|environment|recording|studio|screen|space|street|atmosphere)"
)
_VERY = r"(?:very |quite |extremely |rather |fairly |completely |entirely |so |too )*"
_IS = r"(?:is|are|looks|remains|stays|appears|was)"
_DARK, _BRIGHT = r"(?:dark|darkened|underexposed|gloomy)", r"(?:bright|overexposed|dazzling)"


_COLOURED = r"(?! (?:blue|green|red|gr[ae]y))"


def _of(word: str) -> tuple[str, str]:
    """Returns patterns of a word that describes the whole picture."""
    return (
        rf"{word}(?:, | and | )(?:\w+,? )?{_WHOLE}(?! (?:bulb|blue|green|red|gr[ae]y))",
        rf"{_WHOLE} {_IS} {_VERY}{word}{_COLOURED}",
    )


PATTERNS = {
    "black": (
        rf"(?:screen|frame|picture|image) {_IS} {_VERY}black(?! and)", r"black screen",
    ),
    "dark": (*_of(_DARK), r"(?:in|into) (?:\w+ ){0,2}darkness"),
    "dim": (*_of("dim"), r"(?:dimly|poorly)[- ]lit", r"low[- ]light"),
    "bright": (
        *_of(_BRIGHT), r"bright(?:ly)?[- ]lit", r"well[- ]lit", r"over-?exposed",
        r"(?:bathed|flooded) in (?:\w+ )?light",
    ),
}  # fmt: skip
_BOUNDS = {
    "black": ((0.0, 0.03), (0.0, 0.15)),
    "dark": ((0.0, 0.2), (0.0, 0.4)),
    "dim": ((0.0, 0.35), (0.0, 0.5)),
    "bright": ((0.5, 1.0), (0.25, 1.0)),
}
"""Luma that confirms a word, and luma outside which it is contradicted."""


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by the mean luma over all frames."""
    confirms, allows = _BOUNDS[value]
    return by_luma(measured, confirms, allows)


KIND = ClaimKind(
    name="brightness",
    find=by_patterns(PATTERNS),
    judge=judge,
    scores=("luma",),
    signals=("luma_mean",),
)

"""Claims about the shape of the picture: portrait, landscape, square."""

from curator.measures.claims.claim_records import (
    ClaimKind,
    Judgement,
    Measured,
    by_bounds,
    by_patterns,
)

_FRAME = (
    r"(?:video|clip|footage|format|orientation|frame|picture|shot|aspect|mode|recording|film|"
    r"screen|image|animation|layout)"
)


def _named(word: str) -> tuple[str, ...]:
    """Returns patterns of a word that names the shape, but no picture of a person or a land."""
    return (
        rf"{word}[- ](?:{_FRAME})(?! of (?:a |an |the )?(?:mountain|hill|field))",
        rf"{word}[- ]\w+ (?:video|clip|footage)",
        rf"in {word}(?! with)",
        rf"{_FRAME} (?:is|are) {word}",
        rf"\A{word}(?=\W*\Z)",
    )


PATTERNS = {
    "portrait": (
        r"taller than (?:it is |it's |they are )?wide", r"shot vertically", r"9:16",
        *_named(r"(?:portrait|vertical|upright)"),
    ),
    "landscape": (
        r"wider than (?:it is |it's )?(?:tall|high)", r"shot horizontally",
        *_named(r"(?:landscape|horizontal)"),
    ),
    "square": (
        r"as wide as (?:it is )?(?:tall|high)", rf"square[- ](?:\w+[- ])?{_FRAME}",
        rf"{_FRAME} (?:is|are) (?:perfectly )?square",
    ),
    "wide": (r"wide-?screen", r"16:9", r"letterbox format"),
}  # fmt: skip
_FAR = 99.0


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by width / height; a nearly square picture is neither portrait nor landscape."""
    confirms, allows = {
        "portrait": ((0, 0.9), (0, 0.97)),
        "landscape": ((1.1, _FAR), (1.03, _FAR)),
        "square": ((0.97, 1.03), (0.9, 1.11)),
        "wide": ((1.6, _FAR), (1.2, _FAR)),
    }[value]
    ratio = measured.width / max(measured.height, 1)
    return by_bounds("width / height", ratio, confirms=confirms, allows=allows)


KIND = ClaimKind(name="orientation", find=by_patterns(PATTERNS), judge=judge)

"""Claims about how much and how fast the picture moves."""

import numpy as np

from curator.measures.claims.claim_records import (
    UNMEASURED,
    ClaimKind,
    Judgement,
    Measured,
    by_bounds,
    by_patterns,
)

_FULLY = r"(?:completely |perfectly |entirely |totally |absolutely )?"
_ALL = r"(?:picture|image|scene|video|everything(?: in the (?:frame|picture))?)"
PATTERNS = {
    "still": (
        r"nothing (?:in the (?:picture|frame|scene|shot) )?(?:moves|is moving|changes)",
        r"still (?:image|picture|photo(?:graph)?|frame|slide)", r"freeze[- ]frame",
        r"frozen (?:photograph|image|picture|frame)",
        rf"{_ALL} (?:is|are|remains|stays) {_FULLY}(?:still|motionless|frozen)",
    ),
    "moving": (
        r"(?<!camera )(?:motion|movement) (?:at all|whatsoever|in the (?:scene|frame|picture))",
    ),
    "fast": (
        r"(?:fast|rapid|quick)(?:[- ](?:paced|moving))? (?:motion|movements?|scene|action|footage)",
        r"(?:fast|rapid|quick)-(?:paced|moving)", r"at (?:high|great|full) speed",
        r"(?<!camera )mov(?:es?|ing) (?:very |extremely |so )?(?:fast|quickly|rapidly)",
        r"races? across",
    ),
}  # fmt: skip
_FAR = 99.0
_BOUNDS = {
    "still": ((0.0, 0.004), (0.0, 0.02)),
    "moving": ((0.02, _FAR), (0.003, _FAR)),
    "fast": ((0.5, _FAR), (0.012, _FAR)),
}
"""Motion in short sides/s that confirms a word, and motion outside which it is contradicted."""


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by the mean motion; words for much motion by the sample that moves most.

    Small things that move fast cause little motion on average, so only a picture in which next to
    nothing moves contradicts `fast`.
    """
    motion = measured.score("motion")
    if motion is None:
        return UNMEASURED
    samples = measured.samples("motion")
    samples = samples[np.isfinite(samples)]
    if value != "still" and len(samples):
        motion = max(motion, float(samples.max()))
    confirms, allows = _BOUNDS[value]
    unit = " short sides/s"
    return by_bounds("motion", motion, confirms=confirms, allows=allows, unit=unit)


KIND = ClaimKind(
    name="speed", find=by_patterns(PATTERNS), judge=judge, scores=("motion",), signals=("motion",)
)

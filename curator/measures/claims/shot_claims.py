"""Claims about cuts and other shot changes within the clip."""

import numpy as np

from curator.measures.claims.claim_records import (
    UNMEASURED,
    ClaimKind,
    Judgement,
    Measured,
    Verdict,
    by_bounds,
    by_patterns,
)

_CLIP = r"(?:clip|video|footage|scene|picture|shot|film|view|camera|sequence|it|which)"
_ONE = r"(?:single|one|uninterrupted|unbroken|continuous)"
_CHANGES = r"(?:cuts|switches|jumps|transitions)"
PATTERNS = {
    "single": (rf"{_ONE}[-, ]+(?:\w+[-, ]+){{0,2}}?(?:shot|take)", r"unedited"),
    "cut": (
        rf"{_CLIP}(?: \w+){{0,2}}? {_CHANGES} (?:to|twice|several|back|between|in|again|once)",
        r"(?:several|multiple|many|various|two|three|four) (?:different )?(?:shots|scenes|cuts)",
        r"(?:scene|shot) changes?", r"(?:scene|shot) transitions?", r"montage",
        r"(?:abrupt|hard|jump|sudden|quick) cuts?", r"cuts (?:occur|are)",
        r"(?<=no )cuts?", r"(?<=any )cuts?", r"(?<=without )cuts?", r"(?<=is a )cut",
    ),
}  # fmt: skip
_BLACK = 0.04
_EDGE_FRAMES = 3
"""Frames at both ends of a clip in which a boundary is that of the clip."""


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by the highest probability of a shot boundary inside the clip."""
    probability = measured.frames("boundary_probability")[_EDGE_FRAMES:-_EDGE_FRAMES]
    luma = measured.frames("luma_mean")
    if len(luma) and min(luma[0], luma[-1]) <= _BLACK:
        # A fade from black or to black is no cut, and has a boundary where the picture appears.
        return Judgement(Verdict.UNKNOWN, "black at one end")
    doubt = float(np.nanmax(probability)) if len(probability) else measured.score("shot_doubt")
    if doubt is None:
        return UNMEASURED
    of_cut = by_bounds("probability of a cut", doubt, confirms=(0.6, 1.0), allows=(0.1, 1.0))
    return of_cut if value == "cut" else of_cut._replace(verdict=of_cut.verdict.negated())


KIND = ClaimKind(
    name="shots",
    find=by_patterns(PATTERNS),
    judge=judge,
    scores=("shot_doubt",),
    signals=("boundary_probability", "luma_mean"),
)

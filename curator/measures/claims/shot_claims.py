"""Claims about cuts and other shot changes within the clip."""

import numpy as np
from numpy.typing import NDArray

from curator.measures.claims.claim_records import (
    UNMEASURED,
    ClaimKind,
    Judgement,
    Measured,
    Verdict,
    by_patterns,
)

_CLIP = r"(?:clip|video|footage|scene|picture|shot|film|view|camera|sequence|it|which)"
_ONE = r"(?:single|one|uninterrupted|unbroken|continuous)"
_CHANGES = r"(?:cuts|switches|jumps|transitions)"
_HAS = (
    r"(?:contains?|(?:consists?|made up|composed) of|(?:split|divided) into|comprises|has|features|"
    r"includes?|with|from|joins|combines|(?:shots|cuts|editing|transitions?) is)"
)
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight")
_OTHER = r"(?:(?:different|distinct|separate) )?"
PATTERNS = {
    "single": (
        rf"{_ONE}[-, ]+(?:\w+[-, ]+){{0,2}}?(?:shot|take)", r"unedited",
        r"(?:sequence|footage|video|clip|recording) is continuous",
        rf"{_CLIP} (?:does not|never|doesn['\u2019]t) (?:cuts?|switch(?:es)?)",
    ),
    **{
        str(n): (
            rf"{_HAS} (?:\w+ )?(?:{n}|{word}) {_OTHER}shots",
            rf"(?:\A|(?<=, ))(?:{n}|{word}) shots(?=\W*\Z|,)",
            rf"(?:{n}|{word}) (?:different|distinct|separate) shots",
        )
        for n, word in enumerate(_NUMBERS, 2)
    },
    "cut": (
        rf"{_CLIP}(?: \w+){{0,2}}? {_CHANGES} (?:to|twice|several|back|between|in|again|once)",
        rf"(?:several|multiple|many|various) {_OTHER}(?:shots|scenes|cuts)",
        rf"(?:two|three|four) {_OTHER}(?:scenes|cuts)",
        r"(?:scene|shot) changes?", r"(?:scene|shot) transitions?", r"montage",
        r"(?:abrupt|hard|jump|sudden|quick) cuts?", r"cuts (?:occur|are)",
        r"is a cut(?! on)",
        rf"{_HAS} (?:an?|one|1) (?:\w+ )?cut (?:to|in the middle|half|between)",
        r"(?:\A|(?<=, ))one cut(?=\W*\Z|,)",
        r"(?:joined|separated|divided) by (?:a|one) cut", r"cut halfway",
    ),
}  # fmt: skip
_DENIED = {"cut": (r"cuts?", r"edits?", r"transitions?", r"editing", r"(?:scene|shot) breaks?")}
_BLACK, _APPEARED = 0.04, 0.9
"""Luma of black, and share of the usual luma from which a fade has ended."""
_EDGE_FRAMES = 3
"""Frames at both ends of a clip in which a boundary is that of the clip."""
_N_CUTS = {"single": 0} | {str(n): n - 1 for n in range(2, 9)}
_MANY = 1000
_SURE, _DOUBTFUL = 0.6, 0.1
"""Probabilities from which a boundary is a cut, and above which it may be one."""


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by the probabilities of shot boundaries between the fades at both ends of the clip."""
    probability, doubt = measured.frames("boundary_probability"), measured.score("shot_doubt")
    if len(probability):
        probability = probability[_between_fades(measured.frames("luma_mean"), len(probability))]
        sure, most = (_n_peaks(probability >= bound) for bound in (_SURE, _DOUBTFUL))
    elif doubt is not None:
        sure, most = int(doubt >= _SURE), _MANY * (doubt >= _DOUBTFUL)
    else:
        return UNMEASURED
    words = f"{sure} cuts" if sure == most else f"{sure} to {most} cuts"
    least, largest = (1, _MANY) if value == "cut" else (_N_CUTS[value],) * 2
    if sure >= least and most <= largest:
        return Judgement(Verdict.CONFIRMED, words)
    is_impossible = most < least or sure > largest
    return Judgement(Verdict.CONTRADICTED if is_impossible else Verdict.UNKNOWN, words)


def _between_fades(luma: NDArray[np.float64], n_frames: int) -> slice:
    """Returns the frames without those of the ends and of fades from black and to black.

    A fade is no cut, and has a boundary where the picture appears.
    """
    first, last = 0, n_frames
    if len(luma):
        is_seen = np.flatnonzero(luma >= _APPEARED * float(np.nanmedian(luma)))
        first = int(is_seen[0]) if luma[0] <= _BLACK else first
        last = int(is_seen[-1]) + 1 if luma[-1] <= _BLACK else last
    return slice(first + _EDGE_FRAMES, max(first, last - _EDGE_FRAMES))


def _n_peaks(is_high: NDArray[np.bool_]) -> int:
    """Returns the number of runs of true values."""
    return int(np.count_nonzero(np.diff(is_high, prepend=False) & is_high))


KIND = ClaimKind(
    name="shots",
    find=by_patterns(PATTERNS, _DENIED),
    judge=judge,
    scores=("shot_doubt",),
    signals=("boundary_probability", "luma_mean"),
)

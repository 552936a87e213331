"""Claims about the number of shapes of one colour, judged by regions of thumbnails."""

import re
from collections.abc import Iterator

import numpy as np

from curator.measures.claims.claim_records import (
    UNMEASURED,
    ClaimKind,
    Found,
    Judgement,
    Measured,
    Verdict,
)
from curator.measures.claims.colour_claims import COLOUR, NAMES, has_colour
from curator.measures.claims.sentences import NUMBER, Sentence, number_of

_SHAPES = (
    r"(?:circles?|squares?|balls?|dis[ck]s?|dots?|triangles?|rectangles?|shapes?|stars?|bubbles?|"
    r"balloons?|sprites?|diamonds?|blobs?)"
)
PATTERN = re.compile(
    rf"\b(?P<number>{NUMBER}) "
    r"(?:(?:small|large|big|bright|solid|identical|round|tiny|distinct|separate|perfect),? )*"
    r"(?:(?!(?:of|or|and|to|in|on|by|as|\w*(?:s|ing))\b)[a-z-]+,? )?"
    rf"(?:(?P<colour>{COLOUR})(?:[ -]colou?red)? {_SHAPES}|"
    rf"{_SHAPES},? (?:of|in|that are|all|each) (?P<after>{COLOUR}))\b"
)
_LEAST_PX, _LEAST_SHARE = 12, 0.2
"""Smallest region that counts: in pixels, and as a share of the median region."""
_MOST = 12
_BIGGEST = 0.15
"""Largest share of the picture of regions that are things, not a background."""


def find(sentence: Sentence) -> Iterator[Found]:
    """Yields `number colour` for phrases such as "three red balls"."""
    for match in PATTERN.finditer(sentence.plain):
        if match["number"] in ("a", "an") or sentence.is_hedged(*match.span()):
            continue
        word = match["colour"] or match["after"]
        colour = next(name for name, words in NAMES.items() if words.fullmatch(word))
        value = f"{number_of(match['number']):g} {colour}"
        yield Found(value, *match.span(), sentence.is_negated(*match.span()))


def judge(value: str, measured: Measured) -> Judgement:
    """Compares the number with that of regions, if most thumbnails have the same regions."""
    if not measured.pictures:
        return UNMEASURED
    number, colour = value.split(" ")
    counts = [n for picture in measured.pictures if (n := _n_regions(picture, colour)) is not None]
    if len(counts) < max(1, len(measured.pictures) / 2):
        return Judgement(Verdict.UNKNOWN, f"{colour} fills no separate regions")
    usual = int(np.median(counts))
    words = f"{usual} {colour} regions in most thumbnails"
    if np.mean(np.array(counts) == usual) < 0.6 or usual > _MOST:
        return Judgement(Verdict.UNKNOWN, f"{min(counts)} to {max(counts)} {colour} regions")
    if usual == float(number):
        return Judgement(Verdict.CONFIRMED, words)
    # Things that touch or leave the picture make fewer regions, so the most count, too.
    is_other = float(number) not in counts
    return Judgement(Verdict.CONTRADICTED if is_other else Verdict.UNKNOWN, words)


def _n_regions(picture: np.ndarray, colour: str) -> int | None:
    """Returns the number of regions of a colour; None if they are no things of one size."""
    import cv2

    mask = cv2.morphologyEx(
        has_colour(picture, colour).astype(np.uint8), cv2.MORPH_OPEN, np.ones((3, 3), np.uint8)
    )
    if not mask.any():
        is_absent = has_colour(picture, colour, is_wide=True).mean() < 0.002
        return 0 if is_absent else None
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask)
    areas = stats[1:, cv2.CC_STAT_AREA]
    areas = areas[areas >= _LEAST_PX]
    if not len(areas) or areas.max() > _BIGGEST * mask.size:
        return None
    boxes = stats[1:][stats[1:, cv2.CC_STAT_AREA] >= _LEAST_PX]
    filled = areas / (boxes[:, cv2.CC_STAT_WIDTH] * boxes[:, cv2.CC_STAT_HEIGHT])
    if np.median(filled) < 0.4 or areas.max() > 4 * np.median(areas):
        return None
    return int((areas >= _LEAST_SHARE * np.median(areas)).sum())


KIND = ClaimKind(name="count", find=find, judge=judge)

"""Claims about the colours that fill the picture, judged by thumbnails."""

import re
from functools import cache

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

_NAMES = {
    "grey": r"gr[ae]y(?:ish)?", "black": "black", "white": "white", "red": "red(?:dish)?",
    "orange": "orange", "yellow": "yellow(?:ish)?", "green": "green(?:ish)?",
    "blue": "blue|bluish", "purple": "purple|violet", "pink": "pink(?:ish)?",
    "brown": "brown(?:ish)?",
}  # fmt: skip
NAMES = {name: re.compile(words) for name, words in _NAMES.items()}
COLOUR = "(?:" + "|".join(_NAMES.values()) + ")"
_ADJECTIVE = (
    r"(?:(?:dark|light|bright|deep|plain|solid|pale|mostly|vivid|flat|rich|vibrant|muted|soft),?"
    r"[ -])*"
)
_AREA = (
    r"(?:surface|screen|page|sky|field|floor|wall|table|"
    r"lawn|grass|slide|canvas|ground|road|water|sea)"
)
_GROUND = r"(?:background|backdrop)"
_NOT_PAIR = r"(?! and )(?! or )(?<!and )(?<!or )"


def _word(words: str) -> str:
    return rf"(?<!-){_NOT_PAIR}{_ADJECTIVE}(?:{words})(?![\w-])"


def _of_most(words: str) -> tuple[str, ...]:
    word = _word(words)
    return (
        rf"{word} (?:[\w-]+ ){{0,2}}?{_GROUND}",
        rf"{_GROUND} (?:colou?r )?(?:is|was|has|have|appears|features|consists of|made of) "
        rf"(?:\w+ ){{0,3}}?{word}(?! \w*(?:shirt|dress|car|letters|text|circles?|squares?))",
        rf"{_GROUND} (?:[\w-]+ ){{0,5}}?of {word}", rf"mostly {word}",
        rf"dominant colou?r (?:of [\w ]{{1,20}} )?is {word}",
        rf"dominated by (?:an? )?(?:\w+ )?{word}",
        rf"(?:colou?r|hue|tone|palette) of the {_PICTURE} is {word}",
        rf"{_PICTURE} is (?:mostly |almost entirely |all |predominantly )?{word}(?! and)",
        rf"{word} \w+ fills the (?:frame|picture|screen)",
    )  # fmt: skip


def _of_area(words: str) -> tuple[str, ...]:
    word = _word(words)
    return (
        rf"{word} (?:[\w-]+ )?{_AREA}", rf"(?:sky|surface) is {word}",
        rf"on (?:a )?{word}(?=\W*\Z|,)",
    )  # fmt: skip


_PICTURE = r"(?:picture|frame|image|scene|video|screen)"
_PATTERNED = (
    r"(?! (?:dog|cat|cow|stripes|striped|check\w*|shirt|bird|horse|clothes|text|cow|fur|spots?))"
)
PATTERNS = {
    "monochrome": (
        rf"black[- ]and[- ]white{_PATTERNED}", r"monochrom\w+", r"gr[ae]y-?scale", r"no colou?r",
        r"shades of gr[ae]y",
    ),
    "colourful": (
        r"colou?rful (?:footage|clip|video|scene|picture|image|animation)",
        r"in (?:full|vivid|bright) colou?rs?",
    ),
    **{f"mostly {name}": _of_most(words) for name, words in _NAMES.items()},
    **{name: _of_area(words) for name, words in _NAMES.items()},
}  # fmt: skip
_STRICT = {
    "red": [((0, 8), (110, 255), (70, 255)), ((172, 180), (110, 255), (70, 255))],
    "orange": [((8, 20), (130, 255), (140, 255))],
    "yellow": [((21, 34), (90, 255), (130, 255))],
    "green": [((38, 85), (60, 255), (45, 255))],
    "blue": [((92, 130), (60, 255), (55, 255))],
    "purple": [((128, 158), (55, 255), (50, 255))],
    "pink": [((145, 180), (40, 200), (160, 255)), ((0, 8), (40, 140), (190, 255))],
    "brown": [((4, 21), (60, 230), (45, 180))],
    "grey": [((0, 180), (0, 40), (55, 205))],
    "black": [((0, 180), (0, 255), (0, 45))],
    "white": [((0, 180), (0, 35), (205, 255))],
}
"""Ranges of hue, saturation and value in which a pixel has a colour beyond doubt."""
_LEAST = (0.06, 0.2)
"""Share of pixels that may have the colour below which it is no area, and fills no picture."""
_WIDER = np.array([[8, 8], [45, 45], [60, 60]])
"""How far a range extends on both sides where people may still use the word."""


@cache
def _boxes(name: str, *, is_wide: bool) -> NDArray[np.int64]:
    boxes = np.array(_STRICT[name])
    if is_wide:
        boxes = boxes + np.stack([-_WIDER[:, 0], _WIDER[:, 1]], axis=1)
    return boxes


def has_colour(
    picture: NDArray[np.uint8], name: str, *, is_wide: bool = False
) -> NDArray[np.bool_]:
    """Returns which pixels of an HSV picture have a colour, or with `is_wide` may have it."""
    pixels = picture.astype(np.int16)[..., None, :]
    boxes = _boxes(name, is_wide=is_wide)
    hue = pixels[..., 0]
    low, high = boxes[:, 0, 0], boxes[:, 0, 1]
    # Hues are a circle of 180 steps.
    is_hue = ((hue - low) % 180) <= np.minimum(high - low, 179)
    rest = (pixels[..., 1:] >= boxes[:, 1:, 0]) & (pixels[..., 1:] <= boxes[:, 1:, 1])
    return np.asarray((is_hue & rest.all(axis=-1)).any(axis=-1))


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by the share of pixels that have the colour, and the most that may have it."""
    if not measured.pictures:
        return UNMEASURED
    # Every second pixel is enough for shares.
    pictures = [picture[::2, ::2] for picture in measured.pictures]
    if value in ("monochrome", "colourful"):
        chroma = [picture[..., 1].astype(float) * picture[..., 2] / 255 for picture in pictures]
        share = float(np.mean([np.mean(each > 40) for each in chroma]))
        weak = float(np.mean([np.mean(each > 14) for each in chroma]))
        grey = _of(weak <= 0.02, share >= 0.1)
        words = f"{share:.0%} of the picture in colour"
        return Judgement(grey if value == "monochrome" else grey.negated(), words)
    name = value.split()[-1]
    sure = float(np.mean([has_colour(picture, name).mean() for picture in pictures]))
    # A caption may speak of a part of the clip.
    maybe = float(max(has_colour(p, name, is_wide=True).mean() for p in pictures))
    return Judgement(
        _of(sure >= 0.3, maybe < _LEAST[value != name]),
        f"{name} on {sure:.0%} of the picture, {maybe:.0%} perhaps",
    )


def _of(confirms: bool, contradicts: bool) -> Verdict:
    if confirms:
        return Verdict.CONFIRMED
    return Verdict.CONTRADICTED if contradicts else Verdict.UNKNOWN


KIND = ClaimKind(name="colour", find=by_patterns(PATTERNS), judge=judge)

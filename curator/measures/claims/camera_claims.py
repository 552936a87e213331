"""Claims about the camera: its movements with their directions, and standing still.

Verbs count only for the camera: in clauses of which it is the subject, in noun phrases such as
"a slow pan to the left", and in fields of structured captions that are about the camera.
"""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from curator.measures.camera import ROLL_LEAST, STILL, ZOOM_LEAST
from curator.measures.claims.claim_records import (
    UNMEASURED,
    ClaimKind,
    Found,
    Judgement,
    Measured,
    Verdict,
    compiled,
)
from curator.measures.claims.sentences import Sentence

_SUBJECT = re.compile(
    r"(?<!\bat )(?<!\bto )(?<!\btoward )(?<!\btowards )(?<!\bwith )(?<!\bof )(?<!\binto )(?<!\bby )"
    r"\b(?:the|a|an|our|its|this) (?:(?!of\b|at\b|in\b|on\b|to\b)[\w-]+ ){0,2}?"
    r"(?:camera|viewpoint|lens|perspective|framing|view|shot|frame|webcam|image)(?:'s)?\b"
    r"|^camera\b|\bwith (?:the|a|its) (?:\w+ )?camera\b"
)
_INHERITS = re.compile(
    r"^\W*(?:(?:and|but|then|while|before|after|afterwards?|later|finally|next|as|when|first|slowly|"
    r"gradually|slow|smooth|gentle|steady|also|it|does|is|not|never|which|that|\w+ly)\b\W*)*"
)
_SHOWS = re.compile(
    r"\b(?<!\bis )(?<!\bare )(?:show|captur|film|reveal|record|display|focus)(?:s|es|ed|ing|e)?\b"
    r"|\b(?:who|which|whose)\b"
)
"""Words after which the movements in a clause are those of what the camera shows."""
_FIELD = re.compile(r"camera|cinematograph|shot_(?:type|motion)|movement")
_LEFT, _RIGHT = r"(?:left|leftwards?)", r"(?:right|rightwards?)"
_UP, _DOWN = r"(?:up|upwards?|skyward)", r"(?:down|downwards?)"
_TURN = r"(?:pans?|panned|panning|sweeps?|sweeping|swings?|swinging)"
_GOES = (
    r"(?:moves?|moving|glides?|gliding|drifts?|drifting|slides?|sliding|tracks?|tracking|travels?|"
    r"shifts?|turns?|turning|trucks?(?= (?:left|right|along|in|out|forwards?|backwards?)\b)|"
    r"(?:rotat|turn)(?:es?|ed|ing)(?= (?:to|left|right|up|down)))"
)
_TO_RIGHT = r"(?:from )?(?:the )?left(?: \w+){0,4}? to(?:wards?)? (?:the )?right"
_TO_LEFT = r"(?:from )?(?:the )?right(?: \w+){0,4}? to(?:wards?)? (?:the )?left"
_TO = r"(?:[\w' -]{0,40}?\b(?<!on the )(?<!at the )(?<!on his )(?<!on her )(?<!his )(?<!her ))"
_PANS = r"(?:pan|panning|tilt|tilting)"
_LY = r"(?:\w+ly )?(?:back )?"
_GO_IN = r"(?:push(?:es|ed|ing)?|doll(?:y|ies|ying)|mov(?:es?|ing))"
_GO_OUT = r"(?:pull(?:s|ed|ing)?|doll(?:y|ies|ying)|mov(?:es?|ing))"
_STILL = (
    r"(?:static|still|stationary|fixed|steady|motionless|immobile|unmoving|locked|in place|"
    r"locked[- ](?:off|down)|mounted|held steady)"
)
_SAME_PLACE = (
    r"(?:fixed|static|steady|stationary|unchanging) (?:camera )?"
    r"(?:position|vantage|viewpoint|point|angle|perspective)"
)
_VERBS = compiled({
    "static": (
        r"(?:is|are|remain(?:s|ing)?|stay(?:s|ing)?|stands?|stood|holds?|held|kept)(?: \w+ly)? "
        + _STILL,
        rf"in an? {_SAME_PLACE}",
        r"holds? still", r"never (?:moves|changes)",
        r"(?:remains?|stays?|is) (?:constant|unchanged|the same)",
        r"(?:maintains?|keeps?|holds?) (?:an?|the same|its) (?:\w+ )?"
        r"(?:position|framing|angle|view)",
        r"(?:movement|motion) is (?:none|absent|zero)", r"does not (?:change|shift)",
    ),
    "pan_right": (
        rf"(?:{_TURN}|{_GOES})[\w' -]{{0,30}}? {_TO_RIGHT}",
        rf"{_TURN}(?!{_TO}{_LEFT}){_TO}{_RIGHT}",
    ),
    "pan_left": (
        rf"(?:{_TURN}|{_GOES})[\w' -]{{0,30}}? {_TO_LEFT}", rf"{_TURN}{_TO}{_LEFT}",
    ),
    "tilt_up": (rf"(?:{_TURN}|tilts?|tilted|tilting) {_LY}{_UP}", rf"{_UP} {_PANS}"),
    "tilt_down": (rf"(?:{_TURN}|tilts?|tilted|tilting) {_LY}{_DOWN}", rf"{_DOWN} {_PANS}"),
    "zoom_in": (rf"(?:zooms?|zoomed|zooming) {_LY}in(?:to|wards?)?",),
    "zoom_out": (rf"(?:zooms?|zoomed|zooming) {_LY}out(?:wards?)?",),
    "go_in": (rf"{_GO_IN} {_LY}(?:in(?:to)?|forwards?|closer|toward\w*)",),
    "go_out": (rf"{_GO_OUT} (?:\w+ly )?(?:back(?:wards?)?|out|away)",),
    "roll": (
        r"rolls?", r"rolling", r"rotat(?:es?|ed|ing) (?:\w*clockwise|about|around its)",
        r"spins? (?:around|about)", r"rotates(?=\W*\Z)",
    ),
    "go_left": (rf"{_GOES}{_TO}{_LEFT}",),
    "go_right": (rf"{_GOES}{_TO}{_RIGHT}",),
    "go_up": (rf"{_GOES} {_LY}{_UP}", r"rises", r"ascends", r"cranes up"),
    "go_down": (rf"{_GOES} {_LY}{_DOWN}", r"descends", r"cranes down", r"lowers"),
    "shake": (r"shakes?", r"shaking", r"wobbles?", r"trembles?", r"is (?:shaky|unsteady)"),
    "pan": (_TURN,), "tilt": (r"tilts?|tilting",), "zoom": (r"zooms?|zooming",),
    "moves": (
        _GOES, r"(?<=no )(?:movement|motion)", r"circles? (?:around|the|him|her|it|them)",
        r"flies|flying|follows?|following|orbits?|rotates",
    ),
})  # fmt: skip
_OF = r"(?:a|an|the|slow|smooth|gradual|quick|fast|steady|slight|gentle|with|in)"
_CAMERA = r"(?:camera|shot|view|viewpoint|webcam|frame|framing|take)"
_TAG = r"(?:\A|(?<=, ))(?:slow |smooth |gentle |steady )?"
"""Begin of a tag; verbs of longer sentences have a subject."""
_FIXED = (
    r"(?:static|fixed|stationary|immobile|still(?! frame)|tripod|locked(?:[- ](?:off|down))?|"
    r"motionless|unmoving)"
)
_NO = r"(?:(?<=no )|(?<=neither )|(?<=nor )|(?<=without )|(?<=any )|(?<=no camera ))"
_NOUNS = compiled({
    "static": (
        rf"{_FIXED}(?:(?:,? |-)\w+[- ]?\w*)? {_CAMERA}", r"(?:on|to|from) a tripod",
        rf"from an? {_SAME_PLACE}",
    ),
    "shake": (r"(?:hand-?held|shaky) (?:camera|shot|footage|video|shots)",),
    **{
        f"pan_{side}": (
            rf"{words} (?:camera )?pan", rf"pan(?:ning shot)? (?:to(?:ward)? the )?{words}",
            rf"{_TAG}panning (?:to(?:ward)? the )?{words}",
        )
        for side, words in (("left", _LEFT), ("right", _RIGHT))
    },
    "tilt_up": (rf"{_UP} (?:camera )?tilt", rf"{_OF} tilt {_UP}", rf"{_TAG}tilt(?:ed|ing)? {_UP}"),
    "tilt_down": (
        rf"{_DOWN} (?:camera )?tilt", rf"{_OF} tilt {_DOWN}", rf"{_TAG}tilt(?:ed|ing)? {_DOWN}",
    ),
    "zoom_in": (
        rf"{_OF} (?:\w+ )?(?:zoom|push|dolly)[- ]in", rf"{_TAG}zoom(?:ing)?[- ]in",
    ),
    "zoom_out": (
        rf"{_OF} (?:\w+ )?(?:zoom[- ]out|pull[- ]back|dolly[- ]out)", rf"{_TAG}zoom(?:ing)?[- ]out",
    ),
    "pan": (rf"{_NO}panning",), "tilt": (rf"{_NO}tilting",),
    "zoom": (rf"{_NO}zooming",),
    "roll": (r"roll of the (?:camera|view|frame)", r"camera rolls?(?! of)"),
    "moves": (
        r"camera (?:motion|movements?)"
        r"(?!(?: \w+)? is (?!seen|observed|visible|noticeable|present))",
    ),
})  # fmt: skip


def find(sentence: Sentence) -> Iterator[Found]:
    """Yields the claims about the camera, in the order of the sentence."""
    taken: list[Found] = []
    for value, pattern in _NOUNS:
        _add(sentence, taken, value, pattern, 0, len(sentence.plain))
    for first, last in _spans_of_camera(sentence):
        for value, pattern in _VERBS:
            _add(sentence, taken, value, pattern, first, last)
    yield from sorted(taken, key=lambda found: found.start)


def _add(
    sentence: Sentence,
    taken: list[Found],
    value: str,
    pattern: re.Pattern[str],
    first: int,
    last: int,
) -> None:
    for match in pattern.finditer(sentence.plain, first, last):
        start, end = match.span()
        is_new = not any(start < other.end and other.start < end for other in taken)
        if is_new and not sentence.is_hedged(start, end):
            taken.append(Found(value, start, end, sentence.is_negated(start, end)))


def _spans_of_camera(sentence: Sentence) -> Iterator[tuple[int, int]]:
    """Yields parts of a sentence whose verbs are the camera's."""
    is_camera = is_field = _FIELD.search(sentence.field) is not None
    position, n = 0, len(sentence.plain)
    while position < n:
        last = max(sentence.clause(position, position)[1], position + 1)
        clause = sentence.plain[position:last]
        subject = _SUBJECT.search(clause)
        if subject is not None:
            shows = _SHOWS.search(sentence.plain, position + subject.end(), last)
            yield position + subject.end(), shows.start() if shows else last
            is_camera = True
        elif is_field or (is_camera and _starts_with_verb(clause)):
            yield position, last
        elif len(clause.split()) > 1:
            is_camera = False
        # The break itself, such as `and`, takes a character at least.
        gap = re.match(r"\W*(?:[a-z]+\b)?", sentence.plain[last:])
        position = last + max(1, gap.end() if gap and _is_break(gap[0]) else 1)


def _is_break(word: str) -> bool:
    return re.sub(r"\W", "", word) in (
        "", "and", "but", "while", "whereas", "as", "when", "before", "after", "until", "then",
    )  # fmt: skip


def _starts_with_verb(clause: str) -> bool:
    after = _INHERITS.match(clause)
    start = after.end() if after else 0
    return any(
        (match := pattern.search(clause)) is not None and match.start() <= start + 1
        for _, pattern in _VERBS
    )


SIGNAL = {
    "pan_right": ("pan_rate", 1, STILL), "pan_left": ("pan_rate", -1, STILL),
    "tilt_up": ("tilt_rate", 1, STILL), "tilt_down": ("tilt_rate", -1, STILL),
    "zoom_in": ("zoom_rate", 1, ZOOM_LEAST), "zoom_out": ("zoom_rate", -1, ZOOM_LEAST),
}  # fmt: skip
"""Signal, sign and least rate of each movement."""
_ROLLS = {"clockwise": ("roll_rate", 1, ROLL_LEAST), "back": ("roll_rate", -1, ROLL_LEAST)}
_OPPOSITE = {
    "pan_right": "pan_left", "pan_left": "pan_right", "tilt_up": "tilt_down",
    "tilt_down": "tilt_up", "zoom_in": "zoom_out", "zoom_out": "zoom_in",
}  # fmt: skip
ALONG = {
    "go_in": "zoom_in", "go_out": "zoom_out", "go_left": "pan_left", "go_right": "pan_right",
    "go_up": "tilt_up", "go_down": "tilt_down",
}  # fmt: skip
"""The movement of the picture that a camera's travel causes; parallax may hide it."""
_EITHER = {
    "pan": ("pan_left", "pan_right"), "tilt": ("tilt_up", "tilt_down"),
    "zoom": ("zoom_in", "zoom_out"),
}  # fmt: skip
_MOVES = frozenset({*SIGNAL, "roll", "shaky"})
_TAGS = frozenset({*_MOVES, "handheld", "camera_static"})
_UNSTEADY = frozenset({"handheld", "shaky", "camera_static"})
_MOST_MOVING = 0.06
"""Median speed of the camera, in short sides/s, above which it does not stand still."""
_LEAST_SHARE, _LEAST_OF_MOVING = 0.6, 0.4
"""Median share of the picture that follows the camera, below which nothing contradicts: for a
camera that is measured as still, since what stands out in the picture may be still while the camera
follows it, and for one that moves."""
_UNEXPLAINED = 3.0
"""Ratio of the picture's motion to that of the camera and of objects from which parts with little
texture move, so that a camera that is measured as still may move. Footage from tripods has 1.2 to
2.7, and films of a moving camera in which still graphics hold most of the texture 3.7 to 4.5."""
_HARDLY, _HARDLY_BESIDE = 0.5, 0.75
"""Multiples of a movement's least rate that no two samples reach where the movement never is: in
general, and beside a steady movement, whose estimate has parts of other movements."""


def rates(measured: Measured, move: str) -> NDArray[np.float64]:
    """Returns the rate of a movement per sample in multiples of its least rate; NaN if unknown."""
    signal, sign, least = (SIGNAL | _ROLLS)[move]
    return measured.samples(signal) * sign / least


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by the tags of the clip, and by the rates of all samples."""
    speed, share = measured.score("camera_motion"), measured.score("camera_share")
    if speed is None or share is None:
        return UNMEASURED
    tags = _TAGS.intersection(measured.tags)
    words = (
        f"camera {', '.join(sorted(tags)) or 'without a clear movement'}, {speed:.3f} short sides/s"
    )
    motion, rest = measured.score("motion") or 0.0, measured.score("object_motion") or 0.0
    is_hidden = motion > STILL and (share < _LEAST_SHARE or motion > _UNEXPLAINED * (speed + rest))
    verdict = _verdict(value, measured, frozenset(tags), speed)
    is_directed = value not in ("static", "shake") and bool(tags & frozenset(SIGNAL))
    is_unclear = share < (_LEAST_OF_MOVING if is_directed else _LEAST_SHARE)
    if (is_hidden and "camera_static" in tags) or (is_unclear and verdict is Verdict.CONTRADICTED):
        verdict = Verdict.UNKNOWN
    return Judgement(verdict, words)


def _verdict(value: str, measured: Measured, tags: frozenset[str], speed: float) -> Verdict:
    is_static = "camera_static" in tags
    if value == "static":
        if is_static:
            return Verdict.CONFIRMED
        is_moving = bool(tags & _MOVES) and speed > STILL
        return Verdict.CONTRADICTED if is_moving or speed > _MOST_MOVING else Verdict.UNKNOWN
    if value in ("moves", "shake"):
        wanted = _MOVES if value == "moves" else {"handheld", "shaky"}
        if tags & wanted or (value == "moves" and speed > _MOST_MOVING):
            return Verdict.CONFIRMED
        return Verdict.CONTRADICTED if is_static else Verdict.UNKNOWN
    if value in _EITHER:
        found = {_verdict(side, measured, tags, speed) for side in _EITHER[value]}
        return next(
            (v for v in (Verdict.CONFIRMED, Verdict.UNKNOWN) if v in found), Verdict.CONTRADICTED
        )
    if value in ALONG:
        if ALONG[value] in tags:
            return Verdict.CONFIRMED
        # Far scenery hides a camera's travel, but not a push in of which a caption speaks.
        others = tags & (_MOVES if value in ("go_in", "go_out") else {_OPPOSITE[ALONG[value]]})
        against = is_static or (bool(others) and _never(measured, ALONG[value]))
        return Verdict.CONTRADICTED if against else Verdict.UNKNOWN
    if value in tags:
        return Verdict.CONFIRMED
    if value == "roll":
        is_never = is_static or all(_never(measured, roll) for roll in _ROLLS)
        return Verdict.CONTRADICTED if is_never else Verdict.UNKNOWN
    if is_static or _never(measured, value):
        return Verdict.CONTRADICTED
    has_samples = bool(len(measured.samples("pan_rate")))
    return Verdict.CONTRADICTED if not has_samples and _OPPOSITE[value] in tags else Verdict.UNKNOWN


def _never(measured: Measured, move: str) -> bool:
    """Returns whether known rates of nearly all samples exclude a movement."""
    values = rates(measured, move)
    known = np.isfinite(values)
    if len(values) < 2 or known.mean() < 0.7:
        return False
    is_steady = not _TAGS.isdisjoint(measured.tags) and _UNSTEADY.isdisjoint(measured.tags)
    bound = _HARDLY_BESIDE if is_steady else _HARDLY
    pairs = (values[known][1:] + values[known][:-1]) / 2
    return bool(len(pairs)) and float(pairs.max()) < bound


KIND = ClaimKind(
    name="camera",
    find=find,
    judge=judge,
    scores=("camera_motion", "camera_share", "motion", "object_motion"),
    signals=("pan_rate", "tilt_rate", "zoom_rate", "roll_rate"),
)

"""Claims about text in the picture: quoted words, and whether there is any."""

import difflib
import re
from collections.abc import Iterator

from curator.measures.claims.claim_records import (
    UNMEASURED,
    ClaimKind,
    Found,
    Judgement,
    Measured,
    Verdict,
    by_patterns,
)
from curator.measures.claims.sentences import Sentence

_WORD = (
    r"(?:text|words?|letters?|writing|captions?|subtitles?|title|titles|inscription|lettering|"
    r"watermark|time-?stamp|time-?code|timer|logo text|numbers|digits|label|headline|overlay text)"
)
_BEARER = rf"(?:sign|poster|screen|banner|board|page|slide|card|paper|advertisement|{_WORD})"
_OPEN, _CLOSE = r"[\"\u201c\u00ab'\u2018]", r"[\"\u201d\u00bb'\u2019]"
_QUOTE = rf"{_OPEN}_+{_CLOSE}"
_NEAR = r"[^.\"\u201c\u00ab]"
_QUOTED = re.compile(
    rf"\b{_BEARER}\b{_NEAR}{{0,50}}?{_QUOTE}"
    r"|\b(?:reads?|reading|written|spells?|titled|labell?ed|displays?|shows?)\b"
    rf"{_NEAR}{{0,30}}?{_QUOTE}"
    rf"|{_QUOTE}{_NEAR}{{0,30}}?\b(?:is written|is displayed|is shown|appears?|is visible|"
    r"in (?:\w+ )?letters)\b"
)
_SPOKEN = re.compile(
    r"\b(?:he|she|they|man|woman|boy|girl|narrator|voice|person|speaker|who|singer|crowd)\b"
    r"[^.]{0,20}?\b(?:says?|said|shouts?|asks?|sings?|calls?|whispers?|named|is called)\b"
    rf"[^.]{{0,12}}?{_QUOTE}"
)
_SEEN = (
    r"(?:visible|shown|displayed|overlaid|seen|appears?|present|on[- ]screen|burned in|are at|"
    r"is in|counts?|in the|at the|on the|over)"
)
_KINDS_OF_TEXT = rf"(?:(?:other|visible|on-?screen|large|readable|written) )*{_WORD}"
PATTERNS = {
    "text": (
        rf"contains? {_KINDS_OF_TEXT}", rf"with {_KINDS_OF_TEXT}", r"on-?screen text",
        rf"{_WORD}(?: or {_WORD})?(?: \w+){{0,2}}? {_SEEN}", r"visible text",
        r"(?:running |burnt-in )(?:time-?code|timer)",
    ),
}  # fmt: skip
_find_words = by_patterns(PATTERNS, {"text": (_KINDS_OF_TEXT,)})
LEAST_SIDE_PX = 200
"""Shorter side below which the detector misses text."""
_LEAST_AREA = 0.004
_SAME = 0.75


def find(sentence: Sentence) -> Iterator[Found]:
    """Yields quotations of text in the picture as `"words"`, and other claims as `text`."""
    taken: list[tuple[int, int]] = [match.span() for match in _SPOKEN.finditer(sentence.plain)]
    for match in _QUOTED.finditer(sentence.plain):
        start, end = match.span()
        if any(start < b and a < end for a, b in taken) or sentence.is_hedged(start, end):
            continue
        taken.append((start, end))
        quotation = re.search(_QUOTE, match[0])
        assert quotation is not None
        words = sentence.text[start + quotation.start() + 1 : start + quotation.end() - 1]
        yield Found(f'"{words}"', start, end, sentence.is_negated(start, end))
    for found in _find_words(sentence):
        if not any(found.start < b and a < found.end for a, b in taken):
            yield found


def judge(value: str, measured: Measured) -> Judgement:
    """Judges by the area of detected text, and by text that OCR read if there is any."""
    area = measured.score("text_area")
    most = measured.score("overlay_text_area")
    if area is None:
        return UNMEASURED
    words = f"text on {area:.2%} of the picture"
    if area == 0 and not most:
        is_readable = min(measured.width, measured.height) >= LEAST_SIDE_PX
        verdict = Verdict.CONTRADICTED if is_readable else Verdict.UNKNOWN
        return Judgement(verdict, words if is_readable else f"{words}, which is small")
    if value == "text":
        return Judgement(Verdict.CONFIRMED if area >= _LEAST_AREA else Verdict.UNKNOWN, words)
    if measured.text_lines is None:
        return Judgement(Verdict.UNKNOWN, f"{words}, not read")
    read = " ".join(measured.text_lines)
    return Judgement(
        Verdict.CONFIRMED if _is_in(value.strip('"'), read) else Verdict.UNKNOWN,
        f"read: {read:.80}",
    )


def _is_in(words: str, read: str) -> bool:
    """Returns whether OCR read some words, with a few wrong letters."""
    own, other = ("".join(re.findall(r"\w", text.lower())) for text in (words, read))
    if own in other:
        return bool(own)
    matcher = difflib.SequenceMatcher(None, own, other, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()) >= _SAME * max(len(own), 1)


KIND = ClaimKind(name="text", find=find, judge=judge, scores=("text_area", "overlay_text_area"))

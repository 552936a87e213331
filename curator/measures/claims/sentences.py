"""Sentences of captions: quotations, negations, hedges and clauses, for English.

A caption may be a text, a JSON value, or JSON as text. Fields of JSON become sentences with the
name of their field, and so do texts with a label ("Camera: static."). A few words in a field read
as "name of the field is words", or for `none` as "no name of the field".
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_QUOTED = re.compile(
    r"\"[^\"\n]*\"|\u201c[^\u201d\n]*\u201d|\u00ab[^\u00bb\n]*\u00bb|(?<![\w'])'[^'\n]+'(?!\w)"
    r"|\u2018[^\u2019\n]*\u2019(?!\w)"
)
_END = re.compile(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\bvs\.)[\"\u201d\u2019']?\s+"
    r"(?!(?i:then|later|next|finally|subsequently|after(?:wards?| that))\b)|\n+"
)
_BREAK = re.compile(
    r",(?!(?: \w+,){0,20}(?: \w+,?)? n?or\b)|[;:()]|\.(?= )|(?<= )[\u2013\u2014-](?= )|"
    r"\b(?:and|but|while|whereas|as|when|before|after|until|then|because|although|though|so that)\b"
)
"""Where a clause may end, so that a negation before it does not count after it."""
_NOT = re.compile(
    r"\b(?:no|not|never|without|neither|nor|lacks?|lacking|cannot|hardly|free of|devoid of|"
    r"absence of|nothing|none|(?:is|are|do|does|did|has|have|was|were|can|could|wo)n['\u2019]t)\b"
)
_NOT_BEYOND = re.compile(
    r"\b(?:no|without|lack(?:s|ing)|(?:free|devoid|absence) of)"
    r"(?: (?!(?:is|are|was|were|has|have|can)\b)[\w-]+){1,8}? "
    r"(?:on|against|under|over|before|with|at)\b"
)
"""Nouns that a caption denies, up to a preposition: what follows it is not denied."""
_NOT_REALLY = re.compile(
    r"\b(?:not only|no doubt|not just|no longer|no less|no one|nothing but|neither(?=.*\bnor\b))\b"
)
_NOT_AFTER = re.compile(
    r"^[\w' -]{0,24}?\b(?:(?:is|are|was|were)(?: not|n['\u2019]t| absent| missing)\b(?! only| just)"
    r"|cannot be|can['\u2019]t be|does not|do not|doesn['\u2019]t|don['\u2019]t)"
)
_HEDGE = re.compile(
    r"\b(?:might|may|could|would|possibly|perhaps|maybe|probably|presumably|likely|seems?|seemingly|"
    r"appears? to(?! (?:be|have been) (?:filmed|shot|recorded))|apparently|as if|as though|"
    r"suggest\w*|impl(?:y|ies|ying)|if|whether|either|"
    r"rather than|instead of|unlike|(?:less|more) (?:than|like|or)|almost as|reminiscent of|"
    r"resembl\w+|un(?:clear|certain)|dreams? of|imagin\w+|wants? to|about to|tr(?:y|ies) to)\b"
)
_COMMON = frozenset({
    "the", "a", "an", "is", "are", "of", "in", "and", "on", "with", "to", "at", "no", "it",
    "its", "there", "this", "that", "from", "by", "as", "while", "not", "into", "over", "his",
    "her", "their", "without", "for", "has", "was",
})  # fmt: skip
_FOREIGN = frozenset({
    "de", "la", "le", "les", "el", "los", "las", "una", "des", "du", "et", "est", "der", "das",
    "und", "ist", "ein", "eine", "il", "di", "che", "della", "uma", "em", "het", "een", "och",
    "ett", "ve", "bir", "yang",
})  # fmt: skip
"""Common words of other languages in Latin script."""
_LEAST_ENGLISH = 0.12
_FEW_WORDS_OF_FIELD = 8
_MOST_CHARACTERS = 600
"""Length of a sentence that is read; models that repeat themselves write longer ones."""
_LABEL = re.compile(
    r"\W*((?!.*\b(?:says?|said|reads?|asks?|shows?)\b.*:)[A-Za-z]+(?: [A-Za-z]+){0,2}): (\S.*)"
)
"""A text with a label, such as `Camera: static.`, which reads as a field."""
_DENIES = re.compile(r"(?:no|not|without|there (?:is|are))\b(?!\W*\Z)", re.IGNORECASE)
_NONE = re.compile(r"\A(?:no|none|absent|nothing)\b", re.IGNORECASE)
_MAX_DEPTH = 6
_LONGEST = 500
"""Most characters of a sentence. Longer ones, such as lists of tags, become several sentences,
because the time of some patterns grows with the square of the length."""
_PIECE = re.compile(
    rf"\S.{{0,{_LONGEST - 2}}}[,;](?!\S)|\S.{{0,{_LONGEST - 1}}}(?!\S)|\S{{1,{_LONGEST}}}",
    re.DOTALL,
)
"""Up to the last comma, else up to the last space, so that no negation is cut off."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a caption.

    Attributes:
        text: The sentence as written.
        plain: The same characters in lower case, without the contents of quotations.
        field: Names of the fields of JSON that it is in, joined by dots; empty for plain text.
    """

    text: str
    plain: str
    field: str = ""

    def clause(self, start: int, end: int) -> tuple[int, int]:
        """Returns the clause around some characters."""
        starts, ends = _breaks(self.plain)
        before, after = bisect_right(ends, start), bisect_left(starts, end)
        return (
            ends[before - 1] if before else 0,
            starts[after] if after < len(starts) else len(self.plain),
        )

    def is_negated(self, start: int, end: int) -> bool:
        """Returns whether the clause denies what some of its characters say."""
        first, last = self.clause(start, end)
        before = _NOT_BEYOND.sub(" ", _NOT_REALLY.sub(" ", self.plain[first:start]))
        is_after = _NOT_AFTER.search(self.plain[end:last]) is not None
        return (len(_NOT.findall(before)) + is_after) % 2 == 1

    def is_hedged(self, start: int, end: int) -> bool:
        """Returns whether the clause states something as possible, or compares it."""
        first, last = self.clause(start, end)
        return _HEDGE.search(self.plain[first:last]) is not None


@lru_cache(maxsize=16)
def _breaks(plain: str) -> tuple[list[int], list[int]]:
    """Returns the starts and the ends of all places where clauses may end."""
    spans = [match.span() for match in _BREAK.finditer(plain)]
    return [start for start, _ in spans], [end for _, end in spans]


def sentences_of(caption: object, field: str = "", depth: int = 0) -> Iterator[Sentence]:
    """Yields the sentences of a caption: a text, JSON as text, or a value of JSON.

    Texts that are not English have none.
    """
    if isinstance(caption, str):
        if (value := _json(caption)) is not None:
            yield from sentences_of(value, field, depth + 1)
        elif is_english(caption):
            for text in _texts(caption):
                label = _LABEL.fullmatch(text)
                name, words = label.groups() if label else (field, text)
                if words.strip():
                    told = _with_field(words[:_MOST_CHARACTERS], name)
                    yield Sentence(told, _plain(told), name.lower())
    elif isinstance(caption, Mapping) and depth < _MAX_DEPTH:
        for name, value in caption.items():
            inner = f"{field}.{name}".strip(".").lower()
            yield from sentences_of(value, inner, depth + 1)
    elif isinstance(caption, Sequence) and depth < _MAX_DEPTH:
        for value in caption:
            yield from sentences_of(value, field, depth + 1)


def _texts(caption: str) -> Iterator[str]:
    for text in _END.split(caption):
        yield from [text] if len(text) <= _LONGEST else _PIECE.findall(text)


def _with_field(text: str, field: str) -> str:
    """Returns a few words in a field as a sentence that names the field."""
    name = re.sub(r"[._]+", " ", field)
    if not name or len(text.split()) > _FEW_WORDS_OF_FIELD or _DENIES.match(text):
        return text
    text = text.replace("_", " ")
    return _NONE.sub(f"no {name}", text) if _NONE.match(text) else f"{name} is {text}"


def is_english(text: str) -> bool:
    """Returns whether a text looks English, by the most common words of languages.

    Texts without common words, such as lists of tags, are English unless they have common words of
    other languages.
    """
    words = re.findall(r"[^\W\d_]+", text.lower())
    if sum(word.isascii() for word in words) < 0.8 * len(words):
        return False
    n_common = sum(word in _COMMON for word in words)
    return n_common >= _LEAST_ENGLISH * len(words) or _FOREIGN.isdisjoint(words)


def _json(text: str) -> Any:  # noqa: ANN401 - any value of JSON
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _plain(text: str) -> str:
    """Returns a text of the same length in lower case; contents of quotations become `_`."""
    masked = _QUOTED.sub(lambda match: match[0][0] + "_" * (len(match[0]) - 2) + match[0][-1], text)
    lower = masked.lower()
    return lower if len(lower) == len(text) else masked


_COUNTED = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen", "twenty",
)  # fmt: skip
NUMBERS = {word: number for number, word in enumerate(_COUNTED)} | {
    "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "ninety": 90, "a": 1, "an": 1,
}  # fmt: skip
NUMBER = r"(?:\d+(?:\.\d+)?|" + "|".join(sorted(NUMBERS, key=len, reverse=True)) + r")"
"""Pattern of a number in digits or words, and of `a` for 1."""


def number_of(text: str) -> float:
    """Returns the number of a text that matches `NUMBER`."""
    return float(NUMBERS.get(text, 0)) if text in NUMBERS else float(text)

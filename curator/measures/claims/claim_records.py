"""Records of claims: what a caption states, what is measured, and the verdict of each claim."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curator.measures.claims.sentences import Sentence


class Verdict(StrEnum):
    """What measurements say about a claim. Public: in `caption_claims`."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    UNKNOWN = "unknown"

    def negated(self) -> "Verdict":
        """Returns the verdict of the opposite claim."""
        opposite = {self.CONFIRMED: self.CONTRADICTED, self.CONTRADICTED: self.CONFIRMED}
        return opposite.get(self, self)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Stored measurements of one clip. What is absent leads to the verdict `unknown`.

    Attributes:
        scores: Scores by name; None for those that were not measured.
        tags: Tags of the clip, such as `pan_left`.
        seconds: Length.
        width: Width of the written clip, in px.
        height: Height of the written clip, in px.
        signals: Float32 [n_frames] by name, as `SampledClip.signals`; includes `sample_s`.
        thumbnails: JPEGs of some frames, in order.
        text_lines: Text that OCR read in frames; None if no text was read.
    """

    scores: Mapping[str, float | None]
    seconds: float
    width: int
    height: int
    tags: Collection[str] = ()
    signals: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    thumbnails: tuple[bytes, ...] = field(default=(), repr=False)
    text_lines: tuple[str, ...] | None = None

    def tagged(self, tags: Collection[str]) -> "Measured":
        """Returns the measurements with other tags."""
        return replace(self, tags=tags)

    def score(self, name: str) -> float | None:
        """Returns a score; None if it was not measured."""
        return self.scores.get(name)

    def samples(self, name: str) -> NDArray[np.float64]:
        """Returns a signal of samples, a value per sample, float64 [S]; NaN for unknown values."""
        if name not in self.signals or "sample_s" not in self.signals:
            return np.zeros(0)
        values = self.signals[name].astype(np.float64)
        return values[self._first_of_sample]

    def frames(self, name: str) -> NDArray[np.float64]:
        """Returns a signal of frames, float64 [n_frames]; empty if it was not measured."""
        values = self.signals.get(name, np.zeros(0)).astype(np.float64)
        return values if np.isfinite(values).any() else np.zeros(0)

    @cached_property
    def lumas(self) -> list[float]:
        """Mean luma inside black borders and of the whole picture, as far as measured.

        They differ much if dark parts of the picture were taken for borders.
        """
        frames = self.frames("luma_mean")
        inside = self.score("luma")
        whole = [float(np.nanmean(frames))] if len(frames) else []
        return whole if inside is None else [inside, *whole]

    @cached_property
    def _first_of_sample(self) -> NDArray[np.bool_]:
        sample_s = self.signals["sample_s"]
        is_new = np.append(True, sample_s[1:] != sample_s[:-1])
        return np.asarray(is_new & np.isfinite(sample_s))

    @cached_property
    def pictures(self) -> list[NDArray[np.uint8]]:
        """The thumbnails, uint8 HSV [H, W, 3] each, with hues of 0 to 179."""
        import cv2

        return [np.asarray(cv2.cvtColor(each, cv2.COLOR_BGR2HSV), np.uint8) for each in self._bgr]

    @cached_property
    def dark_shares(self) -> list[float]:
        """Shares of the thumbnails that are darker than `_DARK`, with black edges and without."""
        import cv2

        grey = [cv2.cvtColor(each, cv2.COLOR_BGR2GRAY) / 255 for each in self._bgr]
        if not grey:
            return []
        brightest = np.max(grey, axis=0)
        is_row, is_column = (brightest.max(axis=axis) > _BLACK for axis in (1, 0))
        inside = [each[is_row][:, is_column] for each in grey]
        return [
            float(np.mean([np.mean(each < _DARK) for each in pictures]))
            for pictures in (grey, inside)
            if pictures[0].size
        ]

    @cached_property
    def _bgr(self) -> list[NDArray[np.uint8]]:
        import cv2

        decoded = (
            cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
            for jpeg in self.thumbnails
        )
        return [np.asarray(each, np.uint8) for each in decoded if each is not None]


_DARK, _BLACK = 0.25, 0.07
"""Luma of dark pixels, and of the black edges of letterboxed pictures."""
_MOSTLY, _MIXED = 0.8, 0.5
"""Share of dark pixels from which a picture is dark, whatever its highlights, and above which it is
not bright. Footage by day and of lit rooms has at most 0.65."""


class Found(NamedTuple):
    """Words of a sentence that make a claim.

    Attributes:
        value: What is claimed, in the words of the kind, such as `pan_left` or `4.0`.
        start: First character in the sentence.
        end: End in the sentence.
        is_negated: Whether the sentence denies it.
    """

    value: str
    start: int
    end: int
    is_negated: bool = False


class Judgement(NamedTuple):
    """A verdict, and the measurement behind it in words."""

    verdict: Verdict
    measured: str


UNMEASURED = Judgement(Verdict.UNKNOWN, "not measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimKind:
    """One kind of claims: which words make a claim, and what measurements say about it.

    Attributes:
        name: Public name.
        find: Yields the claims of a sentence.
        judge: Judges a value that is not negated.
        scores: Columns of `clips` that `judge` reads.
        signals: Signals that `judge` reads.
    """

    name: str
    find: Callable[[Sentence], Iterator[Found]]
    judge: Callable[[str, Measured], Judgement]
    scores: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


_NEAR_CHARACTERS = 60
_NO_NOUN = re.compile(
    r"\b(?:no|any|without|free of|n?or|lack(?:s|ing))(?: (?!an?\b|the\b)[\w-]+,?){0,2} $"
)
Patterns = Mapping[str, tuple[str, ...]]
"""Values with regular expressions of words that claim them, between word boundaries. Words that an
earlier value takes make no other claim."""
Compiled = list[tuple[str, re.Pattern[str]]]


def compiled(patterns: Patterns) -> Compiled:
    """Returns values with one compiled pattern each."""
    return [
        (value, re.compile(rf"(?:(?<!\w)(?=\w)|(?<=^))(?:{'|'.join(words)})(?!\w)"))
        for value, words in patterns.items()
    ]


def by_patterns(
    patterns: Patterns, denied: Patterns | None = None
) -> Callable[[Sentence], Iterator[Found]]:
    """Returns a `find` that searches sentences for patterns, and minds negations and hedges.

    Nouns of `denied` count only shortly after a word that denies nouns, as in "without any cuts".
    """
    table = [(*row, False) for row in compiled(patterns)]
    table += [(*row, True) for row in compiled(denied or {})]

    def find(sentence: Sentence) -> Iterator[Found]:
        taken = np.zeros(len(sentence.plain), bool)
        for value, pattern, must_deny in table:
            for match in pattern.finditer(sentence.plain):
                start, end = match.span()
                if taken[start:end].any() or sentence.is_hedged(start, end):
                    continue
                is_negated = sentence.is_negated(start, end)
                before = sentence.plain[max(0, start - _NEAR_CHARACTERS) : start]
                if not must_deny or (is_negated and _NO_NOUN.search(before)):
                    taken[start:end] = True
                    yield Found(value, start, end, is_negated)

    return find


def by_luma(
    measured: Measured,
    confirms: tuple[float, float],
    allows: tuple[float, float],
    if_dark: Verdict,
) -> Judgement:
    """Judges by luma, and by the share of dark pixels.

    Lumas inside of black borders and of the whole picture have to agree.

    Args:
        measured: Measurements of the clip.
        confirms: Lumas that confirm.
        allows: Lumas outside of which the claim is contradicted.
        if_dark: Verdict about a picture that is mostly dark, if luma alone gives none.
    """
    judged = [
        by_bounds("luma", luma, confirms=confirms, allows=allows) for luma in measured.lumas
    ] or [UNMEASURED]
    first, dark = judged[0], measured.dark_shares
    verdict = first.verdict if len({each.verdict for each in judged}) == 1 else Verdict.UNKNOWN
    if not dark:
        return first._replace(verdict=verdict)
    if verdict is Verdict.UNKNOWN and min(dark) >= _MOSTLY:
        verdict = if_dark
    elif verdict is Verdict.CONFIRMED and if_dark is Verdict.CONTRADICTED and min(dark) > _MIXED:
        verdict = Verdict.UNKNOWN
    return Judgement(verdict, f"{first.measured}, {min(dark):.0%} of the picture dark")


def by_bounds(
    name: str,
    value: float | None,
    *,
    confirms: tuple[float, float],
    allows: tuple[float, float],
    unit: str = "",
) -> Judgement:
    """Judges a value: confirmed within `confirms`, contradicted outside `allows`, else unknown."""
    if value is None:
        return UNMEASURED
    verdict = Verdict.UNKNOWN
    if confirms[0] <= value <= confirms[1]:
        verdict = Verdict.CONFIRMED
    elif not allows[0] <= value <= allows[1]:
        verdict = Verdict.CONTRADICTED
    return Judgement(verdict, f"{name} {value:.3g}{unit}")

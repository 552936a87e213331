"""The caption as a trainer uses it: the rule `caption` of a trainer's file.

Trainers cut captions after a number of tokens. The tokenizers are not installed, so that a count is
an estimate between two bounds that hold for the tokenizers of these trainers: a word without spaces
has at least one token, and a byte of UTF-8 at most one.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from curator.trainers.frame_rules import Rule

CHARACTERS_PER_TOKEN = 4.0
"""Of English, for tokenizers of models such as T5, Gemma and Qwen; source: their vendors' rule of
thumb. Each other character counts as a token."""


_NUMBER = re.compile(r"\{(seconds|fps|width|height)(:\.[0-9]f)?\}")


class CaptionRule(Rule):
    """What a trainer makes of a caption."""

    tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Most tokens; null if the file's author found no limit."""
    tokenizer: str = "unknown"
    form: Literal["as_is", "strip", "sentence", "tags", "lines"] = "as_is"
    """`sentence`: without blanks and stops at the end, plus one stop; `tags`: a blank is inserted
    behind each comma, and [name] and [trigger] are removed; `lines`: each line that is not empty
    is a caption, of which one is drawn. The first one is given, and the longest one is counted."""
    suffix: str = Field("", max_length=1000)
    """Text that the trainer appends; may name {seconds}, {fps}, {width} and {height}."""
    empty: Literal["used", "dropped", "file_name", "nan"] = "used"
    """What an empty caption becomes; `nan`: the text "nan" if the list of clips is CSV."""

    @field_validator("suffix")
    @classmethod
    def _names_numbers(cls, suffix: str) -> str:
        # The file may be a stranger's: other formats reach attributes, or make gigabytes.
        if set("{}") & set(_NUMBER.sub("", suffix)):
            raise ValueError(
                "expected text with {seconds}, {fps}, {width} or {height}, or with decimals such "
                "as {fps:.2f}, and no other braces"
            )
        return suffix


@dataclass(frozen=True, slots=True)
class CaptionFit:
    """A caption as used.

    Attributes:
        text: Caption with what the trainer adds, before any cut; None if the caption is empty and
            the trainer then drops the clip.
        tokens: Estimate of the number of tokens.
        at_least: Lower bound of that number; `at_most` is an upper bound.
        limit: Most tokens that the trainer keeps; None for no known limit.
    """

    text: str | None
    tokens: int
    at_least: int
    at_most: int
    limit: int | None

    @property
    def cut(self) -> Literal["no", "unlikely", "likely", "yes"]:
        """Whether the trainer cuts the caption: certain where a bound decides."""
        if self.limit is None or self.at_most <= self.limit:
            return "no"
        if self.at_least > self.limit:
            return "yes"
        return "likely" if self.tokens > self.limit else "unlikely"


def fit_caption(
    rule: CaptionRule, caption: str, *, seconds: float, fps: float, width: int, height: int
) -> CaptionFit:
    """Returns the caption as a trainer uses it; the numbers are those of a sample."""
    text = counted = _formed(caption, rule.form)
    if rule.form == "lines" and "\n" in caption:
        lines = [line for line in caption.split("\n") if line]
        text, counted = next(iter(lines), ""), max(lines, key=len, default="")
    if rule.suffix:
        suffix = rule.suffix.format(seconds=seconds, fps=fps, width=width, height=height)
        text, counted = text + suffix, counted + suffix
    n_words, n_bytes = len(counted.split()), len(counted.encode(errors="surrogatepass"))
    n_latin = len(counted.encode("ascii", "ignore"))
    guess = max(n_words, round(n_latin / CHARACTERS_PER_TOKEN) + len(counted) - n_latin)
    is_dropped = rule.empty == "dropped" and not caption.strip()
    return CaptionFit(
        None if is_dropped else text, min(guess, n_bytes + 2), n_words, n_bytes + 2, rule.tokens
    )


def _formed(caption: str, form: str) -> str:
    if form == "tags":
        return caption.replace(",", ", ").replace("[name]", "").replace("[trigger]", "")
    if form in ("as_is", "lines"):
        return caption
    text = caption.strip()
    return f"{text.rstrip('.')}." if form == "sentence" else text

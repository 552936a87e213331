"""Draws the caption of a sample: which length, of which window of the clip, or none."""

import logging
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from curator.errors import UsageError, unknown_key
from curator.loading.batch_plan import normalized
from curator.loading.window_decoder import drawn

LENGTHS = ("short", "medium", "long")
TEXT, DROPPED = "text", "dropped"
"""Kinds of captions that are no lengths: the sample's `txt`, and the empty text of a dropout."""

logger = logging.getLogger(__name__)


class Caption(NamedTuple):
    """A caption and its kind: a length, `text` or `dropped`."""

    text: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionChoice:
    """How captions are drawn.

    Attributes:
        shares: Share of each length; None takes the sample's `txt`.
        dropout: Share of samples with the empty text.
    """

    shares: Mapping[str, float] | None
    dropout: float
    seed: int

    @classmethod
    def of(
        cls, shares: Mapping[str, float] | None, dropout: float, *, seed: int
    ) -> "CaptionChoice":
        """Checks the arguments of `ClipDataset`.

        Raises:
            UsageError: A share or length does not exist.
        """
        if not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
            raise UsageError(f"caption_dropout {dropout!r}; expected a share from 0 to 1")
        if shares is not None:
            if not shares or not isinstance(shares, Mapping):
                raise UsageError(
                    f"captions {shares!r}; expected shares of short, medium and long, such as "
                    "{'short': 0.1, 'long': 0.9}"
                )
            for name in shares:
                if name not in LENGTHS:
                    raise UsageError(unknown_key(name, LENGTHS, "length of captions"))
            shares = normalized(shares, "length")
        return cls(shares=shares, dropout=dropout, seed=seed)

    def caption(
        self,
        fact: Mapping[str, Any],
        text: str,
        frames: tuple[int, int] | None,
        name: str,
    ) -> Caption:
        """Draws the caption of a sample.

        Args:
            fact: JSON of the sample.
            text: Its `txt`.
            frames: First and last frame that were decoded; None for the whole clip.
            name: Round and key of the sample, which decide the draw together with the seed.
        """
        at = drawn(f"caption {self.seed} {name}") / 2**64
        if at < self.dropout:
            return Caption("", DROPPED)
        if self.shares is None:
            return Caption(text, TEXT)
        texts = captions_of(fact, frames)
        shares = {length: share for length, share in self.shares.items() if length in texts}
        if not shares:
            # Once in each process.
            _warn_of_lengths(" or ".join(self.shares))
            return Caption(text, TEXT)
        place = (at - self.dropout) / (1 - self.dropout) * sum(shares.values())
        ends = list(accumulate(shares.values()))
        length = list(shares)[min(bisect_right(ends, place), len(ends) - 1)]
        return Caption(texts[length], length)


@cache
def _warn_of_lengths(lengths: str) -> None:
    logger.warning(
        "samples without a caption of length %s for the frames of their window give their `txt`; "
        "`caption_kind` is then `text`", lengths,
    )  # fmt: skip


def captions_of(fact: Mapping[str, Any], frames: tuple[int, int] | None) -> dict[str, str]:
    """Returns the captions of decoded frames by length.

    They are those of the window of the annotation that holds most of the frames, and the shortest
    of several such windows, which describes an event. For a whole clip, the captions of its windows
    are joined.
    """
    windows = (fact.get("annotation") or {}).get("windows") or []
    if frames is None:
        texts = {length: [w[length] for w in windows if w.get(length)] for length in LENGTHS}
        return {length: " ".join(of_all) for length, of_all in texts.items() if of_all}

    def closeness(window: Mapping[str, Any]) -> tuple[int, int]:
        begin, end = window["start_frame"], window["end_frame"]
        return min(end, frames[1] + 1) - max(begin, frames[0]), begin - end

    # A window that holds none of the frames describes others.
    near = [window for window in windows if closeness(window)[0] > 0]
    best: Mapping[str, Any] = max(near, key=closeness, default={})
    return {length: best[length] for length in LENGTHS if best.get(length)}

"""Spans of sources that a manifest names, in seconds from the source's first frame."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple


class TimeSpan(NamedTuple):
    """A half-open span of a source; `end_s` is infinite for a span to the source's end."""

    start_s: float
    end_s: float

    def __str__(self) -> str:
        """Returns the span as messages write it.

        Example:
            >>> str(TimeSpan(2.5, math.inf))
            '2.5 s to the end'
        """
        return f"{self.start_s:g} s to " + ("the end" if self.is_open else f"{self.end_s:g} s")

    @property
    def is_open(self) -> bool:
        """Whether the span reaches to the source's end."""
        return math.isinf(self.end_s)

    def columns(self) -> dict[str, float | None]:
        """Returns the columns of `records.clips.Spanned`."""
        return {"span_start_s": self.start_s, "span_end_s": None if self.is_open else self.end_s}


WHOLE = TimeSpan(0.0, math.inf)
"""The span of a row without times."""


def span_of(row: Mapping[str, Any]) -> TimeSpan | None:
    """Returns the span in the columns of `records.clips.Spanned` of a row; None for none."""
    start_s, end_s = row["span_start_s"], row["span_end_s"]
    return None if start_s is None else TimeSpan(start_s, math.inf if end_s is None else end_s)


def overlapping(spans: Iterable[TimeSpan]) -> tuple[TimeSpan, TimeSpan] | None:
    """Returns two spans with common time; None if there are none."""
    ordered = sorted(spans)
    pairs = (pair for pair in pairwise(ordered) if pair[1].start_s < pair[0].end_s)
    return next(pairs, None)


def spans_as_json(spans: Mapping[TimeSpan, Mapping[str, Any]]) -> str:
    """Returns the column `spans` of a source: its spans in order, each with its metadata."""
    rows = (
        {"start_s": at.start_s, "end_s": None if at.is_open else at.end_s, "meta": dict(spans[at])}
        for at in sorted(spans)
    )
    return json.dumps(list(rows), ensure_ascii=False)


def spans_from_json(text: str | None) -> dict[TimeSpan, dict[str, Any]]:
    """Returns the spans of the column `spans` with their metadata, in order; empty for None."""
    rows = json.loads(text) if text is not None else ()
    return {
        TimeSpan(row["start_s"], math.inf if row["end_s"] is None else row["end_s"]): row["meta"]
        for row in rows
    }


def spans_key(spans: Sequence[TimeSpan]) -> str | None:
    """Returns a text that is equal for equal spans; None for no spans."""
    return (
        json.dumps([[at.start_s, *([] if at.is_open else [at.end_s])] for at in spans])
        if spans
        else None
    )

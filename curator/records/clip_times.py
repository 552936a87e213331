"""Times within a clip as structured captions write them: `M:SS-M:SS`, from the first frame."""

import math
import re

SPAN = "[0-9]{1,2}:[0-5][0-9]-[0-9]{1,2}:[0-5][0-9]"
"""Pattern of a span of time; prompts whose answers have such times put it into their schema."""
FIELDS = ("time", "time_range")
"""Fields of answers in which such a span is a time of the clip."""


def is_span(text: str) -> bool:
    """Returns whether a text has the form of a span."""
    return re.fullmatch(SPAN, text) is not None


def is_span_within(text: str, seconds: float) -> bool:
    """Returns whether a text is a span that lies within a clip of `seconds`.

    Spans have whole seconds, so one may end at the next whole second after the clip's end, which
    prompts give in tenths of a second.

    Example:
        >>> is_span_within("0:07-0:09", 8.8), is_span_within("0:07-0:10", 8.8)
        (True, False)
    """
    if not is_span(text):
        return False
    start_s, end_s = (
        60 * int(minutes) + int(rest)
        for minutes, rest in (time.split(":") for time in text.split("-"))
    )
    return start_s < seconds and start_s <= end_s <= math.ceil(round(seconds, 1))

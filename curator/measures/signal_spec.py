"""How a measurement is documented."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What a value of a sample is.

    Attributes:
        unit: Its unit.
        range: Values it can take, and what the ends mean.
        meaning: What it measures, and by what method or source.
    """

    unit: str
    range: str
    meaning: str

"""Settings of a run as a whole: how much of a corpus is taken at a time, and how it grows."""

from typing import Literal

from curator.stage import StageConfig, setting


class RunConfig(StageConfig):
    """Generations, and what later ones may change about earlier ones."""

    generation_hours: float = setting(1000.0, gt=0, unit="hours of video")
    """sources are taken in generations of about this length; each one goes the whole way and is
    committed before the next one is cut"""
    mode: Literal["exact", "growing"] = setting("exact", unit="name")
    """exact: bounds by quantile, duplicates and selection are those of one run over everything;
    growing: earlier clips stay as they are, and only new ones are read and decided about"""
    marks: Literal["override", "ignore"] = setting("override", unit="name")
    """override: what people marked by hand decides about clips before the rules; ignore: marks
    stay stored and decide nothing"""

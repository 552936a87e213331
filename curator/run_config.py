"""Settings of a whole run: the size of generations, and changes to earlier generations."""

from typing import Literal

from curator.stage import StageConfig, setting


class RunConfig(StageConfig):
    """Settings of generations and marks."""

    generation_hours: float = setting(1000.0, gt=0, unit="hours of video")
    """a run processes sources in generations of about this length, and commits each generation
    before it cuts the next generation"""
    mode: Literal["exact", "growing"] = setting("exact", unit="name")
    """exact: bounds by quantile, duplicates and selection equal those of one run over all sources;
    growing: earlier clips stay unchanged, and a run reads and decides only about new clips"""
    marks: Literal["override", "ignore"] = setting("override", unit="name")
    """override: marks by hand decide about clips before the rules; ignore: marks stay stored but
    decide nothing"""

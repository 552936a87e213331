"""Settings of the common clock of several cameras."""

from typing import Any, Literal

from pydantic import field_validator

from curator.stage import StageConfig, setting


class CamerasConfig(StageConfig):
    """How the clips of a group of cameras are cut at the same instants.

    Cameras are sources with the same `group` in a manifest.
    """

    clock: Literal["off", "given", "content"] = "off"
    """off: each source of a group is cut on its own; given: all sources of a group, or their
    spans, begin at one instant; content: a common clock is found from light, motion and sound, for
    sources that are one recording each"""
    max_offset_s: float = setting(2.0, gt=0, le=10, unit="seconds")
    """largest difference between the begins of two cameras that is searched"""
    max_drift_ppm: float = setting(100.0, ge=0, le=500, unit="millionths")
    """largest difference between the rates of two clocks that is searched"""
    unaligned: Literal["reject", "keep"] = "reject"
    """what becomes of clips of a group that has no common clock"""
    incomplete: Literal["reject", "keep"] = "reject"
    """what becomes of clips of a moment of which another camera's clip is rejected"""

    @field_validator("clock", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        # In YAML, `off` is a bool.
        return "off" if value is False else value

    @property
    def enabled(self) -> bool:
        """Whether clips of groups are cut at common instants."""
        return self.clock != "off"

    def problem_in(self, recipe: Any, /) -> str | None:  # noqa: ANN401 - stages know no recipe
        """Refuses clocks that have too little to go by, and windows without a rate."""
        if self.clock == "content" and not (recipe.analyze.activity and recipe.analyze.audio):
            return (
                "cameras.clock is content, which needs what analyze.activity and analyze.audio "
                "measure; set both to true"
            )
        if self.enabled and any(window.rate is None for window in recipe.propose.windows):
            return (
                "cameras.clock is on, and propose.windows has a window without a rate: cameras may "
                "have different rates; give windows as FRAMES@RATE, such as 81@24"
            )
        return None

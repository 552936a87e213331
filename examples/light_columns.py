"""An annotator that adds columns to the table `clips`: the brightness of each clip.

    stages:
      - use: light_columns:LightColumns
        config: {dark: 0.3}

Run it with this folder in PYTHONPATH. Detectors of people or poses have the same form. The columns
appear in the tables, and under `columns` in the JSON of each sample.
"""

from collections.abc import Sequence

from pydantic import Field

from curator.family import Columns, Family, Row, Scope
from curator.stage import Annotator, FrameRequest, SampledClip, StageConfig


class LightConfig(StageConfig):
    """The threshold for dark frames."""

    dark: float = Field(0.3, ge=0, le=1, description="highest brightness of a dark frame")


class LightColumns(Annotator[LightConfig]):
    """Measures brightness on two frames a second."""

    name = "light_columns"
    version = 1
    config_type = LightConfig
    batch = 4
    frames = (FrameRequest(at=2.0, size=64),)
    families = (
        Family(
            "light", Scope.CLIP, Columns({"brightness": "f32", "n_dark": "i32", "light": "text"})
        ),
    )

    def process(self, unit: Sequence[SampledClip]) -> list[Row]:
        """Returns one row per clip; None in a row means unknown."""
        rows: list[Row] = []
        for clip in unit:
            brightness_T = clip.frames.mean(axis=(1, 2, 3)) / 255  # noqa: N806 - a letter an axis
            n_dark = int((brightness_T <= self.config.dark).sum())
            label = "dark" if n_dark == len(brightness_T) else "light" if n_dark == 0 else None
            rows.append({"brightness": brightness_T.mean(), "n_dark": n_dark, "light": label})
        return rows

"""An annotator that writes columns of the table `clips`: how light each clip is.

    stages:
      - use: light_columns:LightColumns
        config: {dark: 0.3}

Run it with this folder in PYTHONPATH. A detector of people or poses is written the same way. The
columns are in the tables, and under `columns` in the JSON of samples.
"""

from collections.abc import Sequence

from pydantic import Field

from curator.family import Columns, Family, Row, Scope
from curator.stage import Annotator, FrameRequest, SampledClip, StageConfig


class LightConfig(StageConfig):
    """What counts as dark."""

    dark: float = Field(0.3, ge=0, le=1, description="most brightness of a dark frame")


class LightColumns(Annotator[LightConfig]):
    """Brightness of two frames a second."""

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
        """Returns a row of each clip; what is None is not known."""
        rows: list[Row] = []
        for clip in unit:
            brightness_T = clip.frames.mean(axis=(1, 2, 3)) / 255  # noqa: N806 - a letter an axis
            n_dark = int((brightness_T <= self.config.dark).sum())
            label = "dark" if n_dark == len(brightness_T) else "light" if n_dark == 0 else None
            rows.append({"brightness": brightness_T.mean(), "n_dark": n_dark, "light": label})
        return rows

r"""A custom measure at full size: the change in brightness between neighbouring pictures.

export PYTHONPATH=examples
curate run videos out --set "measures=[flicker:Flicker]" --set filters.flicker.max=0.02
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from curator.measures.measure_contract import Measure, SamplePictures, ScoreSpec, Signal


class Flicker(Measure):
    """Detects pulsing lamps and hunting exposure, which 2 samples a second cannot show."""

    name = "flicker"
    version = 1
    full: Literal["luma"] = "luma"
    pairs = True
    signals: Mapping[str, Signal] = {
        "luma_step": Signal(
            unit="0 to 1",
            range="0 for the same brightness to 1 black to white",
            meaning="difference of the mean luma of two neighbouring pictures of full size",
        )
    }
    scores: Mapping[str, ScoreSpec] = {
        "flicker": ScoreSpec(
            unit="0 to 1",
            range="0 steady upwards",
            meaning="step of brightness between neighbouring pictures, 90th percentile",
            of="luma_step",
            aggregate="p90",
            high="flickers",
        )
    }

    def measure(self, sample: SamplePictures) -> dict[str, float]:
        """Returns the signal of one pair of pictures."""
        step = np.mean(sample.full_after, dtype=np.float64) - np.mean(sample.full, dtype=np.float64)
        return {"luma_step": abs(float(step)) / 255}

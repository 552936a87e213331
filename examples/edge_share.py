r"""A custom measure: the share of the picture's pixels that are edges.

export PYTHONPATH=examples
curate run videos out --set "measures=[edge_share:EdgeShare]" \
    --set filters.edge_share.min=0.02
"""

from collections.abc import Mapping

import cv2
import numpy as np

from curator.measures.measure_contract import Measure, SamplePictures, ScoreSpec, Signal


class EdgeShare(Measure):
    """Separates empty pictures, such as a wall or fog, from pictures with content."""

    name = "edges"
    version = 1
    signals: Mapping[str, Signal] = {
        "edge_share": Signal(
            unit="0 to 1", range="0 without edges to 1", meaning="share of pixels on Canny edges"
        )
    }
    scores: Mapping[str, ScoreSpec] = {
        "edge_share": ScoreSpec(
            unit="0 to 1",
            range="0 without edges to 1; above 0.2 leaves, crowds and print",
            meaning="share of the picture that is edges, median over samples",
            of="edge_share",
            aggregate="median",
        ),
        "empty_share": ScoreSpec(
            unit="0 to 1",
            range="0 to 1 empty throughout",
            meaning="share of the clip's samples whose share of edges is below a bound",
            of="edge_share",
            below=0.01,
            high="mostly_empty",
        ),
    }

    def measure(self, sample: SamplePictures) -> dict[str, float]:
        """Returns the signal of one sample."""
        gray = cv2.cvtColor(sample.small_HWC, cv2.COLOR_RGB2GRAY)
        return {"edge_share": float(np.mean(cv2.Canny(gray, 50, 150) > 0))}

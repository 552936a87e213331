"""A custom captioner: names the mean colour of each window.

PYTHONPATH=examples curate run VIDEOS OUT --set caption.captioner=captioner:MeanColour \
        --set 'caption.lengths=[medium]' --set caption.language=null
"""

from collections.abc import Mapping

import numpy as np

from curator.stages.caption.caption_records import Frames, Request
from curator.stages.caption.captioners.captioner_contract import Captioner

COLOURS = {
    "dark": (0, 0, 0),
    "white": (255, 255, 255),
    "grey": (128, 128, 128),
    "red": (200, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 200),
    "yellow": (220, 210, 60),
}


class MeanColour(Captioner):
    """Answers with the colour of `COLOURS` that is nearest to the mean of the frames."""

    version = 1

    def answer(self, request: Request, frames: Frames) -> Mapping[str, str]:
        """Returns the same sentence for each field of the request's JSON Schema."""
        mean = np.mean([picture.mean(axis=(0, 1)) for picture in frames.arrays()], axis=0)
        near = min(COLOURS, key=lambda name: float(np.abs(mean - COLOURS[name]).sum()))
        text = f"The scene is mostly {near}."
        assert request.schema is not None
        return dict.fromkeys(request.schema["properties"], text)

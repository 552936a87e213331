"""A captioner of your own in one file: it names the mean colour of a window.

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
    """Answers with the nearest colour of the frames' mean."""

    version = 1

    def answer(self, request: Request, frames: Frames) -> Mapping[str, str]:
        """Fills the fields of the request's JSON Schema with one sentence each."""
        mean = np.mean([picture.mean(axis=(0, 1)) for picture in frames.arrays()], axis=0)
        near = min(COLOURS, key=lambda name: float(np.abs(mean - COLOURS[name]).sum()))
        text = f"The scene is mostly {near}."
        assert request.schema is not None
        return dict.fromkeys(request.schema["properties"], text)

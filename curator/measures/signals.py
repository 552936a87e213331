"""What is measured on a picture, or on two that follow each other: pure functions of pixels.

`stages.measure` calls them on samples of the one decode, and stores their values in the track by
the names of `SIGNALS`. A module here has a dictionary `SIGNALS` of what it gives, and functions
that give it. They know no threshold and no clip.
"""

from curator.measures import borders_signal as borders
from curator.measures import camera_signal as camera
from curator.measures import motion_signal as motion
from curator.measures import picture_signal as picture
from curator.measures import quality_signal as quality
from curator.measures import quantizer_signal as quantizer
from curator.measures import still_signal as still
from curator.measures.signal_spec import Signal

SIGNALS: dict[str, Signal] = {
    **picture.SIGNALS,
    **quality.SIGNALS,
    **quantizer.SIGNALS,
    **borders.SIGNALS,
    **motion.SIGNALS,
    **camera.SIGNALS,
    **still.SIGNALS,
}
"""All values of a sample, float32 each, NaN where one could not be measured."""

__all__ = ["SIGNALS", "Signal"]

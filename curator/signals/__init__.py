"""What is measured on a picture, or on two that follow each other: pure functions of pixels.

`stages.measure` calls them on samples of the one decode, and stores their values in the track by
the names of `SIGNALS`. A module here has a dictionary `SIGNALS` of what it gives, and functions
that give it. They know no threshold and no clip.
"""

from curator.signals import borders, camera, motion, picture, quality, quantizer, still
from curator.signals.spec import Signal

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

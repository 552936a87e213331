"""The picture inside black borders, as the samples of a clip together say."""

import numpy as np
from numpy.typing import NDArray

from curator.measures.spec import ClipView, ScoreSpec
from curator.records import Crop, Reason

MIN_SHARE = 0.005
"""Smallest border, as a share of the side: a line or two at an edge is not worth an encoding."""
AGREEMENT = 0.75
"""Share of the samples which must agree on where a border ends, of those that do and those in which
there is none or a larger one."""
_WITNESSES = 0.15
"""Share of all samples that must agree: in a dark clip a few may see lines that are none."""
_WITHIN_PX = 2.5
_TURNS = {
    0: ("left", "top", "right", "bottom"),
    90: ("bottom", "left", "top", "right"),
    180: ("right", "bottom", "left", "top"),
    270: ("top", "right", "bottom", "left"),
}
"""Sides as coded that are left, top, right and bottom after a clockwise rotation."""


def crop_of(clip: ClipView) -> Crop | None:
    """The picture inside the borders of a clip; None where there are none to be cut away.

    Args:
        clip: The clip. `Track.width` and `Track.height` are those after rotation.
    """
    track = clip.track
    names = _TURNS[track.rotation_deg % 360]
    sizes = (track.width, track.height, track.width, track.height)
    shares = [_border(clip, name, size) for name, size in zip(names, sizes, strict=True)]
    if not any(shares):
        return None
    left, top, right, bottom = (
        _inwards(share * size) for share, size in zip(shares, sizes, strict=True)
    )
    width = (track.width - left - right) // 2 * 2
    height = (track.height - top - bottom) // 2 * 2
    return Crop(x=left, y=top, width=max(2, width), height=max(2, height))


def content_area(clip: ClipView) -> float | None:
    """Share of the picture inside the borders; None for a clip without samples."""
    if not clip.samples.any():
        return None
    crop = crop_of(clip)
    if crop is None:
        return 1.0
    return crop.width * crop.height / (clip.track.width * clip.track.height)


def _border(clip: ClipView, side: str, size: int) -> float:
    """The border of a side (as coded) that the samples agree on, as a share; 0 for none."""
    shares = clip.signal(f"border_{side}")
    n_samples = int(clip.samples.sum())
    if not len(shares):
        return 0.0
    agreeing = _largest_group(shares, _WITHIN_PX / size)
    border = float(np.median(agreeing))
    # A smaller border that is not none is a line of text within this one.
    contrary = np.count_nonzero((shares < MIN_SHARE) | (shares > border + _WITHIN_PX / size))
    needed = max(
        min(2, n_samples),
        _WITNESSES * n_samples,
        len(shares) / 2,
        AGREEMENT * (len(agreeing) + contrary),
    )
    return border if border >= MIN_SHARE and len(agreeing) >= needed else 0.0


def _largest_group(values: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """The values within a distance of the one that has most of them within it."""
    near = np.abs(values[:, None] - values[None, :]) <= width
    group: NDArray[np.float64] = values[near[int(np.argmax(near.sum(axis=1)))]]
    return group


def _inwards(border_px: float) -> int:
    """The next even number, but for the error of storing a share in 32 bits."""
    return int(np.ceil((border_px - 0.01) / 2)) * 2


SCORES: dict[str, ScoreSpec] = {
    "content_area": ScoreSpec(
        unit="0 to 1",
        range="0 to 1 no borders",
        meaning="share of the picture that lies inside black borders",
        low=Reason.BORDERS_TOO_LARGE,
        high=Reason.BORDERS_TOO_SMALL,
        of=content_area,
    ),
}

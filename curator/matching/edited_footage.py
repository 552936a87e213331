"""Shows the footage of a clip as an edit would show it: negative, backward, or without its bars.

Keypoints, vectors and luma of the edit follow from those of the clip, so no picture is needed, and
the cost is that of the few clips that are shown so.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from curator.matching.clip_footage import ClipFootage, Keypoints
from curator.matching.geometry import NEGATIVE_128
from curator.media.opencv import cv2
from curator.models.perceptual import bar_box

_SAME_BARS_PX = 2


@lru_cache(maxsize=256)
def negative(clip: ClipFootage) -> ClipFootage:
    """Returns the footage of the negative clip; vectors stay, because they change little."""
    points = [clip.keypoints(at) for at in range(len(clip.pictures))]
    pictures = [replace(p, descriptors_KD=p.descriptors_KD[:, NEGATIVE_128]) for p in points]
    return replace(clip, pictures=tuple(pictures), luma_F=1 - clip.luma_F)


@lru_cache(maxsize=256)
def backward(clip: ClipFootage) -> ClipFootage:
    """Returns the footage of the clip as it is played backward."""
    last_s = clip.duration_s - 1 / clip.fps
    return replace(
        clip,
        picture_s=last_s - clip.picture_s[::-1],
        pictures=clip.pictures[::-1],
        vector_s=last_s - clip.vector_s[::-1],
        vectors_VD=clip.vectors_VD[::-1],
        luma_F=clip.luma_F[::-1],
        luma_spread_F=clip.luma_spread_F[::-1],
    )


@lru_cache(maxsize=256)
def without_bars(clip: ClipFootage) -> ClipFootage | None:
    """Returns the footage with the luma of the picture inside its bars; None without bars.

    Bars have one luma. So mean and deviation of the inner picture follow from those of the whole.
    """
    ends = clip.pictures[:: max(1, len(clip.pictures) - 1)]
    lumas = [luma_HW for picture in ends if (luma_HW := _luma(picture)) is not None]
    boxes = [bar_box(luma_HW) for luma_HW in lumas]
    if not boxes or np.ptp(boxes, axis=0).max() > _SAME_BARS_PX:
        return None
    luma_HW, (top, bottom, left, right) = lumas[0], boxes[0]
    inner = np.zeros(luma_HW.shape, np.bool_)
    inner[top:bottom, left:right] = True
    share = float(inner.mean())
    if not 0 < share < 1:
        return None
    bars = float(np.median(luma_HW[~inner])) / 255
    mean_F = (clip.luma_F - (1 - share) * bars) / share
    square_F = clip.luma_spread_F**2 + clip.luma_F**2
    variance_F = (square_F - (1 - share) * bars**2) / share - mean_F**2
    return replace(clip, luma_F=mean_F, luma_spread_F=np.sqrt(np.maximum(variance_F, 0)))


def _luma(picture: bytes | Keypoints) -> NDArray[np.uint8] | None:
    if not isinstance(picture, bytes):
        return None
    luma_HW = cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_GRAYSCALE)
    return None if luma_HW is None else np.asarray(luma_HW, np.uint8)

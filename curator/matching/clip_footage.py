"""Holds the input of matching for a clip: pictures or keypoints, vectors, and luma over time.

Shape letters: P pictures, V picture vectors, D dimensions, F frames, K keypoints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.media.opencv import cv2

SIDE_PX = 320  # longer side of a picture in the unit of keypoints
MAX_KEYPOINTS = 200
_CONTRAST_THRESHOLD = 0.02
_ENLARGED_FROM = 1.2  # smaller pictures are enlarged, because they have few keypoints
_KEPT_IN_CACHE = 4096

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Keypoints:
    """SIFT keypoints of one picture, strongest first."""

    xy_K2: Floats  # float32 [K, 2], x and y; the picture's longer side is 320 units
    descriptors_KD: NDArray[np.uint8]  # uint8 [K, 128]
    width: float  # the picture's width in the same unit
    height: float  # its height

    def __post_init__(self) -> None:
        """Raises `ValueError` for arrays of other shapes."""
        k = len(self.xy_K2)
        if self.xy_K2.shape != (k, 2) or self.descriptors_KD.shape != (k, 128):
            raise ValueError(
                f"keypoints have xy {self.xy_K2.shape} and descriptors "
                f"{self.descriptors_KD.shape}; expected [K, 2] and [K, 128]"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClipFootage:
    """Footage of one clip, for comparison with other clips."""

    clip_id: str  # id of the clip, for messages
    fps: float  # values of `luma_F` per second; the caller resamples a variable frame rate
    picture_s: Floats  # float32 [P], ascending: seconds from the clip's first frame
    # For each time a JPEG of about 320 px, or its keypoints if pictures must not be stored.
    pictures: tuple["bytes | Keypoints", ...]
    vector_s: Floats  # float32 [V], ascending: seconds from the clip's first frame
    vectors_VD: Floats  # float32 [V, D], L2-normalised; zero for a flat or black picture
    luma_F: Floats  # float32 [F], mean luma of each frame, 0 to 1
    luma_spread_F: Floats  # float32 [F], standard deviation of each frame's luma

    def __post_init__(self) -> None:
        """Raises `ValueError` for series without frames, or with lengths that disagree."""
        if not self.fps > 0 or self.luma_F.ndim != 1 or not self.luma_F.size:
            raise ValueError(f"footage of {self.clip_id} has no frames, or a rate of {self.fps}")
        lengths = {
            "pictures": (len(self.pictures), self.picture_s.shape),
            "vectors": (len(self.vectors_VD), self.vector_s.shape),
            "spreads of luma": (len(self.luma_F), self.luma_spread_F.shape),
        }
        for name, (n, shape) in lengths.items():
            if shape != (n,):
                raise ValueError(f"footage of {self.clip_id}: {n} {name} do not fit {shape} times")
        if self.vectors_VD.ndim != 2:
            raise ValueError(f"footage of {self.clip_id}: vectors have {self.vectors_VD.ndim} axes")

    @property
    def duration_s(self) -> float:
        """Length of the clip in seconds."""
        return len(self.luma_F) / self.fps

    def keypoints(self, picture: int) -> Keypoints:
        """Returns the keypoints of the picture with this index."""
        kept = self.pictures[picture]
        return kept if isinstance(kept, Keypoints) else keypoints_of(kept)


def joined(windows: Sequence[tuple[ClipFootage, float]]) -> ClipFootage:
    """Returns the footage of a take from its windows, and their begins in the take in seconds.

    Windows may overlap. The first window is the begin of the take.
    """
    if len(windows) == 1:
        return windows[0][0]
    first = windows[0][0]
    pictures: dict[float, bytes | Keypoints] = {}
    vectors: dict[float, Floats] = {}
    luma: dict[float, tuple[float, float]] = {}
    for clip, begin_s in windows:
        pictures |= zip(_moved(clip.picture_s, begin_s), clip.pictures, strict=True)
        vectors |= zip(_moved(clip.vector_s, begin_s), clip.vectors_VD, strict=True)
        frame_s = _moved(np.arange(len(clip.luma_F)) / clip.fps, begin_s)
        luma |= zip(frame_s, zip(clip.luma_F, clip.luma_spread_F, strict=True), strict=True)
    frame_s = sorted(luma)
    grid_s = np.arange(round(max(b + c.duration_s for c, b in windows) * first.fps)) / first.fps
    lumas = np.array([luma[second] for second in frame_s], np.float32).T
    luma_F, luma_spread_F = (np.interp(grid_s, frame_s, of).astype(np.float32) for of in lumas)
    picture_s, vector_s = sorted(pictures), sorted(vectors)
    return ClipFootage(
        clip_id=first.clip_id,
        fps=first.fps,
        picture_s=np.array(picture_s, np.float32),
        pictures=tuple(pictures[second] for second in picture_s),
        vector_s=np.array(vector_s, np.float32),
        vectors_VD=np.array([vectors[s] for s in vector_s], np.float32).reshape(len(vector_s), -1)
        if vector_s
        else first.vectors_VD,
        luma_F=luma_F,
        luma_spread_F=luma_spread_F,
    )


def _moved(seconds: NDArray[Any], begin_s: float) -> list[float]:
    """Returns times in a take; those of one frame in two windows are equal."""
    moved: list[float] = np.round(seconds + begin_s, 3).tolist()
    return moved


@lru_cache(maxsize=_KEPT_IN_CACHE)
def keypoints_of(jpeg: bytes) -> Keypoints:
    """Returns the strongest SIFT keypoints of a picture, at most 200; caches recent pictures.

    Raises:
        ValueError: OpenCV cannot decode the picture.
    """
    luma_HW = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_GRAYSCALE)
    if luma_HW is None:
        raise ValueError(f"OpenCV cannot decode a picture of {len(jpeg)} bytes")
    scale = SIDE_PX / max(luma_HW.shape)
    height, width = luma_HW.shape[0] * scale, luma_HW.shape[1] * scale
    if scale > _ENLARGED_FROM:
        size = (max(1, round(width)), max(1, round(height)))
        luma_HW = cv2.resize(luma_HW, size, interpolation=cv2.INTER_CUBIC)
        scale = SIDE_PX / max(luma_HW.shape)
    sift = cv2.SIFT.create(nfeatures=MAX_KEYPOINTS, contrastThreshold=_CONTRAST_THRESHOLD)
    points, descriptors = sift.detectAndCompute(luma_HW, None)
    order = np.argsort([-point.response for point in points], kind="stable")[:MAX_KEYPOINTS]
    xy_K2 = np.array([point.pt for point in points], np.float32).reshape(-1, 2)[order]
    if descriptors is None:
        descriptors = np.zeros((0, 128), np.uint8)
    return Keypoints(
        xy_K2=xy_K2 * np.float32(scale),
        descriptors_KD=np.asarray(descriptors[order], np.uint8),
        width=width,
        height=height,
    )

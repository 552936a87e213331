"""Rows of what two clips of the same footage are compared by: vectors, pictures, and luma.

Seconds count from the first frame of the clip.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.tables.schemas import LUMA_HZ


def footage_row(view: ClipView) -> dict[str, Any]:
    """Returns the columns of `FOOTAGE_SCHEMA` without the id.

    Pictures without structure have no vector.
    """
    track = view.track
    shown = np.flatnonzero(view.holds(track.scene_frame))
    shown = shown[np.any(track.scene_vector[shown] != 0, axis=1)]
    return {
        "second": _seconds(view, track.scene_frame[shown]).astype(np.float32),
        "vector": track.scene_vector[shown].astype(np.float16).ravel(),
    }


def pictures_row(view: ClipView) -> dict[str, Any]:
    """Returns the columns of `PICTURES_SCHEMA` without the id."""
    track = view.track
    shown = np.flatnonzero(view.holds(track.thumbnail_frame))
    frames = np.arange(view.span.start_frame, view.span.end_frame)
    at_s = _seconds(view, frames)
    grid_s = np.arange(0.0, max(view.seconds, 1 / LUMA_HZ), 1 / LUMA_HZ)

    def at_rate(values: NDArray[np.float32]) -> NDArray[np.float16]:
        if len(values) != track.n_frames:
            return np.zeros(0, np.float16)
        resampled: NDArray[np.float16] = np.interp(grid_s, at_s, values[view.frames]).astype("f2")
        return resampled

    return {
        "duration_s": view.seconds,
        "second": _seconds(view, track.thumbnail_frame[shown]).astype(np.float32),
        "jpeg": [track.thumbnails[number] for number in shown.tolist()],
        "luma_mean": at_rate(track.luma_mean),
        "luma_spread": at_rate(track.luma_spread),
    }


def _seconds(view: ClipView, frames: NDArray[Any]) -> NDArray[np.float64]:
    """Returns the seconds of frames of the source, float64 [N]."""
    pts = view.track.frame_pts[frames] - view.track.frame_pts[view.span.start_frame]
    seconds: NDArray[np.float64] = pts.astype(np.float64) * float(view.track.time_base)
    return seconds

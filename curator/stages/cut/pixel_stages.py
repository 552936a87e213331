"""Runs a user's stage over the frames of a clip, between decoder and encoder."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from curator.errors import CutError
from curator.stage import ClipFrames, PixelStage

_BT709, _LIMITED, _FULL = 1, 1, 2
"""FFmpeg's numbers of the matrix and of the ranges."""


def pixel_stamps(stages: Sequence[PixelStage[Any]]) -> list[tuple[str, str, str]]:
    """Module, class and fingerprint of each stage."""
    return [
        (type(stage).__module__, type(stage).__qualname__, stage.fingerprint({}))
        for stage in stages
    ]


def changed_pixels(
    stage: PixelStage[Any], pictures: Iterator[VideoFrame], clip_id: str, fps: Fraction
) -> Iterator[VideoFrame]:
    """Yields upright frames (yuv420p, BT.709, limited range) as a stage changes them.

    Raises:
        CutError: The stage yields another number of frames, or frames of another form.
    """
    sizes: list[tuple[int, int]] = []

    def arrays() -> Iterator[NDArray[np.uint8]]:
        for picture in pictures:
            sizes.append((picture.height, picture.width))
            rgb = picture.reformat(
                format="rgb24", src_colorspace=_BT709, src_color_range=_LIMITED,
                dst_color_range=_FULL,
            )  # fmt: skip
            yield np.asarray(rgb.to_ndarray(), np.uint8)

    n_changed = 0
    for frame_HWC in stage.process(ClipFrames(clip_id=clip_id, fps=fps, frames=arrays())):  # noqa: N806
        is_expected = n_changed < len(sizes) and frame_HWC.shape == (*sizes[n_changed], 3)
        if not is_expected or frame_HWC.dtype != np.uint8:
            raise CutError(
                f"clip {clip_id}: stage {stage.name} yields frame {n_changed} as {frame_HWC.dtype} "
                f"{list(frame_HWC.shape)}; expected one uint8 RGB frame for each, of its size"
            )
        n_changed += 1
        rgb = VideoFrame.from_ndarray(np.ascontiguousarray(frame_HWC), format="rgb24")
        yield rgb.reformat(
            format="yuv420p", src_color_range=_FULL, dst_colorspace=_BT709,
            dst_color_range=_LIMITED,
        )  # fmt: skip
    if n_changed != len(sizes):
        raise CutError(
            f"clip {clip_id}: stage {stage.name} yields {n_changed} frames of {len(sizes)}"
        )

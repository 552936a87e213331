"""The frames of a span: exactly the analyzed ones, as often and as changed as they are written."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain, repeat
from typing import Any

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from curator.errors import CutError, DecodeError, ErrorCode
from curator.media.decode import DecodedFrame, FrameReader
from curator.media.encode import Upright
from curator.records.cuts import CutRequest
from curator.stage import ClipFrames, PixelStage

_BT709, _LIMITED, _FULL = 1, 1, 2
"""FFmpeg's numbers of the matrix and of the ranges."""


class WrongFramesError(Exception):
    """Decoding gave other frames than the analysis."""


def exact_frames(
    frames: FrameReader, request: CutRequest, *, tolerant: bool
) -> Iterator[DecodedFrame]:
    """Yields the span's frames and no other, or raises `WrongFramesError`.

    `frames` is positioned before the span. `tolerant` takes damaged frames too: from the start of
    the file they are the analyzed ones.
    """
    wanted = request.frame_pts
    position = 0
    is_anchored = tolerant
    try:
        for frame in frames:
            is_anchored |= bool(frame.picture.key_frame)
            if frame.pts < wanted[0]:
                continue
            # Streams with gradual refresh give incomplete frames after a seek.
            if not is_anchored:
                raise WrongFramesError(f"no key frame at or before {frame.pts}")
            if frame.pts != wanted[position]:
                raise WrongFramesError(
                    f"frame at {frame.pts}, where {int(wanted[position])} was analyzed"
                )
            # A frame before the span counts too: frames that refer to a concealed one show its
            # damage.
            if not tolerant and frames.report.is_damaged:
                raise WrongFramesError(f"damage at or before {frame.pts}")
            yield frame
            position += 1
            if position == len(wanted):
                return
    except DecodeError as error:
        if error.code == ErrorCode.TOO_MANY_PIXELS:
            raise
        raise WrongFramesError(str(error)) from error
    raise WrongFramesError(f"{position} of {len(wanted)} frames decode")


def at_constant_rate(
    upright: Upright, frames: Iterable[DecodedFrame], plan: NDArray[np.int64]
) -> Iterator[VideoFrame]:
    """Yields each source frame as often as the plan names it."""

    def ready() -> Iterator[VideoFrame]:
        for frame in frames:
            yield from upright.push(frame.picture)
        yield from upright.flush()

    # All frames are read, also behind the last one of the plan: they are checked then.
    for picture, times in zip(ready(), chain(np.bincount(plan).tolist(), repeat(0)), strict=False):
        yield from repeat(picture, times)


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

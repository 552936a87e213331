"""The frames of a span: exactly the analyzed ones, each as often as it is written."""

from collections.abc import Iterator

import av.video.frame
import numpy as np
from numpy.typing import NDArray

from curator.errors import DecodeError, ErrorCode
from curator.media.decode import DecodedFrame, FrameReader
from curator.media.encode import Upright
from curator.records.cuts import CutRequest


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
    upright: Upright, first: DecodedFrame, rest: Iterator[DecodedFrame], plan: NDArray[np.int64]
) -> Iterator[av.video.frame.VideoFrame]:
    """Yields each source frame as often as the plan names it."""
    repeats = np.bincount(plan)
    position = 0

    def repeated(ready: list[av.video.frame.VideoFrame]) -> Iterator[av.video.frame.VideoFrame]:
        nonlocal position
        for picture in ready:
            times = int(repeats[position]) if position < len(repeats) else 0
            for _ in range(times):
                yield picture
            position += 1

    yield from repeated(upright.push(first.picture))
    for frame in rest:
        yield from repeated(upright.push(frame.picture))
    yield from repeated(upright.flush())

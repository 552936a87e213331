"""Reads the quantiser of a frame, which its decoder takes from the stream."""

from math import log2

import numpy as np
from av.sidedata.encparams import VideoEncParams, VideoEncParamsType
from av.sidedata.sidedata import Type
from av.video.frame import VideoFrame

from curator.media.decode import side_data_of

_VP9_INDEX = (0, 1, 95, 120, 137, 155, 173, 191, 210, 232, 255)
_VP9_STEP = (4, 8, 102, 152, 203, 280, 387, 540, 771, 1173, 1828)
"""Some of the steps of VP9's AC coefficients, in eighths of a level. Linear interpolation between
them is off by at most 0.2 QP (VP9 bitstream specification 0.7, `ac_qlookup`)."""


def quantizer_signals(frame: VideoFrame) -> dict[str, float]:
    """Returns `quantizer`: the area-weighted mean of the blocks' quantisers, as an H.264 QP.

    The value is NaN if the decoder, opened with `DECODER_OPTIONS`, reports no quantisers. Decoders
    of H.264, VP9 and MPEG-1, 2 and 4 report quantisers.
    """
    side_data = side_data_of(frame, Type.VIDEO_ENC_PARAMS)
    if side_data is None:
        return {"quantizer": float("nan")}
    return {"quantizer": _mean_qp(frame, side_data, memoryview(side_data))}


def _mean_qp(frame: VideoFrame, params: VideoEncParams, data: memoryview) -> float:
    level = params.qp + _mean_difference(params, data)
    if params.codec_type == VideoEncParamsType.H264:
        # H.264 with 10 bits has 12 finer quantisers below the 52 of 8 bits.
        return level - 6 * (frame.format.components[0].bits - 8)
    if params.codec_type == VideoEncParamsType.VP9:
        return _qp_of_step(float(np.interp(level, _VP9_INDEX, _VP9_STEP)) / 8)
    # In MPEG-4 and older codecs, the quantiser is the step where the weighting matrix is flat.
    return _qp_of_step(level)


def _mean_difference(params: VideoEncParams, data: memoryview) -> float:
    """Area-weighted mean difference of the blocks from the frame's quantiser; 0 without blocks."""
    n, size, start = params.nb_blocks, params.block_size, params.blocks_offset
    if n == 0:
        return 0.0
    rows = np.frombuffer(data[start : start + n * size], np.int32).reshape(n, size // 4)
    width, height, difference = rows[:, 2], rows[:, 3], rows[:, 4]
    area = (width * height).astype(np.float64)
    return float(area @ difference / area.sum()) if area.any() else 0.0


def _qp_of_step(step: float) -> float:
    """Returns the H.264 QP of a step in levels: QP 4 is step 1, and 6 more QP double the step."""
    return 4 + 6 * log2(max(step, 0.5))

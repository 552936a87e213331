"""How coarsely the stream's own encoder quantised a frame, as its decoder reads it.

It is exact and costs nothing, and says nothing of an encode before the last: a damaged film that
was encoded again with a fine quantiser has a fine quantiser. `blocking` and `flattening` look at
the pixels.
"""

from math import log2

import numpy as np
from av.sidedata.encparams import VideoEncParams, VideoEncParamsType
from av.sidedata.sidedata import Type
from av.video.frame import VideoFrame

from curator.measures.measure_contract import ScoreSpec
from curator.media.decode import side_data_of

FAMILY = "quality"

_VP9_INDEX = (0, 1, 95, 120, 137, 155, 173, 191, 210, 232, 255)
_VP9_STEP = (4, 8, 102, 152, 203, 280, 387, 540, 771, 1173, 1828)
"""Some of the steps of VP9's AC coefficients, in eighths of a level; lines between them miss the
others by up to 0.2 QP (VP9 bitstream specification 0.7, `ac_qlookup`)."""


def quantizer_signals(frame: VideoFrame) -> dict[str, float]:
    """`quantizer`: mean quantiser of the frame's blocks, by area, as a QP of H.264 with that step.

    NaN where the decoder, opened with `DECODER_OPTIONS`, does not say it: it does for H.264, VP9,
    MPEG-1, 2 and 4.
    """
    found = side_data_of(frame, Type.VIDEO_ENC_PARAMS)
    if found is None:
        return {"quantizer": float("nan")}
    return {"quantizer": _mean_qp(frame, found, memoryview(found))}


def _mean_qp(frame: VideoFrame, params: VideoEncParams, data: memoryview) -> float:
    level = params.qp + _mean_difference(params, data)
    if params.codec_type == VideoEncParamsType.H264:
        # 10 bits have 12 finer values below the 52 of 8 bits.
        return level - 6 * (frame.format.components[0].bits - 8)
    if params.codec_type == VideoEncParamsType.VP9:
        return _qp_of_step(float(np.interp(level, _VP9_INDEX, _VP9_STEP)) / 8)
    # In MPEG-2 and before, the number is the step where the weighting matrix is flat.
    return _qp_of_step(level)


def _mean_difference(params: VideoEncParams, data: memoryview) -> float:
    """Mean difference of blocks from the frame's quantiser, by area; VP9 often has no blocks.

    Fields of a block, `AVVideoBlockParams`: x, y, width, height, difference.
    """
    n, size, start = params.nb_blocks, params.block_size, params.blocks_offset
    if n == 0:
        return 0.0
    rows = np.frombuffer(data[start : start + n * size], np.int32).reshape(n, size // 4)
    width, height, difference = rows[:, 2], rows[:, 3], rows[:, 4]
    area = (width * height).astype(np.float64)
    return float(area @ difference / area.sum()) if area.any() else 0.0


def _qp_of_step(step: float) -> float:
    """QP of H.264 whose step is this, in levels: 1 at 4, and doubled by every 6."""
    return 4 + 6 * log2(max(step, 0.5))


SCORES = {
    "quantizer": ScoreSpec(
        unit="QP of H.264",
        range="about 0 finest to 51 coarsest; of H.264 below 26 clean, above 38 visibly damaged; "
        "absent for codecs other than H.264, VP9, MPEG-1, MPEG-2 and MPEG-4, and for sources "
        "that a GPU decoded, whose engine does not say it",
        meaning="how coarsely the last encode quantised, as the decoder says it; damage of an "
        "earlier encode shows in `blocking` and `flattening` only",
        aggregate="mean",
        cpu_only=True,
    )
}

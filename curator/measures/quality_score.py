"""Scores of technical quality: what compression, transfer and enlargement left in the picture."""

import numpy as np

from curator.measures.spec import ClipView, ScoreSpec
from curator.records import Reason

FROZEN_CHANGE = 2.0
"""Change between two frames, in levels, below which nothing moved: x264 refines a still picture by
up to 1 level from frame to frame."""
BLACK_LUMA = 0.05
"""Mean luma below which a frame may be black: half of what FFmpeg's `blackdetect` calls dark."""
BLACK_SPREAD = 0.03
"""Standard deviation of luma of a black frame at most: a night scene with lights has more."""


def _frozen_fraction(clip: ClipView) -> float | None:
    change = clip.signal("change")
    return float(np.mean(change < FROZEN_CHANGE)) if len(change) else None


def _black_fraction(clip: ClipView) -> float:
    luma, spread = clip.track.luma_mean[clip.frames], clip.track.luma_spread[clip.frames]
    return float(np.mean((luma < BLACK_LUMA) & (spread < BLACK_SPREAD)))


SCORES: dict[str, ScoreSpec] = {
    "blocking": ScoreSpec(
        unit="ratio",
        range="about 0 without a grid; 0.3 faint, above 1 visible blocks",
        meaning="strength of the grid that block-wise compression leaves",
        low=Reason.BLOCKING_TOO_LOW,
        high=Reason.BLOCKING_TOO_HIGH,
        of="blocking",
        aggregate="mean",
    ),
    "flattening": ScoreSpec(
        unit="share",
        range="0 to 1; below 0.05 as a camera gives it, above 0.15 little texture is left",
        meaning="texture that compression made flat, with a loop filter too; drawings, screens and "
        "very dark pictures have flat places of their own",
        low=Reason.FLATTENING_TOO_LOW,
        high=Reason.FLATTENING_TOO_HIGH,
        of="flattening",
        aggregate="mean",
    ),
    "quantizer": ScoreSpec(
        unit="QP of H.264",
        range="about 0 finest to 51 coarsest; of H.264 below 26 clean, above 38 visibly damaged; "
        "absent for codecs other than H.264, VP9, MPEG-1, MPEG-2 and MPEG-4",
        meaning="how coarsely the last encode quantised, as the decoder says it; damage of an "
        "earlier encode shows in `blocking` and `flattening` only",
        low=Reason.QUANTIZER_TOO_LOW,
        high=Reason.QUANTIZER_TOO_HIGH,
        of="quantizer",
        aggregate="mean",
    ),
    "banding": ScoreSpec(
        unit="levels^2 per 1000 px",
        range="0 upwards; above 20 visible contours",
        meaning="steps in smooth gradients",
        low=Reason.BANDING_TOO_LOW,
        high=Reason.BANDING_TOO_HIGH,
        of="banding",
        aggregate="median",
    ),
    "combing": ScoreSpec(
        unit="share",
        range="0 to 1; above 0.01 interlaced",
        meaning="lines of two moments in one frame, where something moves",
        low=Reason.INTERLACED,
        high=Reason.INTERLACED,
        of="combing",
        aggregate="p75",
    ),
    "true_resolution": ScoreSpec(
        unit="share of the nominal",
        range="0 to 1; above 0.6 full detail, 0.5 as enlarged by 2 or as soft",
        meaning="finest detail that there is against the finest that the size could hold; neither "
        "noise nor blocks on the grid of 8 px count as detail",
        low=Reason.UPSCALED,
        high=Reason.UPSCALED,
        of="resolution",
        aggregate="p75",
    ),
    "stripes": ScoreSpec(
        unit="ratio",
        range="about 1 with no direction; above 4 one direction stands out",
        meaning="scratches, scan lines and other parallel lines; fences and facades too",
        low=Reason.STRIPES,
        high=Reason.STRIPES,
        of="stripes",
        aggregate="median",
    ),
    "frozen_fraction": ScoreSpec(
        unit="0 to 1",
        range="0 to 1",
        meaning="share of samples after which nothing in the picture changes for 0.1 s",
        low=Reason.FROZEN,
        high=Reason.FROZEN,
        of=_frozen_fraction,
    ),
    "black_fraction": ScoreSpec(
        unit="0 to 1",
        range="0 to 1",
        meaning="share of frames that are black throughout",
        low=Reason.BLACK,
        high=Reason.BLACK,
        of=_black_fraction,
    ),
}

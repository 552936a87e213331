"""Scores of the source's audio during a clip: coverage, level, silence."""

import math

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import OF_TIME, ScoreSpec
from curator.records.tracks import CELLS_PER_S, FLOOR_DB, MAX_CELLS

SILENCE_DB = -60.0
"""Default bound of FFmpeg's `silencedetect`. That filter compares peaks, which are higher than the
RMS level (by 3 dB for a tone)."""


def _levels_db(clip: ClipView) -> NDArray[np.float64]:
    """Returns the level of each 0.1 s with its middle in the clip, in dBFS; NaN without audio."""
    track = clip.track
    end_pts = track.pts_of_end(clip.span.end_frame)
    first, end = (
        math.ceil(float(pts * track.time_base) * CELLS_PER_S - 0.5)
        for pts in (int(track.frame_pts[clip.span.start_frame]), end_pts)
    )
    if end - first > MAX_CELLS:
        return np.zeros(0)
    places = np.arange(first, end) - track.audio_rms_first
    is_measured = (places >= 0) & (places < len(track.audio_rms_db))
    levels = np.full(len(places), np.nan)
    levels[is_measured] = track.audio_rms_db[places[is_measured]]
    return levels


def _heard_db(clip: ClipView) -> NDArray[np.float64]:
    levels = _levels_db(clip)
    return levels[np.isfinite(levels)]


def _coverage(clip: ClipView) -> float | None:
    levels = _levels_db(clip)
    if not clip.track.has_audio_levels or not len(levels):
        return None
    return float(np.mean(np.isfinite(levels)))


def _rms_db(clip: ClipView) -> float | None:
    levels = _heard_db(clip)
    if not len(levels):
        return None
    return max(FLOOR_DB, 10 * float(np.log10(np.mean(10 ** (levels / 10)))))


SCORES = {
    "audio_coverage": ScoreSpec(
        unit="0 to 1",
        range="0 no audio to 1 throughout; null with analyze.audio off",
        meaning="share of the clip's time for which the source has audio that can be decoded, in "
        "steps of 0.1 s; silence counts as audio",
        low="too_little_audio",
        high="too_much_audio",
        of=_coverage,
        needs="analyze.audio",
        media=OF_TIME,
    ),
    "audio_rms_db": ScoreSpec(
        unit="dBFS",
        range="-120 digital silence to 0; speech and music about -20, a full-scale sine -3; null "
        "without audio",
        meaning="RMS level of the source's audio during the clip, from the mean power of the "
        "channels, as FFmpeg's `volumedetect` measures it",
        low="too_quiet",
        high="too_loud",
        of=_rms_db,
        needs="analyze.audio",
        media=OF_TIME,
    ),
    "silence": ScoreSpec(
        unit="0 to 1",
        range="0 to 1 silent throughout; null without audio",
        meaning="share of the clip's audio, in steps of 0.1 s, whose RMS level is below a bound in "
        "dBFS; the default bound is that of FFmpeg's `silencedetect`",
        low="too_little_silence",
        high="silent",
        of=_heard_db,
        below=SILENCE_DB,
        needs="analyze.audio",
        media=OF_TIME,
    ),
}

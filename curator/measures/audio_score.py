"""Scores of the audio: whether there is any beside the clip, how loud it is, how much is silent.

They are of the source's audio in the clip's time; clips themselves are written without audio.
"""

import numpy as np

from curator.measures.spec import ClipView, ScoreSpec
from curator.media.audio_level import FLOOR_DB
from curator.records import Reason

SILENCE_DB = -60.0
"""What FFmpeg's `silencedetect` calls silence; it compares samples, whose peaks lie above their RMS
(3 dB in a tone)."""


def _coverage(clip: ClipView) -> float | None:
    levels = clip.audio_rms_db
    if not clip.track.has_audio_levels or not len(levels):
        return None
    return float(np.mean(np.isfinite(levels)))


def _rms_db(clip: ClipView) -> float | None:
    levels = clip.signal("audio_rms_db")
    if not len(levels):
        return None
    return max(FLOOR_DB, 10 * float(np.log10(np.mean(10 ** (levels / 10)))))


SCORES: dict[str, ScoreSpec] = {
    "audio_coverage": ScoreSpec(
        unit="0 to 1",
        range="0 no audio to 1 throughout; null with analyze.audio off",
        meaning="share of the clip's time in which the source has audio that decodes, silent or "
        "not, in steps of 0.1 s",
        low=Reason.TOO_LITTLE_AUDIO,
        high=Reason.TOO_MUCH_AUDIO,
        of=_coverage,
        needs="analyze.audio",
    ),
    "audio_rms_db": ScoreSpec(
        unit="dBFS",
        range="-120 digital silence to 0; about -20 speech and music, a sine of full scale is -3; "
        "null without audio",
        meaning="RMS level of the source's audio over the clip, mean of the channels' power, as "
        "FFmpeg's `volumedetect` measures it",
        low=Reason.TOO_QUIET,
        high=Reason.TOO_LOUD,
        of=_rms_db,
        needs="analyze.audio",
    ),
    "silence": ScoreSpec(
        unit="0 to 1",
        range="0 to 1 silent throughout; null without audio",
        meaning="share of those 0.1 s of the clip that have audio in which its RMS level is below "
        "a bound in dBFS, by default that of FFmpeg's `silencedetect`",
        low=Reason.TOO_LITTLE_SILENCE,
        high=Reason.SILENT,
        of="audio_rms_db",
        below=SILENCE_DB,
        needs="analyze.audio",
    ),
}

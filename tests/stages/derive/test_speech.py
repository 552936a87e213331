"""The annotator `speech`: rows of tenths of seconds, shares, and what its network hears."""

import shutil
import subprocess
import wave
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from curator.family import FamilyError
from curator.stage import ClipFacts, SampledClip
from curator.stages.derive.speech import CLASSES, RATE_HZ, Speech, SpeechConfig


@pytest.fixture(scope="module")
def stage() -> Speech:
    stage = Speech(SpeechConfig())
    stage.preflight()
    stage.setup()
    return stage


def clip(samples: np.ndarray, audio: str = "aac") -> SampledClip:
    facts = ClipFacts(
        clip_id="0" * 24, source_id="0" * 32, n_frames=max(1, round(len(samples) / RATE_HZ * 10)),
        fps=Fraction(10), width=64, height=64, columns={"audio": audio},
    )  # fmt: skip
    return SampledClip(facts=facts, requested=(), audio=samples.astype(np.float32)[None])


def check_stored(stage: Speech, of: SampledClip, values: dict[str, object]) -> None:
    """The declaration takes the value: as many rows as tenths of the clip."""
    family = stage.families[0]
    array = family.decode(family.encode(values["sound_classes"]))
    family.check_length(array.shape, None, of.facts.n_frames, of.facts.fps)


@pytest.mark.parametrize("seconds", [0.1, 0.7, 3.0])
def test_silence_is_a_row_per_tenth_of_a_second(stage: Speech, seconds: float) -> None:
    of = clip(np.zeros(round(seconds * RATE_HZ)))
    (values,) = stage.process([of])
    assert values["sound_classes"].shape == (round(seconds * 10), len(CLASSES))
    assert values["sound_shares"] == {
        "speech_share": 0.0, "music_share": 0.0, "silence_share": 1.0,
    }  # fmt: skip
    check_stored(stage, of, values)


def test_rows_are_at_the_time_of_the_sound(stage: Speech) -> None:
    samples = np.zeros(2 * RATE_HZ)
    samples[RATE_HZ : RATE_HZ * 3 // 2] = 0.3 * np.random.default_rng(1).standard_normal(
        RATE_HZ // 2
    )
    (values,) = stage.process([clip(samples)])
    assert values["sound_classes"][:, 3].tolist() == [1] * 10 + [0] * 5 + [1] * 5
    with pytest.raises(FamilyError, match="19"):
        stage.families[0].check_length((19, 4), None, 20, Fraction(10))


def test_only_clips_with_sound_have_values(stage: Speech) -> None:
    silent = clip(np.zeros(RATE_HZ), "none").facts
    assert stage.key(silent, "0" * 64) is None
    assert stage.key(clip(np.zeros(RATE_HZ)).facts, "0" * 64)


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs the program espeak-ng")
def test_a_voice_is_speech_and_chords_are_music(stage: Speech, tmp_path: Path) -> None:
    text = "The train leaves the station at nine, and nobody waits for it."
    subprocess.run(["espeak-ng", "-w", tmp_path / "a.wav", text], check=True)
    with wave.open(str(tmp_path / "a.wav")) as file:
        data = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
        at = np.arange(0, len(data), file.getframerate() / RATE_HZ)
    voice = np.interp(at, np.arange(len(data)), data)
    t = np.arange(3 * RATE_HZ) / RATE_HZ
    chord = sum(np.sin(2 * np.pi * f * t) for f in (220, 277, 330)) * np.exp(-3 * (t % 0.5)) / 4
    (values,) = stage.process([clip(np.concatenate([voice, chord]))])
    n = len(voice) * 10 // RATE_HZ
    on = values["sound_classes"].astype(np.float32) >= 0.5
    assert on[2 : n - 2, 0].mean() > 0.8
    assert not on[n + 5 :, 0].any()
    assert on[n + 5 :, 2].mean() > 0.8

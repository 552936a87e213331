"""Samples of a written clip's audio: at their times, with the requested channels."""

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from sound import FPS, Sound, Wave, beeps, level_db, onsets_s, tone, write_film

from curator.errors import CutError, UsageError
from curator.media.audio_samples import clip_samples
from curator.media.clip_frames import Wanted, sample_clip
from curator.records.audio_requests import AudioRequest, AudioSpan

BEEPS_S = (0.5, 1.25, 2.125)
SECONDS = 3


def mp4_of(folder: Path, wave: Wave, **more: object) -> bytes:
    path = folder / "clip.mp4"
    write_film(path, [Sound(wave=wave, **more)], n_frames=SECONDS * FPS)  # type: ignore[arg-type]
    return path.read_bytes()


def samples(
    mp4: bytes, request: AudioRequest, start: Fraction = Fraction(0), seconds: int | Fraction = 3
) -> Wave:
    with av.open(io.BytesIO(mp4)) as container:
        span = AudioSpan(request=request, start=start, seconds=Fraction(seconds))
        wave = clip_samples(container, span)
    assert wave is not None
    assert (wave.dtype, wave.shape) == (np.float32, (request.channels, span.n_samples))
    return wave


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
def test_samples_have_their_times_at_any_rate_and_from_any_start(rate: int, tmp_path: Path) -> None:
    """Pins onsets, and that a part decoded from the middle is that of the whole."""
    mp4 = mp4_of(tmp_path, beeps(BEEPS_S, SECONDS))
    request = AudioRequest(rate)
    whole = samples(mp4, request)
    assert onsets_s(whole, rate) == pytest.approx(BEEPS_S, abs=0.001)
    for start in (Fraction(7, FPS), Fraction(1), Fraction(61, FPS)):
        part = samples(mp4, request, start, Fraction(2, 3))
        expected = [at - float(start) for at in BEEPS_S if start <= at < start + Fraction(2, 3)]
        assert onsets_s(part, rate) == pytest.approx(expected, abs=0.001)
        first = round(start * rate)
        same = whole[:, first : first + part.shape[1]]
        # FFmpeg's decoder adds other noise to each decode.
        assert np.abs(part - same).max() < 0.001


def test_channels_are_mixed_and_repeated(tmp_path: Path) -> None:
    """Pins mono as the mean, and stereo of a mono clip without a loss of level."""
    left = tone(SECONDS, amplitude=0.8)
    stereo = mp4_of(tmp_path, np.concatenate([left, np.zeros_like(left)]))
    rms = level_db(left)
    inner = slice(4_800, -4_800)
    both = samples(stereo, AudioRequest(48_000, channels=2))[:, inner]
    assert level_db(both[:1]) == pytest.approx(rms, abs=0.2)
    assert np.abs(both[1]).max() < 0.01
    mean = samples(stereo, AudioRequest(48_000))[:, inner]
    assert level_db(mean) == pytest.approx(rms - 6.02, abs=0.2)
    mono = samples(mp4_of(tmp_path, left), AudioRequest(48_000, channels=2))[:, inner]
    assert np.array_equal(mono[0], mono[1])
    assert level_db(mono) == pytest.approx(rms, abs=0.2)


def test_after_the_end_of_the_audio_is_silence(tmp_path: Path) -> None:
    wave = samples(mp4_of(tmp_path, tone(2.0)), AudioRequest(16_000))
    assert level_db(wave[:, 16_000:31_000]) > -20
    assert np.all(wave[:, 33_000:] == 0)


def test_a_request_for_audio_alone_decodes_no_frame(tmp_path: Path) -> None:
    """Pins it by pictures that cannot be decoded."""
    mp4 = bytearray(mp4_of(tmp_path, beeps(BEEPS_S, SECONDS)))
    with av.open(io.BytesIO(bytes(mp4))) as container:
        for packet in list(container.demux(container.streams.video[0])):
            if packet.size and packet.pos is not None:
                mp4[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    span = AudioSpan(request=AudioRequest(16_000), start=Fraction(0), seconds=Fraction(SECONDS))
    settings = {"n_frames": SECONDS * FPS, "threads": 1, "rate": Fraction(FPS), "audio": (span,)}
    sampled = sample_clip(bytes(mp4), (), **settings)  # type: ignore[arg-type]
    (wave,) = sampled.audio
    assert wave is not None
    assert onsets_s(wave, 16_000) == pytest.approx(BEEPS_S, abs=0.001)
    with pytest.raises(CutError, match=r"does not decode|decodes to"):
        sample_clip(bytes(mp4), [Wanted(numbers=(0,), size=(64, 48))], **settings)  # type: ignore[arg-type]


def test_damaged_audio_is_an_error_and_no_silence(tmp_path: Path) -> None:
    mp4 = bytearray(mp4_of(tmp_path, tone(SECONDS)))
    with av.open(io.BytesIO(bytes(mp4))) as container:
        packet = list(container.demux(container.streams.audio[0]))[60]
    assert packet.pos is not None
    mp4[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    span = AudioSpan(request=AudioRequest(16_000), start=Fraction(0), seconds=Fraction(SECONDS))
    with pytest.raises(CutError, match="does not decode"):
        sample_clip(bytes(mp4), (), n_frames=90, threads=1, audio=(span,))


def test_a_clip_without_audio_has_none(tmp_path: Path) -> None:
    path = tmp_path / "mute.mp4"
    write_film(path, [], n_frames=10)
    span = AudioSpan(request=AudioRequest(16_000), start=Fraction(0), seconds=Fraction(1))
    assert sample_clip(path.read_bytes(), (), n_frames=10, threads=1, audio=(span,)).audio == (
        None,
    )


@pytest.mark.parametrize(
    ("rate", "channels", "message"),
    [
        (0, 1, "audio rate 0; expected samples per second, a whole number from 1 to 192000"),
        (16_000.5, 1, "audio rate 16000.5"),
        (16_000, 6, r"audio channels 6; expected 1 \(mono\) or 2 \(stereo\)"),
    ],
)
def test_a_wrong_request_is_refused(rate: int, channels: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        AudioRequest(rate, channels)

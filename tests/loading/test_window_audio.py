"""Audio of windows: beeps are heard with the flashes that are seen, whatever the window."""

import io
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from sound import FPS, Sound, beeps, flash_frames, onsets_s, write_film

from curator.errors import ShardError, UsageError
from curator.loading import AudioRequest, ClipDataset, ClipLoader
from tests.made_shards import MadeClip, write_shards

BUCKET = "48p_3-2_17f"
N_FRAMES = 150
FLASHES = (11, 40, 73, 112, 140)
RATE_HZ = 16_000


def film(path: Path, *, n_frames: int = N_FRAMES, is_mute: bool = False) -> bytes:
    wave = beeps([each / FPS for each in FLASHES], n_frames / FPS)
    sounds = [] if is_mute else [Sound(wave=wave)]
    write_film(path, sounds, n_frames=n_frames, size=(96, 64), flashes=FLASHES)
    return path.read_bytes()


def clip(key: str, mp4: bytes, **more: object) -> MadeClip:
    facts: dict[str, Any] = {"n_frames": N_FRAMES, "width": 96, "height": 64, "fps": Fraction(FPS)}
    return MadeClip(key=key, mp4=mp4, **(facts | more))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight clips with sound, and two without."""
    folder = tmp_path_factory.mktemp("sounds")
    heard, mute = film(folder / "heard.mp4"), film(folder / "mute.mp4", is_mute=True)
    clips = [clip(f"{i:08x}", mute if i in (3, 6) else heard) for i in range(10)]
    return str(write_shards(folder / "out", [(BUCKET, "train", clips)]))


def expected_s(sample: Mapping[str, Any], frames: int, window_fps: Fraction) -> list[float]:
    """When beeps begin in a window."""
    end = sample["start_frame"] + frames / window_fps * FPS
    begun = [each for each in FLASHES if sample["start_frame"] <= each < end]
    return [(each - sample["start_frame"]) / FPS for each in begun]


@pytest.mark.parametrize(
    ("options", "window_fps"),
    [
        ({}, Fraction(30)),
        ({"stride": 3}, Fraction(10)),
        ({"fps": 16}, Fraction(16)),
        ({"fps": "24000/1001"}, Fraction(24000, 1001)),
        ({"fps": 60}, Fraction(60)),
    ],
)
def test_audio_is_that_of_the_frames_of_the_window(
    out: str, options: dict[str, Any], window_fps: Fraction
) -> None:
    """Pins onsets, the number of samples, and the flashes of plain windows."""
    frames, n_heard = 41, 0
    dataset = ClipDataset(
        out, frames=frames, batch_size=5, audio=RATE_HZ, drop_last=True, **options
    )
    for batch in ClipLoader(dataset, num_workers=0):
        n_samples = AudioRequest(RATE_HZ).n_samples(frames / window_fps)
        assert (batch["audio"].dtype, batch["audio"].shape) == (torch.float32, (5, 1, n_samples))
        for b, is_heard in enumerate(batch["has_audio"].tolist()):
            wave, start = batch["audio"][b].numpy(), int(batch["start_frame"][b])
            assert is_heard == (int(batch["key"][b], 16) not in (3, 6))
            if not is_heard:
                assert not wave.any()
                continue
            meant = expected_s({"start_frame": start}, frames, window_fps)
            heard = onsets_s(wave, RATE_HZ)
            # A beep of 40 ms that began before the window is heard from the window's start.
            assert [s for s in heard if s > 0.001] == pytest.approx(
                [s for s in meant if s > 0.001], abs=0.002
            )
            n_heard += len(meant)
            if options:
                continue
            seen = [each / FPS for each in flash_frames(batch["video"][b].numpy()) if each]
            assert seen == pytest.approx([s for s in meant if s], abs=1e-6)
    assert n_heard >= 4


def test_single_samples_have_audio_in_stereo(out: str) -> None:
    request = AudioRequest(48_000, channels=2)
    dataset = ClipDataset(out, frames=30, window="first", batch_size=None, audio=request)
    samples = list(dataset)
    assert sorted(sample["has_audio"] for sample in samples) == [False] * 2 + [True] * 8
    for sample in samples:
        assert sample["audio"].shape == (2, 48_000)
        if sample["has_audio"]:
            assert onsets_s(sample["audio"].numpy(), 48_000) == pytest.approx([11 / 30], abs=0.001)


def test_whole_clips_need_no_video_and_lengths_may_differ(tmp_path: Path) -> None:
    mp4s = {n: film(tmp_path / f"{n}.mp4", n_frames=n) for n in (60, 90)}
    clips = [clip(f"{n:08x}", mp4, n_frames=n) for n, mp4 in mp4s.items()]
    place = str(write_shards(tmp_path / "out", [(BUCKET, "train", clips)]))
    dataset = ClipDataset(place, video=False, audio=RATE_HZ, batch_size=2, shuffle=0)
    (batch,) = ClipLoader(dataset, num_workers=0)
    assert "video" not in batch
    assert [tuple(wave.shape) for wave in batch["audio"]] == [(1, 32_000), (1, 48_000)]
    for wave, n in zip(batch["audio"], mp4s, strict=True):
        meant = [each / FPS for each in FLASHES if each < n]
        assert onsets_s(wave.numpy(), RATE_HZ) == pytest.approx(meant, abs=0.002)


def test_batches_of_windows_that_last_unequally_long_are_refused(tmp_path: Path) -> None:
    """Pins the remedies: a rate, or samples alone."""
    mp4 = film(tmp_path / "film.mp4")
    clips = [clip("00000001", mp4), clip("00000002", mp4, fps=Fraction(25))]
    out = str(write_shards(tmp_path / "out", [(BUCKET, "train", clips)]))
    message = (
        f"audio of bucket '{BUCKET}': 10 frames last 0.3333 to 0.4 s, because the clips have 25 to "
        "30 frames/s, so their audio does not fill a batch; give fps="
    )
    with pytest.raises(UsageError, match=message):
        ClipDataset(out, frames=10, batch_size=2, audio=RATE_HZ)
    for options in ({"batch_size": 1}, {"batch_size": None}, {"batch_size": 2, "fps": 16}):
        ClipDataset(out, frames=10, audio=RATE_HZ, **options)  # type: ignore[arg-type]


def test_damaged_audio_is_an_error(tmp_path: Path) -> None:
    mp4 = bytearray(film(tmp_path / "film.mp4"))
    with av.open(io.BytesIO(bytes(mp4))) as container:
        packet = list(container.demux(container.streams.audio[0]))[10]
    assert packet.pos is not None
    mp4[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    clips = [clip("00000001", bytes(mp4))]
    out = str(write_shards(tmp_path / "out", [(BUCKET, "train", clips)]))
    with pytest.raises(ShardError, match=r"the audio of clip 00000001 of .* does not decode"):
        list(ClipDataset(out, frames=10, window="first", batch_size=1, audio=RATE_HZ))


def test_a_rate_out_of_range_is_refused(out: str) -> None:
    with pytest.raises(UsageError, match="audio rate 0; expected samples per second"):
        ClipDataset(out, batch_size=1, audio=0)


def test_windows_of_one_clip_have_the_same_samples(out: str) -> None:
    """Pins that a window is a part of one series of samples, at a rate of its own."""
    whole = {s["key"]: s["audio"].numpy() for s in ClipDataset(out, video=False, audio=11_025)}
    for sample in ClipDataset(out, frames=40, audio=11_025):
        first = round(Fraction(sample["start_frame"], FPS) * 11_025)
        own = sample["audio"].numpy()
        same = whole[sample["key"]][:, first : first + own.shape[1]]
        assert np.abs(own - same).max() < 0.002

"""Films in many containers in which a beep begins with each flash."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from sound import FPS, Sound, Wave, beeps, flash_frames, onsets_s, write_film

from curator.loading import ClipDataset

N_FRAMES = 180
FLASHES = (11, 40, 73, 112, 140, 165)
SIZE = (160, 96)
LATE_S = Fraction(1, 3)
"""How much later than the pictures the audio begins, in files whose name says so."""

RECIPE: dict[str, Any] = {
    "propose": {"min_s": 0.3, "max_s": 2.0, "boundary_threshold": 0.999},
    "dedup": {"enabled": False},
    "filters": {},
    "shard": {"resolutions": [64], "lengths": [5], "val_share": 0, "aspects_tolerance": 0.99},
}
"""Keeps all footage of a film, in clips of at most 2 s."""


def waves(*, late_s: Fraction = Fraction(0), rate: int = 48_000, channels: int = 1) -> Wave:
    """Audio that begins at a time, with a beep at each flash."""
    at_s = [each / FPS - float(late_s) for each in FLASHES]
    seconds = N_FRAMES / FPS - float(late_s)
    return beeps([each for each in at_s if each >= 0], seconds, rate=rate, channels=channels)


def film(
    path: Path,
    codec: str = "aac",
    *,
    late_s: Fraction = Fraction(0),
    start_s: Fraction = Fraction(0),
    rate: int = 48_000,
    channels: int = 1,
    options: Mapping[str, str] | None = None,
    pictures: str | None = None,
) -> None:
    """A film whose pictures begin at `start_s`, and whose audio begins `late_s` later."""
    sound = Sound(
        wave=waves(late_s=late_s, rate=rate, channels=channels),
        codec=codec,
        rate=rate,
        start_s=start_s + late_s,
    )
    write_film(
        path, [sound], n_frames=N_FRAMES, gop=12, start_s=start_s, size=SIZE, flashes=FLASHES,
        options=options, codec=pictures,
    )  # fmt: skip


def trimmed(path: Path) -> None:
    """An MP4 whose edit lists hide the first 0.4 s, as a cut without encoding leaves it."""
    whole = path.with_suffix(".whole.mp4")
    film(whole)
    shift_s = Fraction(2, 5)
    with av.open(str(whole)) as source, av.open(
        str(path), "w", options={"avoid_negative_ts": "disabled"}
    ) as output:  # fmt: skip
        assert isinstance(source, av.container.InputContainer)
        copies = {s.index: output.add_stream_from_template(s) for s in source.streams}
        for packet in source.demux():
            if packet.pts is None or packet.dts is None:
                continue
            shift = round(shift_s / packet.time_base)
            packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
            packet.stream = copies[packet.stream.index]
            output.mux(packet)
    whole.unlink()
    assert b"elst" in path.read_bytes()


CASES: dict[str, Callable[[Path], None]] = {
    "aac.mp4": film,
    "aac_44k.mp4": lambda path: film(path, rate=44_100, channels=2),
    "aac_22k.mp4": lambda path: film(path, rate=22_050),
    "late.mp4": lambda path: film(path, late_s=LATE_S),
    "pictures_late.mp4": lambda path: film(path, start_s=Fraction(1), late_s=-LATE_S),
    "trimmed.mp4": trimmed,
    "fragments.mp4": lambda path: film(
        path, late_s=LATE_S, options={"movflags": "frag_keyframe+empty_moov"}
    ),
    "no_edits.mp4": lambda path: film(path, options={"use_editlist": "0"}),
    "pcm.mov": lambda path: film(path, "pcm_s16le", rate=44_100),
    "late.mov": lambda path: film(path, "pcm_s16le", late_s=LATE_S),
    "alac.mov": lambda path: film(path, "alac"),
    "aac.mkv": film,
    "late.mkv": lambda path: film(path, late_s=LATE_S),
    "opus.mkv": lambda path: film(path, "libopus"),
    "flac.mkv": lambda path: film(path, "flac", rate=44_100),
    "mp3.mkv": lambda path: film(path, "libmp3lame", rate=44_100),
    "opus.webm": lambda path: film(path, "libopus"),
    "late.webm": lambda path: film(path, "libopus", late_s=LATE_S),
    "aac.ts": film,
    "late.ts": lambda path: film(path, late_s=LATE_S),
    "ac3.ts": lambda path: film(path, "ac3", channels=2),
    "mp2.ts": lambda path: film(path, "mp2"),
    "pcm.avi": lambda path: film(path, "pcm_s16le"),
    "mp3.avi": lambda path: film(path, "libmp3lame", rate=44_100),
    "ac3.avi": lambda path: film(path, "ac3"),
    "aac.flv": lambda path: film(path, rate=44_100),
    "mp2.mpg": lambda path: film(path, "mp2", pictures="mpeg2video"),
    "mp3.wmv": lambda path: film(path, "libmp3lame", rate=44_100),
}
"""Writes of each file, by its name."""


def own_offset_s(path: Path) -> float:
    """How much later than its flashes a file's beeps begin, as PyAV plays it; None of it is ours.

    AVI does not say that the first samples of MP3 and AC-3 only prepare the decoder.
    """
    flashes_s, is_bright = [], False
    with av.open(str(path), mode="r") as container:
        for picture in container.decode(video=0):
            assert picture.pts is not None
            assert picture.time_base is not None
            pixels = picture.to_ndarray(format="rgb24").transpose(2, 0, 1)[:, None]
            if flash_frames(pixels) and not is_bright:
                flashes_s.append(float(picture.pts * picture.time_base))
            is_bright = bool(flash_frames(pixels))
    rate = 48_000
    wave = np.zeros((1, rate * 12), np.float32)
    with av.open(str(path), mode="r") as container:
        resampler = av.AudioResampler(format="fltp", layout="mono", rate=rate)
        for frame in container.decode(audio=0):
            for each in resampler.resample(frame):
                assert each.pts is not None
                assert each.time_base is not None
                begin = round(each.pts * each.time_base * rate)
                samples = each.to_ndarray()[:, max(0, -begin) :]
                wave[:, max(0, begin) : max(0, begin) + samples.shape[1]] = samples
    onsets = onsets_s(wave, rate)
    return float(np.median([min((on - at for on in onsets), key=abs) for at in flashes_s]))


def window_offsets_s(out: Path, *, epochs: int = 1, **options: Any) -> dict[str, list[float]]:  # noqa: ANN401
    """How much later than their flashes beeps begin in windows of an output, by file name.

    A flash of a window without a beep counts as infinitely late.
    """
    offsets: dict[str, list[float]] = {}
    settings: dict[str, Any] = {"frames": 24, "audio": 48_000, "size": SIZE} | options
    dataset = ClipDataset(str(out), **settings)
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        for window in dataset:
            name = Path(window["json"]["source_uri"]).name
            found = offsets.setdefault(name, [])
            onsets = onsets_s(window["audio"].numpy(), 48_000)
            # The first beep may have begun before the window.
            for frame in flash_frames(window["video"].numpy()):
                if frame:
                    at_s = frame / window["fps"]
                    late = min((on - at_s for on in onsets), key=abs, default=np.inf)
                    found.append(float(late))
    return offsets

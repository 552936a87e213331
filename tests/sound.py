"""Films with audio of which every sample is known, for tests of its level and of sync."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import OutputContainer
from av.packet import Packet
from av.stream import Disposition
from numpy.typing import NDArray

FPS = 30
_X264 = "libx264", {"preset": "ultrafast", "x264-params": "scenecut=0"}

Wave = NDArray[np.float32]
"""[C, N], float32, -1 to 1."""


@dataclass(frozen=True, kw_only=True)
class Sound:
    """An audio stream."""

    wave: Wave
    codec: str = "aac"
    rate: int = 48_000
    start_s: Fraction = Fraction(0)
    is_default: bool = True
    behind_s: float = 0.0
    """How much later than the pictures of its time it lies in the file; negative for before."""


def tone(seconds: float, *, amplitude: float = 0.5, rate: int = 48_000, channels: int = 1) -> Wave:
    """A sine of 440 Hz."""
    n = np.arange(round(seconds * rate))
    one = amplitude * np.sin(2 * np.pi * 440 * n / rate)
    return np.tile(one.astype(np.float32), (channels, 1))


def steps(seconds: float, *, rate: int = 48_000, seed: int = 0) -> Wave:
    """Stereo noise whose level changes every 0.7 s, from -60 to -10 dBFS, now and then to zero."""
    rng = np.random.default_rng(seed)
    n_samples, n_step = round(seconds * rate), round(0.7 * rate)
    n_steps = -(-n_samples // n_step)
    levels = 10 ** (rng.uniform(-60, -10, n_steps) / 20)
    levels[rng.random(n_steps) < 0.15] = 0
    noise = rng.standard_normal((2, n_samples)).clip(-3, 3)
    return np.asarray(noise * np.repeat(levels, n_step)[:n_samples], np.float32)


def beeps(at_s: Sequence[float], seconds: float, *, rate: int = 48_000, channels: int = 1) -> Wave:
    """Silence, but for 40 ms of 1 kHz from each of some times on."""
    wave = np.zeros((channels, round(seconds * rate)), np.float32)
    n = round(0.04 * rate)
    beep = 0.8 * np.sin(2 * np.pi * 1000 * np.arange(n) / rate)
    for begin in (round(each * rate) for each in at_s):
        place = wave[:, begin : begin + n]
        place[:] = beep[: place.shape[1]]
    return wave


def onsets_s(wave: Wave, rate: int) -> list[float]:
    """When beeps begin, in seconds from the first sample; silence of 20 ms separates them."""
    loud = np.flatnonzero(np.abs(wave).max(axis=0) > 0.2)
    is_first = np.diff(loud, prepend=-rate) > 0.02 * rate
    return [float(each / rate) for each in loud[is_first]]


def flash_frames(video_CTHW: NDArray[np.uint8]) -> list[int]:  # noqa: N803
    """Numbers of the frames that begin a flash of `write_film`, uint8 [C, T, H, W]."""
    height, width = video_CTHW.shape[-2:]
    centre = video_CTHW[..., height * 3 // 8 : height * 5 // 8, width * 3 // 8 : width * 5 // 8]
    is_bright = centre.mean(axis=(0, 2, 3)) > 200
    return np.flatnonzero(np.diff(is_bright.astype(int), prepend=0) > 0).tolist()


def level_db(wave: Wave) -> float:
    """RMS in dBFS, of all channels by power."""
    return float(10 * np.log10(np.mean(wave.astype(np.float64) ** 2)))


def write_film(
    path: Path,
    sounds: Sequence[Sound],
    *,
    n_frames: int = 60,
    gop: int = 30,
    start_s: Fraction = Fraction(0),
    size: tuple[int, int] = (64, 48),
    flashes: Sequence[int] = (),
    options: Mapping[str, str] | None = None,
    codec: str | None = None,
) -> None:
    """Writes a film of `size` pixels at 30 frames/s, whose first frame is at `start_s`.

    Two frames from each of the numbers `flashes` on have a bright centre. `options` are those of
    the muxer; `codec` is that of the pictures, by default one for the container.
    """
    # A muxer that waits for all streams would put them side by side.
    muxing = {"max_interleave_delta": "1", **(options or {})}
    with av.open(str(path), "w", options=muxing) as container:
        packets = list(_pictures(container, n_frames, gop, start_s, size, flashes, codec))
        for sound in sounds:
            packets += _encoded(container, sound)
        packets.sort(key=lambda entry: entry[0])
        for _, packet in packets:
            container.mux(packet)


def _pictures(
    container: OutputContainer,
    n_frames: int,
    gop: int,
    start_s: Fraction,
    size: tuple[int, int],
    flashes: Sequence[int],
    own: str | None,
) -> list[tuple[float, "Packet[Any]"]]:
    codec, options = (
        (own, {})
        if own is not None
        else {
            ".webm": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}),
            ".avi": ("mpeg4", {}),
        }.get(Path(container.name).suffix, _X264)
    )
    stream = container.add_stream(codec, rate=FPS, options=options)
    (width, height) = stream.width, stream.height = size
    stream.pix_fmt = "yuv420p"
    stream.codec_context.gop_size = gop
    stream.codec_context.thread_count = 1
    found = []
    rows, columns = np.mgrid[:height, :width]
    grey = np.full((height // 2, width), 128, np.uint8)
    bright = {each + k for each in flashes for k in range(2)}
    for number in range(n_frames):
        plane = np.uint8(128 + 90 * np.sin((rows + columns + 3 * number) / 7))
        if number in bright:
            plane[height // 3 : height * 2 // 3, width // 3 : width * 2 // 3] = 235
        frame = av.VideoFrame.from_ndarray(np.concatenate([plane, grey]), format="yuv420p")
        frame.pts, frame.time_base = number + round(start_s * FPS), Fraction(1, FPS)
        found += stream.encode(frame)
    found += stream.encode(None)
    return [(float(p.dts * p.time_base), p) for p in found]


def _encoded(container: OutputContainer, sound: Sound) -> list[tuple[float, "Packet[Any]"]]:
    layout = {1: "mono", 2: "stereo", 8: "7.1"}[len(sound.wave)]
    stream = container.add_stream(sound.codec, rate=sound.rate, layout=layout)
    stream.disposition = Disposition.default if sound.is_default else Disposition(0)
    kind = stream.codec_context.format.name
    found = []
    block = stream.codec_context.frame_size or 1024
    for begin in range(0, sound.wave.shape[1], block):
        frame = _frame(sound.wave[:, begin : begin + block], kind, layout)
        frame.sample_rate, frame.time_base = sound.rate, Fraction(1, sound.rate)
        frame.pts = begin + round(sound.start_s * sound.rate)
        found += stream.encode(frame)
    found += stream.encode(None)
    return [(float(p.dts * p.time_base) + sound.behind_s, p) for p in found]


def _frame(wave: Wave, kind: str, layout: str) -> av.AudioFrame:
    scale = {"s16": 2**15 - 1, "s32": 2**31 - 129, "u8": 127, "flt": 1, "dbl": 1}
    dtype = {"s16": np.int16, "s32": np.int32, "u8": np.uint8, "flt": np.float32, "dbl": float}
    plain = kind.removesuffix("p")
    values = wave * scale[plain]
    if plain not in ("flt", "dbl"):
        values = np.rint(values.astype(float) + (128 if plain == "u8" else 0))
    values = values.astype(dtype[plain])
    if not kind.endswith("p"):
        values = values.T.reshape(1, -1)
    return av.AudioFrame.from_ndarray(np.ascontiguousarray(values), format=kind, layout=layout)

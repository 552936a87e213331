"""Decodes audio to samples, each at its time.

Shape letters: C channels, N samples.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil, floor, gcd
from typing import TypeAlias

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.packet import Packet
from numpy.typing import NDArray

from curator.records.audio_requests import AudioSpan

AudioPacket: TypeAlias = "Packet[av.AudioStream]"
Wave: TypeAlias = NDArray[np.float32]
"""[C, N], -1 to 1."""

SETTLED_S = Fraction(1, 2)
"""Seconds after which any audio decoder that began in the middle gives the right samples."""
_MARGIN_S = Fraction(1, 20)
"""Seconds around a part that are resampled with it: FFmpeg's filter has 32 samples."""
SAME_TIME_S = 0.01
"""Larger differences of times are gaps, in seconds. Containers round times to up to 1 ms."""


def resampler_of(stream: av.AudioStream, rate: int) -> AudioResampler:
    """Returns a resampler to float32 in planes, mono for a mono stream and else stereo."""
    layout = "mono" if stream.codec_context.channels == 1 else "stereo"
    return AudioResampler(format="fltp", layout=layout, rate=rate)


def place_samples(frames: Iterable[AudioFrame], wave_CN: Wave, begin: Fraction, rate: int) -> int:  # noqa: N803
    """Writes decoded samples at their times into an array that begins at a time.

    Args:
        frames: Frames as `resampler_of` gives them.
        wave_CN: Where to write; gaps keep their values.
        begin: Time of the first sample of `wave_CN`, in seconds.
        rate: Samples per second.

    Returns:
        Number of the sample after the last written one; 0 if there is none.
    """
    written, expected = 0, None
    for frame in frames:
        if frame.pts is not None and frame.time_base is not None:
            at = round((frame.pts * frame.time_base - begin) * rate)
            # Rounded times must not make samples overlap or leave gaps.
            if expected is None or abs(at - expected) > SAME_TIME_S * rate:
                expected = at
        if expected is None:
            continue
        samples = frame.to_ndarray()
        lo, hi = max(expected, 0), min(expected + samples.shape[1], wave_CN.shape[1])
        if hi > lo:
            wave_CN[:, lo:hi] = samples[:, lo - expected : hi - expected]
            written = max(written, hi)
        expected += samples.shape[1]
    return written


def clip_samples(container: av.container.InputContainer, span: AudioSpan) -> Wave | None:
    """Decodes a part of a written clip's audio, float32 [C, N]; None for a clip without audio.

    Sample k of a clip is at k / rate, and a part begins with the sample nearest to its start, so
    parts of one clip have the same samples. After the end of the clip's audio, samples are 0. The
    container's position changes.

    Raises:
        av.error.FFmpegError: A packet does not decode.
        ValueError: The format of the audio changes within the clip.
    """
    stream = next(iter(container.streams.audio), None)
    if stream is None:
        return None
    start, rate = span.start, span.request.rate
    native = stream.codec_context.sample_rate
    # Both rates have a sample at each multiple of this time.
    common = Fraction(1, gcd(native, rate))
    begin = max(floor((start - _MARGIN_S) / common) * common, Fraction(0))
    end = start + span.seconds + _MARGIN_S
    resampler = resampler_of(stream, native)
    shape = resampler.layout.nb_channels, ceil((end - begin) * native)
    decoded_CN = np.zeros(shape, np.float32)  # noqa: N806
    frames = _frames(container, stream, resampler, begin - SETTLED_S, end)
    place_samples(frames, decoded_CN, begin, native)
    mixed_CN = _mixed(decoded_CN, span.request.channels)  # noqa: N806
    first = round(start * rate) - round(begin * rate)
    wave_CN = _resampled(mixed_CN, native, rate, first + span.n_samples)  # noqa: N806
    return np.clip(wave_CN[:, first:], -1, 1)


def _frames(
    container: av.container.InputContainer,
    stream: av.AudioStream,
    resampler: AudioResampler,
    begin: Fraction,
    end: Fraction,
) -> Iterator[AudioFrame]:
    """Yields resampled frames, from one that begins before `begin` up to one after `end`."""
    tick = _tick(stream)
    container.seek(max(floor(begin / tick), 0), stream=stream, backward=True)
    for packet in container.demux(stream):
        for frame in packet.decode():
            yield from resampler.resample(frame)
        if packet.pts is not None and packet.pts * tick > end:
            break
    yield from resampler.resample(None)


def _mixed(wave_CN: Wave, n_channels: int) -> Wave:  # noqa: N803
    """Returns audio of one or two channels with this number of channels."""
    if n_channels < len(wave_CN):
        mean_CN: Wave = wave_CN.mean(axis=0, keepdims=True)  # noqa: N806
        return mean_CN
    return np.repeat(wave_CN, n_channels // len(wave_CN), axis=0)


def _resampled(wave_CN: Wave, native: int, rate: int, n_samples: int) -> Wave:  # noqa: N803
    """Returns the first samples of audio at another rate."""
    if rate == native:
        return wave_CN[:, :n_samples]
    layout = "mono" if len(wave_CN) == 1 else "stereo"
    frame = AudioFrame.from_ndarray(wave_CN, format="fltp", layout=layout)
    frame.sample_rate, frame.time_base, frame.pts = native, Fraction(1, native), 0
    resampler = AudioResampler(format="fltp", layout=layout, rate=rate)
    made_CN = np.zeros((len(wave_CN), n_samples), np.float32)  # noqa: N806
    frames = (*resampler.resample(frame), *resampler.resample(None))
    place_samples(frames, made_CN, Fraction(0), rate)
    return made_CN


def decodes(stream: av.AudioStream, packets: Sequence[AudioPacket]) -> bool:
    """Returns whether all of some packets decode, to samples of one rate and layout."""
    stream.codec_context.flush_buffers()
    try:
        forms = {
            (frame.sample_rate, frame.layout.nb_channels)
            for packet in packets
            for frame in packet.decode()
        }
    # PyAV raises ValueError for unknown layouts and the like.
    except (av.error.FFmpegError, ValueError):
        return False
    return len(forms) == 1


def _tick(stream: av.AudioStream) -> Fraction:
    assert stream.time_base is not None
    return stream.time_base

"""Takes the audio of a span from a source and adds it to the pictures of a clip.

The MP4 has no edit list, so its first audio sample is played with its first frame. The first block
of an AAC encoder only prepares the next one, so encoding begins with the block before the span, and
that block is dropped. A decoder of a clip lacks this block: therefore the first block of a clip,
copied or encoded, fades in over 21 ms at 48 kHz. Audio ends with the block that contains the end of
the last frame.
"""

import heapq
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from operator import itemgetter
from typing import Any

import av
import numpy as np
from av import CodecContext
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.packet import Packet

from curator.media.audio_samples import (
    SAME_TIME_S,
    SETTLED_S,
    AudioPacket,
    Wave,
    decodes,
    place_samples,
    resampler_of,
)
from curator.media.container import demuxed, video_stream
from curator.media.packet_copy import COPY_OPTIONS
from curator.records.clips import AudioMode
from curator.storage.scratch import unnamed_file

AAC_BLOCK = 1024
"""Samples in an AAC packet, and the delay of FFmpeg's encoder in samples."""
AAC_RATES_HZ = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000)
BITS_PER_S = 64_000
"""Bit rate of each channel."""

MAX_OFFSET_S = Fraction(3, 1000)
"""Most seconds between a clip's start and its first copied packet. Without an edit list, the packet
is played at the start, so the clip's audio is this much early or late. Packets of AAC begin every
21 ms at 48 kHz, so other audio is encoded."""
_EARLIER_S = (0, 10)
"""Seconds before the target to which successive seeks go."""
_APART_S = 10
"""Most seconds of video between a picture and its audio in the file."""


class CannotSeekError(Exception):
    """A container refuses all seeks to the audio of a span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanAudio:
    """Audio of a span, for `add_audio`."""

    mode: AudioMode
    rate: int
    packets: tuple[bytes, ...] = ()
    """Copied packets; empty if the audio is encoded."""
    block: int = AAC_BLOCK
    """Samples per packet."""
    template: av.AudioStream | None = None
    """The copied stream, valid while its container is open."""
    wave: Wave | None = None
    """Samples to encode; begins one block before the span."""


def audio_of_span(
    container: av.container.InputContainer,
    stream: av.AudioStream,
    *,
    start: Fraction,
    seconds: Fraction,
    may_copy: bool,
    seeks: bool = True,
) -> SpanAudio | None:
    """Reads the audio of a span; None if the span has no audio.

    Args:
        container: The source; its position changes.
        stream: The source's audio stream.
        start: Time of the span's first frame on the container's clock, in seconds.
        seconds: Length of the written clip, in seconds.
        may_copy: Whether to copy packets, if they are AAC without gaps that decodes, and one of
            them begins within `MAX_OFFSET_S` of the start.
        seeks: False reads from the container's position, which is the start of the file.

    Raises:
        CannotSeekError: The container refuses all seeks to the span.
    """
    end = start + seconds
    packets = _packets(container, stream, start, end, seeks=seeks)
    copied = _copied(stream, packets, start, end) if may_copy else None
    return copied or _decoded(stream, packets, start, end)


def _packets(
    container: av.container.InputContainer,
    stream: av.AudioStream,
    start: Fraction,
    end: Fraction,
    *,
    seeks: bool,
) -> list[AudioPacket]:
    """Returns the packets from well before the span to its end."""
    begin, tick = start - SETTLED_S, _tick(stream)

    def read() -> list[AudioPacket]:
        packets = _until(container, stream, end)
        return [p for p in packets if p.pts is None or p.pts * tick >= begin - 1]

    if not seeks:
        return read()
    found: list[AudioPacket] | None = None
    # Demuxers of an index, such as AVI's, refuse times before the first packet.
    earliest = stream.start_time or 0
    for earlier_s in _EARLIER_S:
        target = floor((begin - earlier_s) / tick)
        try:
            container.seek(max(target, earliest), stream=stream, backward=True)
        except av.error.FFmpegError:
            continue
        found = read()
        first = next((p.pts for p in found if p.pts is not None), None)
        if target <= earliest or (first is not None and first * tick <= begin):
            break
    if found is None:
        raise CannotSeekError
    return found


def _tick(stream: av.AudioStream | av.VideoStream) -> Fraction:
    assert stream.time_base is not None
    return stream.time_base


def _until(
    container: av.container.InputContainer, stream: av.AudioStream, end: Fraction
) -> Iterator[AudioPacket]:
    """Yields audio packets up to a time; stops if pictures are `_APART_S` beyond the time."""
    pictures = video_stream(container, "the source")
    packets: Iterator[Packet[Any]] = demuxed(container, [stream, pictures])
    while True:
        try:
            packet = next(packets, None)
        except av.error.FFmpegError:
            return
        if packet is None or (packet.stream is stream and not packet.size):
            return
        now = packet.dts if packet.pts is None else packet.pts
        at_s = None if now is None else now * Fraction(packet.time_base)
        if packet.stream is stream:
            yield packet
            if at_s is not None and at_s > end:
                return
        elif at_s is not None and at_s > end + _APART_S:
            return


def _copied(
    stream: av.AudioStream,
    packets: Sequence[AudioPacket],
    start: Fraction,
    end: Fraction,
) -> SpanAudio | None:
    context = stream.codec_context
    # Without extradata, the stream has ADTS framing, which MP4 does not allow.
    if context.name != "aac" or not context.extradata or not context.sample_rate:
        return None
    timed = [p for p in packets if p.pts is not None and p.duration]
    if len(timed) < len(packets) or not timed:
        return None
    tick = _tick(stream)
    near = min(range(len(timed)), key=lambda i: abs(timed[i].pts * tick - start))  # type: ignore[operator]
    first = timed[near].pts
    assert first is not None
    if abs(first * tick - start) > MAX_OFFSET_S:
        return None
    # HE-AAC has 2,048 samples per packet at the rate of playback.
    rate = context.sample_rate
    block = AAC_BLOCK * max(1, round(float(timed[near].duration * tick * rate / AAC_BLOCK)))  # type: ignore[operator]
    n_packets = ceil((end - start) * rate / block)
    taken = timed[near : near + n_packets]
    if len(taken) < n_packets or any(p.is_corrupt for p in taken):
        return None
    for number, packet in enumerate(taken):
        assert packet.pts is not None
        if abs((packet.pts - first) * tick - Fraction(number * block, rate)) > SAME_TIME_S:
            return None
    if not decodes(stream, taken):
        return None
    return SpanAudio(
        mode="copy", rate=rate, packets=tuple(bytes(p) for p in taken), block=block, template=stream
    )


def _decoded(
    stream: av.AudioStream, packets: Sequence[AudioPacket], start: Fraction, end: Fraction
) -> SpanAudio | None:
    """Decodes the samples to their times, with silence in gaps; None if there are no samples."""
    rate = stream.codec_context.sample_rate
    if not rate:
        return None
    target = rate if rate in AAC_RATES_HZ else 48_000
    resampler = resampler_of(stream, target)
    n_blocks = ceil((end - start) * target / AAC_BLOCK) + 1
    wave = np.zeros((resampler.layout.nb_channels, n_blocks * AAC_BLOCK), np.float32)
    begin = start - Fraction(AAC_BLOCK, target)
    if place_samples(_frames(stream, packets, resampler), wave, begin, target) <= AAC_BLOCK:
        return None
    return SpanAudio(mode="aac", rate=target, wave=np.clip(wave, -1, 1))


def _fresh_decoder(stream: av.AudioStream) -> AudioCodecContext:
    """Returns a decoder whose output does not depend on what was decoded before.

    A flush leaves the generator of AAC's noise (ISO/IEC 14496-3, 4.6.13) where it was, so the
    samples of a clip would depend on the clips before it, by up to 1e-6.
    """
    context = stream.codec_context
    if context.name != "aac":
        context.flush_buffers()
        return context
    decoder = CodecContext.create("aac", "r")
    decoder.extradata = context.extradata
    decoder.sample_rate, decoder.layout = context.sample_rate, context.layout
    return decoder


def _frames(
    stream: av.AudioStream, packets: Sequence[AudioPacket], resampler: AudioResampler
) -> Iterator[AudioFrame]:
    """Yields decoded and resampled frames; skips packets with errors."""
    decoder = _fresh_decoder(stream)
    for packet in packets:
        try:
            decoded = decoder.decode(packet)
        # PyAV raises ValueError for unknown layouts and the like.
        except (av.error.FFmpegError, ValueError):
            continue
        for frame in decoded:
            try:
                yield from resampler.resample(frame)
            except ValueError:
                # The rate or layout has changed within the stream.
                continue
    yield from resampler.resample(None)


def add_audio(mp4: bytes, audio: SpanAudio) -> bytes:
    """Rewrites a clip with audio; the packets of its pictures stay unchanged."""
    with unnamed_file(".mp4") as (path, file), av.open(io.BytesIO(mp4), mode="r") as pictures:
        with av.open(path, "w", format="mp4", container_options=COPY_OPTIONS) as output:
            source = pictures.streams.video[0]
            video = output.add_stream_from_template(source, opaque=True)
            video.time_base = source.time_base
            sounds = list(_sound_packets(output, audio))
            shown = _shown_packets(pictures.demux(source), video)
            # At equal times, sound comes first.
            for _, packet in heapq.merge(sounds, shown, key=itemgetter(0)):
                output.mux(packet)
        file.seek(0)
        return file.read()


def _shown_packets(
    packets: "Iterator[Packet[Any]]", video: av.VideoStream
) -> Iterator[tuple[Fraction, "Packet[Any]"]]:
    """Yields packets of pictures with their decoding times, in seconds."""
    for packet in packets:
        if packet.dts is not None and packet.size:
            time_s = packet.dts * Fraction(packet.time_base)
            packet.stream = video
            yield time_s, packet


def _sound_packets(
    output: av.container.OutputContainer, audio: SpanAudio
) -> Iterator[tuple[Fraction, "Packet[Any]"]]:
    """Yields audio packets with their playback times, in seconds."""
    if audio.template is not None:
        copied = output.add_stream_from_template(audio.template, opaque=True)
        copied.time_base = Fraction(1, audio.rate)
        contents: Sequence[bytes] = audio.packets
    else:
        assert audio.wave is not None
        layout = "mono" if len(audio.wave) == 1 else "stereo"
        copied = output.add_stream("aac", rate=audio.rate, layout=layout)
        copied.codec_context.bit_rate = BITS_PER_S * len(audio.wave)
        copied.codec_context.flags |= av.codec.context.Flags.bitexact
        copied.codec_context.thread_count = 1
        contents = _aac(copied, audio.wave, audio.rate, layout)
    for number, content in enumerate(contents):
        packet: Packet[Any] = Packet(content)
        packet.time_base = Fraction(1, audio.rate)
        packet.pts = packet.dts = number * audio.block
        packet.duration = audio.block
        packet.is_keyframe = True
        packet.stream = copied
        yield Fraction(number * audio.block, audio.rate), packet


def _aac(stream: av.AudioStream, wave: Wave, rate: int, layout: str) -> list[bytes]:
    """Encodes samples; returns the packets from the span's start on."""
    packets: list[Packet[Any]] = []
    for begin in range(0, wave.shape[1], AAC_BLOCK):
        block = np.ascontiguousarray(wave[:, begin : begin + AAC_BLOCK])
        frame = AudioFrame.from_ndarray(block, format="fltp", layout=layout)
        frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), begin
        packets += stream.encode(frame)
    packets += stream.encode(None)
    # The first packet prepares the decoder; the second is the block before the span.
    n_wanted = wave.shape[1] // AAC_BLOCK - 1
    return [bytes(packet) for packet in packets[2 : 2 + n_wanted]]

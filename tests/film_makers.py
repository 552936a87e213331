"""Video files written with PyAV, sound or damaged in a known way.

Bytes are the same on every run with the same libraries: one thread per encoder, and the muxers'
bit-exact mode, without which Matroska draws random identifiers. The makers at the end write the
hostile and unusual files that any bucket holds; each says what a reader will find.
"""

import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, cast

import av
import cv2
import numpy as np
from av.audio.stream import AudioStream
from av.codec.context import Flags
from av.container import OutputContainer
from av.packet import Packet
from av.video.stream import VideoStream
from film_shots import moving_texture

from curator.media.encode import with_steady_bytes
from curator.tools.footage.scenes import Picture

FORMATS = {
    ".mp4": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm", ".ts": "mpegts",
    ".avi": "avi",
}  # fmt: skip
"""Container by file suffix."""

_AUDIO_CODECS = {".webm": "libopus", ".avi": "pcm_s16le"}
_AUDIO_RATE_HZ = 48_000
_BT709 = 1
_LIMITED_RANGE = 1

FPS = Fraction(30)
"""Frame rate of the makers' files."""


def write_video(
    path: Path,
    frames: Iterable[Picture],
    *,
    fps: Fraction = FPS,
    codec: str = "libx264",
    options: Mapping[str, str] | None = None,
    mux_options: Mapping[str, str] | None = None,
    pix_fmt: str = "yuv420p",
    gop: int | None = None,
    bframes: int | None = None,
    flags: int = 0,
    pts: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    audio_tone_s: float | None = None,
    rotation: int | None = None,
    is_mirrored: bool = False,
) -> int:
    """Encodes frames to a file.

    Args:
        path: Where to; the suffix, a key of `FORMATS`, chooses the container.
        frames: uint8 RGB, height x width x 3, all of one size; at least one.
        fps: Frame rate; with `pts`, only what the header says.
        codec: FFmpeg's encoder name.
        options: The encoder's private options.
        mux_options: The muxer's options, such as {"movflags": "faststart"}.
        pix_fmt: Pixel format that is stored.
        gop: Most frames from a key frame to the next; None is the encoder's default.
        bframes: Most B-frames in a row; None is the encoder's default.
        flags: Added bits of `av.codec.context.Flags`.
        pts: Time of each frame in `time_base`, increasing; None is a constant rate.
        time_base: Unit of `pts` in seconds. Matroska rounds to 1/1000 s and MPEG-TS to 1/90000 s.
        audio_tone_s: Length of a 440 Hz tone in seconds; None is no audio stream.
        rotation: Degrees that a player turns the picture clockwise. Only mp4 and mov.
        is_mirrored: Whether the player then mirrors it left to right; needs `rotation`.

    Returns:
        The number of frames written.
    """
    tick = time_base if time_base is not None else 1 / fps
    source = iter(frames)
    first = next(source)
    with _open(path, mux_options) as container:
        video = _add_video(container, first, fps=fps, codec=codec, options=options, pix_fmt=pix_fmt)
        if rotation is not None:
            video.set_display_rotation(-rotation, hflip=is_mirrored)
        context = video.codec_context
        context.time_base = tick
        context.flags |= flags
        if gop is not None:
            context.gop_size = gop
        if bframes is not None:
            context.max_b_frames = bframes
        tone: Iterator[Packet[Any]] = iter(())
        if audio_tone_s is not None:
            tone = _tone(_add_audio(container, path), audio_tone_s)
        colours = {"dst_colorspace": "ITU709"} if pix_fmt.startswith("yuv") else {}
        for count, picture in enumerate(chain([first], source)):
            rgb = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame = rgb.reformat(format=pix_fmt, threads=1, **colours)
            frame.pts, frame.time_base, frame.duration = count, tick, 1
            if pts is not None:
                # The last frame lasts as long as the one before it.
                at = min(count, len(pts) - 2)
                frame.pts, frame.duration = pts[count], pts[at + 1] - pts[at]
            container.mux(video.encode(frame))
            for packet in _until(tone, frame.pts * tick):
                container.mux(packet)
        container.mux(video.encode(None))
        for packet in tone:
            container.mux(packet)
    return count + 1


def _open(path: Path, mux_options: Mapping[str, str] | None) -> OutputContainer:
    options = {"fflags": "+bitexact", **(mux_options or {})}
    # For avformat, not for the muxer: av.open passes `options` to both.
    return av.open(str(path), "w", format=FORMATS[path.suffix], options=options)


def _add_video(
    container: OutputContainer,
    first: Picture,
    *,
    fps: Fraction = FPS,
    codec: str = "libx264",
    options: Mapping[str, str] | None = None,
    pix_fmt: str = "yuv420p",
) -> VideoStream:
    defaults = {"preset": "veryfast"} if codec == "libx264" else {}
    stream = cast(VideoStream, container.add_stream(codec, rate=fps))
    stream.height, stream.width = first.shape[:2]
    stream.pix_fmt = pix_fmt
    context = stream.codec_context
    context.options = {**defaults, **(options or {})}
    given = context.options.get("x264-params", "")
    if codec == "libx264" and (steady := with_steady_bytes(given)):
        context.options["x264-params"] = steady
    context.thread_count = 1
    context.flags |= Flags.bitexact
    if pix_fmt.startswith("yuv"):
        context.color_primaries = context.color_trc = context.colorspace = _BT709
        context.color_range = _LIMITED_RANGE
    return stream


def _add_audio(container: OutputContainer, path: Path) -> AudioStream:
    codec = _AUDIO_CODECS.get(path.suffix, "aac")
    stream = cast(AudioStream, container.add_stream(codec, rate=_AUDIO_RATE_HZ, layout="mono"))
    stream.codec_context.flags |= Flags.bitexact
    return stream


def _tone(stream: AudioStream, duration_s: float) -> Iterator["Packet[Any]"]:
    """Packets of a 440 Hz tone, encoded as they are asked for."""
    total = round(duration_s * _AUDIO_RATE_HZ)
    block = 960
    for start in range(0, total, block):
        n = np.arange(start, min(start + block, total))
        wave = np.rint(6000 * np.sin(2 * np.pi * 440 * n / _AUDIO_RATE_HZ)).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(wave[None, :], format="s16", layout="mono")
        frame.sample_rate, frame.pts = _AUDIO_RATE_HZ, start
        frame.time_base = Fraction(1, _AUDIO_RATE_HZ)
        yield from stream.encode(frame)
    yield from stream.encode(None)


def _until(packets: Iterator["Packet[Any]"], time_s: Fraction) -> Iterator["Packet[Any]"]:
    """Takes packets up to a time, so that sound and picture lie side by side in the file."""
    for packet in packets:
        yield packet
        if packet.pts is not None and packet.pts * packet.time_base >= time_s:
            return


def truncate(path: Path, fraction: float) -> None:
    """Keeps the first part of a file's bytes, as a broken upload does."""
    data = path.read_bytes()
    path.write_bytes(data[: round(len(data) * fraction)])


def flip_bytes(path: Path, n: int, *, seed: int, start_fraction: float = 0.1) -> None:
    """Changes `n` bytes at random places, as failing storage does, but in the file's first part."""
    data = bytearray(path.read_bytes())
    rng = random.Random(seed)
    for place in rng.sample(range(round(len(data) * start_fraction), len(data)), n):
        data[place] ^= rng.randrange(1, 256)
    path.write_bytes(data)


def scale_header_duration(path: Path, factor: Fraction) -> None:
    """Makes the headers of an mp4 or mkv file lie: every stated duration times `factor`.

    The frames and their index stay true. FFmpeg corrects a duration that is too long from an mp4's
    sample tables, and believes one that is too short, and either in mkv.
    """
    data = bytearray(path.read_bytes())
    # An element id and the length mark of a double, or boxes with a duration behind other fields.
    marks = {b"\x44\x89\x88": 0} if path.suffix == ".mkv" else {
        b"mvhd": 16, b"mdhd": 16, b"tkhd": 20,
    }  # fmt: skip
    form, kind = (">d", float) if path.suffix == ".mkv" else (">I", round)
    for mark, offset in marks.items():
        place = data.find(mark)
        while place >= 0:
            at = place + len(mark) + offset
            (stated,) = struct.unpack_from(form, data, at)
            struct.pack_into(form, data, at, kind(stated * factor))
            place = data.find(mark, at)
    path.write_bytes(data)


N_FRAMES = 48
"""Frames in the makers' files, where not said otherwise."""


def variable_pts(n_frames: int) -> list[int]:
    """Times in 1/600 s whose steps are 10, 20, 20, 35 and 15, so that no constant rate fits."""
    steps = (10, 20, 20, 35, 15)
    return [sum(steps[j % 5] for j in range(i)) for i in range(n_frames)]


VARIABLE_TIME_BASE = Fraction(1, 600)
"""Unit of `variable_pts`."""


def empty_file(path: Path) -> None:
    """No bytes."""
    path.write_bytes(b"")


def text_file(path: Path) -> None:
    """A note in plain text."""
    path.write_text("The film will be here on Monday.\n" * 40, encoding="utf-8")


def png_file(path: Path) -> None:
    """One PNG image, whatever the suffix says."""
    done, data = cv2.imencode(".png", next(moving_texture(1))[:, :, ::-1])
    assert done
    path.write_bytes(data.tobytes())


def audio_only(path: Path) -> None:
    """One second of sound and no video stream."""
    with _open(path, None) as container:
        for packet in _tone(_add_audio(container, path), 1.0):
            container.mux(packet)


def zero_frames(path: Path) -> None:
    """A fragmented mp4 that ends after its header: a described video stream without a frame."""
    with _open(path, {"movflags": "empty_moov+frag_keyframe"}) as container:
        _add_video(container, next(moving_texture(1)))
        container.start_encoding()


def one_frame(path: Path) -> None:
    """A single frame."""
    write_video(path, moving_texture(1))


def one_pixel(path: Path) -> None:
    """Frames of 1 x 1 pixel; 4:4:4, because 4:2:0 has no odd sizes."""
    frames = (frame[:1, :1] for frame in moving_texture(N_FRAMES))
    write_video(path, frames, pix_fmt="yuv444p")


def constant_rate(path: Path) -> None:
    """A sound file at a constant rate.

    VP9 in webm, which takes no H.264, and MPEG-4 part 2 in avi, which cannot time B-frames.
    """
    codec = {".webm": "libvpx-vp9", ".avi": "mpeg4"}.get(path.suffix, "libx264")
    options = {"deadline": "realtime", "cpu-used": "8"} if codec == "libvpx-vp9" else None
    write_video(path, moving_texture(N_FRAMES), codec=codec, options=options)


def variable_rate(path: Path) -> None:
    """Frames at the times of `variable_pts`."""
    pts = variable_pts(N_FRAMES)
    write_video(path, moving_texture(N_FRAMES), pts=pts, time_base=VARIABLE_TIME_BASE)


def b_frames(path: Path) -> None:
    """Three B-frames in a row; an edit list hides the delay that they cause in mp4."""
    write_video(path, moving_texture(N_FRAMES), bframes=3, options={"x264-params": "b-adapt=0"})


def edited(path: Path) -> None:
    """B-frames in mp4, of which an edit list hides the first five frames."""
    b_frames(path)
    data = bytearray(path.read_bytes())
    place = data.index(b"elst") + 4 + 8
    duration, media_time = struct.unpack_from(">Ii", data, place)
    struct.pack_into(">Ii", data, place, duration, media_time + 5 * 512)
    path.write_bytes(data)


def open_gop(path: Path) -> None:
    """Key frames every 12 frames; B-frames shown before one need the group before it."""
    params = "open-gop=1:b-adapt=0:scenecut=0:keyint=12:min-keyint=12"
    write_video(path, moving_texture(N_FRAMES), bframes=3, options={"x264-params": params})


def interlaced(path: Path) -> None:
    """Interlaced coding; each frame's fields show two moments, the bottom field the earlier."""
    flags = Flags.interlaced_dct | Flags.interlaced_me
    write_video(path, _woven(moving_texture(N_FRAMES * 2)), flags=flags)


def _woven(frames: Iterator[Picture]) -> Iterator[Picture]:
    for earlier in frames:
        woven = next(frames).copy()
        woven[1::2] = earlier[1::2]
        yield woven


def ten_bit(path: Path) -> None:
    """H.264 with 10 bits a sample, which NVIDIA decoders before Blackwell refuse."""
    write_video(path, moving_texture(N_FRAMES), pix_fmt="yuv420p10le")


def rotated(path: Path) -> None:
    """Stored 320 x 180 and shown 180 x 320: the player is to turn it 90 degrees clockwise."""
    write_video(path, moving_texture(N_FRAMES), rotation=90)


def mirrored(path: Path) -> None:
    """Stored 320 x 180; the player is to turn it 90 degrees clockwise and mirror it."""
    write_video(path, moving_texture(N_FRAMES), rotation=90, is_mirrored=True)


def frame_lost(path: Path) -> None:
    """H.264 without its 21st packet, which the file does not tell."""
    whole = path.with_name(f"whole_{path.name}")
    write_video(whole, moving_texture(N_FRAMES), bframes=0)
    with av.open(str(whole)) as read, av.open(str(path), "w") as made:
        stream = read.streams.video[0]
        copy = made.add_stream_from_template(stream, opaque=True)
        packets = [packet for packet in read.demux(stream) if packet.size]
        for packet in packets[:20] + packets[21:]:
            packet.stream = copy
            made.mux(packet)


def audio_outlasts_video(path: Path) -> None:
    """1.6 s of picture and 4 s of sound, so that the container's duration is the sound's."""
    write_video(path, moving_texture(N_FRAMES), audio_tone_s=4.0)


def duration_too_long(path: Path) -> None:
    """Headers that promise ten times what is there."""
    constant_rate(path)
    scale_header_duration(path, Fraction(10))


def duration_too_short(path: Path) -> None:
    """Headers that promise a quarter of what is there."""
    constant_rate(path)
    scale_header_duration(path, Fraction(1, 4))


def truncated(path: Path) -> None:
    """The first 60% of an mp4 whose index stands in front: some frames are still there."""
    write_video(path, moving_texture(N_FRAMES), mux_options={"movflags": "faststart"})
    truncate(path, 0.6)


def index_missing(path: Path) -> None:
    """The first 60% of an mp4 whose index stood at the end: nothing can be decoded."""
    constant_rate(path)
    truncate(path, 0.6)


def flipped(path: Path) -> None:
    """Sixty wrong bytes among the coded pictures of an mp4 whose index is whole."""
    write_video(path, moving_texture(N_FRAMES), mux_options={"movflags": "faststart"})
    flip_bytes(path, 60, seed=1, start_fraction=0.4)


MAKERS: dict[str, Callable[[Path], None]] = {
    "audio_only.mp4": audio_only, "audio_outlasts_video.mp4": audio_outlasts_video,
    "b_frames.mp4": b_frames, **{f"constant_rate{suffix}": constant_rate for suffix in FORMATS},
    "duration_too_long.mkv": duration_too_long, "duration_too_long.mp4": duration_too_long,
    "duration_too_short.mp4": duration_too_short, "empty.mp4": empty_file, "flipped.mp4": flipped,
    "index_missing.mp4": index_missing, "interlaced.mp4": interlaced, "one_frame.mp4": one_frame,
    "one_pixel.mp4": one_pixel, "open_gop.mp4": open_gop, "png.mp4": png_file,
    "rotated.mp4": rotated, "ten_bit.mp4": ten_bit, "text.mp4": text_file,
    "truncated.mp4": truncated, "variable_rate.mp4": variable_rate, "zero_frames.mp4": zero_frames,
}  # fmt: skip
"""Makers by a file name that suits them; any name with a fitting suffix works."""


def made_in(folder: Path) -> Callable[[str], Path]:
    """Returns what makes files in a folder by the names of `MAKERS`, when first asked for."""

    def make(name: str) -> Path:
        path = folder / name
        if not path.exists():
            (MAKERS.get(name) or globals()[path.stem])(path)
        return path

    return make

"""Which of several streams clips are made of, and what is said of streams that lose something."""

import struct
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
import film_makers
import numpy as np
import pytest
from av.packet import Packet
from av.stream import Disposition
from film_makers import write_video
from film_shots import moving_texture
from made_cuts import cutter_of, pictures, request_of
from samples import analyzed

from curator.errors import DecodeError, ErrorCode, SourceError
from curator.media import decode
from curator.media.container import has_decoder, has_other_video, open_container, video_stream
from curator.records.clips import Shot
from curator.records.sources import Note
from curator.stages.cut.config import CutConfig
from curator.stages.propose.candidate_row import candidate_of
from curator.stages.propose.clip_spans import propose_clips
from curator.stages.propose.config import ProposeConfig
from curator.stages.scan.probe import header_facts

Camera = tuple[int, int, int, bool]
"""Width, height, number of frames, and whether the container marks it as default."""


def with_streams(path: Path, *cameras: Camera) -> Path:
    """A file with a video stream of each camera, in this order."""
    with av.open(str(path), "w") as made:
        packets: list[Packet[Any]] = []
        streams = []
        for width, height, _, is_default in cameras:
            stream = made.add_stream("mpeg4" if path.suffix == ".ts" else "libx264", rate=25)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.codec_context.thread_count = 1
            stream.disposition = Disposition.default if is_default else Disposition(0)
            streams.append(stream)
        made.start_encoding()
        for stream, (width, height, n_frames, _) in zip(streams, cameras, strict=True):
            for number, picture in enumerate(
                moving_texture(n_frames, width_px=width, height_px=height)
            ):
                rgb = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame = rgb.reformat(format="yuv420p")
                frame.pts, frame.time_base = number, Fraction(1, 25)
                packets += stream.encode(frame)
            packets += stream.encode(None)
        made.mux(sorted(packets, key=lambda packet: packet.dts * packet.time_base))
    return path


def chosen(path: Path) -> tuple[int, bool]:
    """The number of the stream that is used, and whether other footage is left out."""
    with path.open("rb") as file, open_container(file, "a", n_bytes=path.stat().st_size) as opened:
        stream = video_stream(opened, "a")
        return stream.index, has_other_video(opened, stream)


LARGE, SMALL = (96, 64), (64, 48)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
@pytest.mark.parametrize(("cameras", "meant"), [
    ([(*SMALL, 9, True), (*LARGE, 9, True)], (1, True)),
    ([(*LARGE, 8, True), (*LARGE, 9, True), (*LARGE, 9, True)], (1, True)),
    ([(*LARGE, 1, False), (*SMALL, 9, False)], (1, False)),
    ([(*SMALL, 9, False), (*LARGE, 1, False), (*SMALL, 1, False)], (0, False)),
])  # fmt: skip
def test_the_film_comes_before_stills_then_the_largest_then_the_longest(
    suffix: str, cameras: list[Camera], meant: tuple[int, bool], tmp_path: Path
) -> None:
    assert chosen(with_streams(tmp_path / f"a{suffix}", *cameras)) == meant


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_stream_that_is_marked_as_default_comes_before_a_larger_one(
    suffix: str, tmp_path: Path
) -> None:
    """Pins size, scan and clip of the stream that is chosen, and the note on the other."""
    cameras = (*LARGE, 9, False), (*SMALL, 30, True)
    path = with_streams(tmp_path / f"a{suffix}", *cameras)
    assert chosen(path) == (1, True)
    with path.open("rb") as file:
        row = header_facts(file, "a", path.stat().st_size)
    assert (row["width"], row["height"]) == SMALL
    track = analyzed(path)
    assert (track.width, track.n_frames, track.notes) == (64, 30, (Note.OTHER_VIDEO,))
    clip = cutter_of(path, CutConfig()).cut(request_of(track, 2, 20))
    assert pictures(clip.mp4)[0].shape == (48, 64, 3)


def aspect_film(path: Path, *aspects: Fraction) -> Path:
    """MPEG-2 in which pixels have another shape every 30 frames."""
    with av.open(str(path), "w") as made:
        target = None
        for part, aspect in enumerate(aspects):
            encoder = av.CodecContext.create("mpeg2video", "w")
            encoder.width, encoder.height, encoder.pix_fmt = 64, 48, "yuv420p"
            encoder.time_base, encoder.framerate = Fraction(1, 25), Fraction(25)
            encoder.sample_aspect_ratio = aspect
            encoder.gop_size, encoder.max_b_frames, encoder.thread_count = 15, 2, 1
            encoder.bit_rate = 2_000_000
            frames = moving_texture(30, width_px=64, height_px=48, seed=part)
            rgb = (av.VideoFrame.from_ndarray(picture, format="rgb24") for picture in frames)
            for number, picture in enumerate(chain(rgb, [None])):
                frame = picture and picture.reformat(format="yuv420p")
                if frame is not None:
                    frame.pts, frame.time_base = number, Fraction(1, 25)
                for packet in encoder.encode(frame):
                    if target is None:
                        target = made.add_stream("mpeg2video", rate=25)
                        target.width, target.height, target.pix_fmt = 64, 48, "yuv420p"
                    packet.pts, packet.dts = packet.pts + 30 * part, packet.dts + 30 * part
                    packet.time_base, packet.stream = Fraction(1, 25), target
                    made.mux(packet)
    return path


@pytest.mark.parametrize("suffix", [".ts", ".mpg"])
def test_pixels_that_change_their_shape_divide_clips(suffix: str, tmp_path: Path) -> None:
    """Pins the frame of each change, whatever the threads, and the size of each clip."""
    wide, narrow = Fraction(4, 3), Fraction(1)
    path = aspect_film(tmp_path / f"a{suffix}", narrow, wide, narrow)
    track, again = analyzed(path), analyzed(path, threads=3)
    first = Fraction(track.pixel_aspect)
    assert track.aspect_changes == again.aspect_changes
    assert [change.split()[0] for change in track.aspect_changes] == ["30", "60"]
    assert track.aspect_at(29) == track.aspect_at(60) == first
    assert Note.ASPECT_CHANGES in track.notes
    shot = Shot(start_frame=0, end_frame=90, transition_in="none", transition_out="none")
    spans = propose_clips(track, [shot], ProposeConfig())
    assert [(span.start_frame, span.end_frame) for span in spans] == [(0, 30), (30, 60), (60, 90)]
    sizes = []
    for span in spans:
        row = candidate_of(track, span, "a", aggregates={}, crop_borders=False)
        clip = cutter_of(path, CutConfig()).cut(request_of(track, span.start_frame, span.end_frame))
        assert (clip.width, clip.height) == (row.width, row.height)
        assert row.scores["aspect"] == pytest.approx(row.width / row.height, rel=0.02)
        sizes.append((row.width, row.height))
    assert sizes == [(64, 48), (84, 48), (64, 48)]


@pytest.mark.parametrize(("pixels", "codec", "suffix", "is_noted"), [
    ("gray16le", "ffv1", ".mkv", True), ("gray16be", "png", ".mov", True),
    ("rgb48be", "png", ".mov", True), ("yuv420p10le", "libx264", ".mp4", True),
    ("gray12le", "ffv1", ".mkv", True), ("gray", "ffv1", ".mkv", False),
    ("yuv420p", "libx264", ".mp4", False), ("rgb24", "png", ".mov", False),
])  # fmt: skip
def test_more_than_eight_bits_are_noted(
    pixels: str, codec: str, suffix: str, is_noted: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"a{suffix}"
    frames = moving_texture(3, width_px=64, height_px=48)
    write_video(path, frames, codec=codec, pix_fmt=pixels)
    assert (Note.DEPTH_REDUCED in analyzed(path).notes) is is_noted


def retagged(source: Path, path: Path, tag: bytes, box: bytes = b"") -> Path:
    """An MP4 whose sample entry has another name, and perhaps another box inside."""
    data = bytearray(source.read_bytes())
    at = data.index(b"hev1")
    data[at : at + 4] = tag
    if box:
        size = struct.unpack_from(">I", data, at - 4)[0]
        data[at - 4 + size : at - 4 + size] = box
        for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", tag):
            place = data.index(kind) - 4
            struct.pack_into(">I", data, place, struct.unpack_from(">I", data, place)[0] + len(box))
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("suffix", [".avi", ".nut"])
def test_a_tag_that_is_no_text_loses_no_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """A tag is a number: AVI has 0xff for AAC and 0xf1ac for FLAC; also of pictures."""
    monkeypatch.setitem(film_makers.FORMATS, suffix, suffix[1:])
    monkeypatch.setitem(film_makers._AUDIO_CODECS, suffix, "aac")
    path = tmp_path / f"film{suffix}"
    frames = moving_texture(3, width_px=64, height_px=64)
    write_video(path, frames, codec="mpeg4", audio_tone_s=0.2)
    with path.open("rb") as file, open_container(file, "a", n_bytes=path.stat().st_size) as found:
        assert [has_decoder(stream) for stream in found.streams] == [True, True]
        assert video_stream(found, "a").width == 64


def dolby(profile: int, compatibility: int) -> bytes:
    """A configuration of Dolby Vision: level 6, metadata, no enhancement layer, a base layer."""
    record = bytes([1, 0, profile << 1, 6 << 3 | 0b101, compatibility << 4]) + bytes(19)
    return struct.pack(">I4s", 32, b"dvcC") + record


def test_dolby_vision_that_no_other_decoder_shows_is_refused(tmp_path: Path) -> None:
    """Pins sample entries and configurations; profile 8 is HDR10, HLG or SDR for others."""
    film = tmp_path / "film.mp4"
    frames = moving_texture(3, width_px=64, height_px=64)
    write_video(
        film, frames, codec="libx265", options={"x265-params": "log-level=0"}, pix_fmt="yuv420p10le"
    )
    for tag, box, is_refused in (
        (b"dvh1", dolby(5, 0), True), (b"dvhe", b"", True), (b"hev1", dolby(5, 0), True),
        (b"hev1", dolby(8, 1), False), (b"hev1", dolby(8, 4), False), (b"hev1", b"", False),
    ):  # fmt: skip
        path = retagged(film, tmp_path / "made.mp4", tag, box)
        with path.open("rb") as file:
            if not is_refused:
                assert header_facts(file, "a", path.stat().st_size)["codec"] == "hevc"
                continue
            with pytest.raises(SourceError, match=r"a is Dolby Vision of a profile \(5") as caught:
                header_facts(file, "a", path.stat().st_size)
            assert caught.value.code is ErrorCode.UNSUPPORTED_CODEC
    # Matroska and MPEG-TS have the configuration in other forms.
    sound = tmp_path / "film.mkv"
    write_video(sound, moving_texture(3, width_px=64, height_px=64))
    record = dolby(5, 0)[8:]
    mapping = b"\x41\xe7\x84dvcC\x41\xed\x98" + record
    with sound.open("rb") as file:
        assert header_facts(file, "a", sound.stat().st_size)["codec"] == "h264"
    data = sound.read_bytes()
    end = data.index(b"\x1f\x43\xb6\x75")
    sound.write_bytes(data[:end] + b"\xec\xa3" + mapping + data[end:])
    with sound.open("rb") as file, pytest.raises(SourceError, match="Dolby Vision"):
        header_facts(file, "a", sound.stat().st_size)


def test_metadata_of_dolby_vision_on_a_frame_is_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins streams whose container says nothing: only their frames have the metadata."""
    film = tmp_path / "film.mp4"
    write_video(film, moving_texture(3, width_px=64, height_px=64))
    header = bytearray(16)
    at = struct.pack("=Q", 8)
    for profile, is_full, is_refused in ((0, 1, True), (1, 0, False), (0, 0, False)):
        header[4], header[10] = profile, is_full
        side_data = {decode.Type.DOVI_METADATA: at + bytes(header)}
        monkeypatch.setattr(decode, "side_data_of", lambda _, kind, s=side_data: s.get(kind))
        if is_refused:
            with pytest.raises(DecodeError, match="Dolby Vision") as caught:
                analyzed(film)
            assert caught.value.code is ErrorCode.UNSUPPORTED_CODEC
        else:
            assert analyzed(film).n_frames == 3
    assert np.frombuffer(at, np.uint64)[0] == 8

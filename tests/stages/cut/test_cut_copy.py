"""Copied clips: the source's own frames bit by bit, and what is encoded because it cannot be."""

import io
import shutil
import struct
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
import cv2
import film_makers as write
import numpy as np
import pytest
from av.video.reformatter import ColorRange
from film_makers import variable_pts, write_video
from film_shots import moving_texture
from made_cuts import Film, cutter_of, request_of
from samples import framed

from curator.cut_requests import least_frames
from curator.media.nvdec import bitstream_filter
from curator.media.packet_copy import (
    CannotCopyError,
    PacketSpan,
    VideoPacket,
    joined,
    packets_of_span,
)
from curator.media.stream_headers import (
    has_several_headers,
    header_sets,
    most_references,
    unused_id,
)
from curator.records.cuts import CutClip, NotCopied
from curator.records.tracks import UNIFORM, Track
from curator.stages.cut import clip_cutter as cut
from curator.stages.cut import copy_check as copy
from curator.stages.cut.config import CutConfig
from curator.stages.cut.copy_check import give_up_ticks, is_same_luma
from curator.stages.shard.config import ShardConfig

N = 120
"""Frames of the sources here, at 30 frames/s."""
GOP = 12
CLOSED = f"keyint={GOP}:min-keyint={GOP}:scenecut=0:b-adapt=0"
OPEN = f"open-gop=1:{CLOSED}"
PYRAMID = f"b-pyramid=normal:ref=4:{CLOSED}"
REFRESH = f"intra-refresh=1:keyint={GOP}:scenecut=0"
SPANS = ((0, N), (12, 96), (9, 100), (36, 110), (N - 50, N))


def _film(path: Path, params: str = CLOSED, **settings: object) -> None:
    frames = moving_texture(N, width_px=192, height_px=108)
    options = {"preset": "veryfast", "x264-params": params}
    write_video(path, frames, **({"options": options} | settings))  # type: ignore[arg-type]


def _made(params: str = CLOSED, **settings: object) -> Callable[[Path], None]:
    return lambda path: _film(path, params, **settings)


def _join(path: Path, *params: str) -> None:
    """Writes films one after the other without encoding them again."""
    parts = [path.with_name(f"{number}.ts") for number in range(len(params))]
    for part, own in zip(parts, params, strict=True):
        _film(part, own, bframes=0)
    with ExitStack() as stack:
        files = [stack.enter_context(av.open(str(part))) for part in parts]
        target = stack.enter_context(av.open(str(path), "w"))
        stream = target.add_stream_from_template(files[0].streams.video[0], opaque=True)
        for number, file in enumerate(files):
            for packet in file.demux(video=0):
                if packet.size and packet.pts is not None:
                    packet.pts = packet.dts = packet.pts + number * N * 3000
                    packet.stream = stream
                    target.mux(packet)


def _mirrored(path: Path) -> None:
    """A display matrix that puts top to bottom, which no rotation describes."""
    _film(path, bframes=0, rotation=180)
    data = path.read_bytes()
    turned = b"\xff\xff\x00\x00" + bytes(12) + b"\xff\xff\x00\x00"
    assert data.count(turned) == 1
    path.write_bytes(data.replace(turned, b"\x00\x01\x00\x00" + bytes(12) + b"\xff\xff\x00\x00"))


def _full_range(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = 192, 108, "yuv420p"
        stream.codec_context.color_range = ColorRange.JPEG
        for picture in moving_texture(N, width_px=192, height_px=108):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def _variable(path: Path) -> None:
    _film(path, bframes=0, pts=variable_pts(N), time_base=write.VARIABLE_TIME_BASE)


def _flv(path: Path) -> None:
    """A file of FLV, which the footage module does not write."""
    made = path.with_name("made_for_flv.mp4")
    _film(made, bframes=2)
    with av.open(str(made)) as source, av.open(str(path), "w", format="flv") as target:
        stream = target.add_stream_from_template(source.streams.video[0], opaque=True)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)


MakeFilm = Callable[[str], tuple[Path, Track]]
COPIED: dict[str, Callable[[Path], None]] = {
    "plain.mp4": _made(bframes=0),
    "plain.mkv": _made(bframes=0),
    "plain.ts": _made(bframes=0),
    "ntsc.mov": _made(bframes=0, fps=Fraction(30_000, 1001)),
    "b_frames.mp4": _made(bframes=3),
    "b_frames.mkv": _made(bframes=3),
    "b_frames.ts": _made(bframes=3),
    "b_frames.flv": _flv,
    "ntsc_b_frames.mkv": _made(bframes=2, fps=Fraction(24_000, 1001)),
    "pyramid.mp4": _made(PYRAMID, bframes=7),
    "sound.ts": _made(bframes=3, audio_tone_s=4.0),
}
"""Sources whose spans can all be copied."""

FIELDS = av.codec.context.Flags.interlaced_dct | av.codec.context.Flags.interlaced_me
ENCODED: dict[str, tuple[Callable[[Path], None], NotCopied]] = {
    "mpeg2.ts": (_made(codec="mpeg2video", gop=GOP, options={"b": "3M"}), NotCopied.CODEC),
    "vp9.webm": (_made(codec="libvpx-vp9", options={"deadline": "realtime"}), NotCopied.CODEC),
    "ten_bit.mp4": (_made(pix_fmt="yuv420p10le"), NotCopied.CODEC),
    "chroma_422.mp4": (_made(pix_fmt="yuv422p"), NotCopied.CODEC),
    "full_range.mp4": (_full_range, NotCopied.CHROMA),
    "rotated.mp4": (_made(rotation=90), NotCopied.SHAPE),
    "mirrored.mp4": (_mirrored, NotCopied.SHAPE),
    "wide_pixels.mp4": (_made(f"sar=4/3:{CLOSED}"), NotCopied.SHAPE),
    "interlaced.mp4": (_made(bframes=0, flags=FIELDS), NotCopied.INTERLACED),
    "variable.mp4": (_variable, NotCopied.VARIABLE_RATE),
    "open_gop.ts": (_made(OPEN, bframes=3), NotCopied.KEY_FRAME_TOO_FAR),
    "refresh.ts": (_made(REFRESH, bframes=0), NotCopied.KEY_FRAME_TOO_FAR),
    "far_keys.mp4": (_made("keyint=250:scenecut=0", bframes=0), NotCopied.KEY_FRAME_TOO_FAR),
}
"""Sources of which [6, 110) cannot be copied, and why."""


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> MakeFilm:
    """Makes and analyzes a file when it is first asked for."""
    folder = tmp_path_factory.mktemp("films")
    made: dict[str, tuple[Path, Track]] = {}

    def make(name: str) -> tuple[Path, Track]:
        if name not in made:
            path = folder / name
            (COPIED[name] if name in COPIED else ENCODED[name][0])(path)
            made[name] = path, framed(path)
        return made[name]

    return make


LENIENT = CutConfig(copy_give_up_share=0.5)
HEADS = CutConfig(copy_give_up_s=0.11)
"""Gives up three frames at 30 frames/s: fewer than from frame 7 to the next key frame."""


def stored(source: Path | bytes) -> list[Film]:
    """Decoded pictures as they are stored, in no other colour and size."""
    with av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source)) as container:
        return [frame.to_ndarray() for frame in container.decode(video=0)]


@pytest.mark.parametrize("name", COPIED)
def test_copies_hold_the_sources_frames_bit_by_bit(name: str, film: MakeFilm) -> None:
    """Pins that a copy is a run of the span's own frames, and gives up no more than it may.

    The analysis decoded its packets, so that its frames are not decoded again.
    """
    path, track = film(name)
    source = stored(path)
    assert len(source) == track.n_frames == N
    cutter = cutter_of(path, LENIENT)
    for start, end in reversed(SPANS):
        clip = cutter.cut(request_of(track, start, end))
        assert (clip.cut_mode, clip.not_copied, clip.copy_frames) == ("copy", None, None)
        assert not clip.is_decoded
        first, last = start + clip.first, start + clip.end
        # The next key frame: they are so many frames apart.
        assert first == -(-start // GOP) * GOP
        assert end - 3 <= last <= end
        assert clip.n_frames == clip.end - clip.first
        np.testing.assert_array_equal(stored(clip.mp4), source[first:last])


def _facts(clip: CutClip) -> None:
    for absent in (b"elst", b"edts"):
        assert absent not in clip.mp4
    assert clip.mp4.index(b"moov") < clip.mp4.index(b"mdat")
    with av.open(io.BytesIO(clip.mp4)) as container:
        (stream,) = container.streams.video
        assert stream.frames == clip.n_frames
        assert stream.start_time == 0
        assert stream.average_rate == stream.guessed_rate == clip.fps
        assert stream.duration * stream.time_base == clip.n_frames / clip.fps
        assert (stream.width, stream.height) == (clip.width, clip.height)
        frames = list(container.decode(stream))
        assert frames[0].key_frame
        assert [frame.pts * stream.time_base for frame in frames] == [
            index / clip.fps for index in range(clip.n_frames)
        ]


@pytest.mark.parametrize("name", COPIED)
def test_all_readers_count_the_same_frames_from_zero(
    name: str, film: MakeFilm, tmp_path: Path
) -> None:
    """Pins no edit list, a first key frame at time 0, and PyAV, OpenCV and ffmpeg in frames."""
    path, track = film(name)
    clip = cutter_of(path, LENIENT).cut(request_of(track, 9, 100))
    assert clip.cut_mode == "copy"
    _agree_about(clip, name, tmp_path)


@pytest.mark.parametrize("name", COPIED)
def test_a_head_is_encoded_and_the_rest_is_copied(
    name: str, film: MakeFilm, tmp_path: Path
) -> None:
    """Pins that no frame is given up at the start, the copied frames' bits, and all readers."""
    path, track = film(name)
    start, end = 7, 100
    clip = cutter_of(path, HEADS).cut(request_of(track, start, end))
    assert (clip.cut_mode, clip.not_copied) == ("encode_head", NotCopied.KEY_FRAME_TOO_FAR)
    assert clip.first == 0
    assert end - 3 <= start + clip.end <= end
    shown, source = stored(clip.mp4), stored(path)[start : start + clip.end]
    n_head = GOP - start
    np.testing.assert_array_equal(shown[n_head:], source[n_head:])
    assert not np.array_equal(shown[:n_head], source[:n_head])
    for head, frame in zip(shown[:n_head], source[:n_head], strict=True):
        assert np.abs(head.astype(int) - frame).mean() < 4
    _agree_about(clip, name, tmp_path)


def test_a_head_has_the_colours_of_its_source(tmp_path: Path) -> None:
    """Pins tags and levels: the head is not converted to BT.709, since the rest is not."""
    path = tmp_path / "film.mp4"
    _film(path, f"colorprim=smpte170m:transfer=smpte170m:colormatrix=smpte170m:{CLOSED}")
    clip = cutter_of(path, HEADS).cut(request_of(framed(path), 7, 100))
    assert clip.cut_mode == "encode_head"
    with av.open(io.BytesIO(clip.mp4)) as container:
        tags = {
            (int(frame.color_primaries), int(frame.color_trc), int(frame.colorspace))
            for frame in container.decode(video=0)
        }
    assert tags == {(6, 6, 6)}
    shown, source = stored(clip.mp4)[0].astype(int), stored(path)[7]
    assert abs((shown - source).mean()) < 0.5


def test_the_number_of_a_head_is_one_that_the_source_does_not_use(tmp_path: Path) -> None:
    """Pins that the source's slices keep their parameter sets, also in a source made so itself."""
    first, second = tmp_path / "first.mp4", tmp_path / "second.mp4"
    _film(first)
    first.write_bytes(cutter_of(first, HEADS).cut(request_of(framed(first), 7, 100)).mp4)
    clip = cutter_of(first, HEADS).cut(request_of(framed(first), 8, 90))
    assert clip.cut_mode == "encode_head"
    source = stored(first)[8:90]
    np.testing.assert_array_equal(stored(clip.mp4)[GOP:], source[GOP : clip.n_frames])
    with av.open(io.BytesIO(clip.mp4)) as container:
        sets = header_sets(container.streams.video[0].codec_context.extradata)
    assert unused_id(sets) == 3
    second.write_bytes(clip.mp4)
    assert len(stored(second)) == clip.n_frames


def test_a_head_avoids_the_numbers_of_sets_between_pictures(tmp_path: Path) -> None:
    """Pins packets with other sets than the header's: a decoder that seeks back keeps them."""
    path = tmp_path / "joined.ts"
    _join(path, CLOSED, f"cabac=0:sps-id=1:{CLOSED}")
    clip = cutter_of(path, HEADS).cut(request_of(framed(path), N + 7, N + 100))
    assert clip.cut_mode == "encode_head"
    with av.open(io.BytesIO(clip.mp4)) as container:
        first, again = [], []
        for shown in (first, again):
            container.seek(0)
            shown += [frame.to_ndarray() for frame in container.decode(video=0)]
    np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal(first[5:], stored(path)[N + 12 : N + 7 + clip.n_frames])


def test_a_head_announces_the_reference_frames_of_the_rest(film: MakeFilm) -> None:
    """Pins equal room for decoded pictures, which decoders may reserve at the first header."""
    path, track = film("pyramid.mp4")
    clip = cutter_of(path, HEADS).cut(request_of(track, 7, 100))
    with av.open(io.BytesIO(clip.mp4)) as container:
        sets = header_sets(container.streams.video[0].codec_context.extradata)
    assert [most_references([unit]) for unit in sets if unit[0] & 31 == 7] == [4, 4]


@pytest.mark.parametrize(
    "config", [{"encode_head": False}, {"encoder": "vp9"}], ids=["off", "another encoder"]
)
def test_a_head_may_be_refused(config: dict[str, object], film: MakeFilm) -> None:
    """Pins the setting, and that only x264 joins its packets with those of H.264."""
    path, track = film("plain.mp4")
    clip = cutter_of(path, HEADS.model_copy(update=config)).cut(request_of(track, 7, 100))
    assert (clip.cut_mode, clip.not_copied) == ("encode", NotCopied.KEY_FRAME_TOO_FAR)


def test_a_head_is_known_from_packets_as_an_engine_gets_them(film: MakeFilm) -> None:
    """Pins what GPU readers go by to leave such clips to the CPU."""
    path, track = film("plain.mp4")
    known = {}
    for config in (HEADS, LENIENT):
        clip = cutter_of(path, config).cut(request_of(track, 7, 100))
        with av.open(io.BytesIO(clip.mp4)) as container:
            stream = container.streams.video[0]
            annex_b = bitstream_filter(stream)
            assert annex_b is not None
            first = next(container.demux(stream))
            known[clip.cut_mode] = [has_several_headers(part) for part in annex_b.filter(first)]
    assert known == {"encode_head": [True], "copy": [False]}


def test_times_that_the_analysis_repaired_put_no_other_frame_after_a_head(tmp_path: Path) -> None:
    """Pins that a copy of one or two frames, which luma cannot place, ends no clip."""
    path = tmp_path / "film.avi"
    _film(path, bframes=2)
    track, source = framed(path), np.stack(stored(path)).astype(int)
    for start in (3, 5, 7):
        clip = cutter_of(path, HEADS).cut(request_of(track, start, GOP))
        last = stored(clip.mp4)[-1]
        assert int(np.abs(source - last).mean((1, 2)).argmin()) == GOP - 1


@pytest.mark.parametrize("spoils", ["packet", "order"])
def test_a_wrong_joint_is_encoded_whole(
    spoils: str, film: MakeFilm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that the joined clip is checked, and not only its parts."""
    path, track = film("plain.mp4")

    def wrong(head: bytes, tail: bytes, fps: Fraction) -> tuple[bytes, PacketSpan, bytes]:
        mp4, span, header = joined(head, tail, fps)
        if spoils == "order":
            return joined(head, head, fps)[0], span, header
        at = mp4.index(bytes(span.packets[-1]))
        return mp4[: at + 8] + bytes([mp4[at + 8] ^ 1]) + mp4[at + 9 :], span, header

    monkeypatch.setattr(cut, "joined", wrong)
    clip = cutter_of(path, HEADS).cut(request_of(track, 7, 100))
    assert (clip.cut_mode, clip.not_copied) == ("encode", NotCopied.CHECK_FAILED)


def _agree_about(clip: CutClip, name: str, tmp_path: Path) -> None:
    assert (b"ctts" in clip.mp4) == ("b_frames" in name or name in ("pyramid.mp4", "sound.ts"))
    _facts(clip)
    written = tmp_path / "clip.mp4"
    written.write_bytes(clip.mp4)
    with av.open(str(written)) as container:
        pictures = [frame.to_ndarray(format="bgr24") for frame in container.decode(video=0)]
    video = cv2.VideoCapture(str(written))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == clip.n_frames
    for index, picture in enumerate(pictures):
        there, frame = video.read()
        assert there
        assert np.abs(frame.astype(int) - picture).max() <= 2
        shown_ms = float(1000 * index / clip.fps)
        assert video.get(cv2.CAP_PROP_POS_MSEC) == pytest.approx(shown_ms, abs=0.01)
    assert not video.read()[0]
    for index in (0, 7, 40, clip.n_frames - 1):
        video.set(cv2.CAP_PROP_POS_FRAMES, index)
        assert np.abs(video.read()[1].astype(int) - pictures[index]).max() <= 2
    if shutil.which("ffmpeg"):
        _check_by_command(written, clip)


def _check_by_command(written: Path, clip: CutClip) -> None:
    """The command's default fills and drops to a constant rate; it must change nothing."""
    begin = ["ffmpeg", "-v", "error", "-i", str(written)]
    raw = subprocess.run([*begin, "-f", "rawvideo", "-"], capture_output=True, check=True)
    assert not raw.stderr
    expected = np.stack(stored(clip.mp4))
    shown = np.frombuffer(raw.stdout, np.uint8).reshape(expected.shape)
    np.testing.assert_array_equal(shown, expected)
    # -vsync is -fps_mode since FFmpeg 5.1 and gone in 8; copying packets shows times as stored.
    sums = subprocess.run(
        [*begin, "-c", "copy", "-f", "framecrc", "-"], capture_output=True, check=True, text=True
    )
    times = [int(line.split(",")[2]) for line in sums.stdout.splitlines() if line[0] != "#"]
    assert len(times) == clip.n_frames
    assert times[0] == min(times) == 0


@pytest.mark.parametrize("name", ENCODED)
def test_what_cannot_be_copied_is_encoded_whole(name: str, film: MakeFilm) -> None:
    """Pins the reason, and that nothing of the span is given up then."""
    path, track = film(name)
    request = request_of(track, 6, 110)
    clip = cutter_of(path, CutConfig()).cut(request)
    assert (clip.cut_mode, clip.not_copied) == ("encode", ENCODED[name][1])
    assert (clip.first, clip.end) == (0, len(request.frame_pts))
    assert clip.mp4_sha256 == cutter_of(path, CutConfig(mode="encode")).cut(request).mp4_sha256


@pytest.mark.parametrize("name", ["open_gop.ts", "far_keys.mp4", "refresh.ts"])
def test_only_idr_pictures_begin_a_copy(name: str, film: MakeFilm) -> None:
    """Pins that the same streams are copied from their start, which is such a picture."""
    path, track = film(name)
    clip = cutter_of(path, CutConfig()).cut(request_of(track, 0, 60))
    assert clip.cut_mode == "copy"
    np.testing.assert_array_equal(stored(clip.mp4), stored(path)[: clip.end])
    # `stss`: size, kind, version and flags, number of entries, numbers of samples from 1.
    at = clip.mp4.index(b"stss")
    assert struct.unpack_from(">III", clip.mp4, at + 4) == (0, 1, 1)


def test_both_bounds_hold_for_start_and_end_together(film: MakeFilm) -> None:
    """Pins seconds and share, each at its last frame that is allowed."""
    path, track = film("b_frames.mp4")
    # 9 to 12 and one or more at the end.
    clip = cutter_of(path, LENIENT).cut(request_of(track, 9, 100))
    given_up = 91 - clip.n_frames
    assert given_up >= 4
    enough, less = (given_up + 0.5) / 30, (given_up - 0.5) / 30
    for config, mode in (
        (CutConfig(copy_give_up_s=enough, copy_give_up_share=0.5), "copy"),
        (CutConfig(copy_give_up_s=less, copy_give_up_share=0.5), "encode"),
        (CutConfig(copy_give_up_s=9, copy_give_up_share=enough * 30 / 91), "copy"),
        (CutConfig(copy_give_up_s=9, copy_give_up_share=less * 30 / 91), "encode"),
    ):
        config = config.model_copy(update={"encode_head": False})
        made = cutter_of(path, config).cut(request_of(track, 9, 100))
        assert made.cut_mode == mode
        assert made.not_copied == (None if mode == "copy" else NotCopied.END_TOO_FAR)
    assert give_up_ticks(request_of(track, 0, 60), at_most_s=1, at_most_share=0.1) == 6 * 512
    assert give_up_ticks(request_of(track, 0, 60), at_most_s=0.1, at_most_share=0.1) == 3 * 512


def test_a_copy_that_would_be_too_short_is_encoded(film: MakeFilm) -> None:
    """Pins the fewest frames: at them a copy, one above them all frames of the span."""
    path, track = film("plain.mp4")
    assert cutter_of(path, LENIENT).cut(request_of(track, 9, 100, min_frames=88)).n_frames == 88
    clip = cutter_of(path, LENIENT).cut(request_of(track, 9, 100, min_frames=89))
    assert (clip.cut_mode, clip.n_frames) == ("encode_head", 91)
    assert (clip.not_copied, clip.copy_frames) == (NotCopied.TOO_FEW_FRAMES, 88)
    whole = LENIENT.model_copy(update={"encode_head": False})
    clip = cutter_of(path, whole).cut(request_of(track, 9, 100, min_frames=89))
    assert (clip.cut_mode, clip.n_frames) == ("encode", 91)
    assert (clip.not_copied, clip.copy_frames) == (NotCopied.TOO_FEW_FRAMES, 88)


def test_a_clip_that_loses_its_end_counts_the_frames_of_its_head(film: MakeFilm) -> None:
    """Pins the length from which a rerun writes a head: all but the frames at the end."""
    path, track = film("b_frames.mp4")
    lost = 93 - cutter_of(path, HEADS).cut(request_of(track, 7, 100)).n_frames
    assert lost > 0
    clip = cutter_of(path, HEADS).cut(request_of(track, 7, 100, min_frames=93))
    assert (clip.cut_mode, clip.n_frames) == ("encode", 93)
    assert (clip.not_copied, clip.copy_frames) == (NotCopied.TOO_FEW_FRAMES, 93 - lost)


def test_the_fewest_frames_keep_bucket_and_length() -> None:
    """Pins the larger of both, and never more than the clip has."""
    shard = ShardConfig()

    def least(min_s: float, n_frames: int, fps: str = "30") -> int:
        return least_frames(1280, 720, n_frames, fps, min_s=min_s, shard=shard)

    assert least(2.0, 130) == 129
    assert least(2.0, 121) == 121
    assert least(2.0, 60) == 60
    assert least(1.0, 60) == 49
    assert least(2.0, 60, "30000/1001") == 60
    assert least(3.0, 60, "30000/1001") == 60


def test_a_recipe_and_hdr_may_forbid_copies(film: MakeFilm) -> None:
    path, track = film("plain.mp4")
    clip = cutter_of(path, CutConfig(mode="encode")).cut(request_of(track, 0, N))
    assert (clip.cut_mode, clip.not_copied) == ("encode", None)
    clip = cutter_of(path, CutConfig(copy_codecs=())).cut(request_of(track, 0, N))
    assert (clip.cut_mode, clip.not_copied) == ("encode", NotCopied.CODEC)
    with pytest.raises(ValueError, match="Input should be 'h264'"):
        CutConfig(copy_codecs=("hevc",))  # type: ignore[arg-type]
    hdr = replace(request_of(track, 0, N), is_hdr=True)
    assert cutter_of(path, LENIENT).cut(hdr).not_copied == NotCopied.HIGH_DYNAMIC_RANGE


def test_bytes_depend_on_nothing_but_the_request(film: MakeFilm) -> None:
    """Pins equal bytes for other decoder threads and other clips before, copied and encoded."""
    path, track = film("b_frames.ts")
    request, other = request_of(track, 9, 100), request_of(track, 50, 60)
    busy = cutter_of(path, LENIENT, threads=3)
    assert busy.cut(other).cut_mode == "encode"
    assert busy.cut(request_of(track, 24, 80)).cut_mode == "copy"
    clips = [cutter_of(path, LENIENT).cut(request), busy.cut(request), busy.cut(request)]
    assert len({clip.mp4_sha256 for clip in clips}) == 1
    assert clips[0].cut_mode == "copy"
    assert busy.cut(other).mp4_sha256 == cutter_of(path, LENIENT).cut(other).mp4_sha256


def test_wrong_pictures_are_not_copied(film: MakeFilm) -> None:
    """Pins the comparison with what was analyzed, where times and counts are all right.

    The last frames are compared where not all packets are known.
    """
    path, track = film("plain.mp4")
    partly = replace(track, frame_flags=track.frame_flags & 3)
    last = np.eye(1, N, N - 1, dtype=np.float32)[0]
    for analysis, change in ((track, np.float32(1)), (partly, np.float32(1)), (partly, last)):
        wrong = replace(analysis, luma_mean=track.luma_mean + change * np.float32(0.02))
        clip = cutter_of(path, LENIENT).cut(request_of(wrong, 0, N))
        assert clip.not_copied == NotCopied.CHECK_FAILED


def test_frames_that_are_off_by_one_are_told_from_their_neighbours() -> None:
    """Pins a shift within the tolerance, and that still pictures and small errors pass."""
    steps = np.linspace(0.4, 0.45, 11, dtype=np.float32)
    assert is_same_luma(steps, steps, range(4))
    assert is_same_luma(steps + np.float32(0.0001), steps, range(7, 11))
    assert not is_same_luma(np.roll(steps, 1), steps, range(1, 5))
    assert not is_same_luma(np.roll(steps, -1), steps, range(1, 5))
    still = np.full(11, 0.4, np.float32)
    assert is_same_luma(np.roll(still, 1) + np.float32(0.002), still, range(4))
    assert not is_same_luma(still + np.float32(0.02), still, range(4))
    assert not is_same_luma(np.full(11, np.nan, np.float32), still, range(4))


@pytest.mark.parametrize("is_known", [True, False])
def test_a_copy_that_is_damaged_is_encoded_instead(
    is_known: bool, film: MakeFilm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that both checks see lost and exchanged packets, and a damaged slice."""
    path, track = film("b_frames.mp4")
    request = request_of(track, 0, N)
    if not is_known:
        request = replace(request, packet_bytes=None)
    good = cutter_of(path, LENIENT).cut(request)
    assert (good.cut_mode, good.is_decoded) == ("copy", not is_known)
    right = cut.mux_copy

    def drop(span: PacketSpan, number: int) -> PacketSpan:
        left = [i for i in range(len(span.packets)) if i != number]
        positions = np.argsort(np.argsort([span.positions[i] for i in left])).tolist()
        packets = [span.packets[i] for i in left]
        return PacketSpan(first=span.first, end=span.end, packets=packets, positions=positions)

    def exchange(span: PacketSpan) -> PacketSpan:
        packets = [*span.packets]
        packets[50], packets[51] = packets[51], packets[50]
        return replace(span, packets=packets)

    def damage(mp4: bytes) -> bytes:
        at = mp4.index(b"mdat") + len(mp4) // 3
        return mp4[:at] + bytes(200) + mp4[at + 200 :]

    for change in (
        lambda stream, span, fps: right(stream, drop(span, 20), fps),
        lambda stream, span, fps: right(stream, drop(span, len(span.packets) - 1), fps),
        lambda stream, span, fps: right(stream, exchange(span), fps),
        lambda stream, span, fps: damage(right(stream, span, fps)),
        lambda stream, span, fps: b"no video",
    ):
        monkeypatch.setattr(cut, "mux_copy", change)
        clip = cutter_of(path, LENIENT).cut(request)
        assert (clip.cut_mode, clip.not_copied) == ("encode", NotCopied.CHECK_FAILED)
        assert clip.n_frames == N
    assert copy.EDGE_FRAMES > 1


def test_a_flipped_bit_is_seen_where_packets_are_known(
    film: MakeFilm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins each kind of difference that pictures may not show: one bit, a time, a parameter set."""
    path, track = film("b_frames.mp4")
    request, right = request_of(track, 0, N), cut.mux_copy

    def flipped(at: int) -> Callable[..., bytes]:
        def mux(*arguments: object) -> bytes:
            mp4 = bytearray(right(*arguments))  # type: ignore[arg-type]
            mp4[at] ^= 1
            return bytes(mp4)

        return mux

    mp4 = cutter_of(path, LENIENT).cut(request).mp4
    sets = mp4.index(b"avcC")
    for at in (len(mp4) - 1, mp4.index(b"ctts") + 12 + 8 + 3, sets + 4 + 8 + 10):
        monkeypatch.setattr(cut, "mux_copy", flipped(at))
        assert cutter_of(path, LENIENT).cut(request).not_copied == NotCopied.CHECK_FAILED


def test_packets_that_the_analysis_did_not_see_are_decoded(film: MakeFilm) -> None:
    """Pins the full check for another size, and for unchecked sources."""
    path, track = film("plain.mp4")
    other = replace(track, frame_bytes=track.frame_bytes + (np.arange(N) == 60))
    unchecked = replace(track, block_hashes=b"")
    for analysis, is_decoded in ((track, False), (other, True), (unchecked, True)):
        clip = cutter_of(path, LENIENT).cut(request_of(analysis, 0, N))
        assert (clip.cut_mode, clip.is_decoded) == ("copy", is_decoded)


def test_frames_are_uniform_up_to_other_parameter_sets(tmp_path: Path) -> None:
    """Pins that clips behind them, which copy the header's sets, are decoded."""
    path = tmp_path / "joined.ts"
    _join(path, CLOSED, f"cabac=0:{CLOSED}")
    track = framed(path)
    assert np.flatnonzero(track.frame_flags & UNIFORM).tolist() == list(range(N))
    for start, is_decoded in ((0, False), (N, True)):
        clip = cutter_of(path, LENIENT).cut(request_of(track, start, start + 60))
        assert (clip.cut_mode, clip.is_decoded) == ("copy", is_decoded)
        np.testing.assert_array_equal(stored(clip.mp4), stored(path)[start : start + 60])


def test_a_container_that_stays_open_gives_what_a_fresh_one_gives(
    film: MakeFilm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins that several clips open the source once, and a clip that fails closes it."""
    path, track = film("b_frames.mp4")
    opened = []
    real = cut.open_container
    monkeypatch.setattr(cut, "open_container", lambda *a, **k: opened.append(1) or real(*a, **k))
    with cutter_of(path, LENIENT) as cutter:
        clips = [cutter.cut(request_of(track, start, end)) for start, end in SPANS]
        assert len(opened) == 1
        wrong = request_of(replace(track, frame_pts=track.frame_pts + 7), 20, 60)
        with pytest.raises(cut.CutError, match="expected the analyzed frame"):
            cutter.cut(wrong)
        assert len(opened) == 4
        again = cutter.cut(request_of(track, *SPANS[1]))
        assert len(opened) == 5
    assert again.mp4_sha256 == clips[1].mp4_sha256


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 10, 20, 30, 40], (0, 5)),
        ([0, 30, 10, 20, 40], (0, 5)),
        ([0, 30, 10, 20, 60, 40, 50], (0, 4)),
        ([0, 20, 10, 50, 30, 40], (0, 3)),
        ([0, 10, 20, 30], (0, 4)),
        ([0, 10, 15, 20, 30, 40], NotCopied.TIMESTAMPS),
        ([0, 10, 10, 20, 30, 40], NotCopied.TIMESTAMPS),
        ([0, 10, -10, 20, 30, 40], NotCopied.TIMESTAMPS),
        ([0, 20, 30, 40], NotCopied.END_TOO_FAR),
        ([], NotCopied.KEY_FRAME_TOO_FAR),
        ([0, 10, 20, 30, 40], NotCopied.DAMAGED),
    ],
)
def test_a_span_ends_where_nothing_beyond_is_needed(
    times: list[int], expected: tuple[int, int] | NotCopied
) -> None:
    """Pins the longest run of packets whose frames are the span's first ones, without a hole.

    The first packet alone begins with an IDR picture. One that the demuxer calls damaged ends it.
    """
    packets: list[VideoPacket] = []
    for number, time in enumerate(times):
        packet = av.Packet(b"\0\0\1" + bytes([0x65 if number == 0 else 0x41, 0]))
        packet.pts, packet.is_corrupt = time, expected == NotCopied.DAMAGED and number == 2
        packets.append(packet)
    pick = partial(
        packets_of_span,
        packets,
        frame_pts=np.arange(0, 50, 10),
        end_pts=50,
        give_up_ticks=20,
        extradata=None,
    )
    if isinstance(expected, NotCopied):
        with pytest.raises(CannotCopyError) as caught:
            pick()
        assert caught.value.reason == expected
    else:
        span = pick()
        assert (span.first, span.end) == expected
        assert span.n_frames == len(span.packets) == len(span.positions)


class _Announced(io.BytesIO):
    """A source that notes where reads are expected to end."""

    expected_end: int | None = None


@pytest.mark.parametrize("mode", ["auto", "encode"])
def test_a_cut_announces_the_end_of_its_span_so_that_nothing_after_it_is_fetched(
    tmp_path: Path, mode: str
) -> None:
    film = tmp_path / "film.mp4"
    _film(film, PYRAMID)
    source, config = _Announced(film.read_bytes()), CutConfig.model_validate({"mode": mode})
    with av.open(str(film)) as container:
        stream = container.streams.video[0]
        positions = {packet.pts: packet.pos for packet in container.demux(stream) if packet.size}
    times = sorted(positions)
    cutter = cutter_of(film, config)
    cutter.reader = io.BufferedReader(source)  # type: ignore[type-var]
    with cutter:
        for start, end in ((12, 36), (48, 72), (96, N)):
            cutter.cut(request_of(film, start, end))
            announced = source.expected_end
            if end == N:
                assert announced == film.stat().st_size
                continue
            assert announced is not None
            assert all(positions[time] < announced for time in times[start:end])
            # A second later, and what the pyramid reorders.
            assert announced <= positions[times[min(end + 34, N - 1)]]

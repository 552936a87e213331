"""Encoded clips: exactly the frames of their spans, in files that every decoder reads alike."""

import io
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import cv2
import film_makers as write
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace
from film_makers import variable_pts, write_video
from film_shots import moving_texture
from made_cuts import Film, cutter_of, fingerprint_of, pictures, psnr, request_of
from pydantic import ValidationError
from samples import framed, made_track

from curator.cut_requests import frame_plan, target_n_frames
from curator.errors import CutError, DecodeError, ErrorCode
from curator.frame_size import upright_size
from curator.media.tone_mapping import to_bt709
from curator.records.cuts import CutClip
from curator.records.tracks import Track
from curator.stages.cut.config import CutConfig

N = 40
"""Frames of the sources here."""
SIZE = (192, 108)
SMALL = {"width_px": SIZE[0], "height_px": SIZE[1]}
SPANS = ((0, N), (0, 5), (9, 25), (11, 13), (N - 7, N))
VP9 = CutConfig(mode="encode", crf=12, max_size_factor=None, encoder="vp9")
OPEN_GOP = "open-gop=1:b-adapt=0:scenecut=0:keyint=12:min-keyint=12"


def _film(path: Path, width: int = SIZE[0], height: int = SIZE[1], **settings: object) -> None:
    frames = moving_texture(N, width_px=width, height_px=height)
    write_video(path, frames, **settings)  # type: ignore[arg-type]


def _variable(path: Path) -> None:
    _film(path, pts=variable_pts(N), time_base=write.VARIABLE_TIME_BASE)


def _interlaced(path: Path) -> None:
    flags = av.codec.context.Flags.interlaced_dct | av.codec.context.Flags.interlaced_me
    fields = moving_texture(N * 2, **SMALL)
    write_video(path, _woven(fields), flags=flags)


def _woven(fields: Iterator[Film]) -> Iterator[Film]:
    for earlier in fields:
        frame = next(fields).copy()
        frame[1::2] = earlier[1::2]
        yield frame


def _x264(params: str, **settings: object) -> Callable[[Path], None]:
    options = {"preset": "veryfast", "x264-params": params}
    return lambda path: _film(path, options=options, **settings)  # type: ignore[arg-type]


def _plain(**settings: object) -> Callable[[Path], None]:
    return lambda path: _film(path, **settings)  # type: ignore[arg-type]


FILMS: dict[str, Callable[[Path], None]] = {
    "cfr.mp4": _plain(), "cfr.mkv": _plain(gop=12), "ntsc.mov": _plain(fps=Fraction(30_000, 1001)),
    "sixty.mp4": _plain(fps=Fraction(60)), "vfr.mp4": _variable, "vfr.mkv": _variable,
    "b_frames.mp4": _x264("b-adapt=0", bframes=3),
    "b_frames.ts": _x264("b-adapt=0", bframes=3, gop=12),
    "open_gop.mp4": _x264(OPEN_GOP, bframes=3), "open_gop.ts": _x264(OPEN_GOP, bframes=3),
    "refresh.mp4": _x264("intra-refresh=1:keyint=12:bframes=0"),
    "rotated_90.mp4": _plain(rotation=90), "rotated_180.mp4": _plain(rotation=180),
    "rotated_270.mov": _plain(rotation=270), "interlaced.mp4": _interlaced,
    "odd.mp4": _plain(width=193, height=107, pix_fmt="yuv444p"),
    "wide_pixels.mp4": _x264("sar=4/3"), "tall_pixels_rotated.mp4": _x264("sar=10/11", rotation=90),
    "ten_bit.mp4": _plain(pix_fmt="yuv420p10le"),
    "mpeg2.ts": _plain(codec="mpeg2video", gop=12, bframes=2, options={"b": "3000000"}),
    "mpeg4.avi": _plain(codec="mpeg4", gop=12, options={"b": "3000000"}),
    "vp9.webm": _plain(codec="libvpx-vp9", options={"deadline": "realtime", "cpu-used": "8"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a file of `FILMS` when it is first asked for."""
    folder = tmp_path_factory.mktemp("films")

    def make(name: str) -> Path:
        path = folder / name
        if not path.exists():
            FILMS[name](path)
        return path

    return make


ENCODED = CutConfig(mode="encode", crf=12, max_size_factor=None)


both_encoders = pytest.mark.parametrize("config", [ENCODED, VP9], ids=["x264", "vp9"])


def by_opencv(mp4: bytes, folder: Path) -> list[Film]:
    path = folder / "clip.mp4"
    path.write_bytes(mp4)
    video = cv2.VideoCapture(str(path))
    frames = []
    while True:
        there, frame = video.read()
        if not there:
            return frames
        frames.append(frame[:, :, ::-1])


def shown_by_source(path: Path, track: Track) -> list[Film]:
    """What a player shows of each frame: turned, with square pixels, of even size."""
    stored = pictures(path)
    width, height = upright_size(track.width, track.height, 0, track.pixel_aspect)
    shown = []
    for frame in stored:
        turned = np.ascontiguousarray(np.rot90(frame, k=-track.rotation_deg // 90))
        if turned.shape[:2] != (height, width):
            turned = cv2.resize(turned, (width, height), interpolation=cv2.INTER_CUBIC)
        shown.append(turned[: height // 2 * 2, : width // 2 * 2])
    return shown


def assert_shows(frames: list[Film], source: list[Film], plan: list[int]) -> None:
    """Each frame is the planned one, and clearly neither of its neighbours."""
    assert len(frames) == len(plan)
    for position, (frame, index) in enumerate(zip(frames, plan, strict=True)):
        right = psnr(frame, source[index])
        beside = [psnr(frame, source[i]) for i in (index - 1, index + 1) if 0 <= i < len(source)]
        assert right > 29, f"frame {position} is not the source's {index}: {right:.1f} dB"
        assert right > max(beside) + 2, f"frame {position}: {right:.1f} dB, beside {beside}"


@pytest.mark.parametrize(
    ("name", "config"),
    [
        *((name, ENCODED) for name in FILMS),
        *((n, VP9) for n in ("vfr.mp4", "sixty.mp4", "odd.mp4")),
    ],
)
def test_clips_hold_exactly_the_frames_of_their_spans(
    name: str, config: CutConfig, film: Callable[[str], Path], tmp_path: Path
) -> None:
    """Pins frame exactness, in one cutter and any order of clips, for PyAV and OpenCV alike."""
    path = film(name)
    track = framed(path)
    source = shown_by_source(path, track)
    assert track.n_frames == len(source) == N
    cutter = cutter_of(path, config)
    for start, end in reversed(SPANS):
        request = request_of(track, start, end)
        clip = cutter.cut(request)
        plan = [start + int(i) for i in frame_plan(request)]
        assert clip.n_frames == target_n_frames(request) == len(plan)
        assert_shows(pictures(clip.mp4), source, plan)
        assert_shows(by_opencv(clip.mp4, tmp_path), source, plan)
        assert (clip.height, clip.width) == source[0].shape[:2]


@both_encoders
@pytest.mark.parametrize(
    "name", ["cfr.mp4", "open_gop.ts", "vfr.mp4", "mpeg4.avi", "interlaced.mp4"]
)
def test_bytes_depend_on_nothing_but_the_request(
    name: str, film: Callable[[str], Path], config: CutConfig
) -> None:
    """Pins equal bytes for a second cut, other decoder threads, and clips cut before."""
    path = film(name)
    track = framed(path)
    request = request_of(track, 9, 25)
    busy = cutter_of(path, config, threads=3)
    busy.cut(request_of(track, 20, 30))
    clips = [cutter_of(path, config, threads=n).cut(request) for n in (1, 4)]
    assert len({clip.mp4_sha256 for clip in [*clips, busy.cut(request)]}) == 1


def boxes(data: bytes) -> list[tuple[str, int]]:
    """Kind and place of the boxes at the top of an MP4."""
    found, at = [], 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        found.append((kind.decode(), at))
        at += size
    return found


def clip_of(path: Path, start: int = 3, end: int = N, config: CutConfig = ENCODED) -> CutClip:
    return cutter_of(path, config).cut(request_of(path, start, end))


@both_encoders
@pytest.mark.parametrize("name", ["cfr.mp4", "ntsc.mov", "sixty.mp4", "vfr.mkv", "wide_pixels.mp4"])
def test_files_are_what_all_decoders_agree_on(
    name: str, film: Callable[[str], Path], tmp_path: Path, config: CutConfig
) -> None:
    """The file: 4:2:0, constant rate from 0, fast start, no edit list, BT.709 in the stream."""
    # A stream of VP9 has matrix and range, and the file the rest.
    clip = clip_of(film(name), config=config)
    kinds = [kind for kind, _ in boxes(clip.mp4)]
    assert kinds.index("moov") < kinds.index("mdat")
    for absent in (b"elst", b"edts", b"ctts"):
        assert absent not in clip.mp4
    with av.open(io.BytesIO(clip.mp4), mode="r") as container:
        (stream,) = container.streams
        assert isinstance(stream, av.video.stream.VideoStream)
        context = stream.codec_context
        codec = ("h264", "High") if config is ENCODED else ("vp9", "Profile 0")
        assert (context.codec.canonical_name, context.profile) == codec
        assert context.pix_fmt == "yuv420p"
        assert (context.width, context.height) == (clip.width, clip.height)
        assert context.width % 2 == context.height % 2 == 0
        assert stream.sample_aspect_ratio in (None, 1)
        assert stream.average_rate == stream.guessed_rate == clip.fps
        assert stream.frames == clip.n_frames
        assert stream.duration * stream.time_base == clip.n_frames / clip.fps
        packets = [packet for packet in container.demux(stream) if packet.size]
        assert [packet.pts * stream.time_base for packet in packets] == [
            index / clip.fps for index in range(clip.n_frames)
        ]
        assert all(packet.pts == packet.dts for packet in packets)
        assert packets[0].is_keyframe
        frame = next(iter(packets[0].decode()))
        assert (frame.color_primaries, frame.color_trc, frame.colorspace) == (1, 1, 1)
        assert frame.color_range == ColorRange.MPEG
    path = tmp_path / "clip.mp4"
    path.write_bytes(clip.mp4)
    video = cv2.VideoCapture(str(path))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == clip.n_frames
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(float(clip.fps))


@both_encoders
@pytest.mark.parametrize("name", ["ntsc.mov", "sixty.mp4", "cfr.mp4"])
def test_key_frames_are_closed_and_at_most_a_second_apart(
    name: str, film: Callable[[str], Path], config: CutConfig
) -> None:
    """Pins that decoding may begin at any key frame, and that none is more than 1 s away."""
    path = film(name)
    clip = clip_of(path, 0, N, config)
    if clip.n_frames <= clip.fps:
        source = pictures(clip.mp4)
        longer = path.with_name(f"long_{path.name}")
        write_video(longer, iter(source + source[::-1]), fps=clip.fps)
        clip = clip_of(longer, 0, 2 * N, config)
    with av.open(io.BytesIO(clip.mp4), mode="r") as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        keys = [i for i, packet in enumerate(packets) if packet.is_keyframe]
        assert len(keys) > 1
        for key, following in zip(keys, [*keys[1:], len(packets)], strict=True):
            assert (following - key) / clip.fps <= 1
    whole = pictures(clip.mp4)
    with av.open(io.BytesIO(clip.mp4), mode="r") as container:
        stream = container.streams.video[0]
        for key in keys:
            container.seek(packets[key].pts, stream=stream)
            first = next(container.decode(stream))
            np.testing.assert_array_equal(first.to_ndarray(format="rgb24"), whole[key])


@pytest.mark.parametrize(
    ("matrix", "is_full_range", "is_tagged"),
    [
        ("ITU601", False, False),
        ("ITU601", False, True),
        ("ITU601", True, True),
        ("ITU709", False, True),
        ("ITU709", True, True),
    ],
)
def test_colours_survive_the_conversion_to_bt709(
    matrix: str, is_full_range: bool, is_tagged: bool, tmp_path: Path
) -> None:
    """Pins matrix, range and primaries: tagged ones are obeyed."""
    # Small untagged video has BT.601's matrix, limited range, and BT.709's primaries.
    path = tmp_path / "colours.mp4"
    pictures = list(moving_texture(6, **SMALL))
    _write_colours(path, pictures, matrix, is_full_range=is_full_range, is_tagged=is_tagged)
    clip = clip_of(path, 0, 6, CutConfig(mode="encode", crf=4))
    with av.open(io.BytesIO(clip.mp4), mode="r") as container:
        for picture, frame in zip(pictures, container.decode(video=0), strict=True):
            shown = frame.reformat(
                format="rgb24", src_colorspace=Colorspace.ITU709, src_color_range=ColorRange.MPEG
            ).to_ndarray()
            meant = picture.astype(np.float64)
            if is_tagged and matrix == "ITU601":
                meant = to_bt709(meant.reshape(-1, 3) / 255, 6, 6).reshape(meant.shape) * 255
            error = (shown.astype(np.float32) - meant).mean(axis=(0, 1))
            assert np.abs(error).max() < 2


def _write_colours(
    path: Path, pictures: list[Film], matrix: str, *, is_full_range: bool, is_tagged: bool
) -> None:
    color_range = ColorRange.JPEG if is_full_range else ColorRange.MPEG
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"crf": "4"})
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        context = stream.codec_context
        if is_tagged:
            code = 6 if matrix == "ITU601" else 1
            context.color_primaries = context.color_trc = context.colorspace = code
            context.color_range = color_range
        for picture in pictures:
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(
                format="yuv420p", dst_colorspace=Colorspace[matrix], dst_color_range=color_range
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@pytest.mark.parametrize(
    ("ticks", "end", "is_vfr", "plan"),
    [
        ([0, 20, 40, 100, 105, 110, 130, 150], 170, True, [0, 1, 2, 2, 2, 4, 5, 6]),
        # The span's own steps are even.
        ([0, 20, 40, 60, 80, 200, 220], 240, False, [0, 1, 2, 3]),
    ],
)
def test_a_variable_rate_becomes_constant_by_repeating_and_leaving_out(
    ticks: list[int], end: int, is_vfr: bool, plan: list[int]
) -> None:
    """Pins the plan: each output time shows the frame that the source shows at that time."""
    times = np.array(ticks, np.int64)
    track = made_track(len(ticks), time_base=Fraction(1, 600), frame_pts=times, end_pts=end)
    assert track.is_vfr
    request = request_of(track, 0, len(ticks) if is_vfr else 4)
    assert (request.is_vfr, request.fps) == (is_vfr, 30)
    assert frame_plan(request).tolist() == plan
    assert target_n_frames(request) == len(plan)


def test_frames_that_are_not_as_analyzed_or_not_of_a_usable_size_make_no_clip(
    film: Callable[[str], Path], tmp_path: Path
) -> None:
    """Pins that a clip is refused, with its id, where times differ or a frame is too many."""
    path = film("cfr.mp4")
    track = framed(path)
    gap = np.delete(track.frame_pts, 12)
    for times, end, message in (
        (track.frame_pts + 7, track.end_pts + 7, "expected the analyzed frame"),
        (track.frame_pts + 10**9, track.end_pts + 10**9, "only 0 of 6 frames can be decoded"),
        (gap, track.end_pts, "expected the analyzed frame at 6656"),
    ):
        wrong = made_track(len(times), time_base=track.time_base, frame_pts=times, end_pts=end)
        with pytest.raises(CutError, match=rf"cfr\.mp4: clip clip: .*{message}"):
            cutter_of(path, ENCODED).cut(request_of(wrong, 10, 16))
    # The limits of pixels, with the code of the upper one.
    path = film("cfr.mp4")
    with pytest.raises(DecodeError, match="192x108, more than 1000 pixels") as caught:
        cutter_of(path, ENCODED, max_pixels=1000).cut(request_of(framed(path), 0, 5))
    assert caught.value.code == ErrorCode.TOO_MANY_PIXELS
    write.one_pixel(tmp_path / "a.mp4")
    with pytest.raises(CutError, match=r"is 1x1 px; video in 4:2:0 takes 2x2 at least"):
        clip_of(tmp_path / "a.mp4")


@pytest.mark.parametrize("name", ["flipped.mp4", "truncated.mp4"])
def test_damaged_sources_give_the_same_clips_on_every_machine(name: str, tmp_path: Path) -> None:
    """Pins that what decodes of a damaged file is cut as analyzed, whatever the thread count."""
    path = tmp_path / name
    write.MAKERS[name](path)
    track = framed(path)
    request = request_of(track, 2, track.n_frames)
    cutters = [cutter_of(path, ENCODED, threads=threads) for threads in (1, 4)]
    clips = [cutter.cut(request) for cutter in cutters]
    assert clips[0].mp4_sha256 == clips[1].mp4_sha256
    assert clips[0].n_frames == target_n_frames(request)
    if name == "flipped.mp4":
        assert [cutter.n_from_start for cutter in cutters] == [1, 1]


def test_long_open_gop_sources_need_no_decode_from_the_start(tmp_path: Path) -> None:
    """Pins that frames which need the group before them are found by an earlier seek."""
    path = tmp_path / "long.ts"
    options = {"preset": "ultrafast", "x264-params": OPEN_GOP}
    frames = moving_texture(420, width_px=64, height_px=48)
    write_video(path, frames, bframes=3, options=options)
    track = framed(path)
    source = shown_by_source(path, track)
    cutter = cutter_of(path, ENCODED)
    for start in range(380, 392, 3):
        clip = cutter.cut(request_of(track, start, start + 4))
        for index, frame in enumerate(pictures(clip.mp4), start):
            assert psnr(frame, source[index]) > 30
    assert cutter.n_from_start == 0


def test_lossless_and_unknown_settings_are_refused() -> None:
    """Pins that CRF 0, which is no High profile, is refused before any work."""
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        CutConfig(crf=0)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        CutConfig(quality=3)  # type: ignore[call-arg]
    assert fingerprint_of(CutConfig()) != fingerprint_of(CutConfig(crf=21))
    assert fingerprint_of(CutConfig()) == fingerprint_of(CutConfig())


@pytest.mark.parametrize(
    ("encoder", "codec", "other"),
    [("auto", "libx264", "vp9"), ("x264", "libx264", "vp9"), ("vp9", "libvpx-vp9", "x264")],
)
def test_an_encoder_that_a_build_lacks_is_an_error_with_the_remedy(
    encoder: str, codec: str, other: str, film: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Pins what a build of FFmpeg without GPL parts says."""
    monkeypatch.setattr(av, "codecs_available", av.codecs_available - {codec})
    with pytest.raises(CutError, match=f"has no {codec}; set cut.encoder to {other}"):
        cutter_of(film("cfr.mp4"), CutConfig(encoder=encoder))  # type: ignore[arg-type]

"""Writes clips as MP4 files that all decoders read alike.

The video is H.264 High or VP9, 8-bit 4:2:0, with a constant frame rate and closed GOPs of at most a
second. The first frame is a key frame at time 0. The file has no edit list, and its index is in
front. Pictures are upright, BT.709, with square pixels and even sizes. There are no B-frames and no
hidden frames, so packets are in the order of frames and need no offsets.

VP9 is for users who cannot use x264, which is GPL. FFmpeg decodes VP9 without a library, and
every NVDEC since Pascal decodes it. AV1 needs a library, A100 and H100 cannot decode it, and
SVT-AV1 needs three times the CPU time before its clips are smaller
(benchmarks/results/encoders.md).
"""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import floor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import av
from av.packet import Packet

from curator.errors import CutError, DeviceLostError, DeviceMemoryError
from curator.media.scale import filter_graph, is_hd
from curator.media.tone_mapping import colour_table
from curator.records.cuts import Crop
from curator.storage.scratch import unnamed_file

MP4_OPTIONS = {"movflags": "+faststart", "fflags": "+bitexact", "use_editlist": "0"}
"""Options of the muxer: index in front; no date, version or edit list."""

BT709 = 1
"""ITU-T H.273 code of BT.709 primaries, transfer and matrix."""


Encoder = Literal["x264", "vp9", "nvenc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeSettings:
    """How clips are encoded.

    x264 and VP9 use one thread, so the same frames give the same bytes on CPUs of one model. The
    bytes of NVENC depend on the GPU.
    """

    crf: int
    """Quality on x264's scale for every encoder; for NVENC, the constant QP."""
    preset: str
    """Name of an x264 preset."""
    encoder: Encoder = "x264"
    coded_as: "CodedAs | None" = None
    """How x264 writes a part of a clip whose other part is copied; None for BT.709."""


class CodedAs(NamedTuple):
    """Colours by H.273 of the stream that an encoded part joins, and the number of its headers."""

    primaries: int
    transfer: int
    matrix: int
    range: int
    sps_id: int
    """`seq_parameter_set_id`, and `pic_parameter_set_id`: the other part uses neither."""
    n_references: int = 1
    """Reference frames that a decoder makes room for: those of the other part."""


def coded_like(picture: av.VideoFrame, sps_id: int, n_references: int) -> CodedAs:
    """Returns the form that continues the stream of a decoded frame, with another number."""
    return CodedAs(
        int(picture.color_primaries),
        int(picture.color_trc),
        int(picture.colorspace),
        range=int(picture.color_range),
        sps_id=sps_id,
        n_references=n_references,
    )


_TURNS: dict[tuple[int, bool], list[tuple[str, str]]] = {
    (0, False): [],
    (90, False): [("transpose", "clock")],
    (180, False): [("hflip", ""), ("vflip", "")],
    (270, False): [("transpose", "cclock")],
    (0, True): [("hflip", "")],
    (90, True): [("transpose", "cclock_flip")],
    (180, True): [("vflip", "")],
    (270, True): [("transpose", "clock_flip")],
}
"""Filters by clockwise rotation in degrees, and whether the result is mirrored left to right."""


class Upright:
    """Converts decoded frames for the encoder: upright, square pixels, even size, BT.709.

    Args:
        width: Upright width of the crop in square pixels; an odd width loses a column.
        height: Upright height of the crop; an odd height loses a row.
        rotation_deg: Clockwise rotation to apply.
        is_mirrored: Whether to mirror left to right, after the rotation.
        crop: Part of the upright picture to keep; None for all of it.
        deinterlace: Whether to deinterlace frames that are marked as interlaced.
        cover: Even size. The picture is scaled to cover this size, and cropped around its middle.
            None keeps the size of the crop.
        is_still: Whether the frame is a still image, which becomes rgb24 of any size.
    """

    def __init__(
        self,
        width: int,
        height: int,
        *,
        rotation_deg: int,
        crop: Crop | None,
        deinterlace: bool,
        is_mirrored: bool = False,
        cover: tuple[int, int] | None = None,
        is_still: bool = False,
    ) -> None:
        even = (width, height) if is_still else (width - width % 2, height - height % 2)
        self.width, self.height = cover or even
        self._is_still = is_still
        self._upright = (width, height)
        self._cover = cover
        self._rotation, self._is_mirrored = rotation_deg, is_mirrored
        self._crop = crop
        self._deinterlace = deinterlace
        self._form: tuple[object, ...] | None = None
        self._graph: av.filter.Graph | None = None

    def push(self, picture: av.VideoFrame) -> list[av.VideoFrame]:
        """Takes a decoded frame; returns the frames that are ready, in order."""
        ready: list[av.VideoFrame] = []
        kind = (picture.width, picture.height, picture.format.name, int(picture.colorspace))
        form = (*kind, int(picture.color_primaries), int(picture.color_trc))
        if form != self._form:
            ready = self.flush()
            self._graph, self._form = self._build(picture), form
        assert self._graph is not None
        self._graph.push(picture)
        return ready + self._pull()

    def flush(self) -> list[av.VideoFrame]:
        """Ends the stream of frames; returns the remaining ones."""
        if self._graph is None:
            return []
        self._graph.push(None)
        ready = self._pull()
        self._graph, self._form = None, None
        return ready

    def _pull(self) -> list[av.VideoFrame]:
        assert self._graph is not None
        ready: list[av.VideoFrame] = []
        while True:
            try:
                frame = self._graph.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return ready
            assert isinstance(frame, av.VideoFrame)
            ready.append(frame)

    def _build(self, picture: av.VideoFrame) -> av.filter.Graph:
        filters = list(_TURNS[self._rotation, self._is_mirrored])
        if self._deinterlace:
            filters.insert(0, ("bwdif", "mode=send_frame:deint=interlaced"))
        if self._crop is not None:
            kept = self._crop
            filters.append(("crop", f"{kept.width}:{kept.height}:{kept.x}:{kept.y}"))
        filters += self._sizes(picture)
        return filter_graph(
            picture, [*filters, ("format", "rgb24" if self._is_still else "yuv420p")]
        )

    def _sizes(self, picture: av.VideoFrame) -> list[tuple[str, str]]:
        turned = self._rotation % 180 == 90
        size = (picture.height, picture.width) if turned else (picture.width, picture.height)
        if self._crop is not None:
            size = (self._crop.width, self._crop.height)
        if self._cover is not None:
            first = [("crop", self._covering(size))]
        elif size == self._upright:
            first = [("crop", f"{self.width}:{self.height}:0:0")]
        else:
            first = []
        return [*first, *self._colours(picture), ("setsar", "1")]

    def _colours(self, picture: av.VideoFrame) -> list[tuple[str, str]]:
        """Returns one `scale`, or two of them with a colour table in between."""
        is_tagged = int(picture.colorspace) not in (2, 0)
        untagged = "bt709" if is_hd(picture.width, picture.height) else "bt601"
        matrix = "auto" if is_tagged else untagged
        # Without the two flags, changing the matrix darkens the picture by 2 to 3 levels.
        flags = "flags=bicubic+accurate_rnd+full_chroma_int"
        size = f"{self.width}:{self.height}:in_color_matrix={matrix}"
        to_bt709 = f"out_color_matrix=bt709:out_range=tv:{flags}"
        if self._is_still:
            to_bt709 = f"out_range=pc:{flags}"
        table = colour_table(int(picture.color_primaries), int(picture.color_trc))
        if table is None:
            return [("scale", f"{size}:{to_bt709}")]
        return [
            ("scale", f"{size}:out_range=pc:{flags}"),
            ("format", "gbrp16le"),
            ("lut3d", f"file={table}:interp=tetrahedral"),
            ("scale", to_bt709),
        ]

    def _covering(self, size: tuple[int, int]) -> str:
        """Returns a centred crop with the aspect of `cover`; pixels may not be square."""
        assert self._cover is not None
        shares = [full / part for full, part in zip(self._upright, self._cover, strict=True)]
        kept = [
            max(2, round(side * min(shares) / share))
            for side, share in zip(size, shares, strict=True)
        ]
        # Even, because 4:2:0 chroma can only be cut between its pixels.
        at = [(side - part) // 4 * 2 for side, part in zip(size, kept, strict=True)]
        return f"{kept[0]}:{kept[1]}:{at[0]}:{at[1]}"


def encode_mp4(
    pictures: Iterable[av.VideoFrame],
    *,
    width: int,
    height: int,
    fps: Fraction,
    settings: EncodeSettings,
) -> tuple[bytes, int]:
    """Encodes upright yuv420p frames of an even size, and replaces their timestamps.

    Returns:
        The MP4 and its number of frames.

    Raises:
        DeviceError: NVENC fails, and the frames are not the cause.
    """
    with Mp4Encoder(width=width, height=height, fps=fps, settings=settings) as encoder:
        for picture in pictures:
            encoder.add(picture)
        return encoder.finish()


class Mp4Encoder:
    """Encodes the frames of a clip one by one, as `encode_mp4`; a context manager."""

    def __init__(self, *, width: int, height: int, fps: Fraction, settings: EncodeSettings) -> None:
        self._fps, self._settings = fps, settings
        self._n_frames = 0
        with ExitStack() as stack:
            path, self._file = stack.enter_context(unnamed_file(".mp4"))
            self._output = stack.enter_context(
                av.open(path, "w", format="mp4", container_options=MP4_OPTIONS)
            )
            self._stream = add_stream(self._output, width, height, fps, settings)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A full disk has another error.
        self._stack.__exit__(kind, error, trace)

    def add(self, picture: av.VideoFrame) -> None:
        """Encodes the next frame, an upright yuv420p frame; replaces its timestamp."""
        picture.pts = self._n_frames
        picture.time_base = 1 / self._fps
        picture.pict_type = av.video.frame.PictureType.NONE
        self._output.mux(_packets(self._stream, picture, self._n_frames, self._settings))
        self._n_frames += 1

    def finish(self) -> tuple[bytes, int]:
        """Ends the clip; returns the MP4 and its number of frames."""
        self._output.mux(_packets(self._stream, None, self._n_frames, self._settings))
        self._output.close()
        self._file.seek(0)
        return self._file.read(), self._n_frames


def _packets(
    stream: av.VideoStream, picture: av.VideoFrame | None, n_frames: int, settings: EncodeSettings
) -> "list[Packet[Any]]":
    """Returns the packets for a picture, which follows `n_frames` others; None ends the clip."""
    try:
        return stream.encode(picture)
    except av.error.FFmpegError as error:
        if settings.encoder != "nvenc":
            raise
        if isinstance(error, MemoryError):
            raise DeviceMemoryError(f"the GPU has too little memory for NVENC ({error})") from error
        # FFmpeg's errors do not name the cause. The encoder opens with the first picture. If NVENC
        # opens with other settings, it does not support the size or rate of this picture.
        problem = str(error) if n_frames else nvenc_problem()
        if problem is None:
            raise
        raise DeviceLostError(f"NVENC fails ({problem}): {error}") from error


def add_stream(
    output: av.container.OutputContainer,
    width: int,
    height: int,
    fps: Fraction,
    settings: EncodeSettings,
) -> av.VideoStream:
    """Adds a stream for yuv420p frames of an even size, encoded as clips are."""
    gop = max(1, min(floor(fps), 250))
    stream = output.add_stream(_CODECS[settings.encoder], rate=fps)
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    context = stream.codec_context
    context.time_base = 1 / fps
    context.gop_size = gop
    context.max_b_frames = 0
    context.thread_count = 1
    coded = settings.coded_as or CodedAs(BT709, BT709, BT709, range=1, sps_id=0)
    context.color_primaries, context.color_trc = coded.primaries, coded.transfer
    context.colorspace, context.color_range = coded.matrix, coded.range
    if settings.encoder == "nvenc":
        context.options = _NVENC_OPTIONS | {"qp": str(settings.crf)}
    elif settings.encoder == "vp9":
        speed = _VP9_SPEEDS[settings.preset]
        context.options = _VP9_OPTIONS | {
            "crf": str(vp9_crf(settings.crf)),
            "cpu-used": str(speed),
            "deadline": "realtime" if speed > _VP9_LAST_GOOD_SPEED else "good",
        }
    else:
        context.options = {
            "preset": settings.preset,
            "crf": str(settings.crf),
            "profile": "high",
            "x264-params": with_steady_bytes(
                f"open-gop=0:bframes=0:keyint={gop}:threads=1:lookahead-threads=1"
                + (f":sps-id={coded.sps_id}:dpb-size={coded.n_references}" if coded.sps_id else "")
            ),
        }
    context.flags |= av.codec.context.Flags.bitexact
    return stream


_CODECS: dict[Encoder, Literal["libx264", "libvpx-vp9", "h264_nvenc"]] = {
    "x264": "libx264",
    "vp9": "libvpx-vp9",
    "nvenc": "h264_nvenc",
}
_NVENC_OPTIONS = {"preset": "p4", "profile": "high", "rc": "constqp", "strict_gop": "1"}


_VP9_OPTIONS = {"b": "0", "lag-in-frames": "0", "auto-alt-ref": "0", "row-mt": "0"}
"""Constant quality, no delayed frames, and no frames that are decoded but not shown."""
_VP9_SPEEDS = {
    "ultrafast": 9, "superfast": 9, "veryfast": 8, "faster": 7, "fast": 6, "medium": 5,
    "slow": 4, "slower": 2,
}  # fmt: skip
"""`cpu-used` of VP9 with about the CPU time of each x264 preset."""
_VP9_LAST_GOOD_SPEED = 5
_VP9_COARSEST = 63


def vp9_crf(crf: int) -> int:
    """Returns the VP9 CRF with about the same distortion as an x264 CRF.

    The line fits pairs of equal SSIM or PSNR: x264's 14, 20, 26 and 32 correspond to VP9's 17, 30,
    42 and 53 (benchmarks/results/encoders.md).
    """
    return max(1, min(_VP9_COARSEST, 2 * crf - 11))


def nvenc_problem() -> str | None:
    """Returns why FFmpeg's NVENC encoder does not open on this machine; None if it opens."""
    context = av.CodecContext.create("h264_nvenc", "w")
    context.width, context.height, context.pix_fmt = 256, 256, "yuv420p"
    context.time_base = Fraction(1, 30)
    context.options = dict(_NVENC_OPTIONS)
    try:
        context.open()
    except (av.error.FFmpegError, OSError) as error:
        return str(error)
    return None


def refuse_without(encoder: Encoder) -> None:
    """Raises `CutError` if an encoder does not open."""
    codec = _CODECS[encoder]
    if encoder == "nvenc":
        problem = nvenc_problem()
        if problem is not None:
            raise CutError(
                f"cut.encoder is nvenc, but {codec} does not open here ({problem}): it needs an "
                "NVIDIA driver and a GPU with NVENC, which H100, H200 and A100 lack; set "
                "cut.encoder to x264 or vp9"
            )
    elif codec not in av.codecs_available:
        other = "vp9" if encoder == "x264" else "x264"
        raise CutError(
            f"cut.encoder is {encoder}, but this build of PyAV and FFmpeg has no {codec}; set "
            f"cut.encoder to {other}, or install PyAV's own wheel, which has both"
        )


def with_steady_bytes(x264_params: str) -> str:
    """Makes x264 use AVX2 on CPUs with AVX-512, so that its bytes are reproducible.

    x264's AVX-512 code reads uninitialized memory when it computes the costs of blocks that later
    frames refer to (`mbtree`). At widths such as 320, 432 and 854, its choices depend on this
    memory. Of 4,500 clips of 192x108 without B-frames, 3 had different bytes, and none with AVX2.
    """
    return ":".join(filter(None, (x264_params, "asm=avx2" if _has_avx512() else "")))


@cache
def _has_avx512() -> bool:
    try:
        return " avx512f" in Path("/proc/cpuinfo").read_text()
    except OSError:
        # Without /proc (not Linux), x264 chooses its code itself.
        return False

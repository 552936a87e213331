"""Decides whether a clip may be copied, and checks written clips.

A copy is checked by its packets where the analysis decoded the same ones, and decoded otherwise; an
encoded clip is decoded: see docs/design/clips.md for both.
"""

import io
from fractions import Fraction
from itertools import islice

import av
import av.container
import av.error
import av.video.stream
import numpy as np
from av.sidedata.sidedata import Type as SideData
from numpy.typing import NDArray

from curator.errors import DecodeError
from curator.media.clip_frames import FrameSampler
from curator.media.container import pixel_aspect_of
from curator.media.decode import FrameReader, side_data_of
from curator.media.packet_copy import CannotCopyError, PacketSpan
from curator.media.stream_headers import header_sets, nal_units
from curator.models.transnet import needs_smoothing, tiny_luma, tiny_scaler
from curator.records.cuts import CutRequest, NotCopied

EDGE_FRAMES = 4
"""Frames at each end whose luma is compared with what the analysis measured."""
LUMA_TOLERANCE = 0.01
"""Of 0 to 1. The same bits decode to the same luma; this leaves room for another scaler."""
NEIGHBOUR_TOLERANCE = 0.001
"""How much better the luma of neighbouring frames must fit for a copy to be off by one."""


def refuse_request(request: CutRequest, stream: av.video.stream.VideoStream) -> None:
    """Refuses clips that cannot be copied according to the analysis.

    Raises:
        CannotCopyError: SHAPE, BORDERS, INTERLACED, HIGH_DYNAMIC_RANGE, VARIABLE_RATE, FIXED_RATE
            or FIXED_SIZE.
    """
    refused = {
        NotCopied.SHAPE: request.rotation_deg or pixel_aspect_of(stream, 0) != 1,
        NotCopied.BORDERS: request.crop is not None,
        NotCopied.INTERLACED: request.is_interlaced,
        NotCopied.HIGH_DYNAMIC_RANGE: request.is_hdr,
        NotCopied.VARIABLE_RATE: request.is_vfr,
        NotCopied.FIXED_RATE: request.is_resampled,
        NotCopied.FIXED_SIZE: request.size not in (None, (stream.width, stream.height)),
    }
    for reason, applies in refused.items():
        if applies:
            raise CannotCopyError(reason)


def give_up_ticks(request: CutRequest, *, at_most_s: float, at_most_share: float) -> int:
    """Returns the most time that a copy may omit at both ends together, in `time_base`."""
    share = int((request.end_pts - request.start_pts) * at_most_share)
    return min(int(at_most_s / request.time_base), share)


def check_copy(
    mp4: bytes,
    request: CutRequest,
    span: PacketSpan,
    *,
    extradata: bytes | None,
    threads: int,
    max_pixels: int,
    sampler: FrameSampler | None = None,
) -> bool:
    """Compares a copy of the frames in `span` with the request.

    Where the source's packets are those of uniform frames, the copy's packets are compared with
    them, and its first frames are decoded; otherwise all frames are.

    `span` has packets of the source, whose header has `extradata`; `max_pixels` is of the largest
    frame; `sampler` samples all frames of the copy as they pass.

    Returns:
        Whether all frames were decoded.

    Raises:
        CannotCopyError: CHECK_FAILED, for another number of frames or other times, a first frame
            that is no key frame, damage or concealment, another form, or other pictures at the
            ends; SHAPE, for a picture that is mirrored.
    """
    decodes = sampler is not None or not _are_known(request, span)
    n_decoded = span.n_frames + 1 if decodes else EDGE_FRAMES
    try:
        with av.open(io.BytesIO(mp4), mode="r") as container:
            if not decodes:
                _compare_packets(container, request.fps, span, extradata)
                container.seek(0)
            luma = _checked_luma(
                container, request.fps, span.n_frames, n_decoded, threads, max_pixels, sampler
            )
    except (av.error.FFmpegError, DecodeError) as error:
        raise CannotCopyError(NotCopied.CHECK_FAILED) from error
    meant = request.frame_luma[span.first : span.end]
    edges = _edges(span.n_frames)
    if not all(is_same_luma(luma, meant, at) for at in (edges if decodes else edges[:1])):
        raise CannotCopyError(NotCopied.CHECK_FAILED)
    return decodes


def _are_known(request: CutRequest, span: PacketSpan) -> bool:
    """Returns whether the analysis decoded the packets of a span, by their times and sizes."""
    if request.packet_bytes is None:
        return False
    n_bytes = [packet.size for packet in span.packets]
    return bool(np.array_equal(request.packet_bytes[span.first :][span.positions], n_bytes))


def _compare_packets(
    container: av.container.InputContainer, fps: Fraction, span: PacketSpan, extradata: bytes | None
) -> None:
    """Compares parameter sets, NAL units and times of a copy's packets with those of the source.

    Raises:
        CannotCopyError: CHECK_FAILED.
    """
    stream = container.streams.video[0]
    assert stream.time_base is not None
    own, tick = stream.codec_context.extradata, 1 / (fps * stream.time_base)
    packets = [packet for packet in container.demux(stream) if packet.size]
    is_right = len(packets) == span.n_frames and header_sets(own) == header_sets(extradata)
    for packet, source, position in zip(packets, span.packets, span.positions, strict=is_right):
        is_right &= packet.pts == position * tick and not packet.is_discard
        is_right &= nal_units(bytes(packet), own) == nal_units(bytes(source), extradata)
    if not (is_right and packets[0].is_keyframe):
        raise CannotCopyError(NotCopied.CHECK_FAILED)


def _edges(n_frames: int) -> tuple[range, range]:
    length = min(EDGE_FRAMES, n_frames)
    return range(length), range(n_frames - length, n_frames)


def _checked_luma(
    container: av.container.InputContainer,
    fps: Fraction,
    n_frames: int,
    n_decoded: int,
    threads: int,
    max_pixels: int,
    sampler: FrameSampler | None,
) -> NDArray[np.float32]:
    """Decodes up to `n_decoded` frames of a copy of `n_frames`; raises for faults.

    Returns:
        Luma of decoded frames at the edges, NaN for the others.
    """
    stream = container.streams.video[0]
    frames = FrameReader(
        container,
        stream,
        "the copy",
        threads=threads,
        max_pixels=max_pixels,
        smooths_all=needs_smoothing(stream),
    )
    tick = 1 / (fps * frames.time_base)
    scaler = tiny_scaler(0)
    luma = np.full(n_frames, np.nan, np.float32)
    edges = {position for edge in _edges(n_frames) for position in edge}
    n_seen = 0
    for frame in islice(frames, n_decoded):
        picture = frame.picture
        is_right = frame.index < n_frames and frame.pts == frame.index * tick
        is_right &= picture.format.name == "yuv420p"
        is_right &= frame.index > 0 or bool(picture.key_frame)
        if not is_right:
            raise CannotCopyError(NotCopied.CHECK_FAILED)
        if side_data_of(picture, SideData.DISPLAYMATRIX) is not None:
            # A mirrored picture has one, though its rotation is 0.
            raise CannotCopyError(NotCopied.SHAPE)
        if frame.index in edges:
            luma[frame.index], _ = tiny_luma(scaler.rgb_HWC(picture))
        if sampler is not None:
            sampler.see(picture)
        n_seen += 1
    report = frames.report
    is_odd = report.is_damaged or report.is_interlaced or report.is_hdr or len(report.sizes) > 1
    if is_odd or report.n_repaired_pts or n_seen != min(n_decoded, n_frames):
        raise CannotCopyError(NotCopied.CHECK_FAILED)
    return luma


def is_same_luma(luma: NDArray[np.float32], meant: NDArray[np.float32], at: range) -> bool:
    """Returns whether mean luma [n] of a copy, compared `at` some frames, is that of the analysis.

    It must fit no neighbouring frames better.
    """
    here = np.array(at)
    if not np.all(np.abs(luma[here] - meant[here]) <= LUMA_TOLERANCE):
        return False
    for shift in (-1, 1):
        inner = here[(here + shift >= 0) & (here + shift < len(meant))]
        own = np.abs(luma[inner] - meant[inner]).sum()
        beside = np.abs(luma[inner] - meant[inner + shift]).sum()
        if beside + NEIGHBOUR_TOLERANCE < own:
            return False
    return True


def check_encoded(
    mp4: bytes, *, n_frames: int, size: tuple[int, int], fps: Fraction, decodes: bool, threads: int
) -> str | None:
    """Returns the first difference of an encoded clip from the request, or None.

    Frame `i` is at `i / fps`. Packets are counted unless `decodes` is set.
    """
    try:
        with av.open(io.BytesIO(mp4), mode="r") as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = threads
            # A quarter of the decode, which changes neither the number of frames nor errors.
            stream.codec_context.options = {"skip_loop_filter": "all"}
            if (stream.width, stream.height) != size:
                return f"is {stream.width}x{stream.height}, expected {size[0]}x{size[1]}"
            if decodes:
                times = [frame.pts for frame in container.decode(stream)]
            else:
                times = [packet.pts for packet in container.demux(stream) if packet.size]
            assert stream.time_base is not None
            tick = 1 / (fps * stream.time_base)
    except av.error.FFmpegError as error:
        return f"does not decode: {error}"
    if len(times) != n_frames or times != [index * tick for index in range(n_frames)]:
        return (
            f"decodes to {len(times)} frames from time {times[0] if times else None}; expected "
            f"{n_frames} from 0, {tick} ticks apart"
        )
    return None

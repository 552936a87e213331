"""Decides whether a clip may be copied, and checks written clips.

If the analysis decoded the packets of a copy, the check compares packets, and decodes the first
frames. Otherwise the check decodes all frames. docs/design/clips.md explains the checks.
"""

import io
from collections.abc import Collection
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
from curator.media.decode import FrameReader, side_data_of
from curator.media.packet_copy import CannotCopyError, PacketSpan
from curator.media.stream_headers import header_sets, nal_units
from curator.models.transnet import needs_smoothing, tiny_luma, tiny_scaler
from curator.records.cuts import CutRequest, NotCopied

EDGE_FRAMES = 4
"""Number of frames at each end of which the luma is compared with the track."""
LUMA_TOLERANCE = 0.01
"""Of 0 to 1. The same bits decode to the same luma, but scalers may differ."""
NEIGHBOUR_TOLERANCE = 0.001
"""If luma fits neighbouring frames better by more than this, the copy is off by one frame."""


def refuse_request(request: CutRequest, stream: av.video.stream.VideoStream) -> None:
    """Refuses to copy a clip if the request or the analysis rules out a copy.

    Raises:
        CannotCopyError: SHAPE, BORDERS, INTERLACED, HIGH_DYNAMIC_RANGE, VARIABLE_RATE, FIXED_RATE
            or FIXED_SIZE.
    """
    refused = {
        NotCopied.SHAPE: request.rotation_deg
        or request.is_mirrored
        or request.pixel_aspect != 1
        or request.source_size not in (None, (stream.width, stream.height)),
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
    """Returns the maximum time that a copy may omit at both ends together, in `time_base`."""
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
) -> bool:
    """Compares a copy of the frames in `span` with the request.

    If the analysis found all frames of the span uniform, compares the copy's packets with the
    source's, and decodes the first frames. Otherwise decodes all frames.

    `extradata` is from the header of the source. Frames may have up to `max_pixels`.

    Returns:
        Whether all frames were decoded.

    Raises:
        CannotCopyError: CHECK_FAILED if the copy has another number of frames, other timestamps, a
            first frame that is not a key frame, damage, another pixel format, or other luma at the
            ends; SHAPE if a picture is mirrored.
    """
    decodes = not _are_known(request, span)
    edges = _edges(span.n_frames)
    n_decoded = span.n_frames + 1 if decodes else EDGE_FRAMES
    try:
        with av.open(io.BytesIO(mp4), mode="r") as container:
            if not decodes:
                _compare_packets(container, request.fps, span, extradata)
                container.seek(0)
            luma = _checked_luma(
                container,
                request.fps,
                span.n_frames,
                n_decoded,
                threads=threads,
                max_pixels=max_pixels,
                wanted={position for edge in edges for position in edge},
            )
    except (av.error.FFmpegError, DecodeError) as error:
        raise CannotCopyError(NotCopied.CHECK_FAILED) from error
    meant = request.frame_luma[span.first : span.end]
    if not all(is_same_luma(luma, meant, at) for at in (edges if decodes else edges[:1])):
        raise CannotCopyError(NotCopied.CHECK_FAILED)
    return decodes


def check_joined(
    mp4: bytes,
    request: CutRequest,
    span: PacketSpan,
    *,
    n_head: int,
    header: bytes,
    threads: int,
    max_pixels: int,
) -> None:
    """Checks a clip of `n_head` encoded frames and of copied frames, which were checked before.

    Compares the packets with those of the two parts, `span` with the parameter sets in `header`,
    decodes up to a few frames after the joint, and compares their luma with the request.

    Raises:
        CannotCopyError: CHECK_FAILED.
    """
    joint = range(n_head, min(n_head + EDGE_FRAMES, span.n_frames))
    try:
        with av.open(io.BytesIO(mp4), mode="r") as container:
            _compare_packets(container, request.fps, span, header)
            container.seek(0)
            luma = _checked_luma(
                container,
                request.fps,
                span.n_frames,
                joint.stop,
                threads=threads,
                max_pixels=max_pixels,
                wanted=set(joint),
            )
    except (av.error.FFmpegError, DecodeError) as error:
        raise CannotCopyError(NotCopied.CHECK_FAILED) from error
    if not is_same_luma(luma, request.frame_luma[: span.n_frames], joint):
        raise CannotCopyError(NotCopied.CHECK_FAILED)


def _are_known(request: CutRequest, span: PacketSpan) -> bool:
    """Returns whether the packets of a span have the sizes of those that the analysis decoded."""
    if request.packet_bytes is None:
        return False
    n_bytes = [packet.size for packet in span.packets]
    return bool(np.array_equal(request.packet_bytes[span.first :][span.positions], n_bytes))


def _compare_packets(
    container: av.container.InputContainer, fps: Fraction, span: PacketSpan, extradata: bytes | None
) -> None:
    """Compares the parameter sets, NAL units and timestamps of a copy with those of the source.

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
    *,
    threads: int,
    max_pixels: int,
    wanted: Collection[int],
) -> NDArray[np.float32]:
    """Decodes and checks up to `n_decoded` frames of a copy of `n_frames`.

    Returns:
        Mean luma [n_frames] of the `wanted` frames; NaN for the others, and those not decoded.
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
    n_seen = 0
    for frame in islice(frames, n_decoded):
        picture = frame.picture
        is_right = frame.index < n_frames and frame.pts == frame.index * tick
        is_right &= picture.format.name == "yuv420p"
        is_right &= frame.index > 0 or bool(picture.key_frame)
        if not is_right:
            raise CannotCopyError(NotCopied.CHECK_FAILED)
        if side_data_of(picture, SideData.DISPLAYMATRIX) is not None:
            # A mirrored picture has a display matrix, though its rotation is 0.
            raise CannotCopyError(NotCopied.SHAPE)
        if frame.index in wanted:
            luma[frame.index], _ = tiny_luma(scaler.rgb_HWC(picture))
        n_seen += 1
    report = frames.report
    is_odd = report.is_damaged or report.is_interlaced or report.is_hdr or len(report.sizes) > 1
    if is_odd or report.n_repaired_pts or n_seen != min(n_decoded, n_frames):
        raise CannotCopyError(NotCopied.CHECK_FAILED)
    return luma


def is_same_luma(luma: NDArray[np.float32], meant: NDArray[np.float32], at: range) -> bool:
    """Returns whether mean luma [n] of a copy equals that of the analysis `at` some frames.

    Returns False if the copy fits better when shifted by one frame.
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
    """Returns how an encoded clip differs from the request, or None.

    Frame `i` must be at `i / fps`. Without `decodes`, only the packets are checked.
    """
    try:
        with av.open(io.BytesIO(mp4), mode="r") as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = threads
            # Saves a quarter of the time, and changes neither frame count nor errors.
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

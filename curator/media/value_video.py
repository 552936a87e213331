"""Videos as values: a frame for each frame of a clip, such as edges, depth or masks.

RGB is H.264 in MP4, written as clips are; 16 bits are FFV1 in Matroska, without loss. The file's
comment holds the header of the value.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import av
import numpy as np
import orjson
from av.video.reformatter import Colorspace
from numpy.typing import NDArray

from curator.errors import CuratorError, SourceError
from curator.media.container import open_container, video_stream
from curator.media.encode import MP4_OPTIONS, EncodeSettings, add_stream
from curator.storage.scratch import unnamed_file

COMMENT = "comment"
GRAY16 = "gray16le"
_NAME = "value"
_HASH, _BLANK = "sha256", 64 * "-"


class VideoError(CuratorError):
    """Bytes are no video, or do not decode."""


class VideoFacts(NamedTuple):
    """A video without its pixels.

    Attributes:
        metadata: Contents of the comment; empty without one. `sha256` is that of the file, with
            64 hyphens in place of itself.
        digest: SHA-256 of the file as it is now, in the same way, in hex.
    """

    n_frames: int
    width: int
    height: int
    metadata: Mapping[str, str]
    digest: str


def encode_video(
    frames_THW: NDArray[np.generic],  # noqa: N803 - shape letters
    *,
    fps: Fraction,
    crf: int | None,
    metadata: Mapping[str, str],
) -> bytes:
    """Encodes frames of one size.

    Args:
        frames_THW: uint8 [T, H, W, 3] RGB of even sizes with `crf`; else uint16 [T, H, W].
        fps: Frames per second.
        crf: Quality of x264; None for FFV1.
        metadata: Contents of the comment; the file's hash is added as `sha256`.
    """
    height, width = frames_THW.shape[1:3]
    is_rgb = crf is not None
    options = MP4_OPTIONS if is_rgb else {"fflags": "+bitexact", "write_crc32": "0"}
    container = "mp4" if is_rgb else "matroska"
    with unnamed_file(f".{container}") as (path, file):
        with av.open(path, "w", format=container, container_options=options) as output:
            output.metadata[COMMENT] = orjson.dumps({**metadata, _HASH: _BLANK}).decode()
            if crf is not None:
                settings = EncodeSettings(crf=crf, preset="medium")
                stream = add_stream(output, width, height, fps, settings)
            else:
                stream = output.add_stream("ffv1", rate=fps, options={"level": "3"})
                stream.width, stream.height, stream.pix_fmt = width, height, GRAY16
                stream.codec_context.time_base = 1 / fps
                stream.codec_context.thread_count = 1
                stream.codec_context.flags |= av.codec.context.Flags.bitexact
            for packet in _encoded(stream, frames_THW, fps, is_rgb=is_rgb):
                output.mux(packet)
        file.seek(0)
        data = file.read()
    digest = hashlib.sha256(data).hexdigest()
    return data.replace(_BLANK.encode(), digest.encode(), 1)


def _encoded(
    stream: av.VideoStream,
    frames: Iterable[NDArray[np.generic]],
    fps: Fraction,
    *,
    is_rgb: bool,
) -> "Iterator[av.Packet[Any]]":
    for number, pixels in enumerate(frames):
        array = np.ascontiguousarray(pixels)
        picture = av.VideoFrame.from_ndarray(array, format="rgb24" if is_rgb else GRAY16)
        if is_rgb:
            picture = picture.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)
        picture.pts, picture.time_base = number, 1 / fps
        yield from stream.encode(picture)
    yield from stream.encode(None)


def video_facts(data: bytes) -> VideoFacts:
    """Reads the facts about a video without decoding it.

    Raises:
        VideoError: The bytes are no video.
    """
    try:
        with open_container(io.BytesIO(data), _NAME, n_bytes=len(data)) as container:
            stream = video_stream(container, _NAME)
            n_frames = sum(packet.size > 0 for packet in container.demux(stream))
            comments = {key.lower(): value for key, value in container.metadata.items()}
            metadata = orjson.loads(comments.get(COMMENT, "{}"))
            if not isinstance(metadata, dict):
                raise ValueError(f"a comment that is no header: {metadata!r:.80}")
            own = str(metadata.get(_HASH, "")).encode()
            digest = hashlib.sha256(data.replace(own, _BLANK.encode(), 1) if own else data)
            return VideoFacts(n_frames, stream.width, stream.height, metadata, digest.hexdigest())
    except (av.error.FFmpegError, SourceError, ValueError) as error:
        raise VideoError(f"no video ({error})") from error


def decode_video(data: bytes) -> NDArray[np.generic]:
    """Decodes all frames: uint8 [T, H, W, 3] RGB, or uint16 [T, H, W].

    Raises:
        VideoError: The bytes are no video, or do not decode.
    """
    try:
        with open_container(io.BytesIO(data), _NAME, n_bytes=len(data)) as container:
            stream = video_stream(container, _NAME)
            is_gray = stream.codec_context.pix_fmt == GRAY16
            pixels = GRAY16 if is_gray else "rgb24"
            return np.stack(
                [
                    picture.reformat(format=pixels, src_colorspace=Colorspace.ITU709).to_ndarray()
                    for picture in container.decode(stream)
                ]
            )
    except (av.error.FFmpegError, SourceError, ValueError) as error:
        raise VideoError(f"a video that does not decode ({error})") from error

"""Decodes one clip from its source on demand, for clips that the run did not write.

Runs write kept clips only, so showing a rejected clip takes a second decode.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import BinaryIO

import av
from av.video.reformatter import Colorspace

from curator.errors import ErrorCode, SourceError, UsageError, raised_as
from curator.executor.unit_worker import process_alone
from curator.media.container import open_container, video_stream
from curator.media.decode import orientation_shown
from curator.media.encode import EncodeSettings, encode_mp4
from curator.media.scale import Scaler, fit_inside
from curator.media.source_segments import seek_to
from curator.records.sources import Failure
from curator.stage import Scope, Stage, StageConfig
from curator.storage import open_source, stat_source
from curator.tables.clip_rows import ClipRow

LONGER_PX = 640
RATE_FPS = 15
MAX_S = 60.0
"""Longest part of a clip that is shown."""
_SETTINGS = EncodeSettings(crf=28, preset="veryfast", encoder="x264")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpan:
    """A part of a source, in units of `time_base` of its video stream."""

    uri: str
    n_bytes: int
    version: str
    start_pts: int
    end_pts: int


class SourceClipStage(Stage[StageConfig, SourceSpan, bytes | Failure]):
    """Encodes a part of a source as a small MP4 without sound."""

    name = "source_clip"
    version = 1
    scope = Scope.CLIP
    sandboxed = True
    imports = ("curator.media.encode",)

    def process(self, unit: SourceSpan) -> bytes | Failure:
        """Decodes the part, starting at the key frame before the part."""
        with open_source(unit.uri, expected_version=unit.version) as reader:
            return _encoded(unit, reader)

    def failed(self, unit: SourceSpan, failure: Failure) -> Failure:
        """Returns the failure."""
        return failure


def source_clip(clip: ClipRow, version: str | None) -> bytes:
    """Returns a clip as a small MP4, decoded from the clip's source.

    `version` is the version of the source when the run read it; None if unknown.

    Raises:
        UsageError: The source has changed, or cannot be read or decoded there.
    """
    with raised_as(UsageError, SourceError, of="its source cannot be read: "):
        n_bytes, version_now = stat_source(clip.source_uri)
        if version is not None and version != version_now:
            raise UsageError(f"{clip.source_uri} has changed since the run read it")
        span = SourceSpan(
            uri=clip.source_uri,
            n_bytes=n_bytes,
            version=version_now,
            start_pts=clip.start_pts,
            end_pts=min(clip.end_pts, clip.start_pts + int(MAX_S / Fraction(clip.time_base))),
        )
        result = process_alone(SourceClipStage, StageConfig(), span)
    if isinstance(result, Failure):
        raise UsageError(f"its source cannot be shown ({result.code}): {result.message}")
    mp4: bytes = result
    return mp4


def _encoded(unit: SourceSpan, reader: BinaryIO) -> bytes:
    with open_container(reader, unit.uri, n_bytes=unit.n_bytes) as container:
        stream = video_stream(container, unit.uri)
        stream.thread_type = "AUTO"
        seek_to(container, stream, unit.start_pts)
        fps = Fraction(stream.average_rate or RATE_FPS)
        step = max(1, round(fps / RATE_FPS))
        frames = _frames(container.decode(stream), unit, step)
        first = next(frames, None)
        if first is None:
            raise SourceError(ErrorCode.NO_FRAMES, f"no frame of {unit.uri} decodes there")
        mp4, _ = encode_mp4(
            itertools.chain([first], frames),
            width=first.width,
            height=first.height,
            fps=fps / step,
            settings=_SETTINGS,
        )
    return mp4


def _frames(
    decoded: Iterator[av.VideoFrame], unit: SourceSpan, step: int
) -> Iterator[av.VideoFrame]:
    """Yields every `step`-th frame of the span, upright and scaled down."""
    scaler: Scaler | None = None
    span = itertools.takewhile(lambda frame: (frame.pts or 0) < unit.end_pts, decoded)
    shown = itertools.dropwhile(lambda frame: (frame.pts or 0) < unit.start_pts, span)
    for frame in itertools.islice(shown, 0, None, step):
        if scaler is None:
            orientation = orientation_shown(frame)
            turn_deg = orientation.rotation_deg
            size = (frame.height, frame.width) if turn_deg % 180 else (frame.width, frame.height)
            width, height = (max(2, side // 2 * 2) for side in fit_inside(*size, LONGER_PX))
            scaler = Scaler(width, height, **orientation._asdict())
        shown_frame = av.VideoFrame.from_ndarray(scaler.rgb_HWC(frame))
        yield shown_frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)

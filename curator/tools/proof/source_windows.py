"""Decodes a short window of a clip from its source, at the source's own resolution.

Rejected clips were never written, and the small pictures of the analysis show neither noise nor
blocks. So a proof decodes windows anew, kept clips as well: written clips may be encoded again or
scaled, which would be a difference that the rule did not make. A proof decodes a bounded number.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import av
import numpy as np
from numpy.typing import NDArray

from curator.errors import ErrorCode, SourceError
from curator.executor.unit_worker import process_alone
from curator.fingerprints import fingerprint
from curator.media.container import open_container, video_stream
from curator.media.decode import orientation_shown
from curator.media.scale import Scaler
from curator.media.source_segments import seek_to
from curator.records.sources import Failure
from curator.stage import Scope, Stage, StageConfig
from curator.storage import open_source, stat_source
from curator.tables.clip_rows import ClipRow
from curator.tools.proof.patch_tokenizer import PATCH_FRAMES, PATCH_PX

WINDOW_FRAMES = 16
"""Consecutive frames of a window; a shorter clip gives fewer."""
WIDTH_PX, HEIGHT_PX = 384, 256
"""Largest part of the picture that is used, at a random place."""
GRID_PX, _SHIFT_PX = 16, 3
"""Side of the blocks of most codecs, and where patches begin in them: the edges of blocks are then
within patches, at the same place in all of them. Source: benchmarks/results/prove.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceWindow:
    """A window of a source, in units of `time_base` of its video stream.

    Attributes:
        crop: Left, top, width and height of the picture within black borders; None without.
        lot: Decides about the place of the part of the picture, 0 to 1 across and down.
    """

    uri: str
    n_bytes: int
    version: str
    start_pts: int
    end_pts: int
    crop: tuple[int, int, int, int] | None
    lot: tuple[float, float]


class SourceWindowStage(Stage[StageConfig, SourceWindow, NDArray[np.uint8] | Failure]):
    """Decodes a window as luma, uint8 [T, H, W]."""

    name = "source_window"
    version = 1
    scope = Scope.CLIP
    sandboxed = True
    imports = ("curator.media.scale",)

    def process(self, unit: SourceWindow) -> NDArray[np.uint8] | Failure:
        """Decodes the window, starting at the key frame before it."""
        with open_source(unit.uri, expected_version=unit.version) as reader:
            return _decoded(unit, reader)

    def failed(self, unit: SourceWindow, failure: Failure) -> Failure:
        """Returns the failure."""
        return failure


def source_window(clip: ClipRow, version: str | None, seed: int) -> NDArray[np.uint8] | str:
    """Returns a window of a clip, decoded from its source, or why that failed.

    Args:
        clip: A row of `clips`.
        version: Version of the source when the run read it; None if unknown.
        seed: Chooses the place of the window in the clip.
    """
    lots = [int(fingerprint(seed, clip.clip_id, axis), 16) / 2**64 for axis in range(3)]
    n_later = max(0, clip.n_frames - WINDOW_FRAMES - 1)
    first = clip.start_pts + (clip.end_pts - clip.start_pts) * lots[0] * n_later / clip.n_frames
    try:
        n_bytes, version_now = stat_source(clip.source_uri)
        if version is not None and version != version_now:
            return f"{clip.source_uri} has changed since the run read it"
    except SourceError as error:
        return str(error)
    window = SourceWindow(
        uri=clip.source_uri,
        n_bytes=n_bytes,
        version=version_now,
        start_pts=int(first),
        end_pts=clip.end_pts,
        crop=_crop_of(clip),
        lot=(lots[1], lots[2]),
    )
    result = process_alone(SourceWindowStage, StageConfig(), window)
    if isinstance(result, Failure):
        return result.message
    luma: NDArray[np.uint8] = result
    return luma


def _crop_of(clip: ClipRow) -> tuple[int, int, int, int] | None:
    x, y, width, height = clip.crop_x, clip.crop_y, clip.crop_width, clip.crop_height
    if x is None or y is None or width is None or height is None:
        return None
    return x, y, width, height


def _decoded(unit: SourceWindow, reader: BinaryIO) -> NDArray[np.uint8]:
    with open_container(reader, unit.uri, n_bytes=unit.n_bytes) as container:
        stream = video_stream(container, unit.uri)
        stream.thread_type = "AUTO"
        seek_to(container, stream, unit.start_pts)
        frames = list(_parts(container.decode(stream), unit))
    n_frames = len(frames) // PATCH_FRAMES * PATCH_FRAMES
    if not n_frames:
        why = f"{len(frames)} frames of {unit.uri} decode there; expected {PATCH_FRAMES} or more"
        raise SourceError(ErrorCode.NO_FRAMES, why)
    return np.stack(frames[:n_frames])


def _parts(decoded: Iterator[av.VideoFrame], unit: SourceWindow) -> Iterator[NDArray[np.uint8]]:
    """Yields the same part of each picture of the window, upright, not scaled."""
    shown = itertools.dropwhile(lambda frame: (frame.pts or 0) < unit.start_pts, decoded)
    window = itertools.takewhile(lambda frame: (frame.pts or 0) < unit.end_pts, shown)
    scaler: Scaler | None = None
    for frame in itertools.islice(window, WINDOW_FRAMES):
        if scaler is None:
            orientation = orientation_shown(frame)
            size = (frame.width, frame.height)
            width, height = size[::-1] if orientation.rotation_deg % 180 else size
            scaler = Scaler(width, height, pixels="gray", **orientation._asdict())
        yield _part(scaler.rgb_HWC(frame), unit)


def _part(luma_HW: NDArray[np.uint8], unit: SourceWindow) -> NDArray[np.uint8]:  # noqa: N803
    left, top, width, height = unit.crop or (0, 0, luma_HW.shape[1], luma_HW.shape[0])
    inside = luma_HW[top : top + height, left : left + width]
    places = zip(inside.shape, (HEIGHT_PX, WIDTH_PX), unit.lot, (top, left), strict=True)
    y, x = (_begin(lot, side - most, edge) for side, most, lot, edge in places)
    if min(inside.shape) < GRID_PX + PATCH_PX:
        why = f"{unit.uri} has {inside.shape[1]}x{inside.shape[0]} pixels; expected 24x24 or more"
        raise SourceError(ErrorCode.NO_FRAMES, why)
    return np.ascontiguousarray(inside[y : y + HEIGHT_PX, x : x + WIDTH_PX])


def _begin(lot: float, room: int, edge: int) -> int:
    """Returns a random place that is `_SHIFT_PX` behind a block of the codec; `edge` is cut off."""
    begin = int(lot * max(0, room - GRID_PX))
    return begin + (_SHIFT_PX - begin - edge) % GRID_PX

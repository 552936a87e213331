"""Frames at one size as WebDataset, for tokenizers that read frames instead of videos.

A frame is cropped around its middle to the requested aspect and scaled by averaging (or by a
bicubic filter where it is enlarged). A sample has its `json`, with `frames` describing the stored
frames, its `txt`, and either `npz` (array `frames`, uint8 [T, H, W, 3], RGB) or one `<number>.webp`
per frame.
"""

import io
from collections.abc import Iterator
from typing import Annotated, Literal

import cv2
import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from curator.dataset.shard_plan import tar_header
from curator.dataset.tar_reader import BLOCK, Shard
from curator.errors import ShardError, SourceError
from curator.export.exporter import Exporter, ExporterOptions
from curator.export.job import Job, ShardClip
from curator.frame_size import parsed_sides
from curator.media.container import open_container, video_stream
from curator.media.decode import FrameReader
from curator.media.scale import rgb_of
from curator.media.still_images import read_still
from curator.records.sources import Medium

MAX_PIXELS = 1 << 27


Side = Annotated[int, Field(ge=1, le=8192)]


class FramesOptions(ExporterOptions):
    """Options of the format."""

    size: Annotated[tuple[Side, Side], BeforeValidator(parsed_sides)] = (256, 256)
    """WxH: size of the pictures in px, cut around the middle, sides of 1 to 8192 (default:
    256x256)"""
    pictures: Literal["npz", "webp"] = "npz"
    """one array per clip, or a lossy file per frame (default: npz)"""
    max_frames: int | None = Field(None, ge=1)
    """only the first N of each clip (default: all)"""
    quality: int = Field(90, ge=1, le=100)
    """of webp, 1 to 100 (default: 90)"""


class FrameTars(Exporter[FramesOptions, None]):
    """Writes `<split>/<bucket>/<number>-<hash>-<settings>.tar`, one per shard."""

    about = "<split>/<bucket>/*.tar, WebDataset of pictures at one size, for image tokenizers"
    options_type = FramesOptions
    media = frozenset({Medium.VIDEO, Medium.IMAGE})
    suffixes = (".tar",)

    def shard(self, job: Job, shard: Shard) -> None:
        """Writes a shard's tar."""
        options = self.options
        quality = options.quality if options.pictures == "webp" else None
        settings = (options.size, options.pictures, options.max_frames, quality)
        fingerprint = job.fingerprint(shard, "frames", self.version, *settings)
        key = f"{shard.split}/{shard.name.removesuffix('.tar')}-{fingerprint[:8]}.tar"
        if job.place.size(key) is not None:
            # The name identifies input and settings, and objects appear only when complete.
            job.place.reuse(key, clips=job.n_clips(shard))
            return
        end = bytes(2 * BLOCK)
        with job.place.create(key) as output:
            for clip in job.clips(shard, True):
                for name, data in _members(clip, options):
                    member = tar_header(name, len(data)) + data + bytes(-len(data) % BLOCK)
                    output.write(member)
                    job.exported.add(bytes=len(member))
            output.write(end)
        job.exported.add(bytes=len(end))


def decode_frames(clip: ShardClip, options: FramesOptions) -> NDArray[np.uint8]:
    """Decodes frames, uint8 [T, H, W, 3], RGB; `ShardError` if fewer frames decode."""
    assert clip.mp4 is not None
    wanted = min(clip.fields["n_frames"], options.max_frames or clip.fields["n_frames"])
    pictures: list[NDArray[np.uint8]] = []
    try:
        file, n_bytes = io.BytesIO(clip.mp4), len(clip.mp4)
        still = read_still(file, clip.key, n_bytes)
        with open_container(file, clip.key, n_bytes=n_bytes, still=still) as container:
            stream = video_stream(container, clip.key, still=still)
            reader = FrameReader(
                container, stream, clip.key, threads=1, max_pixels=MAX_PIXELS, still=still
            )
            for frame in reader:
                if len(pictures) == wanted:
                    break
                pictures.append(fitted(rgb_of(frame.picture), options.size))
    except SourceError as error:
        raise ShardError(f"{clip.key}: {error}") from error
    if len(pictures) != wanted:
        raise ShardError(f"{clip.key}: {len(pictures)} frames decode; expected {wanted}")
    return np.stack(pictures)


def fitted(rgb_HWC: NDArray[np.uint8], size_px: tuple[int, int]) -> NDArray[np.uint8]:  # noqa: N803
    """Crops a frame, uint8 [H, W, 3], around its middle and scales it to (width, height)."""
    height, width = rgb_HWC.shape[:2]
    to_width, to_height = size_px
    scale = max(to_width / width, to_height / height)
    cut_width = min(width, max(1, round(to_width / scale)))
    cut_height = min(height, max(1, round(to_height / scale)))
    left, top = (width - cut_width) // 2, (height - cut_height) // 2
    cut = rgb_HWC[top : top + cut_height, left : left + cut_width]
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return cv2.resize(cut, size_px, interpolation=way).astype(np.uint8, copy=False)


def _members(clip: ShardClip, options: FramesOptions) -> Iterator[tuple[str, bytes]]:
    """Yields names and contents of a sample's files."""
    frames = decode_frames(clip, options)
    width, height = options.size
    stored = {"n_frames": len(frames), "width": width, "height": height, "as": options.pictures}
    fields = clip.fields | {"frames": stored}
    yield f"{clip.key}.json", orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    if options.pictures == "npz":
        array = io.BytesIO()
        np.savez(array, frames=frames)
        yield f"{clip.key}.npz", array.getvalue()
    else:
        for number, picture in enumerate(frames):
            yield f"{clip.key}.{number:04d}.webp", _webp(picture, options.quality)
    yield f"{clip.key}.txt", clip.text.encode()


def _webp(picture: NDArray[np.uint8], quality: int) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(picture).save(data, "WEBP", quality=quality, method=4)
    return data.getvalue()

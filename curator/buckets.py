"""Buckets: clips of one class of resolution, aspect ratio and length, for batches."""

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from curator.frame_size import shape_of

MAX_ENLARGED = 1.01
"""Largest factor by which `cut.enlarge: never` scales: even sides, and borders that are cropped,
take up to 1% of a picture."""
UNKNOWN_CONTENT = "unknown"
"""Content type, in the name of a bucket, of clips without a known content type."""


class BucketClasses(Protocol):
    """The classes of a recipe, as the section `shard` has them."""

    @property
    def resolutions(self) -> tuple[int, ...]:
        """Shorter sides, in pixels."""

    @property
    def aspects(self) -> tuple[str, ...]:
        """Aspect ratios, such as `16,9`."""

    @property
    def aspects_strict(self) -> bool:
        """Whether a clip must be near an aspect class."""

    @property
    def aspects_tolerance(self) -> float:
        """Largest share of the picture that a crop to the nearest class may lose."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Least numbers of frames."""

    @property
    def by_content_type(self) -> bool:
        """Whether each content type has its own buckets."""


def class_settings(classes: BucketClasses) -> dict[str, object]:
    """Returns the classes as plain values, for a fingerprint."""
    names = ("resolutions", "aspects", "aspects_strict", "aspects_tolerance", "lengths",
             "by_content_type")  # fmt: skip
    return {name: getattr(classes, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Clips that a trainer can put into one batch after cropping to the smallest."""

    resolution: int
    aspect: str
    min_frames: int
    content: str | None = None
    """Content type, if `by_content_type` is set."""

    @property
    def name(self) -> str:
        """Folder under `shards/`, such as `720p_16-9_121f`, or `720p_16-9_121f_sports`."""
        name = f"{self.resolution}p_{self.aspect.replace(',', '-')}_{self.min_frames}f"
        if self.content is None:
            return name
        return f"{name}_{re.sub('[^a-z0-9]+', '-', self.content.lower()).strip('-') or 'other'}"


def bucket_of(
    width: int,
    height: int,
    n_frames: int,
    config: BucketClasses,
    *,
    content_type: str | None = None,
    is_still: bool = False,
) -> Bucket | None:
    """Returns the bucket of a written clip with a size in pixels.

    Returns None if the clip is below the smallest resolution or length class. With
    `aspects_strict`, also returns None if no aspect class is near. A still image has the length 1,
    whatever the classes of length are.
    """
    resolutions = [size for size in config.resolutions if size <= min(width, height)]
    lengths = [1] if is_still else [length for length in config.lengths if length <= n_frames]
    if not resolutions or not lengths:
        return None
    if config.aspects_strict and aspect_loss(width, height, config) > config.aspects_tolerance:
        return None
    return Bucket(
        resolution=max(resolutions),
        aspect=_nearest(width, height, tuple(config.aspects)),
        min_frames=max(lengths),
        content=(content_type or UNKNOWN_CONTENT) if config.by_content_type else None,
    )


def aspect_loss(width: int, height: int, config: BucketClasses) -> float:
    """Returns the share of the picture that a crop to the nearest aspect class loses, 0 to 1."""
    wanted = _ratio(_nearest(width, height, tuple(config.aspects)))
    own = width / height
    return 1 - min(own / wanted, wanted / own)


def covered_size(width: int, height: int, config: BucketClasses) -> tuple[int, int] | None:
    """Returns the size of the largest bucket that a picture covers without being enlarged.

    If the picture covers none, returns the smallest bucket. None if the picture is below the
    smallest resolution class, or with `aspects_strict` near no aspect class.
    """
    short = min(width, height)
    if config.aspects_strict and aspect_loss(width, height, config) > config.aspects_tolerance:
        return None
    aspect = [int(number) for number in _nearest(width, height, tuple(config.aspects)).split(",")]
    classes = sorted(size for size in config.resolutions if size <= short)
    sizes = [shape_of(size, *aspect) for size in classes]
    covered = [size for size in sizes if cover_factor((width, height), size) <= MAX_ENLARGED]
    return covered[-1] if covered else next(iter(sizes), None)


def cover_factor(picture: tuple[int, int], size: tuple[int, int]) -> float:
    """Returns the factor by which a picture is scaled to cover a size."""
    return max(size[0] / picture[0], size[1] / picture[1])


@cache
def _nearest(width: int, height: int, aspects: tuple[str, ...]) -> str:
    return min(aspects, key=lambda a: abs(math.log(width / height / _ratio(a))))


def _ratio(aspect: str) -> float:
    width, height = aspect.split(",")
    return int(width) / int(height)

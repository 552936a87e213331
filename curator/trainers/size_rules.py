"""The size at which a trainer shows a clip: the rule `size` of a trainer's file.

Rounding follows each trainer. Sides are width, height.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, log, sqrt
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from curator.buckets import MAX_ENLARGED
from curator.errors import unknown_key
from curator.trainers.frame_rules import Rule, Side


@dataclass(frozen=True, slots=True)
class PictureFit:
    """How a trainer fits pictures to its size.

    Attributes:
        width: Width that the trainer shows, in pixels; `height` is its height.
        scale: Factor of the picture's scaling; above 1, the picture is enlarged.
        cropped_share: Share of the picture's area that is cropped away.
        stretch: Ratio of the scales of width and height; 1 unless the picture is distorted.
    """

    width: int
    height: int
    scale: float
    cropped_share: float
    stretch: float = 1.0

    @property
    def is_enlarged(self) -> bool:
        """Whether the picture is enlarged by more than `cut.enlarge: never` allows."""
        return self.scale > MAX_ENLARGED


@dataclass(frozen=True, slots=True)
class Bucket:
    """Frames and sides of a bucket, such as 960x544x49."""

    width: int
    height: int
    frames: int


_NUMBER = re.compile("[1-9][0-9]{0,4}")


def _buckets(value: object) -> object:
    """Reads `960x544x49`: width, height, frames."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    buckets = []
    for text in value:
        sides = str(text).split("x")
        if len(sides) != 3 or not all(map(_NUMBER.fullmatch, sides)):
            raise ValueError(f"bucket {text!r}; expected WIDTHxHEIGHTxFRAMES such as 960x544x49")
        buckets.append(Bucket(*map(int, sides)))
    return tuple(buckets)


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) else value


def _numbers(value: object) -> object:
    return value if isinstance(value, list | tuple) else (value,)


class SizeRule(Rule):
    """How a trainer chooses a size, and fits pictures to it."""

    policy: Literal[
        "own", "unknown", "fixed", "area", "thresholds", "area_buckets", "aspect_buckets",
        "buckets", "aspect_table", "budget_buckets", "budget", "rounded_aspect",
    ]  # fmt: skip
    """`own`: as the clip is; `unknown`: not described here; `fixed`: `width` x `height`; `area`:
    at most `max_pixels`, sides on `multiple`; `rounded_aspect`: the area of a square of `side`;
    the others choose among sizes by the aspect."""
    width: Side | None = None
    height: Side | None = None
    multiple: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    no_upscale: bool = False
    """Of `area_buckets`: whether clips up to the area keep their own size, on `multiple`."""
    then_multiple: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None
    """Of `aspect_buckets`: to which the sides of a size are rounded once more."""
    max_pixels: Annotated[int, Field(strict=True, ge=256, le=16384**2)] | None = None
    fit: Literal["cover", "stretch"] = "cover"
    """`cover`: scaled until both sides cover the size, and cropped around the centre."""
    resolution: Annotated[str | None, BeforeValidator(_text)] = None
    """Of `thresholds`: the table to use."""
    tables: Mapping[str, tuple[tuple[Annotated[float, Field(gt=0)], Side, Side], ...]] = {}
    """Of `thresholds`: aspects below which a size applies, with the size, in ascending order."""
    resolutions: Annotated[
        tuple[Annotated[float, Field(ge=16, le=16384)], ...], BeforeValidator(_numbers)
    ] = ()
    """Of `aspect_buckets`: sides of a square with the area of a size; each makes a sample."""
    min_aspect: float = Field(0.5, ge=0.01, le=100)
    max_aspect: float = Field(2.0, ge=0.01, le=100)
    n_aspects: Annotated[int, Field(strict=True, ge=1, le=1000)] = 7
    by_aspect: bool = True
    """Of `aspect_buckets`: whether there are others than square sizes."""
    buckets: Annotated[tuple[Bucket, ...], BeforeValidator(_buckets)] = ()
    """Of `buckets`: sizes with frames, such as 960x544x49; without any, `width` and `height`."""
    frames_first: bool = False
    """Of `buckets`: whether the longest bucket is chosen before the nearest aspect."""
    table: Mapping[str, tuple[Side, Side]] = {}
    """Of `aspect_table`: aspects, height by width, with height and width at a side of 512."""
    side: Annotated[int, Field(strict=True, ge=16, le=16384)] = 512
    aspects: tuple[tuple[Side, Side], ...] = ()
    """Of `budget_buckets`: aspects as pairs of whole numbers."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Refuses a policy without the values that it needs."""
        has_size = self.width is not None and self.height is not None
        if self.policy in _CHOSEN and self.policy != "area_buckets" and has_size:
            return self
        if self.policy == "buckets" and not (self.buckets or has_size):
            raise ValueError("policy is buckets; expected buckets, or width and height")
        for name in _NEEDS.get(self.policy, ()):
            if getattr(self, name) in (None, (), {}):
                raise ValueError(f"{name} is empty; the policy {self.policy} needs it")
        if self.policy == "thresholds" and self.resolution not in self.tables:
            names = list(self.tables)
            raise ValueError(unknown_key(str(self.resolution), names, "resolution"))
        return self

    def bucket(self, n_frames: int, width: int, height: int) -> Bucket | None:
        """Returns the bucket of a clip; None if the clip is shorter than all."""
        fitting = [bucket for bucket in self.buckets if bucket.frames <= n_frames]
        if self.frames_first:
            longest = max((b.frames for b in fitting), default=None)
            if longest is None:
                nearest = min(self.buckets, key=lambda b: abs(b.frames - n_frames))
                longest = nearest.frames
            fitting = [bucket for bucket in self.buckets if bucket.frames == longest]
            return min(fitting, key=lambda b: abs(b.width / b.height - width / height))
        aspect = log(width / height)
        return min(
            fitting,
            key=lambda b: (abs(aspect - log(b.width / b.height)), -b.frames, -b.width * b.height),
            default=None,
        )

    def fitted(self, n_frames: int, width: int, height: int) -> PictureFit | None:
        """Returns how a clip is fitted; None if the rule does not know."""
        size = self._size(n_frames, width, height)
        if size is None:
            return None
        # A clip or limit below one step would leave no picture.
        size = max(size[0], self.multiple), max(size[1], self.multiple)
        across, down = size[0] / width, size[1] / height
        if self.fit == "stretch":
            return PictureFit(*size, max(across, down), 0.0, across / down)
        scale = max(across, down)
        shown = size[0] * size[1] / (scale * width * scale * height)
        return PictureFit(*size, scale, max(0.0, 1 - shown))

    def _size(self, n_frames: int, width: int, height: int) -> tuple[int, int] | None:
        if self.policy == "unknown":
            return None
        is_fixed = not self.buckets and self.policy != "area_buckets"
        if is_fixed and self.width is not None and self.height is not None:
            return self.width, self.height
        if self.policy in ("own", "fixed"):
            return width // self.multiple * self.multiple, height // self.multiple * self.multiple
        if self.policy == "buckets":
            bucket = self.bucket(n_frames, width, height)
            return None if bucket is None else (bucket.width, bucket.height)
        return _CHOSEN[self.policy](self, width, height)


def _area(rule: SizeRule, width: int, height: int) -> tuple[int, int]:
    if rule.max_pixels is not None and width * height > rule.max_pixels:
        scale = (width * height / rule.max_pixels) ** 0.5
        height, width = int(height / scale), int(width / scale)
    return width // rule.multiple * rule.multiple, height // rule.multiple * rule.multiple


def _threshold(rule: SizeRule, width: int, height: int) -> tuple[int, int] | None:
    rows = rule.tables.get(rule.resolution or "", ())
    return next((row[1:] for row in rows if width / height < row[0]), None)


def _area_bucket(rule: SizeRule, width: int, height: int) -> tuple[int, int]:
    assert rule.width is not None
    assert rule.height is not None
    if rule.no_upscale and width * height <= rule.width * rule.height:
        return width // rule.multiple * rule.multiple, height // rule.multiple * rule.multiple
    sizes = _area_sizes(rule.width * rule.height, rule.multiple)
    errors = np.abs(np.array([w / h for w, h in sizes]) - width / height)
    return sizes[int(errors.argmin())]


@lru_cache
def _area_sizes(area: int, step: int) -> list[tuple[int, int]]:
    side = int(sqrt(area))
    sizes: set[tuple[int, int]] = set()
    for short in range(max(step, side // 2 // step * step), side + step, step):
        long = area // short // step * step
        sizes |= {(short, long), (long, short)}
    return sorted(size for size in sizes if min(size)) or [(step, step)]


def _aspect_bucket(rule: SizeRule, width: int, height: int) -> tuple[int, int]:
    aspects = [1.0]
    if rule.by_aspect:
        spaced = np.geomspace(rule.min_aspect, rule.max_aspect, num=rule.n_aspects)
        aspects = sorted({round(float(aspect), 3) for aspect in spaced})
    nearest = int(np.argmin(np.abs(np.log(width / height) - np.log(aspects))))
    area = round(max(rule.resolutions), 3) ** 2
    wide = sqrt(area * aspects[nearest])
    sides = (_to_multiple(side, rule.multiple) for side in (wide, area / wide))
    across, down = (_to_multiple(side, rule.then_multiple or rule.multiple) for side in sides)
    return across, down


def _to_multiple(side: float, multiple: int) -> int:
    return round(side / multiple) * multiple


def _aspect_row(rule: SizeRule, width: int, height: int) -> tuple[int, int]:
    if min(width, height) >= rule.side:
        # The reader shrinks frames first, which rounds the longer side.
        if height < width:
            width, height = int(rule.side * width / height), rule.side
        else:
            width, height = rule.side, int(rule.side * height / width)
    row = rule.table[min(rule.table, key=lambda aspect: abs(float(aspect) - height / width))]
    high, wide = (int(side / 512 * rule.side / rule.multiple) * rule.multiple for side in row)
    return wide, high


def _budget_bucket(rule: SizeRule, width: int, height: int) -> tuple[int, int]:
    sizes = _budget_sizes(rule.aspects, rule.max_pixels or 0, rule.multiple)
    return min(sizes, key=lambda size: abs(size[0] / size[1] - width / height))


@lru_cache
def _budget_sizes(
    aspects: tuple[tuple[int, int], ...], max_pixels: int, step: int
) -> list[tuple[int, int]]:
    sizes = set()
    for across, down in aspects:
        aspect = across / down
        high = _to_multiple(int(sqrt(max_pixels / aspect)), step)
        wide = _to_multiple(int(high * aspect), step)
        while wide * high > max_pixels:
            wide, high = (wide - step, high) if wide >= high else (wide, high - step)
        if wide >= step and high >= step:
            sizes.add((wide, high))
    return sorted(sizes or {(step, step)}, key=lambda size: size[0] / size[1])


_SQUARE_SIDES = {0.25: 512, 0.5: 768, 1.0: 1024, 2.0: 1536, 4.0: 2048}
"""SimpleTuner's sides of square clips, by megapixels that are at most .05 away."""


def _rounded_aspect(rule: SizeRule, width: int, height: int) -> tuple[int, int]:
    step, megapixels = rule.multiple, rule.side * rule.side / 1e6

    def at_step(side: float) -> int:
        return max(step, _to_multiple(side, step))

    edge, aspect = at_step(int(sqrt(megapixels * 1e6))), round(width / height, 2)
    across, down = at_step(edge * sqrt(aspect)), at_step(edge / sqrt(aspect))
    if round(across / down, 2) != 1.0:
        return across, down
    near = (side for key, side in _SQUARE_SIDES.items() if abs(megapixels - key) < 0.05)
    square = at_step(next(near, sqrt(megapixels * 1e6)))
    return square, square


def _budget(rule: SizeRule, width: int, height: int) -> tuple[int, int]:
    most, step = rule.side * rule.side, rule.multiple
    target = min(width * height, most)
    scale = (target / (width * height)) ** 0.5
    across, down = width * scale / step, height * scale / step
    sizes = [
        (wide * step, high * step)
        for wide in (floor(across), ceil(across))
        for high in (floor(down), ceil(down))
        if wide and high and wide * high * step * step <= most
    ] or [(max(step, floor(across) * step), max(step, floor(down) * step))]
    return min(sizes, key=lambda size: abs(size[0] * size[1] - target))


_NEEDS = {
    "area_buckets": ("width", "height"),
    "thresholds": ("tables", "resolution"),
    "aspect_buckets": ("resolutions",),
    "aspect_table": ("table",),
    "budget_buckets": ("max_pixels", "aspects"),
}
"""Values without which a policy has no sizes."""
_CHOSEN = {
    "area": _area,
    "thresholds": _threshold,
    "area_buckets": _area_bucket,
    "aspect_buckets": _aspect_bucket,
    "aspect_table": _aspect_row,
    "budget_buckets": _budget_bucket,
    "budget": _budget,
    "rounded_aspect": _rounded_aspect,
}

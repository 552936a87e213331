"""A pixel stage that blurs what a detector finds, between the frames that it sees, too.

A detector sees every n-th frame. Boxes of neighbouring samples are linked to tracks, and between
two samples a box moves evenly from one to the other. What only one of two neighbouring samples has
is blurred in all frames between them. A box that one sample lacks between two that have it is put
in. So a face that is missed once stays blurred, and one that appears is blurred before its sample.

To blur something else, such as number plates, subclass `TrackedBlur` with a detector of your own
(`examples/blur_plates.py`).
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from curator.errors import CutError
from curator.media.opencv import cv2
from curator.stage import ClipFrames, PixelStage, StageConfig, setting

Frame = NDArray[np.uint8]
Boxes = NDArray[np.float32]
"""Boxes, float32 [N, 4 or more]: left, top, right, bottom in shares of width and height."""

_MOST_MOVED = 1.0
"""Largest distance of a box's centre between samples, in its own longer sides."""
_MOST_RESIZED = 2.0
_FARTHEST = 2.5
"""From the middle of the picture, in its sides. Boxes beyond are in pixels, or no numbers."""
_CELLS = 4
"""Colours across the shorter side that are left of a blurred box."""


class TrackedBlurConfig(StageConfig):
    """Settings of a blur that follows boxes."""

    every_frames: int = setting(4, ge=1, le=32, unit="frames")
    """the detector sees every so many frames; between them, boxes are interpolated"""
    margin: float = setting(0.25, ge=0, le=2, unit="share")
    """by which a box is enlarged on each side, in shares of its width and height"""


TrackedConfig = TypeVar("TrackedConfig", bound=TrackedBlurConfig)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A frame that the detector saw, and the frames up to the next one, the first included."""

    boxes: Boxes
    frames: list[Frame]


class TrackedBlur(PixelStage[TrackedConfig]):
    """Blurs boxes of a detector along their tracks."""

    @abstractmethod
    def boxes(self, frame_HW3: Frame) -> Boxes:  # noqa: N803 - shape letters
        """Returns what is to be blurred, float32 [N, 4 or more], in shares of width and height.

        Boxes may reach beyond the picture. Those of NaN or in pixels raise `CutError`.
        """

    def process(self, unit: ClipFrames) -> Iterator[Frame]:
        """Yields the blurred frames of a clip; holds those of at most three samples."""
        samples = self._samples(unit.frames)
        current, following = next(samples, None), next(samples, None)
        for beyond in samples:
            assert current is not None
            assert following is not None
            boxes = with_missed(current.boxes, following.boxes, beyond.boxes)
            yield from self._blurred(current, boxes)
            current, following = _Sample(boxes, following.frames), beyond
        if current is not None and following is not None:
            # No sample follows: a box that the last one lacks stays where it was.
            boxes = with_missed(current.boxes, following.boxes, current.boxes)
            yield from self._blurred(current, boxes)
            current = _Sample(boxes, following.frames)
        if current is not None:
            yield from self._blurred(current, current.boxes)

    def _samples(self, frames: Iterator[Frame]) -> Iterator[_Sample]:
        held: list[Frame] = []
        for frame in frames:
            if len(held) == self.config.every_frames:
                yield _Sample(self._found(held[0]), held)
                held = []
            held.append(frame)
        if held:
            # The last frame is seen, too, because no sample follows.
            *others, last = held
            if others:
                yield _Sample(self._found(others[0]), others)
            yield _Sample(self._found(last), [last])

    def _found(self, frame: Frame) -> Boxes:
        """Returns the boxes of a frame; what is no box would leave a picture as it is."""
        boxes = np.asarray(self.boxes(frame), np.float32)
        if boxes.ndim != 2 or boxes.shape[1] < 4:
            raise CutError(
                f"boxes of stage {self.name} have the shape {boxes.shape}; expected (N, 4) or "
                "more columns"
            )
        boxes = boxes[:, :4]
        is_box = (np.abs(boxes - 0.5) <= _FARTHEST).all(axis=1)
        is_box &= (boxes[:, :2] <= boxes[:, 2:]).all(axis=1)
        if not is_box.all():
            raise CutError(
                f"stage {self.name} found the box {boxes[~is_box][0].tolist()}; expected left, "
                "top, right, bottom in shares of width and height, 0 to 1"
            )
        return boxes

    def _blurred(self, sample: _Sample, after: Boxes) -> Iterator[Frame]:
        pairs = linked(sample.boxes, after)
        lone = [np.delete(boxes, [pair[side] for pair in pairs], axis=0)
                for side, boxes in enumerate((sample.boxes, after))]  # fmt: skip
        for number, frame in enumerate(sample.frames):
            share = number / len(sample.frames)
            moving = [(1 - share) * sample.boxes[i] + share * after[j] for i, j in pairs]
            yield with_blur(frame, [*moving, *lone[0], *lone[1]], self.config.margin)


def linked(first: Boxes, second: Boxes) -> list[tuple[int, int]]:
    """Returns pairs of boxes of two samples that show one thing, by place and size."""
    if not len(first) or not len(second):
        return []
    centres = [(boxes[:, :2] + boxes[:, 2:4]) / 2 for boxes in (first, second)]
    sides = [np.maximum(boxes[:, 2:4] - boxes[:, :2], 1e-6) for boxes in (first, second)]
    longer = np.maximum(sides[0].max(axis=1)[:, None], sides[1].max(axis=1)[None])
    moved = np.linalg.norm(centres[0][:, None] - centres[1][None], axis=2) / longer
    resized = np.abs(np.log(sides[0][:, None] / sides[1][None])).max(axis=2)
    cost = np.where(resized > np.log(_MOST_RESIZED), np.inf, moved)
    pairs = []
    while (best := np.unravel_index(np.argmin(cost), cost.shape)) and cost[best] <= _MOST_MOVED:
        pairs.append((int(best[0]), int(best[1])))
        cost[best[0]], cost[:, best[1]] = np.inf, np.inf
    return pairs


def with_missed(before: Boxes, boxes: Boxes, after: Boxes) -> Boxes:
    """Returns a sample's boxes, and the boxes that both neighbouring samples have in one place."""
    added = [
        (before[i, :4] + after[j, :4]) / 2
        for i, j in linked(before, after)
        if not linked(np.float32(0.5) * (before[i : i + 1, :4] + after[j : j + 1, :4]), boxes)
    ]
    return np.concatenate([boxes[:, :4], np.array(added, np.float32).reshape(-1, 4)])


def with_blur(frame_HW3: Frame, boxes: Sequence[NDArray[np.float32]], margin: float) -> Frame:  # noqa: N803
    """Returns a copy of a frame with enlarged boxes blurred so that some colours are left."""
    height, width = frame_HW3.shape[:2]
    made = frame_HW3.copy()
    for left, top, right, bottom in boxes:
        wide, high = (right - left) * margin, (bottom - top) * margin
        columns, rows = (
            slice(max(0, int((begin - more) * side)), max(0, int(np.ceil((end + more) * side))))
            for begin, end, more, side in ((left, right, wide, width), (top, bottom, high, height))
        )
        part = made[rows, columns]
        if part.size == 0:
            continue
        ratio = _CELLS / min(part.shape[:2])
        scale = min(1.0, ratio)
        small = cv2.resize(part, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        size = part.shape[1], part.shape[0]
        made[rows, columns] = cv2.resize(small, size, interpolation=cv2.INTER_LINEAR)
    return made

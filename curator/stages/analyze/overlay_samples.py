"""Looks for what is drawn over the picture, on a sparse part of the sampling grid."""

# ruff: noqa: N803 - shape letters

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from curator.measures.drawn_marks import EDGE_BYTES, LINE_COLUMNS
from curator.measures.look_maps import LINE_BYTES, MOVED_BYTES
from curator.measures.overlay_text import TEXT_COLUMNS, may_have_text, place_values, slides
from curator.models.text_detector import BOX_COLUMNS, TextDetector, lines_of

if TYPE_CHECKING:
    from curator.stages.analyze.device_samples import DeviceView
    from curator.stages.analyze.frame_views import HostView

    View: TypeAlias = HostView | DeviceView


@dataclass(slots=True)
class _Look:
    index: int
    gray: NDArray[np.uint8] | None
    boxes: NDArray[np.float32]
    edges: NDArray[np.uint8] | None = None
    lines: NDArray[np.float32] | None = None
    next_index: int = -1
    places: NDArray[np.float32] | None = None
    slides: NDArray[np.float32] | None = None
    standing: NDArray[np.uint8] | None = None
    moved: NDArray[np.uint8] | None = None


class LookGrid:
    """Says which steps of the sampling grid, given in order, are looked at.

    Args:
        every: One look for so many steps.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._block: int | None = None

    def is_due(self, step: int) -> bool:
        """Whether there is a look at the next sample."""
        block, is_first = step // self._every, self._block is None
        # A segment may begin within a step, which its neighbour has looked at.
        is_due = step % self._every == 0 if is_first else block != self._block
        self._block = block
        return is_due


class OverlaySamples:
    """What the looks at one source, or at a segment of it, have found.

    Args:
        every: One look for so many steps of the sampling grid.
        with_overlays: Whether logos and divided screens are looked for.
        detector: Text detector of this worker; None leaves text out.
    """

    def __init__(self, *, every: int, with_overlays: bool, detector: TextDetector | None) -> None:
        self._grid = LookGrid(every)
        self._with_overlays = with_overlays
        self._detector = detector
        self._looks: list[_Look] = []
        self._is_open = False
        self.cpu_s = 0.0

    def sample(self, step: int, index: int, view: "View") -> None:
        """Takes the next sample: completes the look before it, and looks if it is time.

        Args:
            step: Step of the sampling grid.
            index: Number of the frame.
            view: What is seen of it.
        """
        begun_s = time.thread_time()
        if self._is_open:
            self._close(index, view)
        if self._grid.is_due(step):
            look = _Look(index=index, gray=view.gray, boxes=self._boxes(view))
            if self._with_overlays:
                look.edges, look.lines = view.look_maps()
            self._looks.append(look)
            self._is_open = True
        self.cpu_s += time.thread_time() - begun_s

    def wants_pair(self, index: int) -> bool:
        """Whether text of a sample is compared with the frame that its motion is measured to."""
        return self._is_open and self._looks[-1].index == index and len(self._looks[-1].boxes) > 0

    def pair(
        self,
        before_HW: NDArray[np.uint8],
        after_HW: NDArray[np.uint8],
        flow_HW2: NDArray[np.float32] | None,
        seconds: float,
    ) -> None:
        """Takes the uint8 luma of a sample that `wants_pair`, and of the frame after it.

        `flow_HW2` is the dense flow between them, None if they are too small.
        """
        begun_s = time.thread_time()
        look = self._looks[-1]
        look.slides = slides(before_HW, after_HW, flow_HW2, look.boxes, seconds)
        self.cpu_s += time.thread_time() - begun_s

    def columns(self) -> dict[str, Any]:
        """The columns of a `Track` that begin with `look_`, and those that begin with `text_`."""
        return (self._overlay_columns() if self._with_overlays else {}) | (
            self._text_columns() if self._detector is not None else {}
        )

    def _overlay_columns(self) -> dict[str, Any]:
        looks = self._looks
        return {
            "look_frame": np.array([look.index for look in looks], np.int32),
            "look_next_frame": np.array([look.next_index for look in looks], np.int32),
            "look_edges": np.array([look.edges for look in looks], np.uint8).reshape(
                -1, EDGE_BYTES
            ),
            "look_lines": np.array([look.lines for look in looks], np.float32).reshape(
                -1, len(LINE_COLUMNS)
            ),
            "look_standing": _packed([look.standing for look in looks], LINE_BYTES),
            "look_moved": _packed([look.moved for look in looks], MOVED_BYTES),
        }

    def _text_columns(self) -> dict[str, Any]:
        lines = [_lines(look) for look in self._looks]
        indices = np.array([look.index for look in self._looks], np.int32)
        return {
            "text_frame": np.repeat(indices, [len(rows) for rows in lines]),
            "text_line": np.concatenate(
                [np.zeros((0, len(TEXT_COLUMNS)), np.float32), *lines], dtype=np.float32
            ),
            "has_text": True,
        }

    def _boxes(self, view: "View") -> NDArray[np.float32]:
        if self._detector is not None and view.text_map is not None:
            boxes = lines_of(view.text_map)
            # After the lines: of a map without any it takes longer than they do.
            if len(boxes) and may_have_text(view.gray):
                return boxes
        elif self._detector is not None and may_have_text(view.gray):
            return self._detector.boxes(view.picture)
        return np.zeros((0, len(BOX_COLUMNS)), np.float32)

    def _close(self, index: int, view: "View") -> None:
        look = self._looks[-1]
        assert look.gray is not None
        look.next_index = index
        look.places = place_values(look.gray, view.gray, look.boxes)
        if self._with_overlays:
            look.standing, look.moved = view.maps_since(look.gray)
        look.gray = None
        self._is_open = False


def _packed(maps: list[NDArray[np.uint8] | None], n_bytes: int) -> NDArray[np.uint8]:
    """Maps of looks, uint8 [T, n_bytes]; zeros for a look without a next sample."""
    packed = np.zeros((len(maps), n_bytes), np.uint8)
    for row, look_map in zip(packed, maps, strict=True):
        if look_map is not None:
            row[:] = look_map
    return packed


def _lines(look: _Look) -> NDArray[np.float32]:
    """A look's lines of text, float32 [n, 9]: the columns of `TEXT_COLUMNS`."""
    unknown = np.full((len(look.boxes), 1), np.nan, np.float32)
    places = np.hstack([unknown, unknown]) if look.places is None else look.places
    slid = unknown if look.slides is None else look.slides[:, None]
    return np.hstack([look.boxes, places, slid])

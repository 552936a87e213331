"""Looks for text, logos and other marks drawn over the picture, in some of the samples."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from curator.measures.drawn_boxes import ALL_VALUES
from curator.measures.drawn_marks import EDGE_BYTES
from curator.measures.look_maps import LINE_BYTES, MOVED_BYTES
from curator.measures.overlay_text import TEXT_COLUMNS, may_have_text, place_values, slides
from curator.models.text_detector import BOX_COLUMNS, TextDetector, lines_of
from curator.stages.analyze.sampling_grid import LookGrid

if TYPE_CHECKING:
    from curator.stages.analyze.device_samples import DeviceView
    from curator.stages.analyze.frame_views import HostView

    View: TypeAlias = HostView | DeviceView

_MAPS: dict[str, tuple[int, type[np.generic]]] = {
    "edges": (EDGE_BYTES, np.uint8),
    "boxes": (ALL_VALUES, np.uint16),
    "standing": (LINE_BYTES, np.uint8),
    "moved": (MOVED_BYTES, np.uint8),
}
"""Size and type of each map of a look; a missing map is stored as zeros."""


@dataclass(slots=True)
class _OverlaySample:
    index: int
    gray: NDArray[np.uint8] | None  # luma, until the next sample
    boxes: NDArray[np.float32]
    places: NDArray[np.float32]  # `stay`, `around` and `slide` of each box, NaN until measured
    maps: dict[str, NDArray[Any]]
    next_index: int = -1


class OverlaySamples:
    """The looks of one source or segment, and the marks that they found.

    Each block of `every` steps of the sampling grid has one look. With `with_overlays`, looks have
    maps for logos, drawn boxes and divided screens. With a detector, looks have lines of text.
    """

    def __init__(self, *, every: int, with_overlays: bool, detector: TextDetector | None) -> None:
        self._grid = LookGrid(every)
        self._with_overlays = with_overlays
        self._detector = detector
        self._looks: list[_OverlaySample] = []
        self.cpu_s = 0.0

    @property
    def _open(self) -> _OverlaySample | None:
        """The last look, if it waits for the next sample."""
        last = self._looks[-1] if self._looks else None
        return last if last is not None and last.gray is not None else None

    def sample(self, step: int, index: int, view: "View") -> None:
        """Takes the next sample: completes the look before it, and begins a look if one is due."""
        begun_s = time.thread_time()
        look = self._open
        if look is not None and look.gray is not None:
            look.next_index = index
            look.places[:, :2] = place_values(look.gray, view.gray, look.boxes)
            if self._with_overlays:
                look.maps["standing"], look.maps["moved"] = view.maps_since(look.gray)
            look.gray = None
        if self._grid.is_due(step):
            boxes = self._boxes(view)
            maps: dict[str, NDArray[Any]] = {}
            if self._with_overlays:
                maps["edges"], maps["boxes"] = view.look_maps()
            places = np.full((len(boxes), 3), np.nan, np.float32)
            self._looks.append(_OverlaySample(index, view.gray, boxes, places, maps))
        self.cpu_s += time.thread_time() - begun_s

    def wants_pair(self, index: int) -> bool:
        """Returns whether `pair` must get this sample, because its look has text."""
        look = self._open
        return look is not None and look.index == index and len(look.boxes) > 0

    def pair(
        self,
        before_HW: NDArray[np.uint8],
        after_HW: NDArray[np.uint8],
        flow_HW2: NDArray[np.float32] | None,
        seconds: float,
    ) -> None:
        """Measures how text slides, from the uint8 luma of a sample and of the frame of its motion.

        `flow_HW2` is the dense flow between them; None if the pictures are too small.
        """
        begun_s = time.thread_time()
        look = self._looks[-1]
        look.places[:, 2] = slides(before_HW, after_HW, flow_HW2, look.boxes, seconds)
        self.cpu_s += time.thread_time() - begun_s

    def columns(self) -> dict[str, Any]:
        """Returns the columns of a `Track` that begin with `look_` or `text_`, and `has_text`."""
        looks = self._looks
        frames = np.array([look.index for look in looks], np.int32)
        columns: dict[str, Any] = {}
        if self._with_overlays:
            following = np.array([look.next_index for look in looks], np.int32)
            columns |= {"look_frame": frames, "look_next_frame": following}
            for name, (size, kind) in _MAPS.items():
                rows = np.zeros((len(looks), size), kind)
                for row, look in zip(rows, looks, strict=True):
                    row[:] = look.maps.get(name, 0)
                columns[f"look_{name}"] = rows
        if self._detector is not None:
            lines = [np.hstack([look.boxes, look.places]) for look in looks]
            none = np.zeros((0, len(TEXT_COLUMNS)), np.float32)
            columns |= {
                "text_frame": np.repeat(frames, [len(rows) for rows in lines]),
                "text_line": np.concatenate([none, *lines], dtype=np.float32),
                "has_text": True,
            }
        return columns

    def _boxes(self, view: "View") -> NDArray[np.float32]:
        if self._detector is not None and view.text_map is not None:
            boxes = lines_of(view.text_map)
            # After `lines_of`, which is quicker than `may_have_text` for a map without text.
            if len(boxes) and may_have_text(view.gray):
                return boxes
        elif self._detector is not None and may_have_text(view.gray):
            return self._detector.boxes(view.picture)
        return np.zeros((0, len(BOX_COLUMNS)), np.float32)

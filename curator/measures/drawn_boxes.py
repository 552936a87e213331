"""Detects boxes drawn around things, as detectors and trackers draw them over their input.

A drawn box is an upright rectangle of thin lines in one saturated colour. Windows, doors and
screens have such sides too, but seldom in one pure colour on all four sides, and they stay in
place. So boxes that keep their place through a clip, such as the displays of games, do not count.

Shape letters: T overlay samples, N boxes, A pieces along a line, P places across lines.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import OF_TIME, ScoreSpec
from curator.media.opencv import cv2

MAX_BOXES = 8
BOX_VALUES = 6
"""x0, y0, x1, y1 as shares of 65535, then Cr and Cb of the lines."""
ALL_VALUES = MAX_BOXES * BOX_VALUES
_OFFSET_PX = 4  # distance from a line to the pixels that it must differ from
_FROM_GREY = 8  # smallest difference of chroma from grey of the sides of a line, in levels
_RIDGE = 14  # smallest excess of a line's chroma over both sides and over `_FROM_GREY`
_PIECE_PX = 8  # length of a piece of a line
_FILLED = 0.75  # smallest share of a piece's pixels on the line
_GAP = 2  # largest gap in a line, in pieces, as another line or a label makes
_MIN_PIECES = 2
_CORNER_PX = 5  # largest distance of two sides' ends
_COVER = 0.8  # smallest share of three sides on their lines
_LEAST_COVER = 0.4  # and of the fourth side, which a label may hide
_SATURATED = 28.0  # smallest distance of the line's chroma from grey, in levels
_UNIFORM = 10.0  # largest median deviation of chroma along a line, in levels
_MOST_LINES = 48  # lines of one kind that are paired, the longest first
_MIN_AREA = 0.005  # smallest box, as a share of the picture; toys and signs have small squares
_BORDER_PX = 8  # largest distance to the picture's border of a box that continues beyond it
_NEIGHBOURS = 3  # overlay samples before and after that are compared with a sample
_SAME_PLACE = 0.003
"""Largest sum of the motions of a box's four sides if it keeps its place, as shares. Detectors move
their boxes by a pixel or two even if nothing moves."""
_SAME_SIDE = 0.005  # largest distance of a side that two boxes share, as a share of the picture
_MIN_LOOKS = 2

Plane = NDArray[np.uint8]
Line = tuple[int, int, int]  # place across, begin and end along, in px
Rectangle = tuple[float, float, float, float]  # x0, y0, x1, y1 in px


def drawn_boxes(rgb_HWC: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Returns the boxes of saturated lines in a picture, the largest first: [`ALL_VALUES`].

    Rows of `BOX_VALUES`, zeros after the last box. The picture is uint8 RGB [H, W, 3].
    """
    found: list[tuple[float, ...]] = []
    height, width = rgb_HWC.shape[:2]
    if min(height, width) > 4 * _OFFSET_PX:
        planes = cv2.split(cv2.cvtColor(rgb_HWC, cv2.COLOR_RGB2YCrCb))[1:]
        chroma = [np.asarray(plane, np.uint8) for plane in planes]
        for plane in chroma:
            for is_above in (True, False):
                for box in _rectangles(plane, is_above=is_above):
                    colour = _colour(chroma, box)
                    if colour is not None and not _is_known(found, box):
                        found.append((*box, *colour))
    rows = np.zeros((MAX_BOXES, BOX_VALUES), np.uint16)
    found.sort(key=lambda box: (box[0] - box[2]) * (box[3] - box[1]))
    for row, kept in zip(rows, found, strict=False):
        shares = np.array(kept[:4]) * 65535 / [width, height, width, height]
        row[:] = [*np.rint(shares.clip(0, 65535)), *kept[4:]]
    return rows.ravel()


def _rectangles(plane: Plane, *, is_above: bool) -> Iterator[Rectangle]:
    """Yields rectangles of lines above or below grey in a plane of chroma, with repeats."""
    flat = _ridge(plane, is_upright=False, is_above=is_above)
    across = _lines(flat, is_upright=False)
    if not across:
        return
    upright = _ridge(plane, is_upright=True, is_above=is_above)
    down = _lines(upright, is_upright=True)
    if not down:
        return
    for x0, x1, y0, y1 in _pairs(down):
        if box := _checked(flat, upright, (x0, y0, x1, y1)):
            yield box
    for y0, y1, x0, x1 in _pairs(across):
        if box := _checked(flat, upright, (x0, y0, x1, y1)):
            yield box


def _ridge(plane: Plane, *, is_upright: bool, is_above: bool) -> Plane:
    """Returns the pixels on thin saturated lines, 0 or 255, without a margin across the lines.

    The lines are above (or below) grey, and above (or below) both of their sides.
    """
    d = 2 * _OFFSET_PX
    if is_upright:
        middle, *sides = plane[:, _OFFSET_PX:-_OFFSET_PX], plane[:, :-d], plane[:, d:]
    else:
        middle, *sides = plane[_OFFSET_PX:-_OFFSET_PX], plane[:-d], plane[d:]
    if is_above:
        excess = cv2.subtract(middle, cv2.max(cv2.max(*sides), 128 + _FROM_GREY))  # type: ignore[call-overload]
    else:
        excess = cv2.subtract(cv2.min(cv2.min(*sides), 128 - _FROM_GREY), middle)  # type: ignore[call-overload]
    return np.asarray(cv2.threshold(excess, _RIDGE - 1, 255, cv2.THRESH_BINARY)[1], np.uint8)


def _lines(ridge: Plane, *, is_upright: bool) -> list[Line]:
    """Returns the lines of a ridge, the longest first."""
    if cv2.countNonZero(ridge) < _MIN_PIECES * _FILLED * _PIECE_PX:
        # Most ridges of pictures without drawn boxes: too few pixels for a line.
        return []
    along = ridge.shape[0 if is_upright else 1] // _PIECE_PX
    if is_upright:
        whole = ridge[: along * _PIECE_PX]
        pieces = cv2.resize(whole, (ridge.shape[1], along), interpolation=cv2.INTER_AREA).T
        ridge = ridge.T
    else:
        whole = ridge[:, : along * _PIECE_PX]
        pieces = cv2.resize(whole, (along, len(ridge)), interpolation=cv2.INTER_AREA)
    filled = np.asarray(pieces) >= 255 * _FILLED
    if np.count_nonzero(filled) < _MIN_PIECES:
        return []
    rows = np.flatnonzero(filled.any(1))
    kernel = np.ones((1, _GAP + 1), np.uint8)
    closed = cv2.morphologyEx(filled[rows].view(np.uint8), cv2.MORPH_CLOSE, kernel)
    steps = np.diff(np.pad(closed, ((0, 0), (1, 1))).view(np.int8), axis=1)
    at, begins = np.nonzero(steps > 0)
    ends = np.nonzero(steps < 0)[1]
    longest = np.argsort(begins - ends, kind="stable")[: 4 * _MOST_LINES]
    lines: list[Line] = []
    for number in longest[(ends - begins)[longest] >= _MIN_PIECES].tolist():
        row = int(rows[at[number]])
        begin, end = int(begins[number]) * _PIECE_PX, int(ends[number]) * _PIECE_PX
        # A shorter line in adjacent rows is the same line.
        slack = 2 * _PIECE_PX
        if not any(
            abs(row - other) <= 3 and begin >= lo - slack and end <= hi + slack
            for other, lo, hi in lines
        ):
            lines.append((row, *_ends(ridge[row], begin, end)))
            if len(lines) == _MOST_LINES:
                break
    return [(row + _OFFSET_PX, begin, end) for row, begin, end in lines]


def _ends(row: Plane, begin: int, end: int) -> tuple[int, int]:
    """Returns begin and end of a line in px; its ends are in pieces that are not filled."""
    before = row[max(0, begin - _PIECE_PX) : begin].tolist()
    behind = row[end : end + _PIECE_PX].tolist()
    while before and before.pop():
        begin -= 1
    while behind and behind.pop(0):
        end += 1
    return begin, end


def _pairs(lines: list[Line]) -> Iterator[tuple[int, int, int, int]]:
    """Yields the places of two lines that begin and end together, and their begin and end."""
    for number, (place, begin, end) in enumerate(lines):
        for other, lo, hi in lines[number + 1 :]:
            together = abs(begin - lo) <= 2 * _CORNER_PX and abs(end - hi) <= 2 * _CORNER_PX
            if together and abs(place - other) >= 2 * _PIECE_PX:
                yield min(place, other), max(place, other), (begin + lo) // 2, (end + hi) // 2


def _checked(flat: Plane, upright: Plane, box: Rectangle) -> Rectangle | None:
    """Returns a rectangle whose sides are lines, with its sides moved onto them; None if not.

    The label of a box hides a part of one side, mostly of the top.
    """
    x0, y0, x1, y1 = (int(place) for place in box)
    sides = [
        _side(flat, y0, x0, x1), _side(flat, y1, x0, x1),
        _side(upright.T, x0, y0, y1), _side(upright.T, x1, y0, y1),
    ]  # fmt: skip
    height, width = upright.shape[0], flat.shape[1]
    beyond = y0 < _BORDER_PX, y1 > height - _BORDER_PX, x0 < _BORDER_PX, x1 > width - _BORDER_PX
    if sum(beyond) > 1 or (x1 - x0) * (y1 - y0) < _MIN_AREA * width * height:
        return None
    covers = sorted(1.0 if far else cover for far, (cover, _) in zip(beyond, sides, strict=True))
    if covers[0] < _LEAST_COVER or covers[1] < _COVER:
        return None
    left, right = (
        at if far else place
        for far, at, (_, place) in zip(beyond[2:], (x0, x1), sides[2:], strict=True)
    )
    (top, bottom) = (
        at if far else place for far, at, (_, place) in zip(beyond, (y0, y1), sides, strict=False)
    )
    return left, top, right, bottom


def _side(ridge: Plane, at: int, begin: int, end: int) -> tuple[float, float]:
    """Returns the largest share of a side on a line close to a place, and the line's place."""
    first = max(0, at - _OFFSET_PX - _CORNER_PX)
    part = ridge[first : at - _OFFSET_PX + _CORNER_PX + 1, begin + 2 : end - 1]
    if len(part) < 2 or not part.size:
        return 0.0, float(at)
    # A blurred line may be in one of two rows.
    shares = np.maximum(part[:-1], part[1:]).mean(1) / 255
    # The centre of the line, between pixels, so that what keeps its place is known to do so.
    rows = part.mean(1)
    rows[rows < rows.max() / 4] = 0
    centre = float((rows * np.arange(len(rows))).sum() / max(rows.sum(), 1e-6))
    return float(shares.max()), first + centre + _OFFSET_PX


def _colour(chroma: Sequence[Plane], box: Rectangle) -> tuple[int, int] | None:
    """Returns Cr and Cb of a box's lines; None if they are grey, or differ along the lines."""
    x0, y0, x1, y1 = (round(place) for place in box)
    height, width = chroma[0].shape
    lines = [
        line
        for line, place, end in (
            (np.s_[y0, x0:x1], y0, height), (np.s_[y1, x0:x1], y1, height),
            (np.s_[y0:y1, x0], x0, width), (np.s_[y0:y1, x1], x1, width),
        )
        if _BORDER_PX <= place <= end - _BORDER_PX
    ]  # fmt: skip
    middles_L2 = np.zeros((len(lines), 2))
    for number, line in enumerate(lines):
        for index, plane in enumerate(chroma):
            values = plane[line].astype(np.float32)
            middles_L2[number, index] = middle = np.median(values)
            if np.median(np.abs(values - middle)) > _UNIFORM:
                return None
    # A line of an odd width, or at an odd place, loses chroma: its scale differs, not its hue.
    middle = middles_L2.mean(0)
    if np.hypot(*(middle - 128)) < _SATURATED:
        return None
    return int(middle[0]), int(middle[1])


def _is_known(found: list[tuple[float, ...]], box: Rectangle) -> bool:
    return any(max(abs(a - b) for a, b in zip(box, other, strict=False)) <= 8 for other in found)


def boxes_of(packed_TB: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Returns the boxes of overlay samples, uint16 [T, `MAX_BOXES`, `BOX_VALUES`]."""
    return packed_TB.reshape(-1, MAX_BOXES, BOX_VALUES)


def _drawn_boxes(clip: ClipView) -> float | None:
    looks = np.flatnonzero(clip.holds(clip.track.look_frame))
    if len(looks) < _MIN_LOOKS:
        return None
    boxes_TNV = boxes_of(clip.track.look_boxes[looks]).astype(int)
    exists_TN = np.asarray(boxes_TNV.any(2), bool)
    moves_TN = exists_TN & ~_stays(boxes_TNV[..., :4], exists_TN)
    moves_TN &= ~_repeats(boxes_TNV[..., :4], exists_TN)
    return float(moves_TN.any(1).mean())


def _stays(places_TN4: NDArray[np.int_], exists_TN: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns boxes that an overlay sample close by has in the same place, bool [T, N]."""
    stays = np.zeros_like(exists_TN)
    for step in range(1, min(_NEIGHBOURS, len(places_TN4) - 1) + 1):
        apart = np.abs(places_TN4[:-step, :, None] - places_TN4[step:, None]).sum(3)
        same = (apart <= 65535 * _SAME_PLACE) & exists_TN[:-step, :, None]
        same &= exists_TN[step:, None]
        stays[:-step] |= same.any(2)
        stays[step:] |= same.any(1)
    return stays


def _repeats(places_TN4: NDArray[np.int_], exists_TN: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns boxes that share two sides with another box of the picture, bool [T, N].

    Tiles and windows do, or parts of them; detections do not.
    """
    apart = np.abs(places_TN4[:, :, None] - places_TN4[:, None])
    same = ((apart <= 65535 * _SAME_SIDE).sum(3) >= 2) & exists_TN[:, :, None]
    same &= exists_TN[:, None]
    same[:, np.arange(MAX_BOXES), np.arange(MAX_BOXES)] = False
    return np.asarray(same.any(2), bool)


SCORES = {
    "drawn_boxes": ScoreSpec(
        unit="0 to 1",
        range="0 without to 1 throughout; null with fewer than 2 overlay samples",
        meaning="share of overlay samples with boxes that were drawn around things, as detectors "
        "draw them: upright rectangles of thin saturated lines that do not keep their place",
        outside="drawn_boxes",
        of=_drawn_boxes,
        media=OF_TIME,
    )
}

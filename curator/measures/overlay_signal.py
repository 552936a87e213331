"""What one look at a picture says of things drawn over it: text, logos, divided screens.

A look is a sample and the sample after it. What is drawn over a picture keeps its place between the
two while the picture moves, or moves while the picture stays. Where nothing moves, one look cannot
tell; `stages.scores.overlay` then compares the looks of a clip and of its source.
"""

# ruff: noqa: N803 - shape letters

import cv2
import numpy as np
from numpy.typing import NDArray

BOX_COLUMNS = ("x0", "y0", "x1", "y1", "confidence", "area")
"""What is known of a line: its upright box as shares of width and height, how surely it is text (0
to 1), and its own area, which is less than the box's where the line is tilted, as a share of the
picture."""

TEXT_COLUMNS = (*BOX_COLUMNS, "stay", "around", "slide")
"""What is known of a line of text: `BOX_COLUMNS`, then

stay: how much of it is in the same place on the next sample, as the correlation of gradients, 1 for
    all; NaN without a next sample.
around: the same of the strong edges about it, or where there are none, of those of the whole
    picture outside text; NaN where these are few as well.
slide: how fast its content moves sideways against what surrounds it, in picture widths per second,
    to the right above 0; NaN where its content cannot be followed.
"""

EDGE_SIDE = 72
"""Cells of an edge map each way: 8.9 by 5 px of a 640 by 360 picture."""
EDGE_BYTES = 2 * EDGE_SIDE * EDGE_SIDE // 8

LINE_COLUMNS = ("x", "x_cover", "y", "y_cover")
"""The straightest line down the picture and across it: where, as a share of width or height, and
how much of the way it goes, 0 to 1."""

_EDGE_MARGIN = 0.15
"""Share of the picture at each end where no line divides it: bars and tickers have edges there."""
_EDGE = 2.0
"""Mean gradient of a cell, in levels per px, below which there is no edge but grain."""
_STRONG = 5.0
"""Gradient, in levels per px, from which a pixel shows whether its place moves: grain has less."""
_MIN_PIXELS = 64
_RING = 1.5
"""Width of the surrounding of a line, in heights of the line."""


def place_values(
    gray_HW: NDArray[np.uint8], later_HW: NDArray[np.uint8], boxes_B: NDArray[np.float32]
) -> NDArray[np.float32]:
    """How much of each box, and of its surrounding, is in the same place on a later picture.

    Args:
        gray_HW: uint8 luma of the look.
        later_HW: uint8 luma of the next sample, of the same size.
        boxes_B: float32 [B, 4 or more]: x0, y0, x1, y1 as shares of width and height.

    Returns:
        float32 [B, 2]: `stay` and `around` of `TEXT_COLUMNS`.
    """
    values = np.full((len(boxes_B), 2), np.nan, np.float32)
    if not len(boxes_B):
        return values
    height, width = gray_HW.shape
    before, after = _gradients(gray_HW), _gradients(later_HW)
    products = np.stack([(before * after).sum(0), (before * before).sum(0), (after * after).sum(0)])
    strong = np.sqrt(products[1]) + np.sqrt(products[2]) >= 2 * _STRONG
    pixels = [_pixels(box, width, height) for box in boxes_B]
    for x0, y0, x1, y1 in pixels:
        strong[y0:y1, x0:x1] = False
    whole = float("nan")
    if strong.sum() >= 4 * _MIN_PIXELS:
        whole = _correlation(products[:, strong])
    for index, (x0, y0, x1, y1) in enumerate(pixels):
        values[index, 0] = _correlation(products[:, y0:y1, x0:x1].reshape(3, -1))
        ring = max(4, round(_RING * min(x1 - x0, y1 - y0)))
        around = np.s_[max(0, y0 - ring) : y1 + ring, max(0, x0 - ring) : x1 + ring]
        free = strong[around]
        enough = free.sum() >= _MIN_PIXELS
        values[index, 1] = _correlation(products[:, *around][:, free]) if enough else whole
    return values


def slides(
    before_HW: NDArray[np.uint8],
    after_HW: NDArray[np.uint8],
    flow_HW2: NDArray[np.float32] | None,
    boxes_B: NDArray[np.float32],
    seconds: float,
) -> NDArray[np.float32]:
    """How fast the content of each box moves sideways against its surrounding.

    Args:
        before_HW: uint8 luma.
        after_HW: The later picture, of the same size.
        flow_HW2: Dense flow between them, in pixels; None if they are too small.
        boxes_B: See `place_values`.
        seconds: Time between them.

    Returns:
        float32 [B]: `slide` of `TEXT_COLUMNS`.
    """
    values = np.full(len(boxes_B), np.nan, np.float32)
    if flow_HW2 is None:
        return values
    height, width = before_HW.shape
    reach = max(4, width // 12)
    for index, box in enumerate(boxes_B):
        x0, y0, x1, y1 = _pixels(box, width, height)
        # What enters and leaves at the ends has nothing to be compared with.
        left, right = max(x0, reach), min(x1, width - reach)
        if right - left < 2 * (y1 - y0) or y1 - y0 < 4 or right - left < 12:
            continue
        part = before_HW[y0:y1, left:right]
        if float(part.std()) < 4:
            continue
        band = after_HW[y0:y1, left - reach : right + reach]
        match = cv2.matchTemplate(band, part, cv2.TM_CCOEFF_NORMED)[0]
        best = int(match.argmax())
        if match[best] < 0.7:
            continue
        ring = max(3, y1 - y0)
        above = flow_HW2[max(0, y0 - ring) : y0, x0:x1, 0]
        below = flow_HW2[y1 : y1 + ring, x0:x1, 0]
        around = np.concatenate([above.ravel(), below.ravel()])
        moved = best - reach - (float(np.median(around)) if len(around) else 0.0)
        values[index] = moved / width / seconds
    return values


def edge_map(gray_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Where a picture has strong edges, packed bits: uint8 [`EDGE_BYTES`].

    The first half says for each of `EDGE_SIDE` by `EDGE_SIDE` cells, row by row, whether luma
    changes strongly from left to right; the second half, from top to bottom.

    Args:
        gray_HW: uint8 luma.
    """
    planes = []
    for dx, dy in ((1, 0), (0, 1)):
        gradient = cv2.Sobel(gray_HW, cv2.CV_32F, dx, dy, ksize=3, scale=1 / 8)
        # By rows first: one whole-number step is several times faster than both at once.
        rows = cv2.resize(
            cv2.absdiff(gradient, np.zeros(1)),
            (gray_HW.shape[1], EDGE_SIDE),
            interpolation=cv2.INTER_AREA,
        )
        cells = cv2.resize(rows, (EDGE_SIDE, EDGE_SIDE), interpolation=cv2.INTER_AREA)
        planes.append(cells > max(_EDGE, 1.25 * float(cells.mean())))
    return np.packbits(np.stack(planes))


def edges_of(packed_TB: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Edge maps of some looks, bool [T, 2, `EDGE_SIDE`, `EDGE_SIDE`].

    Args:
        packed_TB: uint8 [T, `EDGE_BYTES`].
    """
    return np.unpackbits(packed_TB, axis=1).reshape(-1, 2, EDGE_SIDE, EDGE_SIDE).astype(bool)


def straight_lines(gray_HW: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The straightest line down a picture and the one across it, float32 [4]: `LINE_COLUMNS`.

    Args:
        gray_HW: uint8 luma.
    """
    return np.array(
        [*_straightest(gray_HW), *_straightest(np.ascontiguousarray(gray_HW.T))], np.float32
    )


def may_have_text(gray_HW: NDArray[np.uint8]) -> bool:
    """Whether a picture has strokes side by side, as any line of text has.

    A line has many strong changes from left to right within a band of its own height. Costs a
    fortieth of the detector.

    Args:
        gray_HW: uint8 luma; the longer side is 640 px or the source's own.
    """
    return stroke_share(gray_HW) > 0


def stroke_share(gray_HW: NDArray[np.uint8]) -> float:
    """Share of a picture with strokes side by side.

    Args:
        gray_HW: See `may_have_text`.
    """
    strokes = cv2.morphologyEx(gray_HW, cv2.MORPH_GRADIENT, np.ones((1, 3), np.uint8))
    strong = (strokes > 32).astype(np.uint8) * 255
    scale = max(gray_HW.shape) / 640
    dense = cv2.blur(strong, (max(5, round(33 * scale)), max(3, round(7 * scale)))) > 72
    return float(dense.mean())


def _straightest(gray_HW: NDArray[np.uint8]) -> tuple[float, float]:
    height, width = gray_HW.shape
    margin = max(8, round(_EDGE_MARGIN * width))
    if width < 3 * margin or height < 16:
        return 0.0, 0.0
    sharp = cv2.threshold(cv2.absdiff(gray_HW[:, 2:], gray_HW[:, :-2]), 12, 1, cv2.THRESH_BINARY)[1]
    cover = cv2.reduce(sharp, 0, cv2.REDUCE_AVG, dtype=cv2.CV_64F)[0]
    inner = cover[margin:-margin]
    x = int(inner.argmax()) + margin
    # A line stands out of what lies beside it; in texture all columns have edges.
    beside = np.concatenate([cover[max(0, x - 8) : max(0, x - 3)], cover[x + 4 : x + 9]])
    excess = float(cover[x] - beside.mean())
    sides = (gray_HW[:, : x - 2], gray_HW[:, x + 5 :])
    if min(float(cv2.meanStdDev(side)[1][0, 0]) for side in sides) < 6:
        return x / width, 0.0
    return (x + 1.5) / width, max(0.0, min(float(cover[x]), 2 * excess))


def _gradients(gray_HW: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Change per pixel from left to right and from top to bottom, float32 [2, H, W]."""
    return np.stack(
        [
            cv2.Sobel(gray_HW, cv2.CV_32F, dx, dy, ksize=3, scale=1 / 8)
            for dx, dy in ((1, 0), (0, 1))
        ]
    )


def _correlation(products_3N: NDArray[np.float32]) -> float:
    cross, before, after = products_3N.sum(1, dtype=np.float64)
    return float(cross / np.sqrt(before * after)) if before * after > 0 else float("nan")


def _pixels(box: NDArray[np.float32], width: int, height: int) -> tuple[int, int, int, int]:
    x0, y0 = int(box[0] * width), int(box[1] * height)
    x1, y1 = int(np.ceil(box[2] * width)), int(np.ceil(box[3] * height))
    return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)

"""Measures text in the picture, and overlays: text that is drawn over the picture.

Overlays are detected in some samples only, the overlay samples. A look compares an overlay sample
with the sample after it. A line of text counts as an overlay if it has one of five kinds of
evidence. Each kind needs a change in the picture:

- The line keeps its place although its surroundings move, or although there is a cut.
- The line scrolls within a band of text, and the band keeps its place.
- The scene stays, and other text replaces the line in the same rows.
- The scene stays, and the line appears or disappears.
- A different scene of the source, close in time, has a line in the same place or of the same style.

Text that moves with its surroundings belongs to the scene. If nothing changes, a sign in front
of a static camera looks the same as a caption. Such a line counts as an overlay only in
the usual places of overlays: in the middle of the bottom, or close to a corner.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.measures.clip_view import ClipView
from curator.measures.measure_contract import ScoreSpec
from curator.media.opencv import cv2
from curator.models.text_detector import BOX_COLUMNS

Gray = NDArray[np.uint8]
Floats = NDArray[np.float32]
Frames = NDArray[np.int32]
Mask = NDArray[np.bool_]
TEXT_COLUMNS = (*BOX_COLUMNS, "stay", "around", "slide")
"""Columns of a line of text: `BOX_COLUMNS`, then

stay: correlation of the line's gradients with the same place on the next sample: 1 if the whole
    line stays; NaN without a next sample.
around: correlation of the strong edges in a ring around the line with the same place on the next
    sample. If the ring has too few strong edges, all strong edges outside text count instead. NaN
    if these are too few as well, or if there is no next sample.
slide: speed of the line's content sideways, relative to its surroundings, in picture widths per
    second; positive to the right. NaN if the content cannot be followed.
"""
_STRONG = 5.0  # least gradient, in levels per px, of a strong edge; grain is weaker
_MIN_PIXELS = 64
_RING = 1.5  # width of the surroundings of a line, in heights of the line
_STAYS = 0.5  # least `stay` of a line that keeps its place
_STILL = 0.65  # least `around` of surroundings that stand still
_MOVES = 0.4  # upper bound of `stay` of a moving line, and of `around` of moving surroundings
_APART = 0.25  # least excess of `stay` over `around` for an overlay, in one look
_PASSES = 0.6  # from this `around` on, surroundings move in part at most
_APART_OFTEN = 0.15  # least mean excess of `stay` over `around` for an overlay, in 3 looks or more
_STEADY = 0.015  # most motion of a line's middle in 3 looks or more, as a share of the picture
_LONG = 5.0  # least aspect ratio, in pixels, of a line that gives evidence if it is replaced
_SLIDES = 0.04  # least speed of scrolling text, in picture widths/s: 1.3 px of 320 in 0.1 s
_BAND_WIDTH = 0.5  # least width of a ticker, as a share of the picture; text on lorries is narrower
_AROUND_S = 60.0  # how far beyond the clip other scenes of the source are compared
_MAX_CONTEXT = 512
_UNLIKE = 0.6  # similarity of descriptors below which two looks show different scenes
_X0, _Y0, _X1, _Y1, _CONFIDENCE, _AREA, _STAY, _AROUND, _SLIDE = range(9)


def may_have_text(gray_HW: Gray) -> bool:
    """Whether a picture has strokes side by side, as any line of text has.

    A line has many strong changes from left to right within a band of its own height. This check
    costs a fortieth of the detector.
    """
    strokes = cv2.morphologyEx(gray_HW, cv2.MORPH_GRADIENT, np.ones((1, 3), np.uint8))
    strong = (strokes > 32).astype(np.uint8) * 255
    scale = max(gray_HW.shape) / 640
    dense = cv2.blur(strong, (max(5, round(33 * scale)), max(3, round(7 * scale)))) > 72
    return bool(dense.any())


def place_values(gray_HW: Gray, later_HW: Gray, boxes_B: Floats) -> Floats:
    """Returns how much of each box, and of its surroundings, keeps its place until the next sample.

    `boxes_B` are float32 [B, 4 or more]: x0, y0, x1, y1 as shares of width and height.

    Returns:
        float32 [B, 2]: `stay` and `around` of `TEXT_COLUMNS`.
    """
    values = np.full((len(boxes_B), 2), np.nan, np.float32)
    if not len(boxes_B):
        return values
    height, width = gray_HW.shape
    before, after = _gradients(gray_HW), _gradients(later_HW)
    planes = [_dot(before, after), _dot(before, before), _dot(after, after)]
    products = cv2.merge(planes)
    strong = (np.sqrt(planes[1]) + np.sqrt(planes[2]) >= 2 * _STRONG).view(np.uint8)
    pixels = [_pixels(box, width, height) for box in boxes_B]
    for x0, y0, x1, y1 in pixels:
        strong[y0:y1, x0:x1] = 0
    has_whole = cv2.countNonZero(strong) >= 4 * _MIN_PIXELS
    whole = _correlation(cv2.mean(products, strong)) if has_whole else float("nan")
    for index, (x0, y0, x1, y1) in enumerate(pixels):
        values[index, 0] = _correlation(cv2.mean(products[y0:y1, x0:x1]))
        ring = max(4, round(_RING * min(x1 - x0, y1 - y0)))
        around = np.s_[max(0, y0 - ring) : y1 + ring, max(0, x0 - ring) : x1 + ring]
        free = strong[around]
        enough = cv2.countNonZero(free) >= _MIN_PIXELS
        values[index, 1] = _correlation(cv2.mean(products[around], free)) if enough else whole
    return values


def slides(
    before_HW: Gray, after_HW: Gray, flow_HW2: Floats | None, boxes_B: Floats, seconds: float
) -> Floats:
    """Returns the sideways speed of the content of each box: `slide`, float32 [B].

    `flow_HW2` is the dense flow between both pictures, in pixels; None if they are too small.
    """
    values = np.full(len(boxes_B), np.nan, np.float32)
    if flow_HW2 is None:
        return values
    height, width = before_HW.shape
    reach = max(4, width // 12)
    for index, box in enumerate(boxes_B):
        x0, y0, x1, y1 = _pixels(box, width, height)
        # Text that enters or leaves at the ends has no counterpart in the other picture.
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


def _gradients(gray_HW: Gray) -> list[NDArray[Any]]:
    """Returns the change per pixel to the right and downwards, float32 [H, W] each."""
    return [cv2.Sobel(gray_HW, cv2.CV_32F, dx, 1 - dx, ksize=3, scale=1 / 8) for dx in (1, 0)]


def _dot(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]]) -> Floats:
    return np.asarray(one[0] * other[0] + one[1] * other[1], np.float32)


def _correlation(means: Sequence[float]) -> float:
    cross, before, after, _ = means
    return float(cross / np.sqrt(before * after)) if before * after > 0 else float("nan")


def _pixels(box: Floats, width: int, height: int) -> tuple[int, int, int, int]:
    x0, y0 = int(box[0] * width), int(box[1] * height)
    x1, y1 = int(np.ceil(box[2] * width)), int(np.ceil(box[3] * height))
    return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)


def _overlay_lines(clip: ClipView) -> Mask:
    """Returns which of the clip's lines of text are drawn over the picture, bool [n]."""
    track = clip.track
    own = clip.holds(track.text_frame)
    frame, lines = track.text_frame[own], track.text_line[own]
    if not len(frame):
        return np.zeros(0, bool)
    looks = track.look_frame[clip.holds(track.look_frame)]
    next_frame = track.look_next_frame[np.searchsorted(track.look_frame, frame)]
    inside = (next_frame >= 0) & (next_frame < clip.span.end_frame)
    stay, around = lines[:, _STAY], lines[:, _AROUND]
    # While an object passes in front of a sign, only a part of the sign's surroundings moves. Such
    # looks give no evidence.
    apart = np.where(around < _PASSES, stay - np.maximum(around, 0), np.nan)
    same = _same_place(lines, lines)
    stays = (stay >= _STAYS) & (apart >= _APART) & (around < _MOVES)
    stays |= _keeps(frame, lines, apart, same)
    scrolls = _scrolls(frame, lines, len(looks))
    moves = inside & (stay < _MOVES) & (around < _MOVES + 0.1) & ~scrolls & ~stays
    comes_and_goes = _replaced(frame, lines, looks, clip.size)
    votes = 2.0 * (stays | scrolls | comes_and_goes) - 1.0 * moves
    votes += 2.0 * (_elsewhere(clip, frame, lines) & ~moves)
    total = same.astype(np.float32) @ votes.astype(np.float32)
    # The one picture of a still image gives no other evidence than the place.
    placed = (total == 0) & (_is_still(lines) | (track.n_frames == 1)) & _usual_place(lines)
    overlay = (total > 0) & ~(moves & (votes < 0)) | placed
    # A line in the same rows as an overlay, with about the same middle, is an overlay too.
    alike = _same_rows(lines, lines) & _same_middle(lines, lines)
    overlay |= (alike & overlay[None, :]).any(1) & ~moves
    return np.asarray(overlay, bool)


def _keeps(frame: Frames, lines: Floats, apart: Floats, same: Mask) -> Mask:
    """Returns lines that keep their place better than their surroundings, over several looks.

    The scene shows between the letters of an overlay. If the scene moves, `stay` falls, most of all
    with thin letters. If a camera shakes, a sign of the scene may return to its place. But then the
    sign's surroundings return as well, so `stay` is not above `around`. A sign that passes slowly
    has a `stay` of about a third, but its middle moves on.
    """
    is_measured = np.isfinite(apart)
    together = same & is_measured[None, :]
    total = together @ np.where(is_measured, apart, 0)
    n_looks = _n_looks(frame, together)
    enough = total >= _APART_OFTEN * np.maximum(together.sum(1), 1)
    middles = (lines[:, :2] + lines[:, 2:4]) / 2
    spread = np.array([np.ptp(middles[row], axis=0).max() for row in same])
    return np.asarray(enough & (n_looks >= 3) & (spread <= _STEADY), bool)


def _scrolls(frame: Frames, lines: Floats, n_looks: int) -> Mask:
    """Returns lines in a wide band of text that moves sideways relative to its surroundings."""
    slide = lines[:, _SLIDE]
    sliding = np.abs(np.nan_to_num(slide)) >= _SLIDES
    if not sliding.any():
        return sliding
    rows = _same_rows(lines, lines)
    together = rows & (frame[:, None] == frame[None, :])
    width = together @ (lines[:, _X1] - lines[:, _X0])
    bands = sliding & (width >= _BAND_WIDTH)
    seen = _n_looks(frame, rows & bands)
    return np.asarray((width >= _BAND_WIDTH) & (seen >= max(1, min(2, n_looks))), bool)


def _replaced(frame: Frames, lines: Floats, looks: Frames, size: tuple[int, int]) -> Mask:
    """Returns lines that appear, disappear or change to other text while the scene stays.

    All text of the same rows in one look counts as one line: the detector may split a line between
    words in one look and not in the next.
    """
    rows = _same_rows(lines, lines)
    together = rows & (frame[:, None] == frame[None, :])
    begins = np.where(together, lines[None, :, _X0], 1).min(1)
    ends = np.where(together, lines[None, :, _X1], 0).max(1)
    middle, width = (begins + ends) / 2, ends - begins
    apart = rows & (frame[:, None] != frame[None, :])
    other = np.abs(width[:, None] - width[None, :]) > np.maximum(0.03, 0.06 * width)
    centred = np.abs(middle[:, None] - middle[None, :]) < 0.03
    own = lines[:, 2:4] - lines[:, :2]
    long = own[:, 0] * size[0] >= _LONG * own[:, 1] * size[1]
    sure = (lines[:, _CONFIDENCE] >= 0.75) & _is_still(lines) & long
    changes = (apart & other & centred & sure[None, :]).any(1) & sure
    covered = _shared(lines, lines) > 0.3 * _sizes(lines)[:, None]
    seen = _n_looks(frame, covered)
    blinks = sure & (seen < len(looks)) & (lines[:, _CONFIDENCE] >= 0.8)
    blinks &= (lines[:, _AROUND] >= 0.7) & (lines[:, _STAY] >= 0.9)
    return np.asarray(changes | blinks, bool)


def _elsewhere(clip: ClipView, frame: Frames, lines: Floats) -> Mask:
    """Returns lines that a different scene nearby has in the same place or style.

    A line has the same style if it has about the same rows and the same middle.
    """
    track, span = clip.track, clip.span
    reach = round(_AROUND_S / float(track.time_base))
    pts = track.frame_pts
    begin = int(np.searchsorted(pts, int(pts[span.start_frame]) - reach))
    end = int(np.searchsorted(pts, track.pts_of_end(span.end_frame) + reach))
    outside = (track.text_frame >= begin) & (track.text_frame < end)
    outside &= ~clip.holds(track.text_frame)
    indices = np.flatnonzero(outside)
    if len(indices) > _MAX_CONTEXT:
        indices = indices[np.linspace(0, len(indices) - 1, _MAX_CONTEXT).astype(int)]
    if not len(indices) or not len(track.sample_frame):
        return np.zeros(len(lines), bool)
    others = track.text_line[indices]
    nearest = np.searchsorted(track.sample_frame, track.text_frame[indices])
    theirs = track.descriptor[np.minimum(nearest, len(track.sample_frame) - 1)]
    nearest = np.searchsorted(track.sample_frame, frame)
    ours = track.descriptor[np.minimum(nearest, len(track.sample_frame) - 1)]
    unlike = ours @ theirs.T < _UNLIKE
    style = _same_rows(lines, others) & _same_middle(lines, others)
    matches = unlike & (_same_place(lines, others) | style)
    # A match in only one look could be by chance.
    return _n_looks(track.text_frame[indices], matches) >= 2


def _n_looks(frame: Frames, masks: Mask) -> NDArray[np.int64]:
    """Returns, for each mask over lines, in how many looks its lines are, int64 [masks]."""
    return np.array([len(np.unique(frame[mask])) for mask in masks], np.int64)


def _is_still(lines: Floats) -> Mask:
    """Returns lines in still surroundings; without edges around, the line itself must stay."""
    around = lines[:, _AROUND]
    return np.asarray((around >= _STILL) | (np.isnan(around) & (lines[:, _STAY] >= 0.9)), bool)


def _usual_place(lines: Floats) -> Mask:
    """Returns lines in the middle of the bottom, and small lines close to a corner."""
    x0, y0, x1, y1 = lines[:, :4].T
    middle = np.abs((x0 + x1) / 2 - 0.5) < 0.03
    bottom = middle & (y0 > 0.7) & (x1 - x0 > 0.12)
    side = (x0 < 0.08) | (x1 > 0.92)
    small = side & ((y1 < 0.16) | (y0 > 0.84)) & (y1 - y0 < 0.13)
    small |= side & ((y0 < 0.06) | (y1 > 0.94)) & (y1 - y0 < 0.2) & (x1 - x0 < 0.35)
    return np.asarray((lines[:, _CONFIDENCE] >= 0.75) & (bottom | small), bool)


def _same_place(a: Floats, b: Floats) -> Mask:
    """Returns whether boxes have an intersection over union of at least 0.5, bool [A, B]."""
    both = _sizes(a)[:, None] + _sizes(b)[None, :]
    return np.asarray(3 * _shared(a, b) >= both, bool)


def _shared(a: Floats, b: Floats) -> Floats:
    """Returns the share of the picture that boxes have in common, float32 [A, B]."""
    begin = np.maximum(a[:, None, :2], b[None, :, :2])
    end = np.minimum(a[:, None, 2:4], b[None, :, 2:4])
    return np.asarray(np.prod(np.clip(end - begin, 0, None), axis=2), np.float32)


def _sizes(lines: Floats) -> Floats:
    return np.asarray(np.prod(lines[:, 2:4] - lines[:, :2], axis=1), np.float32)


def _same_rows(a: Floats, b: Floats) -> Mask:
    """Returns whether boxes begin and end at about the same rows, bool [A, B]."""
    heights = [c[:, _Y1] - c[:, _Y0] for c in (a, b)]
    slack = 0.3 * np.maximum(heights[0][:, None], heights[1][None, :])
    top = np.abs(a[:, None, _Y0] - b[None, :, _Y0]) <= slack
    bottom = np.abs(a[:, None, _Y1] - b[None, :, _Y1]) <= slack
    return np.asarray(top & bottom, bool)


def _same_middle(a: Floats, b: Floats) -> Mask:
    middles = [(c[:, _X0] + c[:, _X1]) / 2 for c in (a, b)]
    return np.asarray(np.abs(middles[0][:, None] - middles[1][None, :]) < 0.03, bool)


def _text_area(clip: ClipView) -> float | None:
    areas = _areas(clip, of_overlays=False)
    return None if areas is None else float(areas.mean())


def _overlay_text_area(clip: ClipView) -> float | None:
    areas = _areas(clip, of_overlays=True)
    return None if areas is None else float(areas.max())


def _areas(clip: ClipView, *, of_overlays: bool) -> NDArray[np.float64] | None:
    """Returns the share of each look that text covers, float64 [looks]; None if unmeasured."""
    track = clip.track
    looks = track.look_frame[clip.holds(track.look_frame)]
    if not track.has_text or not len(looks):
        return None
    own = clip.holds(track.text_frame)
    area = track.text_line[own, _AREA].astype(np.float64)
    if of_overlays:
        area = area * _overlay_lines(clip)
    sums = np.bincount(np.searchsorted(looks, track.text_frame[own]), area, len(looks))
    return np.minimum(sums, 1.0)


SCORES = {
    "text_area": ScoreSpec(
        unit="0 to 1",
        range="0 without text to 1; null with analyze.text off",
        meaning="share of the picture that text of any kind covers, mean over overlay samples "
        "(RapidOCR's detector)",
        low="too_little_text",
        high="too_much_text",
        of=_text_area,
        needs="analyze.text",
    ),
    "overlay_text_area": ScoreSpec(
        unit="0 to 1",
        range="0 without overlays to 1; null with analyze.text off",
        meaning="share of the picture that overlaid text covers (subtitles, tickers, watermarks), "
        "in the overlay sample with the largest share",
        low="too_little_text",
        high="overlay_text",
        of=_overlay_text_area,
        needs="analyze.text",
    ),
}
